"""The maps of a run as arrays: their values, and the distribution of their relevance.

Relevance is positive evidence: the positive part of a map (the magnitude, for methods with one value per pixel),
normalized to a sum of 1. Positions are fractions of the region that the network received, from the upper left corner:
(left, top, right, bottom).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from saliscope.errors import Refused
from saliscope.runs.rows import Floats, Integers, maps_of

MOST = 56
"""Maximum number of cells per side; finer maps are averaged, to 4 pixels per cell at 224 pixels."""
CELLS = 2**22
"""Cells of maps that are converted at once."""
BORDER = 0.1
"""The outer part of each side that belongs to the border; a uniform map has 36% of its relevance there."""


@dataclass(frozen=True, eq=False)
class Maps:
    """The maps `[n, h, w]` of the table rows `[n]` that have one: their displayed `values`, and their `relevance`.

    The relevance is NaN for a map without any.
    """

    rows: Integers
    values: Floats
    relevance: Floats

    def share(self, region: Floats) -> Floats:
        """Return the share of the relevance `[n]` in a region `[h, w]` or `[n, h, w]` of cell coverages from 0 to 1."""
        return (self.relevance * region).sum((1, 2))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of a map in cells."""
        return self.values.shape[1], self.values.shape[2]


def read_maps(table: pa.Table, *, by_size: bool, size: tuple[int, int]) -> Maps:
    """Return the maps in the table of a run; `by_size` uses magnitudes, for methods with one value per pixel.

    All maps are resized to height and width `size`.
    """
    heights, widths = (np.asarray(table[name].fill_null(0)) for name in ("map_height", "map_width"))
    has_map = np.asarray(table["map"].is_valid())
    rows = np.flatnonzero(has_map)
    if not len(rows):
        return Maps(rows, np.zeros((0, *size)), np.zeros((0, *size)))
    values = np.zeros((len(rows), *size))
    shapes = np.stack([heights, widths], axis=1)[rows]
    for height, width in np.unique(shapes, axis=0).tolist():
        same = np.flatnonzero((shapes == (height, width)).all(1))
        for part in np.array_split(same, max(1, -(-len(same) * height * width // CELLS))):
            array = maps_of(table.take(rows[part]))
            array = np.where(np.isfinite(array), array, 0.0)
            values[part] = pool(np.abs(array) if by_size else array, size)
    return Maps(rows, values, shares(values))


def shares(values: Floats) -> Floats:
    """Return the positive values `[n, h, w]` divided by their sum; NaN if no value is positive."""
    positive = np.maximum(values, 0)
    whole = positive.sum((1, 2), keepdims=True)
    return np.divide(positive, whole, out=np.full_like(positive, np.nan), where=whole > 0)


def pool(values: Floats, size: tuple[int, int], box: Sequence[float] = (0.0, 0.0, 1.0, 1.0)) -> Floats:
    """Resize a map `[..., h, w]`, or its part in a box, by averaging over the area of the new cells."""
    if values.shape[-2:] == size and tuple(box) == (0, 0, 1, 1):
        return values
    left, top, right, bottom = box
    rows, columns = (
        _overlaps(cells, side, *span)
        for cells, side, span in zip(values.shape[-2:], size, ((top, bottom), (left, right)), strict=True)
    )
    return np.asarray(rows @ values @ columns.T)


def _overlaps(cells: int, side: int, low: float, high: float) -> Floats:
    """Return the weights `[side, cells]` of the old cells in each new cell between two positions from 0 to 1."""
    new, old = np.linspace(low, high, side + 1), np.linspace(0, 1, cells + 1)
    common = np.minimum(new[1:, None], old[None, 1:]) - np.maximum(new[:-1, None], old[None, :-1])
    return np.maximum(common, 0) * side / (high - low)


def box_region(size: tuple[int, int], box: Sequence[float]) -> Floats:
    """Return the fraction of each cell of a map `[h, w]` that is inside a box (left, top, right, bottom).

    Errors   Refused for a box outside 0 to 1, or without an area
    """
    left, top, right, bottom = map(float, box)
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise Refused(
            f"Invalid box {tuple(box)}. Use left, top, right and bottom as fractions of the network's field of view, "
            "from 0 to 1, such as 0.25,0.25,0.75,0.75."
        )
    down = _coverage(size[0], top, bottom)
    return np.outer(down, _coverage(size[1], left, right))


def _coverage(cells: int, start: float, end: float) -> Floats:
    edges = np.linspace(0, 1, cells + 1)
    return np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], start), 0, None) * cells


def border_region(size: tuple[int, int]) -> Floats:
    """Return the fraction of each cell that belongs to the border."""
    return 1 - box_region(size, (BORDER, BORDER, 1 - BORDER, 1 - BORDER))


def mask_region(size: tuple[int, int], mask: Image.Image) -> Floats:
    """Return the fraction of each cell that is inside a mask of any resolution; white is inside, black outside.

    Errors   Refused for a black mask
    """
    gray = np.asarray(mask.convert("L"), dtype=float) / 255
    if not gray.any():
        raise Refused("The mask is completely black. Mark the inside with white.")
    return pool(gray, size)


def pack(values: Floats) -> dict[str, Any]:
    """Pack a map `[h, w]` for the page: base64 of int8 in 127 steps up to the largest magnitude `m`."""
    largest = float(np.abs(values).max()) or 1.0
    steps = np.round(values / largest * 127).astype(np.int8)
    return {"h": values.shape[0], "w": values.shape[1], "m": largest, "b": base64.b64encode(steps.tobytes()).decode()}
