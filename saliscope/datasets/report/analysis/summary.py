"""The statistics in the report: accuracy with its interval, classes, confusions, findings, shares of relevance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from saliscope.datasets.report.analysis.columns import Columns, Names
    from saliscope.datasets.report.analysis.map_pass import MapPass
    from saliscope.datasets.report.analysis.maps import Floats, Integers

TITLES = {
    "non_finite": "Non-finite values",
    "nothing_spatial": "A layer without height and width",
    "saturated": "Saturated probability (vanishing gradient)",
    "no_gradient": "No gradient reaches the layer",
    "nothing_positive": "No positive evidence for the class",
    "flat": "Uniform map",
    "probability_scores": "Scores taken as probabilities because they sum to 1",
    "unclear_scores": "Scores between 0 and 1 taken as logits",
    "unlikely_target": "The explained class has a low probability",
    "unusual_size": "Input size differs from the training size",
    "class_insensitive": "The map hardly depends on the class",
}
"""Titles of findings; other findings are shown with their code."""


@dataclass(frozen=True)
class Rate:
    """The rate `correct` / `count`, with the 95% Wilson interval."""

    correct: int
    count: int

    @property
    def value(self) -> float:
        """The rate, from 0 to 1."""
        return self.correct / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The lower and upper bound."""
        from scipy.stats import binomtest  # slow to import, or an extra

        bounds = binomtest(self.correct, self.count).proportion_ci(0.95, method="wilson")
        return float(bounds.low), float(bounds.high)


@dataclass(frozen=True, eq=False)
class ClassRow:
    """A row of the table of classes: the images with this label, or without labels, the images explained as this class.

    `rate` is None without labels; `probability` is the mean probability of the prediction; `confused` is the most
    frequent wrong prediction with its count; `shares` are means by region, NaN without relevance; `mean` is the mean
    map `[h, w]`.
    """

    name: str
    images: int
    rate: Rate | None
    probability: float
    confused: tuple[str, int] | None
    shares: Mapping[str, float]
    maps: int
    mean: Floats | None = field(repr=False)


@dataclass(frozen=True)
class Pair:
    """`count` images of `label` that are predicted as `prediction`, their `share`, and their mean probability."""

    label: str
    prediction: str
    count: int
    share: float
    probability: float


@dataclass(frozen=True)
class FindingRow:
    """The number of images with a finding, and its first message."""

    code: str
    title: str
    count: int
    share: float
    example: str


def accuracy(columns: Columns) -> Rate | None:
    """Return the accuracy over all images whose label is a class of the network, or None if there are none."""
    count = sum(columns.labeled.values())
    return Rate(count - int(columns.wrong.sum()), count) if count else None


def unreadable(columns: Columns) -> list[tuple[str, list[str]]]:
    """Return the errors with the paths of the images, the most frequent error first."""
    rows = np.flatnonzero(~columns.readable)
    reasons: dict[str, list[str]] = {}
    for row, path in zip(rows, columns.paths.take(rows).to_pylist(), strict=True):
        reasons.setdefault(str(columns.error[int(row)]), []).append(path)
    return sorted(reasons.items(), key=lambda item: -len(item[1]))


def groups(columns: Columns) -> Names:
    """Return the names by which images are grouped: labels, or the explained classes of a run without labels."""
    return columns.label if (columns.label.codes >= 0).any() else columns.target


def class_rows(columns: Columns, maps: MapPass) -> list[ClassRow]:
    """Return the classes sorted by name."""
    names = groups(columns)
    usable = columns.readable & (names.codes >= 0)
    order = np.argsort(np.where(usable, names.codes, -1), kind="stable")
    order = order[int((~usable).sum()) :]
    codes, starts = np.unique(names.codes[order], return_index=True)
    parts = zip(codes.tolist(), np.split(order, starts[1:]), strict=True)
    return sorted((_class(code, rows, columns, maps) for code, rows in parts), key=lambda row: row.name)


def _class(code: int, rows: Integers, columns: Columns, maps: MapPass) -> ClassRow:
    indices = columns.label_index[rows]
    count = sum(columns.labeled.get(int(index), 0) for index in np.unique(indices[indices >= 0]))
    wrong = np.bincount(columns.prediction.codes[rows[columns.correct[rows] == 0]])
    rate = Rate(count - int(wrong.sum()), count) if count else None
    confused = (columns.prediction.values[int(wrong.argmax())], int(wrong.max())) if wrong.sum() else None
    return ClassRow(
        groups(columns).values[code],
        len(rows),
        rate,
        mean(columns.probability[rows]),
        confused,
        {name: mean(region.shares[rows]) for name, region in maps.regions.items()},
        maps.counts.get(code, 0),
        maps.means.get(code),
    )


def mean(values: Any) -> float:
    """Return the mean of the finite values, or NaN if there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean(dtype=np.float64)) if len(finite) else float("nan")


@dataclass(frozen=True)
class Confusions:
    """The most frequent pairs of label and wrong prediction, and the numbers of all pairs and of their images."""

    pairs: list[Pair]
    different: int
    images: int


def confusions(columns: Columns, most: int) -> Confusions:
    """Return at most `most` pairs of label and wrong prediction, the most frequent and then the most probable first."""
    rows = np.flatnonzero(columns.wrong)
    if not len(rows):
        return Confusions([], 0, 0)
    labels, predictions = columns.label.codes[rows].astype(np.int64), columns.prediction.codes[rows]
    keys, pair_of, counts = np.unique(
        labels * len(columns.prediction.values) + predictions, return_inverse=True, return_counts=True
    )
    p = columns.probability[rows]
    finite = np.isfinite(p)
    sums, numbers = np.bincount(pair_of, np.where(finite, p, 0)), np.bincount(pair_of, finite)
    probability = np.divide(sums, numbers, out=np.full(len(keys), np.nan), where=numbers > 0)
    places = np.argsort(np.argsort(np.array(columns.label.values, dtype=object), kind="stable"))
    by_label = places[keys // len(columns.prediction.values)]
    order = np.lexsort((by_label, -np.nan_to_num(probability), -counts))[:most]
    pairs = [_pair(rows[pair_of == k], float(probability[k]), columns) for k in order]
    return Confusions(pairs, len(keys), len(rows))


def _pair(rows: Integers, probability: float, columns: Columns) -> Pair:
    whole = sum(columns.labeled.get(int(index), 0) for index in np.unique(columns.label_index[rows]))
    names = str(columns.label[int(rows[0])]), str(columns.prediction[int(rows[0])])
    return Pair(*names, len(rows), len(rows) / max(whole, len(rows)), probability)


def most_confident_mistakes(columns: Columns, count: int) -> list[int]:
    """Return the rows of wrong predictions, the most probable first."""
    rows = np.flatnonzero(columns.wrong)
    order = np.argsort(-np.nan_to_num(columns.probability[rows]), kind="stable")
    return [int(row) for row in rows[order[:count]]]


def finding_rows(columns: Columns) -> list[FindingRow]:
    """Return the findings, the most frequent first; an image counts once for each."""
    readable = max(1, int(columns.readable.sum()))
    return [
        FindingRow(code, title(code), n, n / readable, columns.finding_texts.get(code, ""))
        for code, n in columns.findings.most_common()
    ]


def title(code: str) -> str:
    """Return the title of a finding."""
    return TITLES.get(code) or code.replace("_", " ").capitalize()


def as_numbers(value: Any) -> Any:
    """Return the value, or None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
