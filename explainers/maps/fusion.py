"""Fusion of the maps of several layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from explainers.errors import BadOption, WrongType, kind_of, shorten
from explainers.maps.resize import resize
from explainers.options import check_keywords
from explainers.placement import Placement, place

MODES = ("mean", "product")


@check_keywords
def fuse(
    maps: Mapping[str, Tensor] | Sequence[Tensor],
    how: str = "mean",
    *,
    size: tuple[int, ...] | None = None,
    placements: Sequence[Placement | None] | None = None,
) -> Tensor:
    """Combine the maps (n, h, w) of several layers: resize each, then combine them cell by cell.

    "mean" keeps signs and units; layers with larger values weigh more. "product" is the product of the rectified maps,
    each divided by its maximum in the image, so that layers weigh equally; it is 0 for a map without positive values.
    `placements` has the `Layer.placement` of each map, needed where the network crops, pads, flips or shifts its input.

    Returns  (n, H, W) at `size`, (height, width) or (frames, height, width), by default the size of the finest map;
             for "product" in [0, 1]
    Errors   BadOption without maps, if the maps have different numbers of images, for an unknown `how`, or another
             number of placements; those of `resize`
    Source   product: Domeniconi et al. 2026, arXiv:2605.14641

    Example
        >>> maps = sweep("layer_cam", model, images, 281, layers=["layer3", "layer4"])
        >>> fuse(maps, "product").shape
        torch.Size([1, 14, 14])
    """
    if not isinstance(maps, (Mapping, Sequence)):
        raise WrongType(f"maps is {kind_of(maps)}. Give a mapping or a list of maps [N, h, w].")
    layers = list(maps.values()) if isinstance(maps, Mapping) else list(maps)
    if how not in MODES:
        raise BadOption(f"Unknown how={shorten(how)}. Choose one of {', '.join(MODES)}.")
    forms = {(m.ndim, len(m)) if isinstance(m, Tensor) and m.ndim in (3, 4) else None for m in layers}
    if len(forms) != 1 or None in forms:
        shapes = ", ".join(str(tuple(m.shape)) if isinstance(m, Tensor) else type(m).__name__ for m in layers) or "none"
        raise BadOption(f"The maps have shapes {shapes}. Give one or more maps [N, h, w] of the same N images.")
    where = [None] * len(layers) if placements is None else list(placements)
    if len(where) != len(layers):
        raise BadOption(f"{len(where)} placements were given for {len(layers)} maps. Give one for each, or None.")
    if how == "product":  # max(m, 0) / max m for each image; NaN propagates
        highest = [m.relu().amax(tuple(range(1, m.ndim)), keepdim=True) for m in layers]
        layers = [(m.relu() / top).where(top != 0, 0) for m, top in zip(layers, highest, strict=True)]
    layers = [place(m, at) for m, at in zip(layers, where, strict=True)]
    if size is None:
        size = tuple(max(sides) for sides in zip(*(m.shape[1:] for m in layers), strict=True))
    resized = torch.stack([resize(m, size) for m in layers])
    return resized.mean(0) if how == "mean" else resized.prod(0)
