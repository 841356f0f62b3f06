"""The maps of a run as arrays: their values, and the distribution of their relevance.

Relevance is positive evidence: the positive part of a map (the magnitude, for methods with one value per pixel),
normalized to a sum of 1. Positions are fractions of the region that the network received, from the upper left corner:
(left, top, right, bottom).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Union

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from saliscope.errors import Refused
from saliscope.runs.report.analysis.columns import Columns, evenly
from saliscope.runs.rows import Booleans, Floats, Integers, RunData, maps_of

CELLS = 2**22
"""Cells of maps that are converted at once."""
BORDER = 0.1
"""The outer part of each side that belongs to the border; a uniform map has 36% of its relevance there."""
LEAST, MOST_OF_CLASS = 10, 600
"""Minimum number of maps of a class for clustering, and the maximum number of those that are clustered."""
SAMPLE, SAMPLED_CELLS = 20_000, 2**23
"""Maximum number of maps in the sample, and of their cells in total: 67 MB."""
GRID = 8
"""Maximum number of cells per side of the maps that are clustered."""
MAPS = ["map", "map_scale", "map_height", "map_width"]
ROWS = 1024
"""Rows that are read at once."""


@dataclass(frozen=True, eq=False)
class Maps:
    """The maps `[n, h, w]` of the table rows `[n]` that have one: their displayed `values`, and their `relevance`.

    The relevance is NaN for a map without any.
    """

    rows: Integers
    values: Floats
    relevance: Floats


@dataclass(frozen=True, eq=False)
class Sample:
    """The maps `[n, h, w]` that are clustered, which have relevance, with their table rows and explained classes."""

    rows: Integers
    values: Floats
    classes: NDArray[np.object_]

    @cached_property
    def grid(self) -> Floats:
        """The shares of the relevance on a small grid `[n, g, g]`."""
        height, width = self.values.shape[1:]
        return shares(pool(self.values.clip(min=0), (min(GRID, height), min(GRID, width))))


def read_maps(table: pa.Table, *, by_size: bool, size: tuple[int, int]) -> Maps:
    """Return the maps in the table of a run; `by_size` uses magnitudes, for methods with one value per pixel.

    All maps are resized to height and width `size`.
    """
    rows = np.flatnonzero(np.asarray(table["map"].is_valid()))
    table, values = table.take(rows), np.zeros((len(rows), *size))
    shapes = np.stack([np.asarray(table[name]) for name in ("map_height", "map_width")], axis=1)
    for height, width in np.unique(shapes, axis=0).tolist():
        same = np.flatnonzero((shapes == (height, width)).all(1))
        for part in np.array_split(same, max(1, -(-len(same) * height * width // CELLS))):
            array = maps_of(table.take(part))
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
    rows = _overlaps(values.shape[-2], size[0], top, bottom)
    return np.asarray(rows @ values @ _overlaps(values.shape[-1], size[1], left, right).T)


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
    part = (right - left) * (bottom - top) * size[0] * size[1]
    return part * np.outer(_overlaps(size[0], 1, top, bottom), _overlaps(size[1], 1, left, right))


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


# All maps of a run, which are read once: means by class, shares of relevance by region, and a sample for the clusters.


@dataclass(eq=False)
class Region:
    """A region of the images: the share of the relevance in it for each row `[n]`, NaN for a row without relevance.

    `uniform` is the sum of the shares that uniform maps have, over the `count` rows with a map and a region.
    """

    shares: Floats
    uniform: float = 0.0
    count: int = 0

    @property
    def known(self) -> Floats:
        """The shares of the rows that have one."""
        return self.shares[np.isfinite(self.shares)]

    @property
    def mean(self) -> float | None:
        """The mean share, or None if there is none."""
        return float(self.known.mean(dtype=np.float64)) if len(self.known) else None

    @property
    def even(self) -> float | None:
        """The mean share of uniform maps, or None if there is none."""
        return self.uniform / self.count if self.count else None


@dataclass(eq=False)
class MapPass:
    """What a report needs from all maps. `means` `[k, h, w]` are mean maps by class."""

    sample: Sample
    sampled: bool
    """Whether the sample does not have all maps."""
    regions: dict[str, Region]
    means: Floats


Coverage = Union["Floats", Callable[["Integers"], "Floats"]]
"""The coverage of the cells by a region `[h, w]`, or that of some rows `[m, h, w]` with NaN for a missing region."""


def read_all(
    data: RunData, columns: Columns, groups: NDArray[np.int32], by_size: bool, regions: Mapping[str, Coverage]
) -> MapPass:
    """Read every map; `groups` `[n]` are the codes of the classes whose maps are averaged, -1 for none."""
    size = columns.map_size
    chosen = choose_sample(columns, size)
    found = {name: Region(np.full(len(columns), np.nan, dtype=np.float32)) for name in regions}
    means = np.zeros((2 + int(groups.max(initial=-1)), *size))  # the last one is of maps without a class
    kept = [(np.zeros(0, dtype=np.int64), np.zeros((0, *size)))]
    for start, table in data.batches(MAPS, ROWS):
        maps = read_maps(table, by_size=by_size, size=size)
        rows = maps.rows + start
        if not len(rows):
            continue
        for name, cover in regions.items():
            region = cover(rows) if callable(cover) else cover
            found[name].shares[rows] = (maps.relevance * region).sum((1, 2))
            uniform = np.broadcast_to(region.mean((-2, -1)), len(rows))
            found[name].uniform += float(np.nansum(uniform))
            found[name].count += int(np.isfinite(uniform).sum())
        order = np.argsort(groups[rows], kind="stable")
        codes, starts = np.unique(groups[rows][order], return_index=True)
        means[codes] += np.add.reduceat(maps.values[order], starts, axis=0)
        inside = chosen[rows] & np.isfinite(maps.relevance).all((1, 2))
        kept.append((rows[inside], maps.values[inside]))
    counts = np.bincount(groups[columns.readable & (groups >= 0)], minlength=len(means))
    means /= np.maximum(counts, 1)[:, None, None]
    rows, values = map(np.concatenate, zip(*kept, strict=True))
    sample = Sample(rows, values, np.array([str(columns.target[row]) for row in rows], dtype=object))
    return MapPass(sample, bool((columns.readable & ~chosen).any()), found, means)


def choose_sample(columns: Columns, size: tuple[int, int]) -> Booleans:
    """Return which rows are in the sample `[n]`: all, or the same number of each explained class, evenly spaced."""
    most = min(SAMPLE, SAMPLED_CELLS // (size[0] * size[1]))
    chosen = columns.readable.copy()
    if chosen.sum() <= most:
        return chosen
    codes, totals = np.unique(columns.target.codes[chosen], return_counts=True)
    quota = next((q for q in range(MOST_OF_CLASS, LEAST, -1) if np.minimum(totals, q).sum() <= most), LEAST)
    for code, total in zip(codes, totals, strict=True):
        if total > quota:
            rows = np.flatnonzero(columns.readable & (columns.target.codes == code))
            chosen[rows] = False
            chosen[evenly(rows, quota)] = True
    return chosen
