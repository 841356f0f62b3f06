"""Read the rows of a finished run. This is the only place that reads them, so reports and comparisons use it.

Rows are read when they are needed: a column of all rows, batches of some columns, or single rows with their maps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet as pq

from saliscope.datasets.rows import SCHEMA
from saliscope.datasets.stores import LocalStore, Store, open_store
from saliscope.errors import Refused

BATCH = 8192
"""Maximum number of rows per batch."""
PIECE = 2**26
"""Bytes of the rows that are read at once; a row may be larger, since a map has any size."""
REQUESTS = 16
"""Number of files of a store that are opened at the same time."""


class RunData:
    """The folder (or its URL), manifest and rows of a finished run. `table` replaces the files, for rows in memory."""

    def __init__(self, folder: str | Path, manifest: dict[str, Any], table: pa.Table | None = None) -> None:
        self.folder, self.manifest = folder, manifest
        if table is not None:
            _check_columns(table.column_names, str(folder))
        self._given = table
        self._cached: tuple[Any, pa.Table] | None = None

    @cached_property
    def parts(self) -> list[str]:
        """The names of the files, in the order of the rows."""
        return list(self.manifest["parts"])

    @cached_property
    def store(self) -> Store:
        """The files of the run, also others such as evaluation.json."""
        return open_store(self.folder)

    def _file(self, part: str) -> pq.ParquetFile:
        file_system = None if isinstance(self.store, LocalStore) else self.store.fs
        return pq.ParquetFile(self.store.path(part), filesystem=file_system)

    @cached_property
    def _groups(self) -> list[_Group]:
        """The row groups of all files.

        Errors   Refused for a damaged file, and for a file without a column that every run has
        """
        if self._given is not None:
            return [_Group(0, 0, len(self._given), {})]
        if self.store.local:
            found = [self._groups_of(part) for part in range(len(self.parts))]
        else:
            with ThreadPoolExecutor(REQUESTS) as pool:
                found = list(pool.map(self._groups_of, range(len(self.parts))))
        return [group for groups in found for group in groups]

    def _groups_of(self, part: int) -> list[_Group]:
        with self._open(part) as file:
            _check_columns(file.schema_arrow.names, f"{self.parts[part]} of {str(self.folder)!r}")
            return [_Group.of(file, part, group) for group in range(file.metadata.num_row_groups)]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each row group, and the number of rows at the end."""
        return np.concatenate([[0], np.cumsum([group.rows for group in self._groups], dtype=np.int64)])

    def __len__(self) -> int:
        """The number of rows."""
        return int(self.starts[-1])

    @cached_property
    def table(self) -> pa.Table:
        """All rows with all columns. A large run does not fit in memory: use `columns`, `batches` or `take`."""
        return self.columns(SCHEMA.names)

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Return some columns of all rows.

        Errors   Refused for a damaged file
        """
        if self._given is not None:
            return self._given.select(list(names))
        tables = [table for group in self._groups for _, table in self._pieces(group, names)]
        return pa.concat_tables([*tables, SCHEMA.empty_table().select(list(names))])

    def batches(self, names: Sequence[str], size: int = BATCH) -> Iterator[tuple[int, pa.Table]]:
        """Yield some columns of all rows in order, at most `size` rows at a time, each with its first row's index.

        Errors   Refused for a damaged file
        """
        waiting: list[pa.Table] = []
        start = 0
        for group in [*self._groups, None]:
            for _, table in self._pieces(group, names) if group else [(0, None)]:
                full = sum(map(len, waiting)) >= size or sum(each.nbytes for each in waiting) >= PIECE
                if waiting and (full or table is None):
                    whole = pa.concat_tables(waiting)
                    yield from ((start + first, whole.slice(first, size)) for first in range(0, len(whole), size))
                    start, waiting = start + len(whole), []
                if table is not None and len(table):
                    waiting.append(table)

    def take(self, rows: Sequence[int] | NDArray[np.int64], names: Sequence[str] | None = None) -> pa.Table:
        """Return these rows in this order, reading only the row groups that contain them.

        Errors   Refused for a damaged file
        """
        names = tuple(names or SCHEMA.names)
        wanted = np.asarray(rows, dtype=np.int64)
        order = np.argsort(wanted, kind="stable")
        ordered = wanted[order]
        group_of = np.searchsorted(self.starts, ordered, side="right") - 1
        found = [SCHEMA.empty_table().select(list(names))]
        for number in np.unique(group_of):
            own = ordered[group_of == number] - self.starts[number]
            for first, table in self._pieces(self._groups[int(number)], names):
                inside = own[(own >= first) & (own < first + len(table))] - first
                if len(inside):
                    found.append(table.take(inside))
        return pa.concat_tables(found).take(np.argsort(order, kind="stable"))

    def _pieces(self, group: _Group, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of a row group in pieces of at most `PIECE` bytes, each with its first row in the group.

        A group in one piece is cached, because rows are often read in order.
        """
        if self._given is not None:
            yield 0, self._given.select(list(names))
            return
        key = (group.part, group.number, tuple(names))
        if self._cached is not None and self._cached[0] == key:
            yield 0, self._cached[1]
            return
        size = sum(group.sizes[name] for name in names)
        rows = max(1, min(group.rows, group.rows * PIECE // max(1, size)))
        with self._open(group.part) as file:
            first = 0
            for batch in file.iter_batches(rows, row_groups=[group.number], columns=list(names)):
                table = _with_types(pa.table(batch).select(list(names)))
                if len(table) == group.rows:
                    self._cached = key, table
                yield first, table
                first += len(table)

    @contextmanager
    def _open(self, part: int) -> Iterator[pq.ParquetFile]:
        with self._refuse_damage(), self._file(self.parts[part]) as file:
            yield file

    @contextmanager
    def _refuse_damage(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise Refused(damaged(self.folder, error)) from None


@dataclass(frozen=True)
class _Group:
    """A row group of a file: its number of rows, and the bytes of each column."""

    part: int
    number: int
    rows: int
    sizes: dict[str, int]

    @classmethod
    def of(cls, file: pq.ParquetFile, part: int, number: int) -> _Group:
        group = file.metadata.row_group(number)
        sizes: dict[str, int] = {}
        for k in range(group.num_columns):
            column = group.column(k)
            name = column.path_in_schema.partition(".")[0]
            sizes[name] = sizes.get(name, 0) + column.total_uncompressed_size
        return cls(part, number, group.num_rows, sizes)


def damaged(folder: str | Path, error: object) -> str:
    """Return the message for a run that cannot be read."""
    return f"{str(folder)!r} is damaged: {error}. Delete it and run saliscope explain again."


def _with_types(table: pa.Table) -> pa.Table:
    """Return the table with the types of `SCHEMA`, since another program may have written the file again."""
    types = [SCHEMA.field(name).type for name in table.column_names]
    if table.schema.types == types:
        return table
    columns = [column.cast(kind) for column, kind in zip(table.columns, types, strict=True)]
    return pa.table(columns, names=table.column_names)


def _check_columns(names: Sequence[str], where: str) -> None:
    """Check that no column is missing.

    Errors   Refused
    """
    missing = [name for name in SCHEMA.names if name not in names]
    if missing:
        raise Refused(
            f"{where} has no column {', '.join(missing)}. Pass the --out folder of `saliscope explain`, or run it "
            "again."
        )
