"""Write a run: rows are written per batch, complete shards become Parquet, and the manifest is written last.

A shard is valid if its commit exists, a small file with its counts that is written after it. A file of a local folder
or of an object store is complete if it exists; other stores may keep a part of a file after a crash. A run that was
killed at any time resumes after its last batch.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc
from pyarrow import parquet as pq

from saliscope.errors import Refused
from saliscope.runs.rows import SCHEMA
from saliscope.runs.settings import FORMAT, Classes, check_format
from saliscope.runs.shards.locks import LEASE, FileLock, Lease, take_lock
from saliscope.runs.shards.planning import PARTITION, Finished, Stamp, digest_of
from saliscope.runs.stores import LOCK, MANIFEST, SETTINGS, WORK, Store, open_store

COMMITS = f"{WORK}/commits"


def part_name(shard: int) -> str:
    """Return the name of the Parquet file of a shard; of a set of files, the name has the number of the file."""
    partition, number = divmod(shard, PARTITION)
    return f"part-{partition:06d}-{number:05d}.parquet" if partition else f"part-{number:05d}.parquet"


def batch_name(shard: int, batch: int) -> str:
    """Return the name of the file of a batch."""
    return f"{WORK}/{shard:06d}-{batch:04d}.arrow"


def commit_name(shard: int) -> str:
    """Return the name of the commit of a shard."""
    return f"{COMMITS}/{shard:05d}.json"


class ShardFiles:
    """The files of the shards of a run. Workers on other machines write them too, for the process with the lock."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def write_batch(self, shard: int, batch: int, rows: list[dict[str, Any]], stamp: Stamp) -> None:
        """Write the rows of a batch.

        Errors   Refused if the disk is full, or the store cannot be written
        """
        sink = pa.BufferOutputStream()
        schema = SCHEMA.with_metadata(stamp.metadata())
        with ipc.new_file(sink, schema) as writer:
            writer.write_table(pa.Table.from_pylist(rows, schema))
        self.store.write(batch_name(shard, batch), sink.getvalue(), sync=False)

    def close(self, shard: int, batches: int, classes: Classes) -> dict[str, Any]:
        """Merge the batches of a shard into its Parquet file, write its commit, and return the commit.

        It has the counts of the shard, the number of readable images of each class by label, and its hash.

        Errors   Refused if a batch is missing, if the disk is full, or the store cannot be written
        """
        tables, stamps = [], []
        for content in self.store.read_all([batch_name(shard, batch) for batch in range(batches)]):
            if content is None:
                raise Refused(
                    f"A batch of {part_name(shard)} disappeared from {str(self.store.folder)!r} during the run. Run "
                    "the same command again, and check that nothing else deletes files there."
                )
            table = ipc.open_file(pa.BufferReader(content)).read_all()
            stamps.append(Stamp.read(table.schema.metadata))
            tables.append(table.replace_schema_metadata(None))
        rows = pa.concat_tables(tables).combine_chunks()
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd")
        self.store.write(part_name(shard), sink.getvalue())
        labels = [label for stamp in stamps for label in stamp.labels]
        labeled = Counter(classes.find(label) for label in labels)
        errors = rows.filter(rows["error"].is_valid())
        labeled.subtract(classes.find(label) for label in errors["label"].to_pylist())
        wrong = int(pc.sum(pc.invert(rows["correct"])).as_py() or 0)
        counts = {"looked_at": len(labels), "images": len(rows), "unreadable": len(errors), "wrong": wrong}
        known = {str(index): count for index, count in labeled.items() if index is not None and count}
        commit = {"counts": counts, "labeled": known, "listing": digest_of(stamp.digest for stamp in stamps)}
        self.store.write(commit_name(shard), json.dumps(commit).encode())
        self.store.delete(batch_name(shard, batch) for batch in range(batches))
        return commit


def check_folder(store: Store, record: Mapping[str, Any], what: str = "run") -> bool:
    """Check that a folder is empty or contains the run (or index) of this record; return whether it is finished.

    Errors   Refused
    """
    content = store.read(SETTINGS)
    if content is None:
        if not all(_is_leftover(store, name, size) for name, size in store.sizes().items()):
            raise Refused(f"{str(store.folder)!r} contains other files. Choose an empty or new folder.")
        return False
    try:
        old = {"format": 1, **json.loads(content)}
    except (ValueError, TypeError):
        path = str(store.folder if not store.local else Path(store.folder) / SETTINGS)
        raise Refused(f"{path!r} is damaged. Delete the folder, or choose another folder.") from None
    check_format(old, store.folder, what)
    if changed := [name for name in dict.fromkeys([*old, *record]) if old.get(name) != record.get(name)]:
        texts = [f"{name}: {old.get(name)!r} in the folder, {record.get(name)!r} now" for name in changed]
        other = "contains an index with other settings:" if what == "index" else "contains a run with other settings:"
        raise Refused(
            f"{str(store.folder)!r} {other} {'; '.join(texts)}. Choose another folder, or use the same settings."
        )
    return store.read(MANIFEST) is not None


def _is_leftover(store: Store, name: str, size: int) -> bool:
    """Return whether a run that was killed before it wrote its settings left this file, or whether it is hidden."""
    if name != WORK or size >= 0:
        return name.startswith(".")
    return all(each in (LOCK, LEASE.rpartition("/")[2]) or each.startswith(".") for each in store.sizes(WORK))


class Shards(ShardFiles):
    """The folder of an unfinished run, which is locked inside of a `with` block."""

    def __init__(self, folder: str | Path, record: Mapping[str, Any]) -> None:
        """Start a run, or resume a run with the same settings.

        Errors   Refused for a folder with other settings, listing the differences, for a folder with other files, and
                 if another process writes the run
        """
        super().__init__(open_store(folder))
        self.folder = self.store.folder
        self.record = json.loads(json.dumps({"format": FORMAT, **record}))
        self.lock: FileLock | Lease | None = None
        self.finished = Finished(str(self.folder))
        self.counts: Counter[str] = Counter()
        self.labeled: Counter[int] = Counter()
        self.before = 0
        """The number of images that were finished when the run was locked."""
        self.is_finished = check_folder(self.store, self.record)
        if not self.is_finished:
            self.acquire()
        else:
            self.delete_work()  # a kill may have left temporary files

    def acquire(self) -> None:
        """Lock the run, and find its finished batches and shards. Does nothing if this process has the lock.

        Errors   Refused if another process writes the run, or if the folder cannot be written
        """
        if self.lock is not None or self.is_finished:
            return
        self.lock = take_lock(self.store)
        try:
            self.is_finished = check_folder(self.store, self.record)  # the former writer may have changed it
            if not self.is_finished:
                if self.store.read(SETTINGS) is None:
                    self.store.write(SETTINGS, json.dumps(self.record, indent=1).encode())
                self._find_commits()
                self._find_batches()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Allow other processes to write the run."""
        if self.lock is not None:
            self.lock.close()
            self.lock = None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _find_commits(self) -> None:
        """Find the shards with a commit; delete commits of shards that are gone or damaged."""
        complete = {name for name in self.store.sizes() if self._is_whole(name)}
        self.finished, self.counts, self.labeled = Finished(str(self.folder)), Counter(), Counter()
        names = [f"{COMMITS}/{name}" for name in self.store.sizes(COMMITS) if name.endswith(".json")]
        for start in range(0, len(names), 1000):
            some = names[start : start + 1000]
            for name, content in zip(some, self.store.read_all(some), strict=True):
                try:
                    shard = int(name.rpartition("/")[2][:-5])
                    if part_name(shard) not in complete:
                        raise ValueError("its file was deleted, or is damaged")
                    self.add_shard(shard, json.loads(content or b""))
                except (ValueError, KeyError, TypeError):  # truncated by a power failure
                    self.store.delete([name])

    def _is_whole(self, part: str) -> bool:
        """Return whether a shard in a local folder is complete: a power failure, or a copy, may have cut it."""
        if self.store.local:
            try:
                pq.read_metadata(self.store.path(part))
            except (OSError, pa.ArrowException):
                return False
        return True

    def _find_batches(self) -> None:
        """Find the batches of other shards that are complete; a power failure, or an unusual store, may cut them."""
        self.before = self.counts["looked_at"]
        for name in self.store.sizes(WORK):
            shard, _, batch = name.removesuffix(".arrow").partition("-")
            if not name.endswith(".arrow") or int(shard) in self.finished.shards:
                continue
            with contextlib.suppress(pa.ArrowException, KeyError, ValueError, TypeError):
                content = self.store.read(f"{WORK}/{name}") or b""
                stamp = Stamp.read(ipc.open_file(pa.BufferReader(content)).schema.metadata)
                self.finished.batches.setdefault(int(shard), {})[int(batch)] = stamp.digest
                self.before += len(stamp.labels)

    def add_shard(self, shard: int, commit: Mapping[str, Any]) -> None:
        """Note that a shard was committed, by this process or by a worker.

        Errors   KeyError, ValueError or TypeError if it is not a commit
        """
        if shard not in self.finished.shards:
            digest, labeled = str(commit["listing"]), {int(index): n for index, n in commit["labeled"].items()}
            self.counts.update(commit["counts"])
            self.labeled.update(labeled)
            self.finished.shards[shard] = digest
        self.finished.batches.pop(shard, None)

    def check_lock(self) -> None:
        """Check that no other process has taken over the run.

        Errors   Refused
        """
        if self.lock is not None:
            self.lock.check()

    def finish(self, manifest: Mapping[str, Any], shards: Sequence[int]) -> None:
        """Write the manifest, which is the last file, and delete temporary files.

        Errors   Refused if the disk is full, or the store cannot be written
        """
        self.check_lock()
        parts = [part_name(shard) for shard in shards]
        text = json.dumps({"settings": self.record, **manifest, "parts": parts}, indent=1)
        found = [name for name in self.store.sizes() if name.startswith((".part-", "part-"))]
        self.store.delete(set(found).difference(parts))  # a reader of `*.parquet` would find them
        self.store.write(MANIFEST, text.encode())
        self.is_finished = True
        self.delete_work()

    def delete_work(self) -> None:
        """Delete the temporary files of a finished run, but not its lease. The folder may be read-only."""
        with contextlib.suppress(Refused):
            names = [f"{WORK}/{name}" for name in self.store.sizes(WORK)]
            self.store.delete([WORK] if self.store.local else [name for name in names if name != LEASE])
