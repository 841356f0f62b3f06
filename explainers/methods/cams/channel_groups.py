"""Channels with similar masks, so that one forward pass serves several of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_SIDE = 16
"""Largest side at which masks are compared; finer ones are average-pooled."""


def grouped(planes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """At most `count` channels whose masks represent those of all.

    Each plane is scaled to [0, 1]. The first is the channel of the largest norm; each next one is the farthest from all
    before it, so that any prefix is spread out. Every channel joins the nearest. Constant planes have no mask and
    should not be among them.

    Returns  the representatives, in that order (all channels in their own order, where there are no more than `count`),
             and for each channel its representative
    Source   Gonzalez 1985, doi:10.1016/0304-3975(85)90224-5: farthest-first traversal
    """
    total = len(planes)
    channels = torch.arange(total, device=planes.device)
    if total <= count:
        return channels, channels
    masks = _scaled(planes)
    chosen = [int(planes.flatten(1).norm(dim=1).argmax())]
    nearest = (masks - masks[chosen[0]]).square().sum(1)
    representative = torch.full_like(channels, chosen[0])
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        distances = (masks - masks[chosen[-1]]).square().sum(1)
        # A chosen channel represents itself, also where another has the same mask.
        closer = (distances < nearest) | (channels == chosen[-1])
        representative = torch.where(closer, chosen[-1], representative)
        nearest = torch.where(closer, distances, nearest)
        nearest[chosen] = -1.0
    return torch.tensor(chosen, device=planes.device), representative


def _scaled(planes: Tensor) -> Tensor:
    """Planes (k, h, w) as rows, scaled to [0, 1]."""
    sides = min(_SIDE, planes.shape[1]), min(_SIDE, planes.shape[2])
    rows = functional.adaptive_avg_pool2d(planes[:, None], sides).flatten(1)
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    return torch.where(high > low, (rows - low) / (high - low), 0)
