"""The statistics in the report: accuracy with its interval, classes, confusions, findings, shares of relevance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from hooklens.datasets.report.analysis.maps import Floats, Maps

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


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table that the statistics need, as lists of equal length."""

    path: list[str]
    label: list[str | None]
    label_index: list[int | None]
    prediction: list[str | None]
    probability: list[float | None]
    correct: list[bool | None]
    target: list[str | None]
    target_index: list[int | None]
    findings: list[list[str] | None]
    finding_texts: list[list[str] | None]
    error: list[str | None]
    labeled: Mapping[int, int]
    """Predicted images per labeled class, with or without a row; a run may contain only rows of mistakes."""

    @classmethod
    def of(cls, table: pa.Table, classes: Sequence[str] = (), labeled: Mapping[str, int] | None = None) -> Columns:
        """Return the columns of a run's table, with labels in `classes` replaced by the name of the class.

        Classes that share a name have their index after it. `labeled` are the counts in the manifest; if it is None,
        the rows are counted.
        """
        columns = {name: table[name].to_pylist() for name in cls.__dataclass_fields__ if name != "labeled"}
        indices, names = columns["label_index"], distinct(classes)
        for column, numbers in {
            "label": indices,
            "prediction": table["prediction_index"].to_pylist(),
            "target": columns["target_index"],
        }.items():
            columns[column] = [
                names[index] if index is not None and index < len(names) else name
                for name, index in zip(columns[column], numbers, strict=True)
            ]
        columns["probability"] = [as_numbers(value) for value in columns["probability"]]
        if labeled is None:
            return cls(**columns, labeled=Counter(index for index in indices if index is not None))
        return cls(**columns, labeled={int(index): count for index, count in labeled.items()})

    @property
    def readable(self) -> list[int]:
        """Rows of images that could be read."""
        return [row for row, error in enumerate(self.error) if error is None]


def accuracy(columns: Columns) -> Rate | None:
    """Return the accuracy over all images whose label is a class of the network, or None if there are none."""
    count = sum(columns.labeled.values())
    return Rate(count - sum(is_correct is False for is_correct in columns.correct), count) if count else None


def unreadable(columns: Columns) -> list[tuple[str, list[str]]]:
    """Return the errors with the paths of the images, the most frequent error first."""
    reasons: dict[str, list[str]] = {}
    for path, error in zip(columns.path, columns.error, strict=True):
        if error is not None:
            reasons.setdefault(error, []).append(path)
    return sorted(reasons.items(), key=lambda item: -len(item[1]))


def class_rows(columns: Columns, maps: Maps, shares: Mapping[str, Floats]) -> list[ClassRow]:
    """Return the classes sorted by name; `shares` maps regions to one value `[n]` per map."""
    by_label = any(label is not None for label in columns.label)
    groups: dict[str, list[int]] = {}
    for row in columns.readable:
        name = columns.label[row] if by_label else columns.target[row]
        if name is not None:
            groups.setdefault(name, []).append(row)
    number = {int(row): k for k, row in enumerate(maps.rows)}
    return [_class(name, rows, columns, maps, shares, number) for name, rows in sorted(groups.items())]


def _class(
    name: str, rows: list[int], columns: Columns, maps: Maps, shares: Mapping[str, Floats], number: Mapping[int, int]
) -> ClassRow:
    count = sum(columns.labeled.get(index, 0) for index in _indices(rows, columns))
    wrong = Counter(str(columns.prediction[row]) for row in rows if columns.correct[row] is False)
    rate = Rate(count - wrong.total(), count) if count else None
    map_indices = np.array([number[row] for row in rows if row in number], dtype=np.int64)
    return ClassRow(
        name,
        len(rows),
        rate,
        _mean_probability(rows, columns),
        wrong.most_common(1)[0] if wrong else None,
        {region: mean(values[map_indices]) for region, values in shares.items()},
        len(map_indices),
        maps.values[map_indices].mean(0) if len(map_indices) else None,
    )


def _indices(rows: list[int], columns: Columns) -> set[int]:
    """Return the labeled classes of some rows."""
    return {index for row in rows if (index := columns.label_index[row]) is not None}


def mean(values: Floats) -> float:
    """Return the mean of the finite values, or NaN if there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def confusions(columns: Columns) -> list[Pair]:
    """Return the pairs of label and wrong prediction, the most frequent first."""
    known = [row for row in columns.readable if columns.correct[row] is not None]
    pairs: dict[tuple[str, str], list[int]] = {}
    for row in known:
        if not columns.correct[row]:
            pairs.setdefault((str(columns.label[row]), str(columns.prediction[row])), []).append(row)
    confused_pairs = [_pair(label, prediction, rows, columns) for (label, prediction), rows in pairs.items()]
    return sorted(confused_pairs, key=lambda pair: (-pair.count, -np.nan_to_num(pair.probability), pair.label))


def _pair(label: str, prediction: str, rows: list[int], columns: Columns) -> Pair:
    whole = sum(columns.labeled[index] for index in _indices(rows, columns))
    return Pair(label, prediction, len(rows), len(rows) / whole, _mean_probability(rows, columns))


def _mean_probability(rows: list[int], columns: Columns) -> float:
    """Return the mean probability of the predictions, or NaN if the network has no probabilities."""
    known = [columns.probability[row] for row in rows]
    return float(np.mean([value or 0.0 for value in known])) if any(value is not None for value in known) else math.nan


def most_confident_mistakes(columns: Columns, count: int) -> list[int]:
    """Return the rows of wrong predictions, the most probable first."""
    wrong = [row for row in columns.readable if columns.correct[row] is False]
    return sorted(wrong, key=lambda row: -(columns.probability[row] or 0.0))[:count]


def finding_rows(columns: Columns) -> list[FindingRow]:
    """Return the findings, the most frequent first; an image counts once for each."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for row in columns.readable:
        codes, texts = columns.findings[row] or [], columns.finding_texts[row] or []
        counts.update(set(codes))
        for code, text in zip(codes, texts, strict=False):
            examples.setdefault(code, text)
    readable = max(1, len(columns.readable))
    return [FindingRow(code, title(code), n, n / readable, examples.get(code, "")) for code, n in counts.most_common()]


def title(code: str) -> str:
    """Return the title of a finding."""
    return TITLES.get(code) or code.replace("_", " ").capitalize()


def distinct(classes: Sequence[str]) -> list[str]:
    """Return the names of the classes, with the index if several classes share a name: "crane (517)"."""
    counts = Counter(classes)
    return [name if counts[name] == 1 else f"{name} ({index})" for index, name in enumerate(classes)]


def as_numbers(value: Any) -> Any:
    """Return the value, or None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
