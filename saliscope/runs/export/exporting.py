"""Export the images of a run that could be read, with their maps as heatmaps."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from saliscope.errors import Refused
from saliscope.runs.export import coco, fiftyone, huggingface
from saliscope.runs.export.record import Record, heatmap
from saliscope.runs.finished.finished_run import FinishedRun
from saliscope.runs.results import ExportResult
from saliscope.runs.rows import SCHEMA, map_of
from saliscope.runs.shards import refuse_disk_errors

ROWS = 32
"""Rows that are read at once, with their images."""


FORMATS: dict[str, Callable[[Path, FinishedRun, Iterable[Record]], None]] = {
    "fiftyone": fiftyone.write,
    "hf": huggingface.write,
    "coco": coco.write,
}


def export(
    run: FinishedRun, to: str, out: str | Path, *, progress: Callable[[int, int], object] | None = None
) -> ExportResult:
    """Copy the images that are still available with their rows and heatmaps into a new folder.

    Args     to: "hf" for Hugging Face datasets, "coco" or "fiftyone"
    Errors   Refused for an unknown format, a folder with files, a network that is not available, a run without images
             that are available, and a full disk

    Example
        >>> run.export("hf", "dataset").written
        2
    """
    if to not in FORMATS:
        raise Refused(f"Unknown format {to!r}. Use {', '.join(FORMATS)}.")
    folder = Path(out).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{str(folder)!r} already exists and is not an empty folder. Choose another one.")
    model = run.model  # its preprocessing determines the region of a map
    written = missing = 0

    def records() -> Iterator[Record]:
        nonlocal written, missing
        for start, table in run.data.batches(SCHEMA.names, ROWS):
            for row in table.to_pylist():
                record = None if row["error"] is not None else _record(run, row, model)
                if record is not None:
                    yield record
                    written += 1
                else:
                    missing += row["error"] is None
            if progress is not None:
                progress(start + len(table), len(run.data))

    with refuse_disk_errors(folder), _remove_unfinished(folder):
        folder.mkdir(parents=True, exist_ok=True)
        FORMATS[to](folder, run, records())
        if not written:
            raise Refused(f"None of the images of the run is in {run.source!r} anymore. Restore them there.")
    return ExportResult(folder, to, written, missing)


def _record(run: FinishedRun, row: dict[str, Any], model: Any) -> Record | None:
    """Return the image of a row with its heatmap, or None if it is not available anymore."""
    data = run.read(row["path"], row["sha256"])
    image = run.decode(data)
    if data is None or image is None:
        return None
    if row["map"] is None:
        return Record(row, data, image.size, None, None)
    values = map_of(row).astype(np.float64)
    return Record(row, data, image.size, values, heatmap(values, model.preparation, image.size))


@contextmanager
def _remove_unfinished(folder: Path) -> Iterator[None]:
    """Delete the files of an export that failed, so that the same command can run again."""
    new = not folder.exists()
    try:
        yield
    except BaseException:
        for path in folder.iterdir() if folder.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if new and folder.is_dir():
            folder.rmdir()
        raise
