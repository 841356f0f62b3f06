"""The numbers of the report: accuracy with its interval, classes, confusions, findings, shares of relevance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from dataset.report.analysis.maps import Floats, Maps

TITLES = {
    "non_finite": "Values that are not finite",
    "nothing_spatial": "A layer without height and width",
    "saturated": "A saturated probability: its gradient vanishes",
    "no_gradient": "No gradient reaches the layer",
    "nothing_positive": "No positive evidence for the class",
    "flat": "An even map: it shows no place",
    "unlikely_target": "The network does not see the explained class",
    "unusual_size": "Pictures of another size than the network was trained on",
    "class_insensitive": "The map hardly depends on the class",
}
"""Findings in words; others have their code."""


@dataclass(frozen=True)
class Rate:
    """`correct` of `count`, with the 95% Wilson interval."""

    correct: int
    count: int

    @property
    def value(self) -> float:
        """From 0 to 1."""
        return self.correct / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """Low and high."""
        from scipy.stats import binomtest

        found = binomtest(self.correct, self.count).proportion_ci(0.95, method="wilson")
        return float(found.low), float(found.high)


@dataclass(frozen=True, eq=False)
class ClassRow:
    """What the table says of a class: of the pictures with this label, or of those explained as it where none has one.

    `rate` is None without labels; `probability` is the mean of the prediction's; `confused` the most frequent wrong
    prediction with its count; `shares` means by region, NaN where no map has relevance; `mean` the mean map `[h, w]`.
    """

    name: str
    pictures: int
    rate: Rate | None
    probability: float
    confused: tuple[str, int] | None
    shares: Mapping[str, float]
    maps: int
    mean: Floats | None = field(repr=False)


@dataclass(frozen=True)
class Pair:
    """`count` pictures of `label` that are taken for `prediction`: `share` of the label's, at a mean probability."""

    label: str
    prediction: str
    count: int
    share: float
    probability: float


@dataclass(frozen=True)
class FindingRow:
    """How often a finding was made, and what it said first."""

    code: str
    title: str
    count: int
    share: float
    example: str


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table that the numbers need, as lists of one length."""

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
    labelled: Mapping[int, int]
    """Pictures of each labelled class that were predicted, with and without a row: a run may keep mistakes alone."""

    @classmethod
    def of(cls, table: pa.Table, classes: Sequence[str] = (), labelled: Mapping[str, int] | None = None) -> Columns:
        """The columns of a run's table; a label that is one of `classes` has its name, whatever the source calls it.

        Classes that share a name have their numbers behind it.

        `labelled` is what the manifest says of it; by default the rows are counted.
        """
        columns = {name: table[name].to_pylist() for name in cls.__dataclass_fields__ if name != "labelled"}
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
        if labelled is None:
            return cls(**columns, labelled=Counter(index for index in indices if index is not None))
        return cls(**columns, labelled={int(index): count for index, count in labelled.items()})

    @property
    def readable(self) -> list[int]:
        """Rows of pictures that could be read."""
        return [row for row, error in enumerate(self.error) if error is None]


def accuracy(columns: Columns) -> Rate | None:
    """Over all pictures whose label is a class of the network; None where there is none."""
    count = sum(columns.labelled.values())
    return Rate(count - sum(one is False for one in columns.correct), count) if count else None


def unreadable(columns: Columns) -> list[tuple[str, list[str]]]:
    """Reasons with the paths of the pictures, the most frequent first."""
    reasons: dict[str, list[str]] = {}
    for path, error in zip(columns.path, columns.error, strict=True):
        if error is not None:
            reasons.setdefault(error, []).append(path)
    return sorted(reasons.items(), key=lambda item: -len(item[1]))


def class_rows(columns: Columns, maps: Maps, shares: Mapping[str, Floats]) -> list[ClassRow]:
    """The classes by name; `shares` by region `[n]`, one a map."""
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
    count = sum(columns.labelled.get(index, 0) for index in _indices(rows, columns))
    wrong = Counter(str(columns.prediction[row]) for row in rows if columns.correct[row] is False)
    rate = Rate(count - wrong.total(), count) if count else None
    mine = np.array([number[row] for row in rows if row in number], dtype=np.int64)
    return ClassRow(
        name,
        len(rows),
        rate,
        float(np.mean([columns.probability[row] or 0.0 for row in rows])),
        wrong.most_common(1)[0] if wrong else None,
        {region: mean(values[mine]) for region, values in shares.items()},
        len(mine),
        maps.values[mine].mean(0) if len(mine) else None,
    )


def _indices(rows: list[int], columns: Columns) -> set[int]:
    """The labelled classes of some rows."""
    return {index for row in rows if (index := columns.label_index[row]) is not None}


def mean(values: Floats) -> float:
    """The mean of what is finite; NaN where nothing is."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def confusions(columns: Columns) -> list[Pair]:
    """Pairs of label and wrong prediction, the most frequent first."""
    known = [row for row in columns.readable if columns.correct[row] is not None]
    pairs: dict[tuple[str, str], list[int]] = {}
    for row in known:
        if not columns.correct[row]:
            pairs.setdefault((str(columns.label[row]), str(columns.prediction[row])), []).append(row)
    found = [_pair(label, prediction, rows, columns) for (label, prediction), rows in pairs.items()]
    return sorted(found, key=lambda pair: (-pair.count, -pair.probability, pair.label))


def _pair(label: str, prediction: str, rows: list[int], columns: Columns) -> Pair:
    whole = sum(columns.labelled[index] for index in _indices(rows, columns))
    probability = float(np.mean([columns.probability[row] or 0.0 for row in rows]))
    return Pair(label, prediction, len(rows), len(rows) / whole, probability)


def most_confident_mistakes(columns: Columns, count: int) -> list[int]:
    """Rows of wrong predictions, the most probable first."""
    wrong = [row for row in columns.readable if columns.correct[row] is False]
    return sorted(wrong, key=lambda row: -(columns.probability[row] or 0.0))[:count]


def finding_rows(columns: Columns) -> list[FindingRow]:
    """The findings, the most frequent first; a picture counts once for each."""
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
    """A finding in words."""
    return TITLES.get(code) or code.replace("_", " ").capitalize()


def distinct(classes: Sequence[str]) -> list[str]:
    """The names of the classes, with their numbers where several have one: "crane (517)"."""
    counts = Counter(classes)
    return [name if counts[name] == 1 else f"{name} ({index})" for index, name in enumerate(classes)]


def as_numbers(value: Any) -> Any:
    """What is not finite as None, for JSON."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
