"""Hugging Face: Parquet shards with images, for `datasets.load_dataset(folder)`."""

from __future__ import annotations

import json
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


class HuggingFaceWriter:
    """Writes a shard as soon as it is full."""

    def __init__(self, folder: Path, run: FinishedRun) -> None:
        self.folder, self.shards = folder / "data", 0
        self.rows: list[dict[str, Any]] = []
        self.size = 0
        self.folder.mkdir()
        settings = run.data.settings
        text = (
            "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/*.parquet\n---\n"
            f"Images with predictions of {settings.get('model')} and maps of {settings.get('method')}.\n"
            "A pixel p of `heatmap` is heatmap_low + p / 255 * (heatmap_high - heatmap_low).\n"
        )
        (folder / "README.md").write_text(text, encoding="utf-8")

    def add(self, record: Record) -> None:
        """Add an image."""
        found = record.heatmap
        heat = None if found is None else {"bytes": found.png(), "path": None}
        row = {**record.columns, "image": {"bytes": record.data, "path": record.row["path"]}, "heatmap": heat}
        row |= {} if found is None else {"heatmap_low": found.low, "heatmap_high": found.high}
        self.rows.append(row)
        self.size += len(record.data) + (0 if heat is None else len(heat["bytes"] or b""))
        if self.size >= SHARD:
            self._write()

    def close(self) -> None:
        """Write the last shard."""
        if self.rows:
            self._write()

    def _write(self) -> None:
        table = pa.Table.from_pylist(self.rows, SCHEMA)
        pq.write_table(table, self.folder / f"train-{self.shards:05d}.parquet", row_group_size=100)
        self.rows, self.size, self.shards = [], 0, self.shards + 1
