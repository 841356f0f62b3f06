"""Attributions without their high frequencies."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from ..baselines import baseline_of
from ..batching import Loop, Progress
from ..options import Baseline, Choice, Precision, Range
from ..passes import opened, precise
from ..quadrature import gauss_legendre
from ..registry import method
from ..targets import TargetLike
from .path_integrals import integrate, measures_gap, note_gap, straight


@method(
    family="gradient",
    returns="pixels",
    title="FORGrad",
    paper="Muzellec et al. 2023, arXiv:2307.09591",
)
def forgrad(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    base: Annotated[
        str, Choice("integrated_gradients", "saliency", help="the attribution that is filtered")
    ] = "integrated_gradients",
    cutoff: Annotated[
        float, Range(0, 4096, 0.5, help="highest frequency that stays, in cycles over the picture's shorter side")
    ] = 15.0,
    steps: Annotated[int, Range(2, 1000, help="for integrated gradients: points on the path")] = 50,
    baseline: Annotated[
        Baseline, Choice("blur", "mean", help="for integrated gradients: where the path begins")
    ] = None,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """FORGrad: an attribution without its high frequencies, which stem from strides and pooling, not from the picture.

    The filter is ideal and round, over each colour channel of the signed attribution: frequencies up to `cutoff` stay
    as they are, all others become 0. 15 cycles are what the paper found to suit ImageNet networks at 224 px; a cutoff
    beyond all frequencies of a small picture changes nothing. The base is integrated gradients, or "saliency", which
    takes one gradient.

    Returns  (n, c, h, w), signed, in the units of `base`, whose sum it keeps; drift in bf16: see README
    Errors   BadTarget, BadOption
    Source   Muzellec et al. 2023, the filter with cutoff sigma, arXiv:2307.09591
    """
    with opened(model, images, target, many=base != "saliency", precision=precision) as run:
        x = run.images
        loop = Loop(batch_size, progress, budget)

        def shown(attribution: Tensor) -> Tensor:
            return low_pass(attribution.sum(1), cutoff)

        if base == "integrated_gradients":
            full, start = run.clean(), baseline_of(x, baseline)
            points, weights = gauss_legendre(steps)
            found = integrate(run, loop, weights, straight(x, start, points), shown)
            if measures_gap(target):
                note_gap(found, full - run.values(start, range(len(x))), {"steps": min(1000, 4 * steps)})
            return low_pass(found, cutoff)
        gradient = precise(torch.zeros_like(x))

        def work(chunk: range) -> None:
            gradient.copy_(run.gradient(x))

        loop.run(1, 1, work, lambda: shown(gradient))
        return low_pass(gradient, cutoff)


def low_pass(pixels: Tensor, cutoff: float) -> Tensor:
    """Pixels [..., H, W] without the frequencies above `cutoff`, in cycles over the shorter side."""
    height, width = pixels.shape[-2:]
    side = min(height, width)
    down = torch.fft.fftfreq(height, 1 / side, dtype=torch.float64)
    right = torch.fft.rfftfreq(width, 1 / side, dtype=torch.float64)
    # A frequency exactly at the cutoff stays, whichever way the division rounds.
    kept = down[:, None] ** 2 + right**2 <= cutoff**2 * (1 + 1e-9)
    return torch.fft.irfft2(torch.fft.rfft2(pixels) * kept.to(pixels.device), s=(height, width))
