"""Boxes and masks of a map: connected components above a threshold, in pixels of the image."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from explainers.dtypes import to_float64
from explainers.errors import BadOption
from explainers.maps.arrays import check_cells
from explainers.maps.resize import resize
from explainers.options import check_finite, check_keywords
from explainers.perturbation.segments import connected_components
from explainers.placement import Placement


@dataclass(frozen=True)
class Region:
    """One connected component of a map above its threshold.

    `box` (left, top, right, bottom) in pixels, right and bottom exclusive; `mask` [H, W], True inside; `peak` its
    maximum; `share` its fraction of the map's positive sum, 0 to 1.
    """

    box: tuple[int, int, int, int]
    mask: Tensor = field(repr=False)
    peak: float
    share: float


@check_keywords
def regions(
    map: Tensor,
    size: tuple[int, int],
    *,
    threshold: float = 0.5,
    least: float = 0.0,
    placement: Placement | None = None,
) -> list[Region]:
    """Find the 4-connected components of a map at or above `threshold` times its maximum, largest share first.

    The map [h, w] is resized bilinearly to the image's `size` (height, width), without clipping. Components below
    `least`, a fraction of the image's area, are left out. Only positive evidence counts: a map without positive values
    has no regions. `placement` is where the map's cells lie, as in `resize`.

    Returns  list of `Region`; boxes in pixels of an image of that size
    Errors   BadOption for a threshold outside (0, 1]; BadOption if the map is not [h, w] or not finite
    Source   Zhou et al. 2016, section 3.2 (threshold, then connected components), arXiv:1512.04150

    Example
        >>> heat = torch.zeros(7, 7)
        >>> heat[2:4, 3:5] = 1
        >>> [region.box for region in regions(heat, (224, 224))]
        [(96, 64, 160, 128)]
    """
    check_finite("threshold", threshold, "a fraction of the maximum, above 0 and at most 1", above=0, most=1)
    check_cells(map, "map", first=0)
    if not isinstance(map, Tensor) or map.ndim != 2 or not bool(map.isfinite().all()):
        given = tuple(map.shape) if isinstance(map, Tensor) else type(map).__name__
        raise BadOption(f"regions takes one finite map [h, w], not {given}. For a batch, give map[i].")
    check_finite("least", least, "a fraction of the image's area from 0 to 1", least=0, most=1)
    values = resize(map[None], size, placement=placement)[0]
    top, total = float(values.max()), float(values.clamp(min=0).sum())
    if top <= 0:
        return []
    labels = connected_components((values >= threshold * top).long().cpu()).to(values.device)
    parts = []
    for label in labels[values >= threshold * top].unique().tolist():
        mask = labels == label
        if float(to_float64(mask).mean()) >= least:
            rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
            box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
            inside = values[mask]
            parts.append(Region(box, mask, float(inside.max()), float(inside.clamp(min=0).sum()) / total))
    return sorted(parts, key=lambda region: -region.share)


def region_masks(region: Tensor, images: Tensor) -> Tensor:
    """Convert one region per image, given as masks [N, H, W] or boxes [N, 4] in pixels, to masks [N, H, W].

    A pixel is inside a box (left, top, right, bottom) if its center is.

    Errors   BadOption for another shape, or a region without pixels
    """
    count, sides = len(images), tuple(images.shape[2:])
    if isinstance(region, Tensor) and (region.is_complex() or bool(region.isnan().any())):
        raise BadOption("region contains NaN or complex numbers. Give boxes in pixels, or boolean masks.")
    if isinstance(region, Tensor) and tuple(region.shape) == (count, *sides):
        inside = region.to(images.device) != 0
    elif isinstance(region, Tensor) and tuple(region.shape) == (count, 4) and len(sides) == 2:
        left, top, right, bottom = region.to(images.device)[:, :, None].unbind(1)
        x, y = (torch.arange(side, device=images.device) + 0.5 for side in sides[::-1])
        inside = ((x >= left) & (x <= right))[:, None, :] & ((y >= top) & (y <= bottom))[:, :, None]
    else:
        shape = tuple(region.shape) if isinstance(region, Tensor) else type(region).__name__
        boxes = f"boxes [{count}, 4] (left, top, right, bottom in pixels) or " * (len(sides) == 2)
        raise BadOption(f"region has shape {shape}. Give {boxes}masks {(count, *sides)}.")
    empty = (~inside.flatten(1).any(1)).nonzero()
    if len(empty):
        size = " x ".join(map(str, sides))
        raise BadOption(f"The region of image {int(empty[0])} covers no pixel of {size}. Give a larger region.")
    return inside
