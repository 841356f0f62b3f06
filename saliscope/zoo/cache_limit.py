"""A least-recently-used cache of downloaded weights, limited to SALISCOPE_CACHE_GB gigabytes if that is set.

Every downloaded file has a record in `saliscope-fetched/`, in the same folder. The record contains the size and
modification time of the file; the modification time of the record is the last use of the file. If a download or a load
exceeds the limit, the least recently used files are removed. The most recently used file is kept, even if it exceeds
the limit by itself. A file without a record, or whose size or time differs from its record, was not downloaded by
Saliscope and is never removed.

Downloads and loads hold the lock of the folder in shared mode. Files are removed only under the exclusive lock, which
covers all threads and processes, so no file is removed between its download and its use. If the exclusive lock is not
free, its last holder removes the files. A folder that cannot be written or locked is left unchanged.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from saliscope.zoo import settings

FOLDER = "saliscope-fetched"


def remember(path: Path) -> None:
    """Record a file whose download is complete. Call it inside `in_use`."""
    record = _record(path)
    temporary = record.with_suffix(f".{os.getpid()}")
    # A file without a record is never removed, which is the safe failure.
    with contextlib.suppress(OSError):
        temporary.write_text(json.dumps(_stamp(path)), encoding="utf-8")
        temporary.replace(record)


@contextlib.contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Protect a file from removal while it is downloaded or read; afterwards, remove files that exceed the limit.

    The file becomes the most recently used one.

    Errors   BadLimit, before anything else happens
    """
    limit, folder = settings.cache_bytes(), _record(path).parent
    with _locked(folder, exclusive=False):
        yield
        now = time.time_ns()
        with contextlib.suppress(OSError):
            os.utime(_record(path), ns=(now, now))
    if limit is not None:
        with _locked(folder, exclusive=True) as acquired:
            if acquired:
                _evict(folder, limit)


def _evict(folder: Path, limit: int) -> None:
    """Remove the least recently used files that have a record until at most `limit` bytes are left."""
    recorded = []
    for record in folder.glob("*.json"):
        path = folder.parent / record.stem
        with contextlib.suppress(OSError):
            stamp = _stamp(path)
            if stamp is not None and stamp == _read(record):
                recorded.append((record.stat().st_mtime_ns, stamp[0], path, record))
            else:
                record.unlink()
    total = sum(size for _, size, _, _ in recorded)
    for _, size, path, record in sorted(recorded)[:-1]:
        if total <= limit:
            return
        # The file first: if this is interrupted, a stale record is left and not a file that is never removed.
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size
            record.unlink()


def _record(path: Path) -> Path:
    return path.parent / FOLDER / f"{path.name}.json"


def _stamp(path: Path) -> list[int] | None:
    """Return size and modification time of the file (of the link itself for a link), or None if it does not exist."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _read(record: Path) -> object:
    try:
        return json.loads(record.read_text(encoding="utf-8"))
    except ValueError:
        return None


@contextlib.contextmanager
def _locked(folder: Path, exclusive: bool) -> Iterator[bool]:
    """Hold the lock of the folder, and yield whether it was acquired. Only shared mode waits for it."""
    with contextlib.ExitStack() as stack:
        acquired = False
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            acquired = _lock(stack.enter_context(open(folder / "lock", "ab")), exclusive)
        yield acquired


def _lock(file: BinaryIO, exclusive: bool) -> bool:
    try:
        import fcntl  # not on Windows
    except ImportError:  # Windows has no such lock, and does not remove open files
        return True
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH)
    return True
