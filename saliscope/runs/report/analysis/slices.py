"""Slices: groups of images with a common value of a metadata column, on which the network is less accurate."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from saliscope.runs.report.analysis.summary import Rate

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST = 30
"""Minimum number of labeled images in a slice, and outside it."""
MOST_VALUES = 50
"""Maximum number of different values of a column of texts."""
FEW_NUMBERS = 10
"""Numbers with at most this many different values are values, others are divided into `PARTS` of equal size."""
PARTS = 5
LEVEL = 0.05


@dataclass(frozen=True)
class Slice:
    """The images with a value: their accuracy, that of all other images with a value, and the adjusted p-value."""

    column: str
    value: str
    rate: Rate
    rest: Rate
    p: float


@dataclass(frozen=True)
class Slices:
    """The slices with a significantly lower accuracy, the lowest first; `tested` is the number of all tested slices.

    `skipped` has the columns that were not divided into slices, with the reason.
    """

    worst: list[Slice]
    tested: int
    skipped: dict[str, str]


def find_slices(metadata: Mapping[str, pa.Array], correct: NDArray[np.int8]) -> Slices:
    """Return the slices with a significantly lower accuracy than the other images.

    `correct` `[n]` is 1, 0, or -1 if unknown. The test is Fisher's exact test, one-sided, and its p-values are adjusted
    for the number of slices (Holm). In data without a difference, a slice is reported with a probability of at most 5%.

    Source   Fisher 1922, doi:10.2307/2340521; Holm 1979, Scandinavian Journal of Statistics 6(2)
    """
    from explainers import holm  # torch takes seconds to start

    found: list[tuple[str, str, Rate, Rate]] = []
    skipped = {}
    known = correct >= 0
    for name, values in metadata.items():
        groups = divide(values)
        if isinstance(groups, str):
            skipped[name] = groups
            continue
        codes, labels = groups
        usable = known & (codes >= 0)
        counts = np.bincount(codes[usable], minlength=len(labels))
        hits = np.bincount(codes[usable], weights=correct[usable], minlength=len(labels)).astype(int)
        all_hits, total = int(hits.sum()), int(counts.sum())
        tested = [k for k in range(len(labels)) if counts[k] >= LEAST and total - counts[k] >= LEAST]
        if not tested:
            skipped[name] = f"no value has {LEAST} labeled images and as many without it"
        for k in tested:
            inside, outside = Rate(int(hits[k]), int(counts[k])), Rate(all_hits - int(hits[k]), total - int(counts[k]))
            found.append((name, labels[k], inside, outside))
    adjusted = holm([lower(inside, outside) for _, _, inside, outside in found]) if found else []
    worst = [Slice(*each, p) for each, p in zip(found, adjusted, strict=True) if p < LEVEL]
    return Slices(sorted(worst, key=lambda each: each.rate.value - each.rest.value), len(found), skipped)


def lower(inside: Rate, outside: Rate) -> float:
    """Return the p-value of Fisher's exact test for a lower rate inside than outside."""
    from scipy.stats import hypergeom  # slow to import, or an extra

    total, hits = inside.count + outside.count, inside.correct + outside.correct
    return float(hypergeom.cdf(inside.correct, total, hits, inside.count))


def divide(values: pa.Array) -> tuple[NDArray[np.int64], list[str]] | str:
    """Return the group `[n]` of each value, -1 for a missing one, and the names of the groups, or the reason."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        return f"it contains {values.type}"
    encoded = values.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    if pa.types.is_floating(values.type) or pa.types.is_integer(values.type):
        if len(distinct) > FEW_NUMBERS:
            return _divide_numbers(np.asarray(values.cast(pa.float64()).fill_null(np.nan)))
    elif len(distinct) > MOST_VALUES:
        return f"it has {len(distinct):,} different values, more than {MOST_VALUES}"
    if len(distinct) < 2:
        return "it has only one value"
    codes = np.asarray(encoded.indices.fill_null(-1)).astype(np.int64)
    return codes, [str(each) for each in distinct]


def _divide_numbers(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], list[str]] | str:
    """Divide numbers at their quantiles; equal numbers are in the same part."""
    finite = np.isfinite(values)
    limits = np.unique(np.quantile(values[finite], np.arange(1, PARTS) / PARTS))
    codes = np.where(finite, np.searchsorted(limits, values, side="left"), -1)
    edges = [f"{each:.4g}" for each in limits]
    names = [
        f"at most {edges[0]}",
        *(f"{a} to {b}" for a, b in itertools.pairwise(edges)),
        f"above {edges[-1]}",
    ]
    return codes.astype(np.int64), names
