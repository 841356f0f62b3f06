"""What the functions of a run return. Printed, a result is a summary; in a notebook, it shows a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saliscope.runs import pages

Progress = Callable[[int, int], object]
"""Called with the number of finished images and the total number. An exception in it stops the work."""


class Result:
    """A result with named values."""

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name, as `--format json` prints them; paths are strings."""
        values = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def __str__(self) -> str:
        return pages.text_of(type(self).__name__, r=self)

    def __repr__(self) -> str:
        return str(self)

    def _table(self) -> tuple[list[list[object]], list[str]]:
        """Return the rows and the heads of the table that a notebook shows."""
        return [], []

    def _repr_html_(self) -> str:
        rows, heads = self._table()
        return pages.notebook(rows=rows, heads=heads, lines=str(self).splitlines())


@dataclass(frozen=True, repr=False)
class ReportResult(Result):
    """A report: the HTML file, and the number of images of the run that are not available anymore."""

    page: Path
    missing: int


@dataclass(frozen=True, repr=False)
class EvaluationResult(Result):
    """Metrics of a sample of the maps of a run, and of control maps: the content of `file`, evaluation.json.

    `metrics` has for each metric its title, unit, mean, standard error, those of the controls, the tests against the
    controls, and a sentence.
    """

    file: str
    images: int
    steps: int
    seed: int
    precision: str
    device: str
    verdict: str
    metrics: dict[str, dict[str, Any]]

    def _table(self) -> tuple[list[list[object]], list[str]]:
        controls = list(dict.fromkeys(name for metric in self.metrics.values() for name in metric["controls"]))
        return [
            [metric["title"], *(_mean(each) for each in (metric, *(metric["controls"].get(c, {}) for c in controls)))]
            for metric in self.metrics.values()
        ], ["metric", "maps of the run", *controls]


@dataclass(frozen=True, repr=False)
class ComparisonResult(Result):
    """A comparison of two runs, A and B: its HTML page, its table as a Parquet file, and the main numbers.

    `paired` images are in both runs, and `compared` of them were readable in both. `agree` is the number of equal
    predictions. Of the `labeled` images, `gained` are correct only in B and `lost` only in A; `p` is that of McNemar's
    exact test, None without labels. `rank_correlation` is the mean of the maps, None if none were compared. `changes`
    counts the images by the column change of the table. `sentences` say the same in words.
    """

    page: Path
    table: Path
    paired: int
    compared: int
    agree: int
    labeled: int
    correct_a: int
    correct_b: int
    gained: int
    lost: int
    p: float | None
    rank_correlation: float | None
    changes: dict[str, int]
    sentences: list[str]

    def _table(self) -> tuple[list[list[object]], list[str]]:
        return [list(each) for each in self.changes.items()], ["change", "images"]


@dataclass(frozen=True, repr=False)
class ExportResult(Result):
    """An export: its folder and format, and the numbers of written images and of those not available anymore."""

    folder: Path
    to: str
    written: int
    missing: int


@dataclass(frozen=True, repr=False)
class IndexResult(Result):
    """An index of units: its folder, the counts of its manifest, and the images and seconds of this call.

    `names_by` are the words and the encoder that names are from, empty for names from labels.
    """

    folder: Path | str
    counts: dict[str, int]
    new: int
    seconds: float
    names_by: str = ""


def _mean(values: Mapping[str, Any]) -> str:
    if values.get("mean") is None:
        return ""
    return f"{values['mean']:.3g}" + ("" if values["error"] is None else f" ± {values['error']:.2g}")
