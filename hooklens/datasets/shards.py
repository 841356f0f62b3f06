"""The folder of a run: rows are written per batch, complete shards become Parquet, and the manifest is written last.

    settings.json             the settings that the rows depend on, written first
    work/lock                 locked by the process that writes
    work/000000-0000.arrow    batches of an incomplete shard
    part-00000.parquet …      complete shards, rows in order of path
    manifest.json             settings, versions, hash of the weights, counts

Every file is written under a temporary name and then renamed. An existing file is therefore complete, and a run that
was killed at any time resumes after its last batch.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc
from pyarrow import parquet as pq

from hooklens.datasets.rows import SCHEMA
from hooklens.datasets.run_data import RunData, damaged
from hooklens.datasets.settings import differences
from hooklens.errors import Refused

SETTINGS, MANIFEST, WORK, LOCK = "settings.json", "manifest.json", "work", "lock"


def open_run(folder: str | Path) -> RunData:
    """Return the rows and the manifest of a finished run. Rows are read when they are needed.

    Errors   Refused for a folder without a run, and for an unfinished or a damaged run
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise Refused(f"Folder not found: {str(folder)!r}. Pass the --out folder of `hooklens explain`.")
    if not (path / MANIFEST).is_file():
        if (path / SETTINGS).is_file():
            raise Refused(f"The run in {str(folder)!r} is not finished ({MANIFEST} is missing). Run the command again.")
        raise Refused(f"{str(folder)!r} does not contain a run ({MANIFEST} is missing).")
    try:
        manifest = _checked(json.loads((path / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise Refused(damaged(path, error)) from None
    data = RunData(path, manifest)
    len(data)  # reads the end of every file
    return data


def _checked(manifest: Any) -> dict[str, Any]:
    kinds = {"parts": list, "settings": dict, "weights_sha256": str}
    for name, kind in kinds.items():
        if not isinstance(manifest, dict) or not isinstance(manifest.get(name), kind):
            raise ValueError(f"{MANIFEST} has no {name}")
    if not all(isinstance(part, str) for part in manifest["parts"]):
        raise ValueError(f"the parts in {MANIFEST} are not names of files")
    return manifest


@contextmanager
def refuse_disk_errors(folder: Path) -> Iterator[None]:
    """Convert errors of a full or read-only disk to Refused.

    Errors   Refused
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Refused(
                f"The disk of {str(folder)!r} is full. Finished batches are kept. Free some space and run the same "
                "command again."
            ) from None
        why = error.strerror or type(error).__name__
        raise Refused(f"Cannot write to {str(folder)!r} ({why}). Choose another --out.") from None


def _is_leftover(path: Path) -> bool:
    """Return whether a run that was killed before it wrote its settings left this file, or whether it is hidden."""
    if path.name != WORK:
        return path.name.startswith(".")
    return path.is_dir() and all(each.name == LOCK or each.name.startswith(".") for each in path.iterdir())


class Shards:
    """The folder of an unfinished run."""

    def __init__(self, folder: str | Path, record: Mapping[str, Any]) -> None:
        """Start a run, or resume a run with the same settings.

        Errors   Refused for a folder with other settings, listing the differences, and for a folder with other files
        """
        self.folder = Path(folder).expanduser()
        self.record = json.loads(json.dumps(dict(record)))
        with refuse_disk_errors(self.folder):
            self._open()

    def _open(self) -> None:
        path = self.folder / SETTINGS
        if path.is_file():
            try:
                old = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                raise Refused(f"{str(path)!r} is damaged. Delete the folder, or choose another --out.") from None
            if changed := differences(old, self.record):
                raise Refused(
                    f"{str(self.folder)!r} contains a run with other settings: {'; '.join(changed)}. Choose another "
                    "--out, or use the same settings."
                )
        elif self.folder.is_dir() and not all(map(_is_leftover, self.folder.iterdir())):
            raise Refused(f"{str(self.folder)!r} contains other files. Choose an empty or new folder for --out.")
        if not self.is_finished:
            (self.folder / WORK).mkdir(parents=True, exist_ok=True)
            self._lock()
            self._delete_damaged()
        if not path.is_file():
            self._write(path, json.dumps(self.record, indent=1).encode())

    def _delete_damaged(self) -> None:
        """Delete batches and shards that a power failure left empty or truncated, so that they are computed again."""
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
        """Lock the run against other processes.

        Errors   Refused if another process writes the same run
        """
        try:
            import fcntl  # slow to import, or an extra
        except ImportError:  # Windows
            return
        self._locked = open(self.folder / WORK / LOCK, "wb")  # noqa: SIM115  (open until the run ends)
        try:
            fcntl.lockf(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                other = f"Another process is writing the run in {str(self.folder)!r}."
                raise Refused(f"{other} Wait until it ends, or choose another --out.") from None
            # The file system does not support locks.

    @property
    def is_finished(self) -> bool:
        """Whether the run is complete."""
        return (self.folder / MANIFEST).is_file()

    def part(self, shard: int) -> Path:
        """Return the path of a complete shard."""
        return self.folder / f"part-{shard:05d}.parquet"

    def _batch(self, shard: int, batch: int) -> Path:
        return self.folder / WORK / f"{shard:06d}-{batch:04d}.arrow"

    def has(self, shard: int, batch: int | None = None) -> bool:
        """Return whether a shard is complete, or one batch of it exists."""
        return self.part(shard).is_file() or (batch is not None and self._batch(shard, batch).is_file())

    def write_batch(self, shard: int, batch: int, rows: list[dict[str, Any]]) -> None:
        """Write the rows of a batch.

        Errors   Refused if the disk is full
        """
        table = pa.Table.from_pylist(rows, SCHEMA)
        sink = pa.BufferOutputStream()
        with ipc.new_file(sink, SCHEMA) as writer:
            writer.write_table(table)
        with refuse_disk_errors(self.folder):
            self._write(self._batch(shard, batch), sink.getvalue(), sync=False)

    def close(self, shard: int, batches: int) -> None:
        """Merge the batches of a shard into its Parquet file.

        Errors   Refused if the disk is full
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
        with refuse_disk_errors(self.folder):
            self._write(self.part(shard), sink.getvalue())
        for file in files:
            file.unlink()

    def read_rows(self, shard: int) -> pa.Table:
        """Return the rows of a complete shard."""
        return pq.read_table(self.part(shard))

    def finish(self, manifest: Mapping[str, Any], shards: int) -> None:
        """Delete temporary files and write the manifest, which is the last file.

        Errors   Refused if the disk is full
        """
        parts = [self.part(shard).name for shard in range(shards)]
        with refuse_disk_errors(self.folder):
            if (self.folder / WORK).is_dir():
                for left in (self.folder / WORK).iterdir():
                    left.unlink()
                (self.folder / WORK).rmdir()
            for left in self.folder.glob(".part-*"):
                left.unlink()
            text = json.dumps({"settings": self.record, **manifest, "parts": parts}, indent=1)
            self._write(self.folder / MANIFEST, text.encode())

    def _write(self, path: Path, data: Any, sync: bool = True) -> None:
        """Write a file completely or not at all; `sync` waits for the disk, so that it survives a power failure."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
