"""Network inputs as images to look at: the normalization is undone, as far as the values tell which one it is."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from explainers.maps.arrays import one_for_each, pixels

MARGIN = 0.02
"""How far values may leave [0, 1] through interpolation."""
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Shown(NamedTuple):
    """The pixels of an image, uint8 [H, W, 3], and how its colors were found, "" if they are the image's own."""

    pixels: Tensor
    note: str


def given_images(photos: Any, count: int) -> list[Shown]:
    """Convert the caller's images, as `Explanation.overlay` accepts them.

    Errors   BadImages if there is not one image for each of the `count` maps; those of `pixels`
    """
    return [Shown(pixels(photo)[..., :3], "") for photo in one_for_each(photos, count)]


def network_inputs(images: Tensor) -> list[Shown]:
    """Convert a network's inputs [N, C, H, W] to images.

    Values from 0 to 1 and from 0 to 255 are colors. Values from -1 to 1 had mean and standard deviation 0.5. For other
    values, the normalization of ImageNet is undone (that of CLIP is nearly the same); if that does not give colors from
    0 to 1, or the image does not have three channels, its values are stretched to the full range. One channel is gray,
    and of more than three, the first three are shown.
    """
    values = images.detach().to("cpu", torch.float32)
    values = torch.where(values.isfinite(), values, 0.0)
    bands = values.shape[1]
    if bands != 3:
        values = values[:, :1].expand(-1, 3, -1, -1) if bands < 3 else values[:, :3]
    colors, note = _colors(values, bands)
    if bands > 3:
        note = f"bands 1 to 3 of {bands}, {note}"
    return [Shown((each.permute(1, 2, 0) * 255).round().to(torch.uint8), note) for each in colors.clamp(0, 1)]


def _colors(values: Tensor, bands: int) -> tuple[Tensor, str]:
    low, high = float(values.min()), float(values.max())
    if low >= -MARGIN and high <= 1 + MARGIN:
        return values, ""
    if low >= 0 and high <= 255:
        return values / 255, ""
    if low >= -1 - MARGIN and high <= 1 + MARGIN:
        return values * 0.5 + 0.5, "normalization with mean 0.5 undone"
    mean, std = IMAGENET
    colors = values * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    if bands == 3 and float(colors.min()) >= -MARGIN and float(colors.max()) <= 1 + MARGIN:
        return colors, "normalization of ImageNet undone"
    return (values - low) / (high - low), "colors stretched, because the normalization is unknown"
