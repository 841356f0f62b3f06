"""Processor time, memory, files and threads of a process, from /proc (Linux only)."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def processor_seconds(process: int) -> float:
    """Return the processor time of all threads of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def megabytes(process: int, name: str = "VmRSS") -> float:
    """Return the resident memory of a process, or its peak with "VmHWM"."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def reset_peak(process: int) -> None:
    """Let the peak of the memory start at its current value."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{process}/clear_refs").write_text("5")


def children(process: int) -> list[int]:
    """Return the numbers of the processes that a process has started and that still run, also by other processes."""
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(number) for number in path.read_text().split()]
    return found + [each for child in found for each in children(child)]


def open_files(process: int) -> int:
    """Return the number of open files and connections.

    Errors   PermissionError unless this is root, because the page hides them from its own user
    """
    return len(os.listdir(f"/proc/{process}/fd"))


def limit(process: int, name: str) -> str:
    """Return the soft limit of a process with a name in /proc/PID/limits."""
    lines = Path(f"/proc/{process}/limits").read_text(encoding="ascii").splitlines()
    return next(line.removeprefix(name).split()[0] for line in lines if line.startswith(name))


def threads(process: int) -> int:
    """Return the number of threads."""
    return len(os.listdir(f"/proc/{process}/task"))


@contextlib.contextmanager
def ends_within(minutes: float) -> Iterator[None]:
    """End this process with status 1, and those that it has started, if the block takes longer."""
    timer = threading.Timer(60 * minutes, _end, [minutes])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(minutes: float) -> None:
    print(f"FAILED: not ended within {minutes:g} minutes", flush=True)
    for process in children(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)
    os._exit(1)
