"""The maps of a run as arrays: how they are drawn, where their relevance lies, and what they have in common.

Relevance is positive evidence: the part of a map above zero, or of methods with one value a pixel its magnitude, in
shares that sum to 1. Places are in parts of what the network sees, from the upper left: (left, top, right, bottom).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dataset.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray
    from PIL import Image

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

MOST = 56
"""Cells of a side that are kept: finer maps are averaged, 4 pixels a cell at 224."""
BORDER = 0.1
"""The outer part of each side that counts as the border; an even map has 36% of its relevance there."""


@dataclass(frozen=True, eq=False)
class Maps:
    """Maps `[n, h, w]` of the rows `[n]` of a table that have one: `values` as they are drawn, `relevance` in shares.

    The shares are NaN where a map has no relevance at all.
    """

    rows: Integers
    values: Floats
    relevance: Floats

    def share(self, region: Floats) -> Floats:
        """The share of relevance `[n]` in a region `[h, w]` or `[n, h, w]`, of coverages of cells from 0 to 1."""
        return (self.relevance * region).sum((1, 2))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of a map in cells."""
        return self.values.shape[1], self.values.shape[2]


def read_maps(table: pa.Table, *, by_size: bool = False) -> Maps:
    """The maps of a run's table; `by_size` keeps magnitudes, for methods with one value a pixel.

    Where sizes differ, all have that of the first one.
    """
    columns = [table[name] for name in ("map", "map_height", "map_width")]
    scales = table["map_scale"].to_pylist() if "map_scale" in table.column_names else [1.0] * len(table)
    rows, values = [], []
    size: tuple[int, int] | None = None
    for row, (data, height, width, scale) in enumerate(
        zip(*(column.to_pylist() for column in columns), scales, strict=True)
    ):
        if data is None:
            continue
        one = np.frombuffer(data, "<f2").reshape(height, width).astype(float) * (1.0 if scale is None else scale)
        one = np.where(np.isfinite(one), one, 0.0)
        size = size or (min(MOST, height), min(MOST, width))
        values.append(pool(np.abs(one) if by_size else one, size))
        rows.append(row)
    stacked = np.stack(values) if values else np.zeros((0, 1, 1))
    return Maps(np.array(rows, dtype=np.int64), stacked, shares(stacked))


def shares(values: Floats) -> Floats:
    """Positive values `[n, h, w]` in shares of their sum; NaN where nothing is positive."""
    positive = np.maximum(values, 0)
    whole = positive.sum((1, 2), keepdims=True)
    return np.divide(positive, whole, out=np.full_like(positive, np.nan), where=whole > 0)


def pool(values: Floats, size: tuple[int, int]) -> Floats:
    """Average a map `[..., h, w]` over the cells of another size, by the area that they share."""
    if values.shape[-2:] == size:
        return values
    rows, columns = (_overlaps(cells, side) for cells, side in zip(values.shape[-2:], size, strict=True))
    return np.asarray(rows @ values @ columns.T)


def _overlaps(cells: int, side: int) -> Floats:
    """The parts `[side, cells]` of each new cell that lie in the old ones."""
    new, old = np.linspace(0, 1, side + 1), np.linspace(0, 1, cells + 1)
    common = np.minimum(new[1:, None], old[None, 1:]) - np.maximum(new[:-1, None], old[None, :-1])
    return np.maximum(common, 0) * side


def box_region(size: tuple[int, int], box: Sequence[float]) -> Floats:
    """The part of each cell of a map `[h, w]` that a box (left, top, right, bottom) covers.

    Errors   Refused for a box outside 0 to 1, or without an area
    """
    left, top, right, bottom = map(float, box)
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise Refused(
            f"The box {tuple(box)} is not in the picture. Give left, top, right and bottom in parts of what the "
            "network sees, from 0 to 1, such as 0.25,0.25,0.75,0.75."
        )
    down = _covered(size[0], top, bottom)
    return np.outer(down, _covered(size[1], left, right))


def _covered(cells: int, start: float, end: float) -> Floats:
    edges = np.linspace(0, 1, cells + 1)
    return np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], start), 0, None) * cells


def border_region(size: tuple[int, int]) -> Floats:
    """The part of each cell that belongs to the border."""
    return 1 - box_region(size, (BORDER, BORDER, 1 - BORDER, 1 - BORDER))


def mask_region(size: tuple[int, int], mask: Image.Image) -> Floats:
    """The part of each cell that a mask covers: white is inside, black outside, whatever the mask's resolution.

    Errors   Refused for a mask that is black
    """
    grey = np.asarray(mask.convert("L"), dtype=float) / 255
    if not grey.any():
        raise Refused("The mask is all black: nothing is inside. Paint white what counts as inside.")
    return pool(grey, size)


def packed(values: Floats) -> dict[str, Any]:
    """A map `[h, w]` for the page: 127 steps of its largest magnitude `m` each way, base64 of int8."""
    import base64

    largest = float(np.abs(values).max()) or 1.0
    steps = np.round(values / largest * 127).astype(np.int8)
    return {"h": values.shape[0], "w": values.shape[1], "m": largest, "b": base64.b64encode(steps.tobytes()).decode()}
