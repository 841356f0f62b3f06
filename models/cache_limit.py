"""A least-recently-used cache of the downloaded weights: at most HOOKLENS_CACHE_GB gigabytes, where that is set.

Every downloaded file has a record in `hooklens-fetched/` beside the files: size and modification time as its text, the
last use as its own modification time. After a download or a load that exceeds the limit, the least recently used files
are removed; the most recently used one stays, even where it alone is too large. A file without a record, or whose size
or time differs from its record, is not ours and is never removed.

Downloads and loads hold the folder's lock in shared mode, and files are removed under the exclusive lock alone, over
all threads and processes: no file is removed between its download and its reading. Where the exclusive lock is not
free, its last holder removes them. A folder that cannot be written or locked is left as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from models import settings

FOLDER = "hooklens-fetched"


def remember(path: Path) -> None:
    """Record a file whose download is complete; to be called within `in_use`."""
    record = _record(path)
    temporary = record.with_suffix(f".{os.getpid()}")
    # A file without a record is never removed, which is the safe failure.
    with contextlib.suppress(OSError):
        temporary.write_text(json.dumps(_stamp(path)), encoding="utf-8")
        temporary.replace(record)


@contextlib.contextmanager
def in_use(path: Path) -> Iterator[None]:
    """While a file is downloaded or read no file is removed; afterwards it is the most recently used, and others go.

    Errors   BadLimit, before anything is done
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
    """Remove the least recently used of the recorded files until the rest is within `limit` bytes."""
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
        # The file first: an interruption then leaves an orphaned record, not a file that is never removed.
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size
            record.unlink()


def _record(path: Path) -> Path:
    return path.parent / FOLDER / f"{path.name}.json"


def _stamp(path: Path) -> list[int] | None:
    """Size and modification time of the file (of the link, not of its target); None where there is none."""
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
    """Hold the folder's lock, which only the shared mode waits for; False where it cannot be had."""
    with contextlib.ExitStack() as stack:
        acquired = False
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            acquired = _lock(stack.enter_context(open(folder / "lock", "ab")), exclusive)
        yield acquired


def _lock(file: BinaryIO, exclusive: bool) -> bool:
    try:
        import fcntl  # Unix alone has it
    except ImportError:  # Windows has no such lock, and refuses to remove an open file
        return True
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH)
    return True
