"""`saliscope explain --dry-run`: what would run, for how long, and how large the result would be."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saliscope.images import uploads
from saliscope.runs.settings import Settings

BATCHES = 3
"""Batches that are measured, after one that is not: the first one is slower."""


@dataclass(frozen=True)
class Plan:
    """The images of a run, and measured seconds and bytes per image."""

    images: int
    kind: str
    settings: Settings
    measured: int
    unreadable: int
    reading: float
    """Seconds to read, decode and prepare an image in one process."""
    explaining: float
    size: float
    """Bytes of the run."""
    workers: int
    exists: bool
    ray: bool

    @property
    def seconds(self) -> float:
        """The estimated time of the run: workers read while this process explains."""
        each = max(self.explaining, self.reading / self.workers) if self.workers else self.explaining + self.reading
        return each * self.images

    def text(self) -> str:
        """Return the plan for the terminal."""
        from saliscope.runs import pages  # jinja2 is in the extra `data`

        return pages.text_of(self)

    def values(self) -> dict[str, Any]:
        """Return the numbers of the plan."""
        return {
            "images": self.images,
            "measured": self.measured,
            "unreadable": self.unreadable,
            "seconds": round(self.seconds, 3) if self.measured else None,
            "bytes": round(self.size * self.images) if self.measured else None,
        }


def measure(
    source: str,
    out: str | Path,
    model: str,
    own: Mapping[str, Any],
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Plan:
    """Explain a few batches into a temporary folder, and return the plan of the whole run.

    `arguments` and `options` are those of `RunOptions`.

    Errors   those of `run.prepare`
    """
    from saliscope.runs import run as runs  # torch takes seconds to start
    from saliscope.runs.decoding import ImageReader  # as above
    from saliscope.runs.explaining import Explainer  # as above
    from saliscope.runs.stores import SETTINGS, open_store  # pyarrow takes a moment to start

    names = "method layer target where batch_size precision seed".split()
    settings = Settings(model, own, options=options, **{name: arguments[name] for name in names})
    is_ray = arguments["engine"] == "ray"
    device = "cpu" if is_ray else arguments["device"]
    with tempfile.TemporaryDirectory() as folder:
        job = runs.prepare(settings, source, folder, limit=arguments["limit"], device=device)
        reader = ImageReader(uploads.open_image, job.model.preparation)
        explainer = Explainer(job.model, settings, device)
        reading = explaining = 0.0
        measured = unreadable = 0
        written: list[dict[str, Any]] = []
        every = (batch for shard in job.planned() for batch in shard.batches)
        batches = list(itertools.islice(every, BATCHES + 1))
        for number, items in enumerate(batches):
            start = time.perf_counter()
            batch = reader[items]
            middle = time.perf_counter()
            rows = explainer(batch)
            end = time.perf_counter()
            unreadable += len(batch.errors) - batch.errors.count(None)
            if number == 0 and len(batches) > 1:
                continue
            reading, explaining = reading + middle - start, explaining + end - middle
            measured += len(items)
            written += rows
    count = sum(1 for _ in job.listing)
    workers = arguments["workers"]
    if workers is None:
        workers = runs.default_workers(count)
    each = max(1, measured)
    exists = open_store(out).read(SETTINGS) is not None
    return Plan(
        count, job.listing.kind, settings, measured if written else 0, unreadable, reading / each,
        explaining / each, _row_size(written) * len(written) / each, workers, exists, is_ray,
    )  # fmt: skip


def _row_size(rows: list[dict[str, Any]]) -> float:
    """Return the bytes of a row in a shard, without the part that every file has."""
    import pyarrow as pa  # takes a moment to start
    from pyarrow import parquet as pq  # as above

    from saliscope.runs.rows import SCHEMA  # imports pyarrow

    sizes = []
    for part in (rows[:1], rows):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(part, SCHEMA), sink, compression="zstd")
        sizes.append(sink.getvalue().size)
    return (sizes[1] - sizes[0]) / (len(rows) - 1) if len(rows) > 1 else float(sizes[1])
