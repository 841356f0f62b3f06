"""The running jobs, one for each visitor and part of the page: whether it was stopped, and its deadline.

Gradio's own `cancels` frees the place in the queue while a plain function computes on; a token of our own lets the work
end itself, with the best map so far.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from ui import limits

KEPT = 4 * limits.SESSIONS


class Run:
    """A job's token. `stopped()` is asked by the work between two steps."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ask the work to end."""
        self._stop.set()

    @property
    def cancelled(self) -> bool:
        """True when the visitor asked for the end; False when only the deadline has passed."""
        return self._stop.is_set()

    def stopped(self) -> bool:
        """True when the work should end now."""
        return self._stop.is_set() or time.monotonic() > self.until

    def __reduce__(self) -> tuple[type[Run], tuple[float]]:
        # A GPU on a Space runs the work in another process: there only the deadline can end it.
        return Run, (max(0.0, self.until - time.monotonic()),)


_running: dict[str, Run] = {}
_lock = threading.Lock()


@contextlib.contextmanager
def begin(session: str | None, seconds: float = limits.SECONDS) -> Iterator[Run]:
    """A new job of this visitor; a former one that still runs is asked to end. Forgotten after the block."""
    run, name = Run(seconds), session or ""
    with _lock:
        former = _running.pop(name, None) if name else None
        if name and len(_running) < KEPT:
            _running[name] = run
    if former:
        former.stop()
    try:
        yield run
    finally:
        with _lock:
            if _running.get(name) is run:
                del _running[name]


def stop(session: str | None) -> None:
    """Ask this visitor's job to end."""
    with _lock:
        run = _running.get(session or "")
    if run:
        run.stop()


def end(session: str | None) -> None:
    """The visitor has left: ask all jobs of theirs to end, those of single tabs ("session/part") too."""
    with _lock:
        jobs = [run for name, run in _running.items() if name.partition("/")[0] == session]
    for run in jobs:
        run.stop()
