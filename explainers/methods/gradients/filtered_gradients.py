"""Attributions without their high frequencies."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from explainers.methods.gradients.noisy_gradients import Samples, smooth_grad
from explainers.methods.gradients.path_integrals import Start, Steps, integrated_gradients
from explainers.options import Choice, Precision, Range, Seed
from explainers.passes.loop import Loop, Partial, Progress
from explainers.passes.run import open_run
from explainers.registry import method
from explainers.targets import TargetLike


@method(
    family="gradient",
    returns="heat",
    unit="logit per unit of input",
    title="FORGrad",
    signed=False,
    paper="Muzellec et al. 2023, arXiv:2307.09591",
)
def forgrad(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    base: Annotated[
        str, Choice("smooth_grad", "saliency", "integrated_gradients", help="the attribution that is filtered")
    ] = "smooth_grad",
    cutoff: Annotated[
        float, Range(0, 4096, 0.5, help="highest frequency that stays, in cycles over the picture's shorter side")
    ] = 15.0,
    samples: Samples = 25,
    steps: Steps = None,
    baseline: Start = None,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """FORGrad: an attribution without its high frequencies, which stem from strides and pooling, not from the picture.

    The base is drawn by its size, one value a pixel: the largest magnitude among the colour channels for SmoothGrad and
    saliency, that of their sum for integrated gradients. The filter is ideal and round: frequencies up to `cutoff` stay
    as they are, all others become 0, and of the result the size counts, as in the authors' code. 15 cycles are what the
    paper found to suit ImageNet networks at 224 px; a cutoff beyond all frequencies of a small picture changes nothing.
    On EfficientNet-Lite0 saliency and integrated gradients filtered so were no better than a blob in the middle.

    Returns  (n, h, w), >= 0, in the units of `base`; drift in bf16: docs/figures.md
    Errors   BadTarget, BadOption
    Source   Muzellec et al. 2023, the filter with cutoff sigma, arXiv:2307.09591; the size before and after it: Xplique
    """

    def filtered(sizes: Tensor) -> Tensor:
        return low_pass(sizes.abs(), cutoff).abs()

    def watch(partial: Partial) -> Any:
        assert progress is not None
        return progress(partial if partial.map is None else replace(partial, map=filtered(partial.map)))

    cost: dict[str, Any] = {"batch_size": batch_size, "budget": budget, "progress": watch if progress else None}
    if base == "smooth_grad":
        noisy = smooth_grad(model, images, target, samples=samples, seed=seed, precision=precision, **cost)
        return filtered(noisy.abs().amax(1))
    if base == "integrated_gradients":
        way: dict[str, Any] = {"steps": steps, "baseline": baseline, "seed": seed}
        path = integrated_gradients(model, images, target, precision=precision, **way, **cost)
        return filtered(path.sum(1))
    with open_run(model, images, target, precision=precision) as run:
        found = filtered(run.gradient(run.images).abs().amax(1))
    # One gradient: there is nothing to stop, and somebody who watches sees the end.
    Loop(batch_size, progress, budget).run(1, 1, lambda chunk: None, lambda: found)
    return found


def low_pass(pixels: Tensor, cutoff: float) -> Tensor:
    """Pixels [..., H, W] without the frequencies above `cutoff`, in cycles over the shorter side."""
    height, width = pixels.shape[-2:]
    side = min(height, width)
    down = torch.fft.fftfreq(height, 1 / side, dtype=torch.float64)
    right = torch.fft.rfftfreq(width, 1 / side, dtype=torch.float64)
    # A frequency exactly at the cutoff stays, whichever way the division rounds.
    kept = down[:, None] ** 2 + right**2 <= cutoff**2 * (1 + 1e-9)
    return torch.fft.irfft2(torch.fft.rfft2(pixels) * kept.to(pixels.device), s=(height, width))
