"""Progress in the terminal: pictures a second and the time that is left; in a log, a line every ten seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType

STOPPED = "Stopped. What is done is kept; the same command goes on."
EVERY = 10.0
"""Seconds between two lines of a log."""


class Progress:
    """Call it with what is done and all of it, inside its block."""

    def __init__(self, what: str, stopped: str = STOPPED) -> None:
        self.what, self.stopped = what, stopped
        self.shown, self.begun, self.wide = 0.0, 0.0, 0
        self.first: int | None = None
        self.live = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        self.begun = self.shown = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live and self.wide:
            sys.stderr.write("\n")
        if kind is KeyboardInterrupt:
            sys.stderr.write(f"{self.stopped}\n")

    def __call__(self, done: int, total: int) -> None:
        """Show it, at most five times a second."""
        now = time.monotonic()
        if self.first is None:  # what was there before, and the start, say nothing of the speed
            self.first, self.begun = done, now
        if done < total and now - self.shown < (0.2 if self.live else EVERY):
            return
        self.shown = now
        line = self.line(done, total, now - self.begun)
        if self.live:
            sys.stderr.write(f"\r{line:<{self.wide}}")
            self.wide = len(line)
        else:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def line(self, done: int, total: int, seconds: float) -> str:
        """One line, of what was done in so many seconds."""
        new = done - (self.first or 0)
        share = f"{self.what} {done:,} of {total:,}"
        if done >= total or not new or seconds <= 0:
            return share
        speed = new / seconds
        return f"{share}, {speed:.3g} a second, {duration((total - done) / speed)} left"


def duration(seconds: float) -> str:
    """Seconds in words: 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
