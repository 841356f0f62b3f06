"""Groups of channels with similar masks that can share one forward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

_SIDE = 16
"""Largest side at which masks are compared; finer masks are average-pooled."""


def group_channels(planes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Select at most `count` channels whose masks represent those of all channels.

    Each plane is scaled to [0, 1]. The first representative is the channel with the largest norm; each next one is the
    farthest from all before it, so that any prefix is spread out. Every channel is assigned to the nearest
    representative. Constant planes have no mask and must be excluded.

    Returns  the representatives in that order (if there are at most `count` channels, all of them in their own order),
             and the representative of each channel
    Source   Gonzalez 1985, doi:10.1016/0304-3975(85)90224-5: farthest-first traversal
    """
    total = len(planes)
    channels = torch.arange(total, device=planes.device)
    if total <= count:
        return channels, channels
    masks = _scale_rows(planes)
    chosen = [int(planes.flatten(1).norm(dim=1).argmax())]
    nearest = (masks - masks[chosen[0]]).square().sum(1)
    representative = torch.full_like(channels, chosen[0])
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        distances = (masks - masks[chosen[-1]]).square().sum(1)
        # A chosen channel represents itself, even if another one has the same mask.
        closer = (distances < nearest) | (channels == chosen[-1])
        representative = torch.where(closer, chosen[-1], representative)
        nearest = torch.where(closer, distances, nearest)
        nearest[chosen] = -1.0
    return torch.tensor(chosen, device=planes.device), representative


def _scale_rows(planes: Tensor) -> Tensor:
    """Flatten planes (k, h, w) or (k, t, h, w) to rows scaled to [0, 1]."""
    pool: Callable[..., Tensor] = (functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d)[planes.ndim - 3]
    rows = pool(planes[:, None], tuple(min(_SIDE, side) for side in planes.shape[1:])).flatten(1)
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    return torch.where(high > low, (rows - low) / (high - low), 0)
