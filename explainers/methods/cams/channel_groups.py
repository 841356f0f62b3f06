"""Which of a layer's channels show the network the same part of a picture, so that one look serves several of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_SIDE = 16
"""Cells a side at which masks are compared: finer ones are averaged."""


def grouped(planes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """At most `count` of the channels that stand for all of them, by the masks that they make.

    Each plane is scaled to [0, 1]. The first is that of the strongest channel; each next one is the farthest from all
    before it, so that any first few are as different as they can be. Every channel goes with the nearest. Planes of one
    value have no mask and should not be among them.

    Returns  the chosen channels, in that order (all, in their own order, where there are no more than `count`), and for
             each channel the chosen one that it goes with
    Source   Gonzalez 1985, doi:10.1016/0304-3975(85)90224-5: farthest-first traversal
    """
    total = len(planes)
    everyone = torch.arange(total, device=planes.device)
    if total <= count:
        return everyone, everyone
    masks = _compared(planes)
    chosen = [int(planes.flatten(1).norm(dim=1).argmax())]
    nearest = (masks - masks[chosen[0]]).square().sum(1)
    leader = torch.full_like(everyone, chosen[0])
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        away = (masks - masks[chosen[-1]]).square().sum(1)
        # Of two alike each still goes with itself once it is chosen.
        closer = (away < nearest) | (everyone == chosen[-1])
        leader = torch.where(closer, chosen[-1], leader)
        nearest = torch.where(closer, away, nearest)
        nearest[chosen] = -1.0
    return torch.tensor(chosen, device=planes.device), leader


def _compared(planes: Tensor) -> Tensor:
    """Planes (k, h, w) as rows, scaled to [0, 1]."""
    sides = min(_SIDE, planes.shape[1]), min(_SIDE, planes.shape[2])
    rows = functional.adaptive_avg_pool2d(planes[:, None], sides).flatten(1)
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    return torch.where(high > low, (rows - low) / (high - low), 0)
