"""Read the rows of a finished run. This is the only place that reads them, so reports and comparisons use it.

Rows are read when they are needed: a column of all rows, batches of some columns, or single rows with their maps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet as pq

from hooklens.datasets.rows import SCHEMA
from hooklens.errors import Refused

BATCH = 8192
"""Rows per batch: with maps of 56 x 56 cells, 51 MB."""
ADDED = ("map_scale",)
"""Columns that runs of older versions do not have; they are read as null."""


class RunData:
    """The folder, manifest and rows of a finished run. `table` replaces the files, for rows in memory."""

    def __init__(self, folder: Path, manifest: dict[str, Any], table: pa.Table | None = None) -> None:
        self.folder, self.manifest = folder, manifest
        self._given = None if table is None else _complete(table, str(folder))
        self._cached: tuple[int, tuple[str, ...], pa.Table] | None = None

    @cached_property
    def parts(self) -> list[Path]:
        """The files, in the order of the rows."""
        return [self.folder / part for part in self.manifest["parts"]]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each file, and the number of rows at the end.

        Errors   Refused for a damaged file, and for a file without a column that every run has
        """
        if self._given is not None:
            return np.array([0, len(self._given)])
        counts = []
        for part in self.parts:
            with self._refuse_damage(), pq.ParquetFile(part) as file:
                _check_columns(file.schema_arrow.names, f"{part.name} of {str(self.folder)!r}")
                counts.append(file.metadata.num_rows)
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

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
        tables = [self._read(part, names) for part in range(len(self.parts))]
        return pa.concat_tables([*tables, SCHEMA.empty_table().select(list(names))])

    def batches(self, names: Sequence[str], size: int = BATCH) -> Iterator[tuple[int, pa.Table]]:
        """Yield some columns of all rows in order, at most `size` rows at a time, each with its first row's index.

        Errors   Refused for a damaged file
        """
        waiting: list[pa.Table] = []
        start = 0
        for part in range(len(self.starts) - 1):
            waiting.append(self._read(part, names))
            if sum(map(len, waiting)) >= size or part == len(self.starts) - 2:
                table = pa.concat_tables(waiting)
                waiting = []
                for first in range(0, len(table), size):
                    yield start + first, table.slice(first, size)
                start += len(table)

    def take(self, rows: Sequence[int] | NDArray[np.int64], names: Sequence[str] | None = None) -> pa.Table:
        """Return these rows in this order, reading only the files that contain them.

        Errors   Refused for a damaged file
        """
        names = tuple(names or SCHEMA.names)
        wanted = np.asarray(rows, dtype=np.int64)
        if not len(wanted):
            return SCHEMA.empty_table().select(list(names))
        order = np.argsort(wanted, kind="stable")
        ordered = wanted[order]
        part_of = np.searchsorted(self.starts, ordered, side="right") - 1
        found = [
            self._read(int(part), names).take(ordered[part_of == part] - self.starts[part])
            for part in np.unique(part_of)
        ]
        return pa.concat_tables(found).take(np.argsort(order, kind="stable"))

    def _read(self, part: int, names: Sequence[str]) -> pa.Table:
        """Return some columns of a file. The last file is cached, because rows are often read in order."""
        if self._given is not None:
            return self._given.select(list(names))
        key = tuple(names)
        if self._cached is None or self._cached[:2] != (part, key):
            with self._refuse_damage(), pq.ParquetFile(self.parts[part]) as file:
                present = set(file.schema_arrow.names)
                table = file.read(columns=[name for name in names if name in present])
            self._cached = part, key, _with_added(table).select(list(names))
        return self._cached[2]

    @contextmanager
    def _refuse_damage(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise Refused(damaged(self.folder, error)) from None


def damaged(folder: Path, error: object) -> str:
    """Return the message for a run that cannot be read."""
    return f"{str(folder)!r} is damaged: {error}. Delete it and run hooklens explain again."


def _complete(table: pa.Table, where: str) -> pa.Table:
    _check_columns(table.column_names, where)
    return _with_added(table)


def _with_added(table: pa.Table) -> pa.Table:
    """Return the table with the columns that older versions did not write, as null."""
    for name in ADDED:
        if name not in table.column_names:
            table = table.append_column(SCHEMA.field(name), pa.nulls(len(table), SCHEMA.field(name).type))
    return table


def _check_columns(names: Sequence[str], where: str) -> None:
    """Check that no column is missing.

    Errors   Refused
    """
    missing = [name for name in SCHEMA.names if name not in names and name not in ADDED]
    if missing:
        raise Refused(
            f"{where} has no column {', '.join(missing)}. Pass the --out folder of `hooklens explain`, or run it again."
        )
