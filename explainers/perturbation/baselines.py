"""Baselines: the reference inputs that stand for absence, for a whole image or its masked parts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from explainers.errors import BadOption
from explainers.options import Baseline

NAMES = ("blur", "mean", "noise")


def extremes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Each image's minimum and range, maximum − minimum, both [N, 1, 1, 1]: the scale of noise and random baselines."""
    low = images.amin((1, 2, 3), keepdim=True)
    return low, images.amax((1, 2, 3), keepdim=True) - low


def baseline_of(images: Tensor, baseline: Baseline, seed: int = 0) -> Tensor:
    """The baseline of each image, in the images' shape.

    None: zeros in the model's units · a number · a tensor that broadcasts to the images · "blur": the image after a
    Gaussian blur, σ a sixteenth of its shorter side · "mean": each channel's mean · "noise": uniform from the image's
    minimum to its maximum.

    Errors   BadOption for an unknown name or a tensor of another shape
    """
    if baseline is None:
        return torch.zeros_like(images)
    if isinstance(baseline, Tensor):
        try:
            return baseline.detach().to(images).expand_as(images).clone()
        except RuntimeError as reason:
            raise BadOption(
                f"baseline has shape {tuple(baseline.shape)}, which does not broadcast to images {tuple(images.shape)}."
                f" Give {tuple(images.shape[1:])}, or one value a channel: {(images.shape[1], 1, 1)}."
            ) from reason
    if isinstance(baseline, (int, float)) and not isinstance(baseline, bool):
        return torch.full_like(images, float(baseline))
    if baseline == "mean":
        return images.mean(dim=(2, 3), keepdim=True).expand_as(images).clone()
    if baseline == "blur":
        return _blurred(images)
    if baseline == "noise":
        noise = torch.rand(images.shape[1:], generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
            images
        )
        low, span = extremes(images)
        return low + span * noise
    raise BadOption(
        f"baseline={baseline!r} is not possible. Give None (zeros), a number, a tensor, or one of {', '.join(NAMES)}."
    )


def _blurred(images: Tensor) -> Tensor:
    """Gaussian blur, σ a sixteenth of the shorter side, with replicated borders."""
    height, width = images.shape[-2:]
    sigma = max(min(height, width) / 16, 0.5)
    radius = min(int(3 * sigma + 0.5), min(height, width))
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    kernel = torch.exp(-(offsets**2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).to(images)
    planes = images.flatten(0, 1)[:, None]
    planes = F.conv2d(F.pad(planes, (radius, radius, 0, 0), mode="replicate"), kernel.view(1, 1, 1, -1))
    planes = F.conv2d(F.pad(planes, (0, 0, radius, radius), mode="replicate"), kernel.view(1, 1, -1, 1))
    return planes[:, 0].view_as(images)
