"""Hugging Face: Parquet shards with images, for `datasets.load_dataset(folder)`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from saliscope.runs.export.record import Record
from saliscope.runs.finished.finished_run import FinishedRun

SHARD = 2**28
"""Bytes of images and heatmaps per shard."""
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
COLUMNS: dict[str, tuple[pa.DataType, dict[str, Any]]] = {
    "image": (_IMAGE, {"_type": "Image"}),
    "heatmap": (_IMAGE, {"_type": "Image"}),
    **{
        name: (pa.string(), {"dtype": "string", "_type": "Value"}) for name in ("path", "label", "prediction", "target")
    },
    **{
        name: (pa.float64(), {"dtype": "float64", "_type": "Value"})
        for name in ("probability", "label_probability", "score", "heatmap_low", "heatmap_high")
    },
    "correct": (pa.bool_(), {"dtype": "bool", "_type": "Value"}),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()]).with_metadata(
    {"huggingface": json.dumps({"info": {"features": {name: feature for name, (_, feature) in COLUMNS.items()}}})}
)


def write(folder: Path, run: FinishedRun, records: Iterable[Record]) -> None:
    """Write a shard as soon as it is full."""
    settings, numbers = run.data.settings, itertools.count()
    text = (
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/*.parquet\n---\n"
        f"Images with predictions of {settings.get('model')} and maps of {settings.get('method')}.\n"
        "A pixel p of `heatmap` is heatmap_low + p / 255 * (heatmap_high - heatmap_low).\n"
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
    (folder / "data").mkdir()
    rows, size = list[dict[str, Any]](), 0

    def write_shard() -> None:
        table = pa.Table.from_pylist(rows, SCHEMA)
        pq.write_table(table, folder / "data" / f"train-{next(numbers):05d}.parquet", row_group_size=100)

    for record in records:
        found = record.heatmap
        heat = None if found is None else {"bytes": found.png(), "path": None}
        row = {**record.columns, "image": {"bytes": record.data, "path": record.row["path"]}, "heatmap": heat}
        rows.append(row | ({} if found is None else {"heatmap_low": found.low, "heatmap_high": found.high}))
        size += len(record.data) + (0 if heat is None else len(heat["bytes"] or b""))
        if size >= SHARD:
            write_shard()
            rows, size = [], 0
    if rows:
        write_shard()
