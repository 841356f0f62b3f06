"""`saliscope explain --dry-run`: what would run, for how long, and how large the result would be."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saliscope.images import uploads
from saliscope.runs.settings import Settings

BATCHES = 3
"""Batches that are measured, after one that is not: the first one is slower."""


def measure(
    source: str,
    out: str | Path,
    model: str,
    own: Mapping[str, Any],
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
) -> tuple[str, dict[str, Any]]:
    """Explain a few batches into a temporary folder, and return the plan of the whole run as text and as numbers.

    `arguments` and `options` are those of `RunOptions`.

    Errors   those of `run.prepare`
    """
    from saliscope.runs import pages  # jinja2 is in the extra `data`
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
        every = (batch for shard in job.planned() for batch in shard.batches)
        measured: list[tuple[int, float, float, list[dict[str, Any]]]] = []
        unreadable = 0
        for items in itertools.islice(every, BATCHES + 1):
            start = time.perf_counter()
            batch = reader[items]
            middle = time.perf_counter()
            rows = explainer(batch)
            measured.append((len(items), middle - start, time.perf_counter() - middle, rows))
            unreadable += len(batch.items) - len(batch.places)
    counts, reading, explaining, written = zip(*(measured[1:] or measured), strict=True)
    found, images, count = [row for rows in written for row in rows], sum(counts), sum(1 for _ in job.listing)
    workers = runs.default_workers(count) if arguments["workers"] is None else arguments["workers"]
    read, explain = sum(reading) / images, sum(explaining) / images  # seconds per image in one process
    size = _row_size(found) * len(found) / images
    seconds = count * (max(explain, read / workers) if workers else explain + read)  # workers read at the same time
    values: dict[str, Any] = {"images": count, "measured": images if found else 0, "unreadable": unreadable}
    values |= {"seconds": round(seconds, 3) if found else None, "bytes": round(size * count) if found else None}
    more = {"kind": job.listing.kind, "chosen": settings, "read": read, "explain": explain, "size": size}
    more |= {"workers": workers, "exists": open_store(out).read(SETTINGS) is not None, "is_ray": is_ray}
    return pages.text_of("Plan", **{**values, **more, "seconds": seconds}), values


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
