"""Statistics of a comparison: tests, intervals and their texts, and the agreement of the maps.

The agreement of two maps of one image is their rank correlation, and the overlap of their highest cells. Both depend
only on the order of the values in each map, so maps of different methods, layers and units can be compared. Two
networks may crop images differently. Their maps are then compared on the part that both received.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from explainers import rank_correlation
from saliscope.runs import formats
from saliscope.runs.finished_run import FinishedRun
from saliscope.runs.formats import p_value
from saliscope.runs.report.analysis.columns import MOST
from saliscope.runs.report.analysis.maps import pool
from saliscope.runs.rows import Floats, maps_of
from saliscope.zoo import Preparation

Z = 1.959963984540054
"""The quantile of a 95% interval."""
CHANGED = 6
"""Images that McNemar's test needs: if all of five are gained, its p-value is still 0.0625."""
FEWEST = 10
"""Images for the interval of a mean: a bootstrap of fewer gives intervals that are much too short."""
RESAMPLES = 2000
BINS = 2000
LEVEL = 0.05


def mcnemar(gained: int, lost: int) -> float:
    """Return the two-sided p-value of McNemar's exact test for images that only one of two runs predicts correctly.

    The p-value is that of a binomial test: if neither run is better, each of the images is gained or lost with equal
    probability. It is 1 if there are none.

    Source   McNemar 1947, doi:10.1007/BF02295996

    Example
        >>> mcnemar(8, 1)
        0.0390625
    """
    from scipy.stats import binomtest  # scipy takes a second to start

    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def mcnemar_text(gained: int, lost: int) -> str:
    """Return the verdict and the p-value of McNemar's test, or how many images it needs."""
    if gained + lost < CHANGED:
        return f"not tested: McNemar's exact test needs {CHANGED} gained or lost images"
    p = mcnemar(gained, lost)
    return f"{'significant' if p < LEVEL else 'not significant'} (McNemar's exact test, p {p_value(p, '= ')})"


def paired_difference(gained: int, lost: int, count: int) -> tuple[float, float, float]:
    """Return the difference of two accuracies over the same images, from -1 to 1, and its 95% interval.

    The interval adds one image to each kind of change (Bonett and Price), so that it is not empty without any change.

    Source   Bonett and Price 2012, doi:10.3102/1076998611411915

    Example
        >>> [round(value, 3) for value in paired_difference(30, 10, 100)]
        [0.2, 0.077, 0.315]
    """
    more, less = (gained + 1) / (count + 2), (lost + 1) / (count + 2)
    middle = more - less
    half = Z * math.sqrt((more + less - middle**2) / (count + 2))
    return (gained - lost) / count, max(-1.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Mean:
    """The mean of a quantity over `count` images with its 95% bootstrap interval.

    The bounds are NaN for fewer than `FEWEST` images.
    """

    count: int
    value: float
    low: float
    high: float


class Distribution:
    """The distribution of values between two bounds, in constant memory: counts and sums of 2,000 bins."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high
        self.counts = np.zeros(BINS, dtype=np.int64)
        self.sums = np.zeros(BINS)

    def add(self, values: Floats) -> None:
        """Add finite values."""
        place = (values - self.low) / (self.high - self.low) * BINS
        bins = np.clip(place.astype(np.int64), 0, BINS - 1)
        self.counts += np.bincount(bins, minlength=BINS)
        self.sums += np.bincount(bins, weights=values, minlength=BINS)

    def mean(self) -> Mean | None:
        """Return the mean, or None without values.

        A bootstrap sample draws images with replacement. Values in the same bin count as equal to their mean, which
        changes the interval by less than the width of a bin, 1/2,000 of the range.
        """
        count = int(self.counts.sum())
        if not count:
            return None
        used = self.counts > 0
        centers, shares = self.sums[used] / self.counts[used], self.counts[used] / count
        drawn = np.random.default_rng(0).multinomial(count, shares, size=RESAMPLES)
        low, high = np.quantile(drawn @ centers / count, (0.025, 0.975)) if count >= FEWEST else (np.nan, np.nan)
        return Mean(count, float(self.sums.sum() / count), float(low), float(high))


def interval_text(mean: Mean, scale: float = 1, unit: str = "") -> str:
    """Return the interval of a mean, or how many images it needs."""
    if math.isnan(mean.low):
        return f"no interval: fewer than {FEWEST} images"
    low, high = (f"{scale * each:.1f}" if unit else formats.number(each, ".2f") for each in (mean.low, mean.high))
    return f"95% interval {low} to {high}{unit}"


def setting(value: Any) -> str:
    """Return the value of a setting as text; empty if it is not set."""
    if value in (None, "", {}, []):
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


TOP = 0.1
"""The share of cells that count as the highest."""
LEAST = 4
"""Minimum number of cells of a map for a correlation."""
Box = tuple[float, float, float, float]
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
SHAPES = ((1000, 1000), (1600, 1000), (1000, 1600), (3000, 1000))
"""Sizes of images for which the crops are compared."""
NEAR = 0.01
"""Crops that differ by less than this share of their side count as equal; they are rounded to pixels."""


@dataclass(frozen=True)
class Frame:
    """How the maps of a run are read: `box` is the part of each map (left, top, right, bottom) that both runs show, and
    `by_size` uses magnitudes, for methods with signed values per pixel.
    """

    box: Box = WHOLE
    by_size: bool = False


def top_overlap(a: Floats, b: Floats) -> Floats:
    """Return the share `[n]` of the highest cells that two maps `[n, cells]` have in common, from 0 to 1.

    The highest cells are a tenth of all, rounded, at least one. If several cells have the value at the limit, each
    counts in part, so that equal maps overlap completely. Unrelated maps overlap by about a tenth.

    Example
        >>> float(top_overlap(np.arange(20.0)[None], np.arange(20.0)[None]))
        1.0
    """
    count = max(1, round(TOP * a.shape[1]))
    return np.minimum(_membership(a, count), _membership(b, count)).sum(1) / count


def _membership(values: Floats, count: int) -> Floats:
    """Return by how much each cell `[n, cells]` belongs to the `count` highest, from 0 to 1."""
    limit = np.partition(values, -count, axis=1)[:, -count][:, None]
    above, level = values > limit, values == limit
    rest = (count - above.sum(1, keepdims=True)) / level.sum(1, keepdims=True)
    return np.where(above, 1.0, np.where(level, rest, 0.0))


def common_size(a: tuple[int, int], b: tuple[int, int], frames: tuple[Frame, Frame]) -> tuple[int, int]:
    """Return height and width of the grid on which two maps are compared: the coarser one in each direction."""
    boxes = frames[0].box, frames[1].box
    rows = (round(size[0] * (box[3] - box[1])) for size, box in zip((a, b), boxes, strict=True))
    columns = (round(size[1] * (box[2] - box[0])) for size, box in zip((a, b), boxes, strict=True))
    return max(1, min(MOST, *rows)), max(1, min(MOST, *columns))


def read(table: pa.Table, rows: NDArray[np.int64], frame: Frame, size: tuple[int, int]) -> Floats:
    """Return maps of a table on a grid, `[n, h, w]`, all of one original size; NaN for a map that is not finite."""
    values = maps_of(table.take(rows))
    broken = np.asarray(~np.isfinite(values).all((1, 2)))
    values = np.where(broken[:, None, None], 0.0, np.abs(values) if frame.by_size else values)
    pooled = pool(values, size, frame.box)
    pooled[broken] = np.nan
    return pooled


def compare_maps(
    a: pa.Table, b: pa.Table, frames: tuple[Frame, Frame]
) -> tuple[Floats, Floats, NDArray[np.object_], dict[tuple[tuple[int, int], tuple[int, int]], int]]:
    """Return rank correlations and overlaps `[n]` of the maps in two tables of equal length, NaN if there is none.

    Returns  also the reason `[n]` for each NaN, else "", and the number of pairs for each pair of sizes
    """
    count = len(a)
    correlations, overlaps = np.full(count, np.nan), np.full(count, np.nan)
    names = ("map_height", "map_width")
    both = np.stack([np.asarray(table[name]) for table in (a, b) for name in names], axis=1)
    reasons, counts = np.full(count, "", dtype=object), {}
    for h, w, other_h, other_w in np.unique(both, axis=0).tolist():
        rows = np.flatnonzero((both == (h, w, other_h, other_w)).all(1))
        counts[(h, w), (other_h, other_w)] = len(rows)
        grid = common_size((h, w), (other_h, other_w), frames)
        if grid[0] * grid[1] < LEAST:
            reasons[rows] = "fewer than 4 cells in common"
            continue
        x, y = (
            read(each, rows, frame, grid).reshape(len(rows), -1) for each, frame in zip((a, b), frames, strict=True)
        )
        finite = np.isfinite(x).all(1) & np.isfinite(y).all(1)
        reasons[rows[~finite]] = "not finite"
        rows, x, y = rows[finite], x[finite], y[finite]
        if not len(rows):
            continue
        correlations[rows] = rank_correlation(torch.from_numpy(x), torch.from_numpy(y)).numpy()
        overlaps[rows] = top_overlap(x, y)
        uniform = np.isnan(correlations[rows])
        overlaps[rows[uniform]] = np.nan
        zero = np.asarray(~(x.any(1) & y.any(1)))[uniform]
        reasons[rows[uniform]] = np.where(zero, "a map is zero everywhere", "uniform map")
    return correlations, overlaps, reasons, counts


@dataclass(frozen=True)
class Alignment:
    """The frames of both runs, or None if maps cannot be compared: because the networks `missing` are not available,
    or because their crops differ in a way that depends on the image.
    """

    frames: tuple[Frame, Frame] | None = None
    missing: tuple[str, ...] = ()


def align(a: FinishedRun, b: FinishedRun) -> Alignment:
    """Return the common part of the maps of two runs."""
    boxes: tuple[Box, Box] | None = (WHOLE, WHOLE)
    hashes = [run.data.settings.get("labels_and_preprocessing") for run in (a, b)]
    if hashes[0] is None or hashes[0] != hashes[1]:
        if a.preparation is None or b.preparation is None:
            missing = [run.data.settings.get("model") for run in (a, b) if run.preparation is None]
            return Alignment(missing=tuple(map(str, missing)))
        boxes = common_boxes(a.preparation, b.preparation)
    if boxes is None:
        return Alignment()
    by_size = [formats.by_size(run.data.settings.get("method", "")) for run in (a, b)]
    return Alignment((Frame(boxes[0], by_size[0]), Frame(boxes[1], by_size[1])))


def common_boxes(a: Preparation, b: Preparation) -> tuple[Box, Box] | None:
    """Return the common part of two crops as fractions of each, or None if it depends on the shape of the image."""
    found = [_common(np.array(a.window(*shape)), np.array(b.window(*shape))) for shape in SHAPES]
    known = np.array([boxes for boxes in found if boxes is not None])  # [shapes, runs, edges]
    if len(known) < len(found) or (np.abs(known - known[0]) > NEAR).any():
        return None
    first, second = (WHOLE if np.all(np.abs(box - WHOLE) < NEAR) else tuple(box.tolist()) for box in known[0])
    return first, second


def _common(a: Floats, b: Floats) -> Floats | None:
    """Return the intersection of two windows [2, edges] as fractions of each, or None if it is empty."""
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    if (low >= high).any():
        return None
    parts = [np.array([low - each[:2], high - each[:2]]) / (each[2:] - each[:2]) for each in (a, b)]
    return np.clip(parts, 0, 1).reshape(2, 4)
