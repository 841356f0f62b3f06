"""Progress in the terminal, or as one line or JSON object every 30 seconds elsewhere; exit codes, and the end of a run.

Clusters and spot instances send SIGTERM before they stop a machine: the run ends after its current batch.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from types import FrameType, TracebackType
from typing import Any, TextIO

from saliscope.runs.formats import duration, plural

RESUMABLE = "Interrupted. Finished batches are kept; run the same command again to resume."
EVERY = 30.0
"""Seconds between two lines in a log."""
TEXT, JSON = "text", "json"


class Log:
    """How the commands of this process report: nothing but errors if `quiet`, or one JSON object per line."""

    quiet = False
    format = TEXT
    stdout: TextIO | None = None
    """The stream for results as JSON, if it is not `sys.stdout`."""

    def print_result(self, values: Any) -> None:
        """Print the result of a command as one JSON document."""
        text = json.dumps(values, ensure_ascii=True, allow_nan=False, indent=1)
        (self.stdout or sys.stdout).write(f"{text}\n")

    def write(self, event: str, text: str, **values: Any) -> None:
        """Write an event to stderr: the text, or an object with its values."""
        if self.format == JSON:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            text = json.dumps({"time": now, "event": event, **values}, ensure_ascii=True, allow_nan=False)
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


LOG = Log()


class Progress:
    """A progress line. Call it with the number of finished images and the total number, inside a `with` block.

    `stop` is called with the same numbers, and may end the command.
    """

    def __init__(
        self, verb: str, interrupted: str = RESUMABLE, stop: Callable[[int, int | None], object] | None = None
    ) -> None:
        self.verb, self.interrupted, self.stop = verb, interrupted, stop
        self.shown, self.start, self.width = 0.0, 0.0, 0
        self.first: int | None = None
        self.errors = 0
        self.shard: tuple[int, int | None] | None = None
        self.live = sys.stderr.isatty() and LOG.format == TEXT

    def __enter__(self) -> Progress:
        self.start = self.shown = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live and self.width:
            sys.stderr.write("\n")
        if kind is KeyboardInterrupt:
            LOG.write("error", self.interrupted, error=self.interrupted, exit=130)

    def detail(self, errors: int, shard: int, shards: int | None) -> None:
        """Add the errors of a batch, and set its shard from 1 and the number of shards if it is known."""
        self.errors += errors
        self.shard = shard, shards

    def __call__(self, done: int, total: int | None) -> None:
        """Show the progress. The total is None if it is not known yet."""
        self._show(done, total)
        if self.stop is not None:
            self.stop(done, total)

    def _show(self, done: int, total: int | None) -> None:
        """Show the progress, at most five times per second."""
        now = time.monotonic()
        if self.first is None:  # earlier batches and the start-up time do not count for the speed
            self.first, self.start = done, now
        if LOG.quiet or (done != total and now - self.shown < (0.2 if self.live else EVERY)):
            return
        self.shown = now
        line = self.line(done, total, now - self.start)
        if self.live:
            sys.stderr.write(f"\r{line:<{self.width}}")
            sys.stderr.flush()
            self.width = len(line)
        else:
            LOG.write("progress", line, **self.values(done, total, now - self.start))

    def values(self, done: int, total: int | None, seconds: float) -> dict[str, Any]:
        """Return the values of an event; the speed and the remaining seconds are None if they are unknown."""
        speed = self._speed(done, seconds)
        shard, shards = self.shard or (None, None)
        return {
            "task": self.verb.lower(),
            "done": done,
            "total": total,
            "images_per_second": None if speed is None else round(speed, 3),
            "seconds_left": None if speed is None or total is None else round((total - done) / speed, 1),
            "errors": self.errors,
            "shard": shard,
            "shards": shards,
        }

    def line(self, done: int, total: int | None, seconds: float) -> str:
        """Return the line for this number of seconds."""
        parts = [f"{self.verb} {done:,}" + ("" if total is None else f" of {total:,}")]
        speed = self._speed(done, seconds)
        if done != total and speed is not None:
            parts.append(f"{speed:.3g} images/s")
            if total is not None:
                parts.append(f"{duration((total - done) / speed)} left")
        if self.errors:
            parts.append(plural(self.errors, "error"))
        if self.shard is not None and done != total:
            shard, shards = self.shard
            parts.append(f"shard {shard:,}" + ("" if shards is None else f" of {shards:,}"))
        return ", ".join(parts)

    def _speed(self, done: int, seconds: float) -> float | None:
        new = done - (self.first or 0)
        return new / seconds if new > 0 and seconds > 0 else None


class Exit(IntEnum):
    """Exit codes of the commands. Typer exits with 2 for usage errors."""

    DONE = 0
    ERROR = 1
    UNREADABLE = 3
    INTERRUPTED = 130
    TERMINATED = 143


class Terminated(Exception):
    """Raised between two batches after SIGTERM."""


class StopOnTerminate:
    """Handle SIGTERM inside a `with` block. Call it after each batch with the number of finished images and the total.

    Before the end of the first batch, and if it is repeated, the signal ends the process at once.
    """

    def __init__(self) -> None:
        self._running = self._received = False
        self._before: Any = None

    def __enter__(self) -> StopOnTerminate:
        if threading.current_thread() is threading.main_thread():  # Python handles signals only there
            self._before = signal.signal(signal.SIGTERM, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._running or self._received:
            sys.exit(Exit.TERMINATED)
        self._received = True

    def __call__(self, done: int, total: int | None) -> None:
        """Raise Terminated if the signal was received and there are more images."""
        self._running = True
        if self._received and done != total:
            raise Terminated
