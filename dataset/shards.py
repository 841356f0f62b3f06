"""A run's folder: rows arrive by the batch, whole shards become Parquet, and the manifest is written last.

    settings.json             what the rows depend on, written first
    work/lock                 held by the process that writes
    work/000000-0000.arrow    batches of a shard that is not whole yet
    part-00000.parquet …      whole shards, rows in order of path
    manifest.json             settings, versions, hash of the weights, counts

Every file is written beside its name and moved there, so one that is there is whole, and a run that was killed at any
point goes on behind its last batch.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc
from pyarrow import parquet as pq

from dataset.errors import Refused
from dataset.rows import SCHEMA
from dataset.settings import differences

SETTINGS, MANIFEST, WORK, LOCK = "settings.json", "manifest.json", "work", "lock"


@dataclass(frozen=True)
class Finished:
    """A finished run."""

    folder: Path
    manifest: dict[str, Any]
    table: pa.Table


def open_run(folder: str | Path, columns: list[str] | None = None) -> Finished:
    """The rows and the manifest of a finished run; of the rows these columns, all by default.

    Errors   Refused for a folder without one, and for one that is not finished
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise Refused(f"There is no folder {str(folder)!r}. Give the --out of a run of hooklens explain.")
    if not (path / MANIFEST).is_file():
        why = "is not finished: run the same command again" if (path / SETTINGS).is_file() else "holds no run"
        raise Refused(f"{str(folder)!r} {why}. (A finished run has a {MANIFEST}.)")
    try:
        manifest = _checked(json.loads((path / MANIFEST).read_text(encoding="utf-8")))
        parts = [pq.read_table(path / part, columns=columns) for part in manifest["parts"]]
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise Refused(f"{str(folder)!r} is damaged: {error}. Delete it and run hooklens explain again.") from None
    empty = SCHEMA.empty_table().select(columns or SCHEMA.names)
    return Finished(path, manifest, pa.concat_tables([*parts, empty]))


def _checked(manifest: Any) -> dict[str, Any]:
    kinds = {"parts": list, "settings": dict, "weights_sha256": str}
    for name, kind in kinds.items():
        if not isinstance(manifest, dict) or not isinstance(manifest.get(name), kind):
            raise ValueError(f"{MANIFEST} has no {name}")
    return manifest


@contextmanager
def room_on_disk(folder: Path) -> Iterator[None]:
    """A full disk, or one that may not be written to, as a sentence.

    Errors   Refused
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Refused(
                f"No room is left on the disk of {str(folder)!r}. What is there is kept: free some space and run the "
                "same command again."
            ) from None
        why = error.strerror or type(error).__name__
        raise Refused(f"{str(folder)!r} cannot be written to ({why}). Choose another --out.") from None


def _is_a_beginning(path: Path) -> bool:
    """Whether a run that was killed before it wrote its settings has left this; or it is hidden, as .DS_Store."""
    if path.name != WORK:
        return path.name.startswith(".")
    return path.is_dir() and all(each.name == LOCK or each.name.startswith(".") for each in path.iterdir())


class Shards:
    """The folder of a run that is under way."""

    def __init__(self, folder: str | Path, record: Mapping[str, Any]) -> None:
        """Begin a run, or go on with one of the same settings.

        Errors   Refused for a folder of other settings, naming the differences; and for one of other things
        """
        self.folder = Path(folder).expanduser()
        self.record = json.loads(json.dumps(dict(record)))
        with room_on_disk(self.folder):
            self._begin()

    def _begin(self) -> None:
        kept = self.folder / SETTINGS
        if kept.is_file():
            try:
                old = json.loads(kept.read_text(encoding="utf-8"))
            except ValueError:
                raise Refused(f"{str(kept)!r} is damaged. Delete the folder, or choose another --out.") from None
            if changed := differences(old, self.record):
                raise Refused(
                    f"{str(self.folder)!r} holds a run of other settings: {'; '.join(changed)}. Choose another --out, "
                    "or the same settings."
                )
        elif self.folder.is_dir() and not all(map(_is_a_beginning, self.folder.iterdir())):
            raise Refused(f"{str(self.folder)!r} holds other files. Choose an empty folder, or a new one, for --out.")
        if not self.is_finished:
            (self.folder / WORK).mkdir(parents=True, exist_ok=True)
            self._lock()
            self._leave_out_damaged()
        if not kept.is_file():
            self._write(kept, json.dumps(self.record, indent=1).encode())

    def _leave_out_damaged(self) -> None:
        """Batches and shards that a loss of power has left empty or cut are done again."""
        for file in (self.folder / WORK).glob("*.arrow"):
            try:
                with pa.memory_map(str(file)) as source:
                    ipc.open_file(source)
            except (OSError, pa.ArrowException):
                file.unlink()
        for file in self.folder.glob("part-*.parquet"):
            try:
                pq.read_metadata(file)
            except (OSError, pa.ArrowException):
                file.unlink()

    def _lock(self) -> None:
        """Errors   Refused where another process writes the same run"""
        try:
            import fcntl
        except ImportError:  # Windows
            return
        self._locked = open(self.folder / WORK / LOCK, "wb")  # noqa: SIM115 (open as long as the run)
        try:
            fcntl.lockf(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                other = f"Another process is writing the run in {str(self.folder)!r}."
                raise Refused(f"{other} Wait until it ends, or choose another --out.") from None
            # The disk has no locks.

    @property
    def is_finished(self) -> bool:
        """Whether all is written."""
        return (self.folder / MANIFEST).is_file()

    def part(self, shard: int) -> Path:
        """The file of a whole shard."""
        return self.folder / f"part-{shard:05d}.parquet"

    def _batch(self, shard: int, batch: int) -> Path:
        return self.folder / WORK / f"{shard:06d}-{batch:04d}.arrow"

    def has(self, shard: int, batch: int | None = None) -> bool:
        """Whether the shard is whole, or the batch of it is there."""
        return self.part(shard).is_file() or (batch is not None and self._batch(shard, batch).is_file())

    def keep(self, shard: int, batch: int, rows: list[dict[str, Any]]) -> None:
        """Write the rows of a batch.

        Errors   Refused where the disk is full
        """
        table = pa.Table.from_pylist(rows, SCHEMA)
        sink = pa.BufferOutputStream()
        with ipc.new_file(sink, SCHEMA) as writer:
            writer.write_table(table)
        with room_on_disk(self.folder):
            self._write(self._batch(shard, batch), sink.getvalue(), lasting=False)

    def close(self, shard: int, batches: int) -> None:
        """Make a whole shard of its batches.

        Errors   Refused where the disk is full
        """
        if self.has(shard):
            return
        files = [self._batch(shard, batch) for batch in range(batches)]
        tables = []
        for file in files:
            with pa.memory_map(str(file)) as source:
                tables.append(ipc.open_file(source).read_all())
        sink = pa.BufferOutputStream()
        pq.write_table(pa.concat_tables(tables).combine_chunks(), sink, compression="zstd")
        with room_on_disk(self.folder):
            self._write(self.part(shard), sink.getvalue())
        for file in files:
            file.unlink()

    def rows_of(self, shard: int) -> pa.Table:
        """The rows of a whole shard."""
        return pq.read_table(self.part(shard))

    def finish(self, manifest: Mapping[str, Any], shards: int) -> None:
        """Write the manifest, and nothing after it.

        Errors   Refused where the disk is full
        """
        parts = [self.part(shard).name for shard in range(shards)]
        with room_on_disk(self.folder):
            if (self.folder / WORK).is_dir():
                for left in (self.folder / WORK).iterdir():
                    left.unlink()
                (self.folder / WORK).rmdir()
            for left in self.folder.glob(".part-*"):
                left.unlink()
            text = json.dumps({"settings": self.record, **manifest, "parts": parts}, indent=1)
            self._write(self.folder / MANIFEST, text.encode())

    def _write(self, path: Path, data: Any, lasting: bool = True) -> None:
        """All of it, or nothing; `lasting` waits for the disk, so that it is there after a loss of power too."""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(beside, "wb") as file:
                file.write(data)
                if lasting:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
