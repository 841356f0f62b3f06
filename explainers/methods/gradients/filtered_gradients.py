"""Attributions filtered by a low-pass filter."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.loop import Loop
from explainers.call.run import open_run
from explainers.keywords import Cost
from explainers.methods.gradients.input_gradients import smooth_grad
from explainers.methods.gradients.path_integrals import Start, Steps, integrated_gradients
from explainers.options import Choice, Range, Samples, Seed
from explainers.registry import method
from explainers.targets import TargetLike


@method(
    family="gradient",
    returns="heat",
    unit="logit per unit of input",
    title="FORGrad",
    signed=False,
    paper="Muzellec et al. 2023, arXiv:2307.09591",
    videos=False,
)
def forgrad(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    base: Annotated[
        str, Choice("smooth_grad", "saliency", "integrated_gradients", help="attribution method to filter")
    ] = "smooth_grad",
    cutoff: Annotated[
        float, Range(0, 4096, 0.5, help="highest frequency that passes, in cycles over the image's shorter side")
    ] = 15.0,
    samples: Samples = 25,
    steps: Steps = None,
    baseline: Start = "zeros",
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """FORGrad: a low-pass filtered attribution, without the high frequencies caused by strides and pooling.

        |F⁻¹(F(|a|) · [frequency <= cutoff])|,  a the base attribution, F the Fourier transform

    |a| is one value per pixel: the largest magnitude over the channels for SmoothGrad and saliency, the magnitude of
    their sum for integrated gradients. The outer magnitude follows the authors' code. In the paper, 15 cycles were
    suitable for ImageNet networks at 224 px; a cutoff above all frequencies of a small image has no effect. On
    EfficientNet-Lite0, filtered saliency and integrated gradients were no better than a centered blob.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w), >= 0, in the units of `base`; docs/figures.md lists the error in bf16
    Errors   BadTarget, BadOption
    Source   Muzellec et al. 2023, the filter with cutoff sigma, arXiv:2307.09591; magnitudes before and after: Xplique

    Example
        >>> forgrad(model, images, 281, samples=8).shape
        torch.Size([1, 224, 224])
    """

    def filtered(attribution: Tensor) -> Tensor:
        return low_pass(attribution.abs(), cutoff).abs()

    progress = cost.get("progress")
    if progress is not None:
        cost["progress"] = lambda partial: progress(
            partial if partial.map is None else replace(partial, map=filtered(partial.map))
        )
    if base == "smooth_grad":
        noisy = smooth_grad(model, images, target, samples=samples, seed=seed, **cost)
        return filtered(noisy.abs().amax(1))
    if base == "integrated_gradients":
        integrated = integrated_gradients(model, images, target, steps=steps, baseline=baseline, seed=seed, **cost)
        return filtered(integrated.sum(1))
    loop = Loop(cost.get("batch_size"), cost.get("progress"), cost.get("budget"))
    # Without variants of the images, so that `forward` may have one row of another input for each image.
    with open_run(model, images, target, precision=cost.get("precision", "float32")) as run:
        attribution = run.backward.gradient(run.images).abs().amax(1)
    # A single gradient cannot be stopped early; `progress` gets the result.
    loop.run(1, 1, lambda chunk: None, lambda: attribution)
    return filtered(attribution)


def low_pass(pixels: Tensor, cutoff: float) -> Tensor:
    """Remove the frequencies above `cutoff`, in cycles over the shorter side, from pixels [..., H, W]."""
    height, width = pixels.shape[-2:]
    side = min(height, width)
    rows = torch.fft.fftfreq(height, 1 / side, dtype=torch.float64)
    columns = torch.fft.rfftfreq(width, 1 / side, dtype=torch.float64)
    # A frequency exactly at the cutoff passes, regardless of rounding in the division.
    passes = rows[:, None] ** 2 + columns**2 <= cutoff**2 * (1 + 1e-9)
    return torch.fft.irfft2(torch.fft.rfft2(pixels) * passes.to(pixels.device), s=(height, width))
