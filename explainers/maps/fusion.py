"""Maps of several layers made one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from explainers.errors import BadOption
from explainers.maps.resize import resize

HOWS = ("mean", "product")


def fuse(
    maps: Mapping[str, Tensor] | Sequence[Tensor], how: str = "mean", *, size: tuple[int, int] | None = None
) -> Tensor:
    """Make one map of several layers' maps (n, h, w): first enlarge each, then join them cell by cell.

    "mean" keeps signs and unit, and a layer counts by the size of its values. "product" keeps what all layers show:
    of each map the positive part, as a share of the picture's own maximum, so that layers count alike; a picture
    where a map has nothing positive is blank.

    Returns  (n, H, W); `size` (height, width), by default that of the finest map; for "product" in [0, 1]
    Errors   BadOption for no maps, for maps of different numbers of pictures, or an unknown `how`
    Source   product: Domeniconi et al. 2026, arXiv:2605.14641

    Example
        >>> maps = sweep("layer_cam", model, images, 281, layers=["layer3", "layer4"])
        >>> fuse(maps, "product").shape
        torch.Size([1, 14, 14])
    """
    each = list(maps.values()) if isinstance(maps, Mapping) else list(maps)
    if how not in HOWS:
        raise BadOption(f"how={how!r} is not possible. Choose one of {', '.join(HOWS)}.")
    if not each or any(m.ndim != 3 or len(m) != len(each[0]) for m in each):
        shapes = ", ".join(str(tuple(m.shape)) for m in each) or "none"
        raise BadOption(f"fuse joins maps [N, h, w] of the same pictures; given were {shapes}.")
    if size is None:
        size = (max(m.shape[1] for m in each), max(m.shape[2] for m in each))
    if how == "mean":
        return torch.stack([resize(m, size) for m in each]).mean(0)
    return torch.stack([resize(_shares(m), size) for m in each]).prod(0)


def _shares(maps: Tensor) -> Tensor:
    positive = maps.relu()
    highest = positive.amax((1, 2), keepdim=True)
    return (positive / highest).where(highest != 0, 0)  # what is not a number stays none
