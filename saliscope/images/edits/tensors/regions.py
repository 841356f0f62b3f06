"""The pixels of a region, from its operations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from saliscope.errors import Refused
from saliscope.images.edits import messages
from saliscope.images.edits.edit import Box, Highest, Invert, Operation, Point, Stroke


def region_mask(operations: Sequence[Operation], size: tuple[int, int], ranks: Tensor | None = None) -> Tensor:
    """Return the pixels of a region: a pixel belongs to a stroke or box if its center does.

    `ranks` [H, W] are the positions of the pixels in the order of the map, from 0; only needed for `Highest`.

    Returns  bool [H, W]; no operations give an empty region
    Errors   Refused if the map has no order

    Example
        >>> region_mask([Box(((0.0, 0.0), (0.5, 1.0)))], (2, 4))
        tensor([[ True,  True, False, False],
                [ True,  True, False, False]])
    """
    mask = torch.zeros(size, dtype=torch.bool)
    for operation in operations:
        if isinstance(operation, Invert):
            mask = ~mask
        elif isinstance(operation, Highest):
            if ranks is None:
                raise Refused(messages.NO_ORDER)
            share, count = operation.share, operation.count or 0
            mask |= ranks < (count if share is None else max(1, round(share * ranks.numel())))
        elif isinstance(operation, Box):
            _draw(mask, _box(operation, size), operation.add)
        else:
            for start, end in zip(operation.points, (*operation.points[1:], operation.points[-1]), strict=True):
                _draw(mask, _segment(operation, start, end, size), operation.add)
    return mask


def _draw(mask: Tensor, part: tuple[slice, slice, Tensor], add: bool) -> None:
    rows, columns, inside = part
    mask[rows, columns] = mask[rows, columns] | inside if add else mask[rows, columns] & ~inside


def _box(box: Box, size: tuple[int, int]) -> tuple[slice, slice, Tensor]:
    (x0, y0), (x1, y1) = box.corners
    rows, columns = (
        # the first center at or after the lower edge, and the number of centers up to the upper edge
        slice(math.ceil(min(ends) * side - 0.5), math.floor(max(ends) * side - 0.5) + 1)
        for ends, side in (((y0, y1), size[0]), ((x0, x1), size[1]))
    )
    shape = max(0, rows.stop - rows.start), max(0, columns.stop - columns.start)
    return rows, slice(columns.start, max(columns.stop, columns.start)), torch.ones(shape, dtype=torch.bool)


def _segment(stroke: Stroke, start: Point, end: Point, size: tuple[int, int]) -> tuple[slice, slice, Tensor]:
    """Return the pixels near a segment of a stroke, in the smallest rectangle that contains them."""
    height, width = size
    radius = stroke.radius * min(size)
    (x0, y0), (x1, y1) = ((x * width, y * height) for x, y in (start, end))
    rows, columns = (
        slice(max(0, math.floor(min(ends) - radius)), max(0, min(side, math.ceil(max(ends) + radius))))
        for ends, side in (((y0, y1), height), ((x0, x1), width))
    )
    y = torch.arange(rows.start, rows.stop)[:, None] + 0.5
    x = torch.arange(columns.start, columns.stop)[None] + 0.5
    length = (x1 - x0) ** 2 + (y1 - y0) ** 2
    along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length if length else torch.zeros(())
    along = along.clamp(0, 1)
    distance = (x - x0 - along * (x1 - x0)) ** 2 + (y - y0 - along * (y1 - y0)) ** 2
    return rows, columns, distance <= radius**2
