"""Read all maps of a run once: means by class, shares of relevance by region, and a sample for the clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Union

import numpy as np
from numpy.typing import NDArray

from saliscope.runs.report.analysis.clusters import LEAST
from saliscope.runs.report.analysis.clusters import MOST as MOST_OF_CLASS
from saliscope.runs.report.analysis.columns import Columns
from saliscope.runs.report.analysis.maps import MOST, Maps, read_maps
from saliscope.runs.rows import Floats, Integers
from saliscope.runs.run_data import RunData

SAMPLE, CELLS = 20_000, 2**23
"""Maximum number of maps in the sample, and of their cells in total: 67 MB."""
MAPS = ["map", "map_scale", "map_height", "map_width"]
ROWS = 1024
"""Rows that are read at once."""


@dataclass(eq=False)
class Region:
    """A region of the images: the share of the relevance `[n]` in it for each row, NaN for a row without relevance.

    `even` is the share that a uniform map has there.
    """

    shares: Floats
    even: float = float("nan")


@dataclass(eq=False)
class MapPass:
    """What a report needs from all maps. `means` are mean maps `[h, w]` by class, `counts` their numbers."""

    sample: Maps
    sampled: bool
    """Whether the sample does not have all maps."""
    regions: dict[str, Region]
    means: dict[int, Floats] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)


Coverage = Union["Floats", Callable[["Integers"], "Floats"]]
"""The coverage of the cells by a region `[h, w]`, or that of some rows `[m, h, w]` with NaN for a missing region."""


def grid_size(columns: Columns) -> tuple[int, int]:
    """Return height and width of the grid of a report: those of the first map, at most 56."""
    return min(MOST, columns.map_size[0]), min(MOST, columns.map_size[1])


def read_all(
    data: RunData, columns: Columns, groups: NDArray[np.int32], by_size: bool, regions: Mapping[str, Coverage]
) -> MapPass:
    """Read every map; `groups` `[n]` are the codes of the classes whose maps are averaged, -1 for none."""
    size = grid_size(columns)
    chosen = choose_sample(columns, size)
    found = {name: Region(np.full(len(columns), np.nan, dtype=np.float32)) for name in regions}
    sums: dict[int, Floats] = {}
    counts: dict[int, int] = {}
    coverages: dict[str, list[float]] = {name: [0.0, 0.0] for name in regions}
    kept = [Maps(np.zeros(0, dtype=np.int64), np.zeros((0, *size)), np.zeros((0, *size)))]
    for start, table in data.batches(MAPS, ROWS):
        maps = read_maps(table, by_size=by_size, size=size)
        if not len(maps.rows):
            continue
        rows = maps.rows + start
        for name, cover in regions.items():
            region = cover(rows) if callable(cover) else cover
            found[name].shares[rows] = maps.share(region)
            known = np.isfinite(region)
            coverages[name][0] += float(region[known].sum()) * (len(rows) if region.ndim == 2 else 1)
            coverages[name][1] += float(known.sum()) * (len(rows) if region.ndim == 2 else 1)
        _add_means(maps.values, groups[rows], sums, counts)
        inside = chosen[rows]
        kept.append(Maps(rows[inside], maps.values[inside], maps.relevance[inside]))
    for name, (total, cells) in coverages.items():
        found[name].even = total / cells if cells else float("nan")
    parts = zip(*((each.rows, each.values, each.relevance) for each in kept), strict=True)
    sample = Maps(*map(np.concatenate, parts))
    means = {code: sums[code] / counts[code] for code in sums}
    return MapPass(sample, bool((columns.has_map & ~chosen).any()), found, means, counts)


def _add_means(values: Floats, codes: NDArray[np.int32], sums: dict[int, Floats], counts: dict[int, int]) -> None:
    known = np.flatnonzero(codes >= 0)
    if not len(known):
        return
    order = known[np.argsort(codes[known], kind="stable")]
    found, starts = np.unique(codes[order], return_index=True)
    totals = np.add.reduceat(values[order], starts, axis=0)
    numbers = np.diff([*starts, len(order)])
    for code, total, number in zip(found.tolist(), totals, numbers.tolist(), strict=True):
        sums[code] = sums[code] + total if code in sums else total.copy()
        counts[code] = counts.get(code, 0) + number


def choose_sample(columns: Columns, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which rows are in the sample `[n]`: all, or the same number of each explained class, evenly spaced."""
    most = min(SAMPLE, CELLS // (size[0] * size[1]))
    chosen = columns.has_map.copy()
    if chosen.sum() <= most:
        return chosen
    codes, totals = np.unique(columns.target.codes[chosen], return_counts=True)
    quota = next((q for q in range(MOST_OF_CLASS, LEAST, -1) if np.minimum(totals, q).sum() <= most), LEAST)
    for code, total in zip(codes, totals, strict=True):
        if total > quota:
            rows = np.flatnonzero(columns.has_map & (columns.target.codes == code))
            chosen[rows] = False
            chosen[rows[np.linspace(0, total - 1, quota).round().astype(int)]] = True
    return chosen


def displayed(data: RunData, rows: Integers, by_size: bool, size: tuple[int, int]) -> dict[int, Floats]:
    """Return the maps `[h, w]` of some rows, by row."""
    found: dict[int, Floats] = {}
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        maps = read_maps(data.take(part, MAPS), by_size=by_size, size=size)
        found |= {int(part[k]): values for k, values in zip(maps.rows, maps.values, strict=True)}
    return found
