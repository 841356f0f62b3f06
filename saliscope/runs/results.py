"""What the functions of a run return. Printed, a result is a summary; in a notebook, it shows a table."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saliscope.runs.formats import duration, plural

OPENERS = {
    "hf": "datasets.load_dataset({folder!r})",
    "coco": "pycocotools.coco.COCO({folder!r} + '/annotations.json')",
    "fiftyone": "fiftyone.Dataset.from_dir({folder!r}, dataset_type=fiftyone.types.LegacyFiftyOneDataset)",
}
"""How to open an export, by its format."""


class Result:
    """A result with named values."""

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name, as `--format json` prints them; paths are strings."""
        values = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(f"<p>{html.escape(line)}</p>" for line in str(self).splitlines())


@dataclass(frozen=True, repr=False)
class ReportResult(Result):
    """A report: the HTML file, and the number of images of the run that are not available anymore."""

    page: Path
    missing: int

    def __str__(self) -> str:
        line = f"{str(self.page)!r}: {self.page.stat().st_size / 1e6:.1f} MB. Open it in a browser."
        if not self.missing:
            return line
        verb, count = "is" if self.missing == 1 else "are", plural(self.missing, "image")
        return f"{line}\n{count} of the run {verb} not available anymore; only the maps are shown."


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

    def __str__(self) -> str:
        lines = [metric["sentence"] for metric in self.metrics.values()]
        end = f"Evaluated {plural(self.images, 'image')} on {self.device}. Saved as {self.file!r}."
        return "\n".join([*lines, end])

    def _repr_html_(self) -> str:
        controls = list(dict.fromkeys(name for metric in self.metrics.values() for name in metric["controls"]))
        rows = [
            [metric["title"], *(_mean(each) for each in (metric, *(metric["controls"].get(c, {}) for c in controls)))]
            for metric in self.metrics.values()
        ]
        return table(rows, ["metric", "maps of the run", *controls]) + super()._repr_html_()


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

    def __str__(self) -> str:
        end = f"{str(self.page)!r}: open it in a browser. {str(self.table)!r}: one row per image."
        return "\n".join([*self.sentences, end])

    def _repr_html_(self) -> str:
        return table(list(self.changes.items()), ["change", "images"]) + super()._repr_html_()


@dataclass(frozen=True, repr=False)
class ExportResult(Result):
    """An export: its folder and format, and the numbers of written images and of those not available anymore."""

    folder: Path
    to: str
    written: int
    missing: int

    def __str__(self) -> str:
        opener = OPENERS[self.to].format(folder=str(self.folder))
        line = f"{plural(self.written, 'image')} in {str(self.folder)!r}. Open it with {opener}."
        gone = f"{plural(self.missing, 'image')} left out: not available anymore, or changed."
        return line if not self.missing else f"{line}\n{gone}"


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

    def __str__(self) -> str:
        counts = self.counts
        speed = f"{self.new:,} new in {duration(self.seconds)}" if self.new else "the index was already finished"
        size = f"{counts['channels']:,} channels and {plural(counts['images'], 'image')}"
        lines = [f"{size} in {str(self.folder)!r}: {speed}."]
        alive = counts["channels"] - counts["dead"]
        lines.append(f"{counts['named']:,} of {alive:,} channels that are not dead have a name.")
        if self.names_by:
            tested = plural(counts["tested"], "image")
            lines.append(f"Names are by {self.names_by}: {counts['labeled']:,} of {tested} clearly show one word.")
        if failed := counts["unreadable"] + counts["skipped"]:
            lines.append(f"{plural(failed, 'image')} could not be read or indexed; see manifest.json.")
        return "\n".join(lines)


def table(rows: Sequence[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """Return an HTML table, with the names of the columns if it has `heads`; the text is escaped."""
    lines = [*([("th", heads)] if heads else ()), *(("td", row) for row in rows)]
    cells = ("".join(_cell(tag, each) for each in line) for tag, line in lines)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>"


def _cell(tag: str, value: object) -> str:
    return f'<{tag} style="text-align: left">{html.escape(str(value))}</{tag}>'


def _mean(values: Mapping[str, Any]) -> str:
    if values.get("mean") is None:
        return ""
    return f"{values['mean']:.3g}" + ("" if values["error"] is None else f" ± {values['error']:.2g}")
