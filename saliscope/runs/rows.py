"""The rows of a run, one per image: their columns, and how they are read.

This is the only place that reads them, so reports and comparisons use it. Rows are read when they are needed: some
columns of all rows, batches of them, or single rows with their maps. At most the row groups of a few files are in
memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import dataset

from saliscope.errors import Refused
from saliscope.runs.settings import check_format
from saliscope.runs.stores import MANIFEST, SETTINGS, Store, open_store

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
_CLASS = pa.struct([("class", pa.string()), ("index", pa.int32()), ("probability", pa.float32())])
_STATISTIC = pa.struct([("name", pa.string()), ("value", pa.float64())])  # `datasets` cannot read columns of maps

SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        ("sha256", pa.string()),
        ("label", pa.string()),
        ("label_index", pa.int32()),
        ("label_probability", pa.float32()),
        ("prediction", pa.string()),
        ("prediction_index", pa.int32()),
        ("probability", pa.float32()),
        ("correct", pa.bool_()),
        ("top5", pa.list_(_CLASS)),
        ("target", pa.string()),
        ("target_index", pa.int32()),
        ("score", pa.float32()),
        ("statistics", pa.list_(_STATISTIC)),
        ("findings", pa.list_(pa.string())),
        ("finding_texts", pa.list_(pa.string())),
        ("seconds", pa.float32()),
        ("device", pa.string()),
        ("map", pa.binary()),
        ("map_scale", pa.float32()),
        ("map_height", pa.int32()),
        ("map_width", pa.int32()),
        ("error", pa.string()),
    ]
)
"""`map` is little-endian float16 in row-major order, to be multiplied by `map_scale`, which is 1 except for very large
and very small maps. If an image could not be read, only path, label and `error` are not null.
"""


def unpack(maps: Sequence[bytes], height: int, width: int) -> NDArray[np.float64]:
    """Return the values `[n, h, w]` of stored maps of one size, without their scales.

    Errors   Refused if the number of bytes does not fit the size
    """
    wrong = next((len(each) for each in maps if len(each) != 2 * height * width), None)
    if wrong is not None or height < 1 or width < 1:
        size = f"{height} × {width}"
        raise Refused(f"The run is damaged: a map of {size} has {wrong or 0} bytes. Run saliscope explain again.")
    return np.frombuffer(b"".join(maps), "<f2").reshape(len(maps), height, width).astype(float)


def maps_of(table: pa.Table) -> Floats:
    """Return the maps [n, h, w] of the rows of a table, which all have maps of one size.

    Errors   Refused, as `unpack`
    """
    height, width = (table[name][0].as_py() for name in ("map_height", "map_width"))
    scales = np.asarray(table["map_scale"].cast("float64").fill_null(1.0))
    return unpack(table["map"].to_pylist(), height, width) * scales[:, None, None]


def map_of(row: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return the map [h, w] of a row as float32.

    Errors   Refused, as `unpack`

    Example
        >>> map_of({"map": b"\\x00\\x3c" * 2, "map_scale": 2.0, "map_height": 1, "map_width": 2}).tolist()
        [[2.0, 2.0]]
    """
    scale = np.float32(1.0 if row["map_scale"] is None else row["map_scale"])
    return unpack([row["map"]], row["map_height"], row["map_width"])[0].astype(np.float32) * scale


BATCH = 8192
"""Maximum number of rows per batch."""
REQUESTS = 16
"""Number of files of a store that are opened at the same time."""


class RunData:
    """The folder (or its URL), manifest and rows of a finished run."""

    def __init__(self, folder: str | Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest
        self._parts: list[str] = manifest["parts"]  # the names of the files, in the order of the rows

    @property
    def settings(self) -> dict[str, Any]:
        """The record of the settings of the run."""
        return dict(self.manifest.get("settings", {}))

    @cached_property
    def store(self) -> Store:
        """The files of the run, also others such as evaluation.json."""
        return open_store(self.folder)

    def _open(self, parts: Sequence[str]) -> dataset.Dataset:
        """Return the rows of some files, with the types of `SCHEMA`: another program may have written them again.

        Not all files are opened at once, because the metadata of a file takes 100 kB.
        """
        paths = [self.store.path(part) for part in parts]
        return dataset.dataset(paths, schema=SCHEMA, format="parquet", filesystem=self.store.fs)

    def _all(self) -> Iterator[dataset.Dataset]:
        return (self._open(self._parts[start : start + REQUESTS]) for start in range(0, len(self._parts), REQUESTS))

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """The first row of each file, and the number of rows at the end.

        Errors   Refused for a damaged file, and for a file without a column that every run has
        """
        with self._refuse_damage(), ThreadPoolExecutor(REQUESTS) as pool:
            return np.cumsum([0, *pool.map(self._count_rows, self._parts)], dtype=np.int64)

    def _count_rows(self, part: str) -> int:
        (file,) = self._open([part]).get_fragments()
        if missing := [name for name in SCHEMA.names if name not in file.physical_schema.names]:
            raise Refused(
                f"{part} of {str(self.folder)!r} has no column {', '.join(missing)}. Pass the folder of `saliscope "
                "explain`, or run it again."
            )
        return int(file.count_rows())

    def __len__(self) -> int:
        """The number of rows."""
        return int(self._starts[-1])

    @cached_property
    def table(self) -> pa.Table:
        """All rows with all columns. A large run does not fit in memory: use `columns`, `batches` or `take`."""
        return self.columns(SCHEMA.names)

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Return some columns of all rows.

        Errors   Refused for a damaged file
        """
        return pa.concat_tables([SCHEMA.empty_table().select(list(names)), *self.tables(names)])

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield some columns of all rows, a few files at a time.

        Errors   Refused for a damaged file
        """
        with self._refuse_damage():
            for part in self._all():
                yield part.to_table(columns=list(names))
        pa.default_memory_pool().release_unused()

    def batches(self, names: Sequence[str], size: int = BATCH) -> Iterator[tuple[int, pa.Table]]:
        """Yield some columns of all rows in order, at most `size` rows at a time, each with its first row's index.

        Errors   Refused for a damaged file
        """
        start = 0
        with self._refuse_damage():
            ahead = {"batch_size": size, "batch_readahead": 1, "fragment_readahead": 1}
            for batch in (each for part in self._all() for each in part.to_batches(columns=list(names), **ahead)):
                if len(batch):
                    yield start, pa.table(batch)
                start += len(batch)
        pa.default_memory_pool().release_unused()

    def take(self, rows: Sequence[int] | NDArray[np.int64], names: Sequence[str] | None = None) -> pa.Table:
        """Return these rows in this order, reading only the files that contain them.

        Errors   Refused for a damaged file
        """
        columns = list(names or SCHEMA.names)
        wanted = np.asarray(rows, dtype=np.int64)
        order = np.argsort(wanted, kind="stable")
        ordered = wanted[order]
        found = [SCHEMA.empty_table().select(columns)]
        file_of = np.searchsorted(self._starts, ordered, side="right") - 1
        with self._refuse_damage():
            for number in np.unique(file_of):
                own = pa.array(ordered[file_of == number] - self._starts[number])
                found.append(self._open([self._parts[number]]).take(own, columns=columns))
        return pa.concat_tables(found).take(np.argsort(order, kind="stable"))

    @contextmanager
    def _refuse_damage(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise Refused(damaged(self.folder, error)) from None


def damaged(folder: str | Path, error: object) -> str:
    """Return the message for a run that cannot be read."""
    return f"{str(folder)!r} is damaged: {error}. Delete it and run saliscope explain again."


def open_run(folder: str | Path) -> RunData:
    """Return the rows and the manifest of a finished run. Rows are read when they are needed.

    Args     folder: a local path, or a URL that fsspec opens, such as `s3://bucket/run`
    Errors   Refused for a folder without a run, and for an unfinished or a damaged run
    """
    data = RunData(open_store(folder).folder, read_manifest(folder))
    len(data)  # reads the end of every file
    return data


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Return the manifest of a finished run.

    Errors   Refused for a folder without a run, for an unfinished or a damaged run, and for a newer format
    """
    store = open_store(folder)
    content = store.read(MANIFEST)
    if content is None:
        if store.read(SETTINGS) is not None:
            raise Refused(f"The run in {str(folder)!r} is not finished ({MANIFEST} is missing). Run the command again.")
        if not (store.fs.isdir(store.root) if store.local else store.sizes()):
            raise Refused(f"Folder not found: {str(folder)!r}. Pass the folder of `saliscope explain`.")
        raise Refused(f"{str(folder)!r} does not contain a run ({MANIFEST} is missing).")
    try:
        manifest = json.loads(content)
        for name, kind in {"parts": list, "settings": dict, "weights_sha256": str}.items():
            if not isinstance(manifest, dict) or not isinstance(manifest.get(name), kind):
                raise ValueError(f"{MANIFEST} has no {name}")
        if not all(isinstance(part, str) for part in manifest["parts"]):
            raise ValueError(f"the parts in {MANIFEST} are not names of files")
    except ValueError as error:
        raise Refused(damaged(folder, error)) from None
    check_format(manifest["settings"], folder)
    return manifest
