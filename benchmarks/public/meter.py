"""A meter in the process of a page: the bytes in use, without what the system and the allocator keep of freed memory.

The resident memory of a process varies by megabytes from one moment of rest to the next. The meter counts what is in
use, and makes caches small, so that they are full after a few questions and memory is the same after equal work.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from saliscope import limits


class _Numbers(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library."""

    _fields_ = (("all", ctypes.c_size_t * 10),)


def in_use() -> int:
    """Return the bytes in use by this process."""
    count = ctypes.CDLL(None).mallinfo2
    count.restype = _Numbers
    numbers = count().all
    # The fifth and the eighth are the bytes in use, mapped and from the heap;
    # 64 bytes for each small object of Python, whose memory is not in the numbers of the allocator
    return int(numbers[4] + numbers[7]) + 64 * sys.getallocatedblocks()


def install() -> None:
    """Let this process write its bytes in use to a file at the signal SIGUSR1, and have small caches."""
    limits.SESSIONS = 4
    from saliscope.compute import results_cache  # reads the limits

    results_cache.BYTES, results_cache.MAX_CACHED = 4 * limits.MB, 4
    place = Path(os.environ["GRADIO_TEMP_DIR"]).with_name("meter")

    def write(*_: Any) -> None:
        for _ in range(3):  # objects in cycles may own others
            gc.collect()
        part = place.with_suffix(".part")
        part.write_text(str(in_use()), encoding="ascii")
        part.replace(place)

    signal.signal(signal.SIGUSR1, write)


def read(process: int, uploads: Path) -> float:
    """Return the megabytes in use by a process.

    Errors   RuntimeError if it does not tell them
    """
    place, until = uploads.with_name("meter"), time.monotonic() + 60.0
    place.unlink(missing_ok=True)
    os.kill(process, signal.SIGUSR1)
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            return int(place.read_text(encoding="ascii")) / 2**20
        time.sleep(0.05)
    raise RuntimeError("The page does not tell how much memory it uses.")
