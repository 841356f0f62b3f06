"""Slices: images with a common folder or value of a metadata column, on which the network is less accurate."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from explainers import holm
from saliscope.runs.report.analysis.summary import Rate
from saliscope.runs.rows import Floats, Integers

LEAST = 30
"""Minimum number of labeled images in a slice, and outside it."""
MOST_VALUES = 50
"""Maximum number of different values of a column of texts."""
FEW_NUMBERS = 10
"""Numbers with at most this many different values are values, others are divided into `PARTS` of equal size."""
PARTS = 5
LEVEL = 0.05
EXACT = 5_000
"""With more mistakes than this in several labels, the normal distribution replaces the exact one."""
FOLDER, NAMED = "folder, level", "folder name, level"
"""How the columns of `folders` start. A name is that of a folder without the folders above it."""
MOST_LEVELS = 4


@dataclass(frozen=True)
class Slice:
    """The images with a value: their accuracy, that of the other images with the same labels, and the adjusted p-value.

    `rows` are those of all images with the value.
    """

    column: str
    value: str
    rate: Rate
    rest: Rate
    p: float
    rows: Integers = field(repr=False)


@dataclass
class Slices:
    """The slices with a significantly lower accuracy, the lowest first; `tested` is the number of all tested slices.

    `skipped` has the columns that were not divided into slices, with the reason.
    """

    worst: list[Slice]
    tested: int
    skipped: dict[str, str]


def folders(paths: pa.ChunkedArray) -> dict[str, pa.Array]:
    """Return the folder of each image and its name, by level, below the folder that all images have in common."""
    parents = pc.replace_substring_regex(paths, "/?[^/]*$", "").combine_chunks().dictionary_encode()
    parts = [each.split("/") if each else [] for each in parents.dictionary.to_pylist()]
    deepest = max(map(len, parts), default=0)
    above = next((level for level in range(deepest) if len({tuple(each[: level + 1]) for each in parts}) > 1), deepest)
    columns = {}
    for level in range(above, min(deepest, above + MOST_LEVELS)):
        whole = ["/".join(each[: level + 1]) if len(each) > level else None for each in parts]
        names = [each[level] if len(each) > level else None for each in parts]
        for name, values in ((FOLDER, whole), (NAMED, names)):
            is_new = values is whole or len(set(names)) < len(set(whole))
            if is_new and len(set(values)) <= MOST_VALUES:
                columns[f"{name} {level - above + 1}"] = pa.array(values, pa.string()).take(parents.indices)
    return columns


def find_slices(metadata: Mapping[str, pa.Array], correct: NDArray[np.int8], labels: Integers | None = None) -> Slices:
    """Return the slices with a significantly lower accuracy than the other images with the same labels.

    `correct` `[n]` is 1, 0, or -1 if unknown, and `labels` `[n]` are codes from 0 (None: one label). The test is
    Fisher's exact test, one-sided, within each label, and its p-values are adjusted for the number of slices (Holm). In
    data without a difference, a slice is reported with a probability of at most 5%.

    Source   Fisher 1922, doi:10.2307/2340521; Holm 1979, Scandinavian Journal of Statistics 6(2)
    """
    found: list[Slice] = []
    skipped = {}
    strata = np.zeros(len(correct), dtype=np.int64) if labels is None else labels
    for name, values in metadata.items():
        groups = divide(values)
        if isinstance(groups, str):
            skipped[name] = groups
            continue
        tests = _test_values(name, *groups, correct, strata)
        if not tests:
            skipped[name] = f"no value has {LEAST} labeled images and as many with the same labels without it"
        found += tests
    adjusted = zip(found, holm([each.p for each in found]), strict=True)
    worst = [replace(each, p=p) for each, p in adjusted if p < LEVEL]
    return Slices(sorted(worst, key=lambda each: each.rate.value - each.rest.value), len(found), skipped)


def _test_values(
    column: str, codes: Integers, names: list[str], correct: NDArray[np.int8], labels: Integers
) -> list[Slice]:
    """Return a slice with its p-value for each value with enough images that can be compared."""
    usable = (correct >= 0) & (codes >= 0) & (labels >= 0)
    size = int(labels.max(initial=0)) + 1
    flat = codes[usable] * size + labels[usable]
    counts, hits = (
        np.bincount(flat, weights=weights, minlength=len(names) * size).reshape(len(names), size).astype(np.int64)
        for weights in (None, correct[usable])
    )
    totals, right = counts.sum(0), hits.sum(0)
    found = []
    for k, name in enumerate(names):
        both = (counts[k] > 0) & (counts[k] < totals)  # labels with images inside and outside
        inside, outside = counts[k, both], (totals - counts[k])[both]
        if min(inside.sum(), outside.sum()) >= LEAST:
            rate = Rate(int(hits[k, both].sum()), int(inside.sum()))
            rest = Rate(int((right - hits[k])[both].sum()), int(outside.sum()))
            p = more_mistakes(inside - hits[k, both], inside, (totals - right)[both], totals[both])
            found.append(Slice(column, name, rate, rest, p, np.flatnonzero(codes == k)))
    return found


def more_mistakes(wrong: Integers, inside: Integers, missed: Integers, total: Integers) -> float:
    """Return the p-value of as many mistakes inside a slice, if the mistakes of each label were anywhere.

    Of `total` `[k]` images of each label, of which `missed` are mistakes, `inside` are in the slice, with `wrong`
    mistakes. With one label it is Fisher's exact test.
    """
    from scipy.stats import hypergeom, norm  # scipy takes a second to start

    mixed = (missed > 0) & (missed < total)
    observed, expected = int(wrong[mixed].sum()), float((inside * missed / total)[mixed].sum())
    drawn = [hypergeom(t, m, n) for t, m, n in zip(total[mixed], missed[mixed], inside[mixed], strict=True)]
    if len(drawn) == 1:
        return float(drawn[0].sf(observed - 1))
    if missed[mixed].sum() > EXACT:
        return float(norm.sf((observed - 0.5 - expected) / np.sqrt(sum(each.var() for each in drawn))))
    chances = np.ones(1)
    for each in drawn:
        chances = np.convolve(chances, each.pmf(np.arange(each.support()[1] + 1)))
    return float(min(1.0, chances[observed:].sum()))


def lower(inside: Rate, outside: Rate) -> float:
    """Return the p-value of Fisher's exact test for a lower rate inside than outside."""
    from scipy.stats import hypergeom  # scipy takes a second to start

    total, hits = inside.count + outside.count, inside.correct + outside.correct
    return float(hypergeom.cdf(inside.correct, total, hits, inside.count))


def divide(values: pa.Array) -> tuple[Integers, list[str]] | str:
    """Return the group `[n]` of each value, -1 for a missing one, and the names of the groups, or the reason."""
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


def _divide_numbers(values: Floats) -> tuple[Integers, list[str]]:
    """Divide numbers at their quantiles; equal numbers are in the same part."""
    finite = np.isfinite(values)
    limits = np.unique(np.quantile(values[finite], np.arange(1, PARTS) / PARTS))
    codes = np.where(finite, np.searchsorted(limits, values, side="left"), -1)
    edges = [f"{each:.4g}" for each in limits]
    between = [f"{a} to {b}" for a, b in itertools.pairwise(edges)]
    return codes.astype(np.int64), [f"at most {edges[0]}", *between, f"above {edges[-1]}"]
