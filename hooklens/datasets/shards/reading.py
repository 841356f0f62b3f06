"""Read a finished run: all rows at once, or its shards one after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet as pq

from hooklens.datasets.rows import SCHEMA
from hooklens.datasets.shards.store import MANIFEST, SETTINGS, LocalStore, Store, open_store
from hooklens.errors import Refused

if TYPE_CHECKING:
    import pyarrow.dataset as ds


@dataclass(frozen=True)
class RunData:
    """The folder (a URL for a store), manifest and rows of a finished run."""

    folder: Path | str
    manifest: dict[str, Any]
    table: pa.Table


@dataclass(frozen=True)
class RunFiles:
    """A finished run whose rows are not in memory."""

    store: Store
    manifest: dict[str, Any]

    @property
    def folder(self) -> Path | str:
        """The folder of the run: a path, or a URL."""
        return self.store.folder

    @property
    def parts(self) -> list[str]:
        """The names of the shards, in order."""
        return list(self.manifest["parts"])

    @cached_property
    def dataset(self) -> ds.Dataset:
        """The shards, in order, as a data set of pyarrow, which reads only the requested columns and rows."""
        import pyarrow.dataset as ds  # slow to import, or an extra

        paths = [self.store.path(name) for name in self.parts]
        if not paths:
            return ds.dataset(SCHEMA.empty_table())
        return ds.dataset(paths, schema=SCHEMA, format="parquet", filesystem=self._file_system)

    def tables(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of one shard after the other.

        Errors   Refused for a damaged shard
        """
        for name in self.parts:
            with refuse_damage(self.folder):
                table = pq.read_table(
                    self.store.path(name), columns=columns, filesystem=self._file_system, partitioning=None
                )
            yield table

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """Return all rows.

        Errors   Refused for a damaged shard
        """
        empty = SCHEMA.empty_table().select(columns or SCHEMA.names)
        with refuse_damage(self.folder):
            return pa.concat_tables([*self.tables(columns), empty])

    def read_file(self, name: str) -> bytes | None:
        """Return another file of the folder, such as evaluation.json, or None if it does not exist."""
        return self.store.read(name)

    def write_file(self, name: str, data: bytes) -> None:
        """Write another file into the folder.

        Errors   Refused if the disk is full, or the store cannot be written
        """
        self.store.write(name, data)

    @property
    def _file_system(self) -> Any:
        return None if isinstance(self.store, LocalStore) else self.store.fs


@contextmanager
def refuse_damage(folder: Path | str) -> Iterator[None]:
    """Convert errors of a damaged file of a run to Refused.

    Errors   Refused
    """
    try:
        yield
    except Refused:
        raise
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise Refused(f"{str(folder)!r} is damaged: {error}. Delete it and run hooklens explain again.") from None


def open_files(folder: str | Path) -> RunFiles:
    """Return a finished run without its rows; `folder` is a local path, or a URL that fsspec opens.

    Errors   Refused for a folder without a run, and for an unfinished run

    Example
        >>> sum(len(table) for table in open_files("run").tables(["path"]))
        9
    """
    store = open_store(folder)
    content = store.read(MANIFEST)
    if content is None:
        if store.read(SETTINGS) is not None:
            raise Refused(f"The run in {str(folder)!r} is not finished ({MANIFEST} is missing). Run the command again.")
        if not (store.root.is_dir() if isinstance(store, LocalStore) else store.sizes()):
            raise Refused(f"Folder not found: {str(folder)!r}. Pass the --out folder of `hooklens explain`.")
        raise Refused(f"{str(folder)!r} does not contain a run ({MANIFEST} is missing).")
    with refuse_damage(folder):
        return RunFiles(store, _checked(json.loads(content)))


def open_run(folder: str | Path, columns: list[str] | None = None) -> RunData:
    """Return the rows and the manifest of a finished run; `columns` selects columns of the rows, None all of them.

    Errors   Refused for a folder without a run, and for an unfinished run
    """
    files = open_files(folder)
    return RunData(files.folder, files.manifest, files.read(columns))


def _checked(manifest: Any) -> dict[str, Any]:
    kinds = {"parts": list, "settings": dict, "weights_sha256": str}
    for name, kind in kinds.items():
        if not isinstance(manifest, dict) or not isinstance(manifest.get(name), kind):
            raise ValueError(f"{MANIFEST} has no {name}")
    return manifest
