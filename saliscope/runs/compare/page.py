"""Write a comparison: a page, and a Parquet file with one row per image."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pyarrow import parquet as pq

from saliscope.errors import Refused
from saliscope.runs.compare import texts
from saliscope.runs.compare.agreement import Alignment, align
from saliscope.runs.compare.comparing import CLASS_COUNTS, TABLE, Comparer, Comparison
from saliscope.runs.compare.content import gather
from saliscope.runs.compare.pairing import PATH
from saliscope.runs.compare.statistics import mcnemar
from saliscope.runs.finished.finished_run import FinishedRun
from saliscope.runs.report.page import DRAWING_SCRIPTS, render
from saliscope.runs.results import ComparisonResult
from saliscope.runs.shards import refuse_disk_errors


def write(
    a: FinishedRun,
    b: FinishedRun,
    out: str | Path,
    *,
    key: str = PATH,
    progress: Callable[[int, int], object] | None = None,
) -> ComparisonResult:
    """Compare two finished runs, and write a page and next to it a Parquet file of the same name.

    `key` is what identifies an image: "path", or "sha256" for its content. `progress` is called with the number of
    compared images of the first run and their total number.

    Errors   Refused if the runs have no image in common, if one contains only mistakes, and for a full disk
    """
    path = Path(out).expanduser()
    table = path.with_suffix(".parquet")
    if table == path:
        raise Refused(f"{str(path)!r} is the name of the Parquet file. Use a name such as compare.html.")
    alignment = align(a, b)
    comparer = Comparer(a.data, b.data, alignment.frames, key)
    temporary = table.with_name(f".{table.name}.{os.getpid()}")
    with refuse_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with pq.ParquetWriter(temporary, TABLE, compression="zstd") as writer:
                for rows in comparer.rows(progress):
                    writer.write_table(rows)
            content = gather(comparer.result, (a, b), alignment, table.name)
            text = render(content, "compare.html", DRAWING_SCRIPTS)
            os.replace(temporary, table)
        finally:
            temporary.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
    return _summarize(comparer.result, alignment, path, table)


def _summarize(result: Comparison, alignment: Alignment, page: Path, table: Path) -> ComparisonResult:
    """Return the main numbers of a comparison."""
    labeled, correct_a, correct_b, gained, lost = map(result.total, CLASS_COUNTS[:5])
    mean = result.correlation.mean()
    return ComparisonResult(
        page,
        table,
        paired=result.pairing.paired,
        compared=result.compared,
        agree=result.agree,
        labeled=labeled,
        correct_a=correct_a,
        correct_b=correct_b,
        gained=gained,
        lost=lost,
        p=mcnemar(gained, lost) if labeled else None,
        rank_correlation=None if mean is None else mean.value,
        changes=dict(result.changes),
        sentences=texts.sentences(result, alignment),
    )
