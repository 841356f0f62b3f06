"""One running job a visitor: whether it was stopped, and until when it may go on.

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
        self.began = time.monotonic()
        self.until = self.began + seconds
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ask the work to end."""
        self._stop.set()

    @property
    def asked(self) -> bool:
        """True when somebody asked for the end; a deadline that has passed is not meant."""
        return self._stop.is_set()

    def stopped(self) -> bool:
        """True when the work should end now."""
        return self._stop.is_set() or time.monotonic() > self.until

    def elapsed(self) -> float:
        """Seconds since the job began."""
        return time.monotonic() - self.began

    def __reduce__(self) -> tuple[type[Run], tuple[float]]:
        # A GPU on a Space runs the work in another process: there only the deadline can end it.
        return Run, (max(0.0, self.until - time.monotonic()),)


_running: dict[str, Run] = {}
_lock = threading.Lock()


@contextlib.contextmanager
def begin(session: str | None, seconds: float = limits.SECONDS) -> Iterator[Run]:
    """A new job of this visitor; a former one that still runs is asked to end. Forgotten when the block ends."""
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


def stop(session: str | None) -> bool:
    """Ask this visitor's job to end; True when there was one."""
    with _lock:
        run = _running.get(session or "")
    if run:
        run.stop()
    return run is not None


def count() -> int:
    """How many jobs are running."""
    with _lock:
        return len(_running)
