"""SIGTERM, which clusters and spot instances send before they stop a machine: the run ends after its current batch."""

from __future__ import annotations

import signal
import sys
import threading
from enum import IntEnum
from types import FrameType, TracebackType
from typing import Any


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
