"""Reading the rows of a run: batches and single rows equal the whole table, and damage is reported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from saliscope.errors import Refused
from saliscope.runs.rows import SCHEMA
from saliscope.runs.shards import open_run


def write_parts(folder: Path, sizes: tuple[int, ...], schema: pa.Schema = SCHEMA) -> Path:
    """Write a run of empty rows in files of these sizes; the path of a row is its index."""
    first, names = 0, []
    for number, size in enumerate(sizes):
        rows = [{"path": str(first + k), "error": "Not read."} for k in range(size)]
        names.append(f"part-{number:05d}.parquet")
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / names[-1])
        first += size
    manifest = {"settings": {}, "weights_sha256": "0", "parts": names}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_rows_are_read_in_batches_or_in_any_order(tmp_path):
    data = open_run(write_parts(tmp_path, (3, 0, 5, 2)))
    for size in (1, 3, 4, 100):
        batches = list(data.batches(["path"], size))
        assert all(len(table) <= size and table["path"][0].as_py() == str(first) for first, table in batches), size
        assert [int(path) for _, table in batches for path in table["path"].to_pylist()] == list(range(len(data)))
    assert data.take([9, 0, 4, 4, 2], ["path"])["path"].to_pylist() == ["9", "0", "4", "4", "2"]
    assert len(data.take([])) == 0 and data.take(np.array([7])).column_names == SCHEMA.names


@pytest.mark.parametrize("name", ["a b#%20é", "_run", "s3:x", "q?*[z]{0..1}", "year=2020"])
def test_runs_in_folders_with_unusual_names_are_read(name, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    write_parts(tmp_path / name, (2, 3))
    monkeypatch.chdir(tmp_path)
    for data in (open_run(tmp_path / name), open_run(name)):
        assert data.table.schema == SCHEMA and data.table["path"].to_pylist() == [*"01234"]
        assert data.take([4, 1], ["path"])["path"].to_pylist() == ["4", "1"]


def test_files_with_other_columns_are_converted_or_refused(tmp_path):
    write_parts(tmp_path, (2, 3))

    def write(label: object, kind: pa.DataType) -> None:
        schema = pa.schema([pa.field(f.name, kind if f.name == "label_index" else f.type) for f in SCHEMA])
        row = {"path": "x", "label_index": label}
        pq.write_table(pa.Table.from_pylist([row], schema), tmp_path / "part-00001.parquet")

    write(7, pa.int64())
    assert open_run(tmp_path).columns(["label_index"])["label_index"].to_pylist() == [None, None, 7]
    write("cat", pa.string())
    with pytest.raises(Refused, match="is damaged"):
        open_run(tmp_path).columns(["label_index"])
    bad = pa.schema([field for field in SCHEMA if field.name not in ("probability", "map")])
    with pytest.raises(Refused, match=r"part-00000.parquet of .* has no column probability, map\."):
        open_run(write_parts(tmp_path, (2,), bad))


def test_damaged_and_missing_files_are_reported(tmp_path):
    part = write_parts(tmp_path, (3, 3)) / "part-00001.parquet"
    for damage in (lambda: part.write_bytes(part.read_bytes()[:-9]), lambda: part.write_bytes(b"PAR1"), part.unlink):
        damage()
        with pytest.raises(Refused, match="is damaged"):
            open_run(tmp_path)
    for content in ("[]", "null", '{"parts": 3}', '{"parts": []}', "{}"):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(Refused, match="is damaged: manifest.json has no"):
            open_run(tmp_path)
    for folder, message in ((tmp_path / "nowhere", "Folder not found"), ("tests", "does not contain a run")):
        with pytest.raises(Refused, match=message):
            open_run(folder)
