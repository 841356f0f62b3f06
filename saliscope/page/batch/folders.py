"""Temporary folders of reports: a process locks those in use, so that the next one can remove those of a killed one."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

fcntl: Any
try:
    fcntl = importlib.import_module("fcntl")
except ImportError:  # on Windows
    fcntl = None

PREFIX = "saliscope-report-"
NEW = 1.0
"""Seconds in which a folder may not be locked yet."""
OLD = 24 * 3600.0
"""Seconds after its last change when a folder is left over, on systems without locks."""


@contextlib.contextmanager
def report_folder() -> Iterator[Path]:
    """Create a folder for the duration of the block."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        descriptor = _locked(name)
        try:
            yield Path(name)
        finally:
            if descriptor is not None:
                os.close(descriptor)


def remove_leftovers() -> int:
    """Remove the folders of this user whose process has ended; return how many."""
    with contextlib.suppress(OSError):
        return sum(_remove(path) for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    return 0


def _remove(path: Path) -> bool:
    with contextlib.suppress(OSError):  # deleted meanwhile
        status, age = path.lstat(), time.time() - path.lstat().st_mtime
        if not path.is_dir() or path.is_symlink() or status.st_uid != getattr(os, "getuid", lambda: 0)() or age < NEW:
            return False
        descriptor = _locked(path)
        if descriptor is not None:
            os.close(descriptor)
        if descriptor is not None or (fcntl is None and age > OLD):
            shutil.rmtree(path, ignore_errors=True)
            return not path.exists()
    return False


def _locked(path: str | os.PathLike[str]) -> int | None:
    """Return a descriptor that locks a folder until it is closed or the process ends; None if that is not possible."""
    if fcntl is None:
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
