"""What is kept of the files of weights that were fetched here: at most HOOKLENS_CACHE_GB gigabytes, if that is set.

Every fetched file has a record in `hooklens-fetched/` beside the files: its size and time in the record's text, its
last use in the record's own time. When a fetch or a load has ended and the sum is over the limit, the least recently
used go first; the most recently used one stays, even where it alone is too large. A file without a record, or of
another size or time than its record says, is somebody else's and is never touched.

Whoever fetches or loads holds the folder's lock in shared mode, and only who gets it alone removes anything, in
whichever thread or process: no file goes between its arrival and its reading. Where others are busy the last of them
does the work. A folder that cannot be written or locked is left as it is.

    BadLimit(ValueError)   HOOKLENS_CACHE_GB is not a positive number
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

VARIABLE = "HOOKLENS_CACHE_GB"
FOLDER = "hooklens-fetched"


class BadLimit(ValueError):
    """A limit that cannot be read; the sentence says what to write."""


def limit() -> int | None:
    """Bytes that HOOKLENS_CACHE_GB allows, a gigabyte being 10⁹ of them; None where it is not set.

    Errors   BadLimit, in one sentence
    """
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return None
    try:
        gigabytes = float(given)
    except ValueError:
        gigabytes = math.nan
    if not 0 < gigabytes < math.inf:
        raise BadLimit(
            f"{VARIABLE}={given!r} is not a size. Give gigabytes as a positive number, such as 5 or 0.5, "
            "or leave it out to keep every file."
        )
    return round(gigabytes * 1e9)


def remember(path: Path) -> None:
    """Record a file that was fetched here, once it lies there whole; to be called within `in_use`."""
    record = _record(path)
    whole = record.with_suffix(f".{os.getpid()}")
    # A file without its record is kept for good, which is the safe side.
    with contextlib.suppress(OSError):
        whole.write_text(json.dumps(_stamp(path)), encoding="utf-8")
        whole.replace(record)


@contextlib.contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Nothing is removed while the file is fetched or read; when that went well it counts as used, then room is made.

    Errors   BadLimit before anything is done
    """
    most, folder = limit(), _record(path).parent
    with _locked(folder, alone=False):
        yield
        now = time.time_ns()
        with contextlib.suppress(OSError):
            os.utime(_record(path), ns=(now, now))
    if most is not None:
        with _locked(folder, alone=True) as mine:
            if mine:
                _make_room(folder, most)


def _make_room(folder: Path, most: int) -> None:
    """Remove the least recently used files of ours until the rest is within `most` bytes."""
    ours = []
    for record in folder.glob("*.json"):
        path = folder.parent / record.stem
        with contextlib.suppress(OSError):
            stamp = _stamp(path)
            if stamp is not None and stamp == _read(record):
                ours.append((record.stat().st_mtime_ns, stamp[0], path, record))
            else:
                record.unlink()
    total = sum(size for _, size, _, _ in ours)
    for _, size, path, record in sorted(ours)[:-1]:
        if total <= most:
            return
        # The file before its record: what is interrupted here leaves a record that means nothing, not a file for good.
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size
            record.unlink()


def _record(path: Path) -> Path:
    return path.parent / FOLDER / f"{path.name}.json"


def _stamp(path: Path) -> list[int] | None:
    """Size and time of the file itself, not of what a link points to; None where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def _read(record: Path) -> object:
    try:
        return json.loads(record.read_text(encoding="utf-8"))
    except ValueError:
        return None


@contextlib.contextmanager
def _locked(folder: Path, alone: bool) -> Iterator[bool]:
    """Hold the folder's lock, shared or alone; False where it cannot be had. Only the shared one is waited for."""
    with contextlib.ExitStack() as held:
        mine = False
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            mine = _lock(held.enter_context(open(folder / "lock", "ab")), alone)
        yield mine


def _lock(file: BinaryIO, alone: bool) -> bool:
    try:
        import fcntl  # Unix alone has it
    except ImportError:  # no such lock on this system, which refuses to remove a file that is open
        return True
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
    return True
