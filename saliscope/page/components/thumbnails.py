"""Small versions of maps, and small images of the channels of a layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def reduced(planes: Tensor, side: int) -> Tensor:
    """Return planes [K, h, w] averaged to at most `side` cells per side; smaller ones are not enlarged."""
    height, width = planes.shape[1:]
    shrink = max(height, width) / side
    if shrink <= 1:
        return planes
    return functional.adaptive_avg_pool2d(planes, (max(1, round(height / shrink)), max(1, round(width / shrink))))


def thumbnails(features: Tensor, cell: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the channels [K, h, w] of one image as small grayscale images, each normalized to its own range.

    Returns  (planes, low, high): planes uint8 `[K, c, c]` for square grids, else in the grid's aspect ratio, with no
             side above `cell`: larger grids are averaged, smaller ones are not enlarged. A plane's value v means
             `low + v / 255 * (high - low)`; low and high are float32 `[K]`, of the averaged plane. A constant channel
             is 0 with low = high. Values that are not finite are drawn as 0 and excluded from the range, which is NaN
             if no value is finite.
    """
    planes = reduced(features.detach().float(), cell)
    finite = planes.isfinite()
    low = torch.where(finite, planes, math.inf).amin(dim=(1, 2))
    high = torch.where(finite, planes, -math.inf).amax(dim=(1, 2))
    span = torch.where(high > low, high - low, 1.0)[:, None, None]
    shares = (planes - low[:, None, None]) / span * 255
    empty = ~finite.any(dim=2).any(dim=1)
    shares = torch.where(finite, shares, 0.0).round().clamp(0, 255)
    return shares.to(torch.uint8), low.masked_fill(empty, torch.nan), high.masked_fill(empty, torch.nan)
