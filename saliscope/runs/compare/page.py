"""Write a comparison: a page, and a Parquet file with one row per image.

The templates `compare.html` and `compare.txt`, which is also for the terminal, have the texts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet as pq

from explainers import holm
from saliscope.errors import Refused
from saliscope.runs.compare import statistics
from saliscope.runs.compare.comparing import CLASS_COUNTS, PATH, TABLE, Comparison
from saliscope.runs.compare.statistics import align
from saliscope.runs.finished_run import FinishedRun
from saliscope.runs.pages import DRAWING_SCRIPTS, render, templates
from saliscope.runs.report import images
from saliscope.runs.report.analysis.columns import MOST
from saliscope.runs.report.analysis.maps import pack, pool
from saliscope.runs.report.analysis.summary import Rate
from saliscope.runs.results import ComparisonResult, Progress
from saliscope.runs.rows import map_of
from saliscope.runs.shards import refuse_disk_errors
from saliscope.zoo import Preparation

CLASSES, TRANSITIONS = 300, 100
"""Maximum number of rows of the tables; the Parquet file has all images."""


def compare(
    a: FinishedRun,
    other: FinishedRun,
    out: str | Path = "compare.html",
    *,
    match: str = PATH,
    progress: Progress | None = None,
) -> ComparisonResult:
    """Compare this run (A) with another one (B), and write a page and next to it a Parquet file of the same name.

    Args     match: what identifies an image in both runs, "path" or "sha256"
             progress: called with the number of compared images of the first run and their total number
    Errors   Refused if the runs have no image in common, if one has only mistakes, and for a full disk

    Example
        >>> run.compare(runs.open("run"), "compare.html").agree
        2
    """
    path = Path(out).expanduser()
    table = path.with_suffix(".parquet")
    if table == path:
        raise Refused(f"{str(path)!r} is the name of the Parquet file. Use a name such as compare.html.")
    alignment = align(a, other)
    result = Comparison(a.data, other.data, alignment.frames, match)
    temporary = table.with_name(f".{table.name}.{os.getpid()}")
    with refuse_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with pq.ParquetWriter(temporary, TABLE, compression="zstd") as writer:
                for rows in result.rows(progress):
                    writer.write_table(rows)
            totals: dict[str, Any] = {name: result.total(name) for name in CLASS_COUNTS[:5]}
            pictures, mean = _Pictures((a, other)), result.correlation.mean()
            transitions = sorted(result.transitions.items(), key=lambda item: (-item[1], str(item[0])))
            content: dict[str, Any] = {
                "runs": (a, other),
                "table_name": table.name,
                "alignment": alignment,
                "result": result,
                "changed": Rate(result.compared - result.agree, result.compared),
                "rates": [Rate(totals[f"correct_{letter}"], totals["labeled"]) for letter in "ab"],
                "totals": totals,
                "mean": mean,
                "stats": statistics,
                "sizes": sorted({sizes for sizes in result.map_sizes if sizes[0] != sizes[1]}),
                "classes": class_rows(result),
                "most_classes": CLASSES,
                "transitions": transitions[:TRANSITIONS],
                "pictures": pictures,
                "data": lambda: {"images": pictures.images, "maps": pictures.maps},
            }
            sentences = templates().get_template("compare.txt").render(content).strip().split("\n")
            text = render(content | {"lines": sentences[1:]}, "compare.html", DRAWING_SCRIPTS)
            os.replace(temporary, table)
        finally:
            temporary.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
    return ComparisonResult(
        page=path,
        table=table,
        paired=result.pairing.paired,
        compared=result.compared,
        agree=result.agree,
        **totals,
        p=statistics.mcnemar(totals["gained"], totals["lost"]) if totals["labeled"] else None,
        rank_correlation=None if mean is None else mean.value,
        changes=dict(result.changes),
        sentences=sentences,
    )


def class_rows(result: Comparison) -> list[dict[str, Any]]:
    """Return the counts of each label with p-values and intervals, the lowest p-value first.

    Classes with gained or lost images are tested (`p`, or None), and their p-values are adjusted. `bounds` are the
    difference of the accuracies and its interval, or None without labels.
    """
    rows = sorted(result.classes.to_pylist(), key=lambda row: row["name"])
    tested = [row for row in rows if row["gained"] + row["lost"]]
    p_values = holm([statistics.mcnemar(row["gained"], row["lost"]) for row in tested])
    adjusted = dict(zip([row["name"] for row in tested], p_values, strict=True))
    for row in rows:
        gained, lost, labeled = row["gained"], row["lost"], row["labeled"]
        row["bounds"] = statistics.paired_difference(gained, lost, labeled) if labeled else None
        row["p"] = adjusted.get(row["name"])
    return sorted(rows, key=lambda row: (2.0 if row["p"] is None else row["p"], -row["changed"]))


class _Pictures:
    """The images and maps on the page. `missing` is the number of images that are not available."""

    def __init__(self, runs: Sequence[FinishedRun]) -> None:
        self.runs = runs
        self.images: list[dict[str, Any]] = []
        self.maps: list[dict[str, Any]] = []
        self.missing = 0

    def cards(self, shown: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of the table with the indices of their images and maps."""
        tables = [run.data.take([row["rows"][k] for row in shown]).to_pylist() for k, run in enumerate(self.runs)]
        cards = []
        for row, *records in zip(shown, *tables, strict=True):
            pairs = [*zip(self.runs, records, strict=True)]
            image = next(filter(None, (run.image(each["path"], each["sha256"]) for run, each in pairs)), None)
            self.missing += image is None
            figures = [self._figure(image, record, run.preparation) for run, record in pairs]
            cards.append({**row, "photo": self._photo(image, None), "figures": dict(zip("ab", figures, strict=True))})
        return cards

    def _figure(self, image: Any, record: dict[str, Any], preparation: Preparation | None) -> dict[str, Any]:
        stored = map_of(record)
        values = np.where(np.isfinite(stored), stored, 0.0).astype(np.float64)
        self.maps.append(pack(pool(values, (min(MOST, values.shape[0]), min(MOST, values.shape[1])))))
        photo = None if preparation is None else self._photo(image, preparation)
        return {"map": len(self.maps) - 1, "photo": photo, "low": float(values.min()), "high": float(values.max())}

    def _photo(self, image: Any, preparation: Preparation | None) -> int | None:
        if image is None:
            return None
        self.images.append(images.small(images.crop(image, preparation), images.budget(300)))
        return len(self.images) - 1
