"""Progress in the terminal, with images per second and the remaining time; in a log, one line every ten seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType

RESUMABLE = "Interrupted. Finished batches are kept; run the same command again to resume."
EVERY = 10.0
"""Seconds between two lines in a log."""


class Progress:
    """A progress line. Call it with the number of finished images and the total number, inside a `with` block."""

    def __init__(self, verb: str, interrupted: str = RESUMABLE) -> None:
        self.verb, self.interrupted = verb, interrupted
        self.shown, self.start, self.width = 0.0, 0.0, 0
        self.first: int | None = None
        self.live = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        self.start = self.shown = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live and self.width:
            sys.stderr.write("\n")
        if kind is KeyboardInterrupt:
            sys.stderr.write(f"{self.interrupted}\n")

    def __call__(self, done: int, total: int) -> None:
        """Show the progress, at most five times per second."""
        now = time.monotonic()
        if self.first is None:  # earlier batches and the start-up time do not count for the speed
            self.first, self.start = done, now
        if done < total and now - self.shown < (0.2 if self.live else EVERY):
            return
        self.shown = now
        line = self.line(done, total, now - self.start)
        if self.live:
            sys.stderr.write(f"\r{line:<{self.width}}")
            self.width = len(line)
        else:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def line(self, done: int, total: int, seconds: float) -> str:
        """Return the line for this number of seconds."""
        new = done - (self.first or 0)
        share = f"{self.verb} {done:,} of {total:,}"
        if done >= total or not new or seconds <= 0:
            return share
        speed = new / seconds
        return f"{share}, {speed:.3g} per second, {duration((total - done) / speed)} left"


def duration(seconds: float) -> str:
    """Format seconds, such as 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
