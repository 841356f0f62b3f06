"""Finished runs with given rows, without images and a network."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from saliscope.runs.rows import RunData


def store_rows(folder: Path, manifest: Mapping[str, Any], table: pa.Table) -> RunData:
    """Write the rows of a run into a folder, which may have several, and return the run."""
    name = f"rows/{uuid.uuid4().hex}.parquet"
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / name)
    return RunData(folder, {**manifest, "parts": [name]})
