"""What "nothing there" looks like: the baselines that a picture or its parts are compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from explainers.errors import BadOption
from explainers.options import Baseline

NAMES = ("blur", "mean", "noise")


def extremes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Each picture's smallest value and its range, largest less smallest, both [N, 1, 1, 1].

    Returns  in the model's own units; noise is a share of the range, random baselines lie within it
    """
    low = images.amin((1, 2, 3), keepdim=True)
    return low, images.amax((1, 2, 3), keepdim=True) - low


def baseline_of(images: Tensor, baseline: Baseline, seed: int = 0) -> Tensor:
    """The baseline for each picture, in the images' shape.

    None: zeros in the model's own units · a number · a tensor that broadcasts to the images · "blur": the picture,
    blurred over an eighth of its shorter side · "mean": each channel's mean · "noise": uniform between the picture's
    extremes.

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
    """Gaussian blur with a deviation of a sixteenth of the shorter side, borders repeated."""
    height, width = images.shape[-2:]
    sigma = max(min(height, width) / 16, 0.5)
    reach = min(int(3 * sigma + 0.5), min(height, width))
    at = torch.arange(-reach, reach + 1, dtype=torch.float64)
    kernel = torch.exp(-(at**2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).to(images)
    flat = images.flatten(0, 1)[:, None]
    flat = F.conv2d(F.pad(flat, (reach, reach, 0, 0), mode="replicate"), kernel.view(1, 1, 1, -1))
    flat = F.conv2d(F.pad(flat, (0, 0, reach, reach), mode="replicate"), kernel.view(1, 1, -1, 1))
    return flat[:, 0].view_as(images)
