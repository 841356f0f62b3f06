"""Return freed memory to the system between jobs.

The page keeps the memory that a job frees, because later tensors then need no fresh pages
(`explainers.keep_freed_memory`). After a slow method this may be a gigabyte. It is returned when no job has run for a
moment, and after every job above a limit.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from saliscope import limits

IDLE = 2.0
"""Seconds without a job. A click within this time finds the memory of the previous one."""
_imported = 0
"""Modules that were imported when objects were frozen."""


def release() -> None:
    """Return all freed memory to the system, which takes up to 0.15 s, after removing objects in reference cycles."""
    global _imported
    from explainers import release_freed_memory  # jobs are imported before torch

    gc.collect()
    if (imported := len(sys.modules)) > _imported:
        _imported = imported
        gc.freeze()  # imported objects stay, so a later collection skips them: milliseconds instead of 0.3 s
    release_freed_memory()


def used() -> int:
    """Return the memory in bytes that this process uses, except for its libraries, or 0 if it is unknown."""
    try:
        pages = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


class FreedMemory:
    """Call `release` after the last job."""

    def __init__(self, release: Callable[[], None] = release, used: Callable[[], int] = used) -> None:
        self._release, self._used = release, used
        self._timer: threading.Timer | None = None

    def job_started(self) -> None:
        """Keep freed memory for this job."""
        if self._timer:
            self._timer.cancel()

    def job_ended(self, is_last: bool) -> None:
        """Release memory soon if there is no other job, or now if the process uses too much."""
        self.job_started()
        large = self._used() > limits.ALLOCATED
        if large or is_last:
            self._timer = threading.Timer(0.0 if large else IDLE, self._release)
            self._timer.daemon = True
            self._timer.start()
