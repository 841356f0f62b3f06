"""Whose turn it is to use the network: one job computes at a time, quick ones first.

Gradio's queue is first come, first served: a quick question would wait for a stranger's long one, and a visitor's
latest wish for all former ones. So every job begins at once, and takes its turn here; a long one steps aside for quick
ones.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from ui.engine.runs import Run

QUICK = 0.5
"""Seconds that a quick question takes, and that a long one usually computes before it steps aside again."""


class Turn:
    """A job's place in the queue, and its turn once that has come."""

    def __init__(self, run: Run, long: bool, aside: float) -> None:
        self.run, self.long, self.aside = run, long, aside
        self.left = run.seconds if long else QUICK
        """Seconds of work that are left, as far as is known."""
        self.since = 0.0
        self.before = 0.0
        """When it was last given the turn, and seconds that it has computed before that."""

    @property
    def spent(self) -> float:
        """Seconds that it has computed."""
        return self.before + time.monotonic() - self.since


class Turns:
    """The queue: a `place` in it, `wait` for the turn, `report` while a long job works."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: Turn | None = None
        self._waiting: list[Turn] = []

    @contextlib.contextmanager
    def place(self, run: Run, *, long: bool, aside: float = QUICK) -> Iterator[Turn]:
        """A place in the queue for the length of the block; `wait` comes before any work.

        A long job computes for `aside` seconds before it steps aside for quick ones.
        """
        turn = Turn(run, long, aside)
        with self._changed:
            self._queue(turn)
        try:
            yield turn
        finally:
            with self._changed:
                if self._holder is turn:
                    self._pass_on()
                elif turn in self._waiting:
                    self._waiting.remove(turn)

    def wait(self, turn: Turn) -> Iterator[tuple[float, bool]]:
        """Until its turn has come: every half second the seconds that this takes, and whether they are a stranger's.

        The job's time begins with its turn. Ends early for a job that is to be stopped.
        """
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._holder is turn or turn.run.cancelled, 0.5):
                    break
                before = [self._holder, *self._waiting[: self._waiting.index(turn)]]
                seconds = sum(other.left for other in before if other)
                stranger = any(other.run.visitor != turn.run.visitor for other in before if other)
            yield seconds, stranger
        turn.since = time.monotonic()
        turn.run.until = turn.since + turn.run.seconds

    def report(self, turn: Turn, fraction: float | None) -> None:
        """A long job's work says how far it is; where quick ones wait, they go first, and its deadline moves."""
        began, turn.left = time.monotonic(), turn.run.left
        if fraction:
            turn.left = min(turn.left, turn.spent * (1 - fraction) / fraction)
        with self._changed:
            held = self._holder is turn and turn.long and began - turn.since >= turn.aside
            if not held or all(other.long for other in self._waiting):
                return
            self._queue(turn, first=True)
            self._pass_on()
            while not self._changed.wait_for(lambda: self._holder is turn or turn.run.cancelled, 0.25):
                pass  # a run is stopped without a word to those who wait here
        turn.before += began - turn.since
        turn.since = time.monotonic()
        turn.run.until += turn.since - began

    def _queue(self, turn: Turn, *, first: bool = False) -> None:
        """Quick ones come before long ones; `first` of its own kind is who steps aside."""
        quick = sum(not other.long for other in self._waiting)
        self._waiting.insert(len(self._waiting) if turn.long and not first else quick, turn)
        if self._holder is None:
            self._pass_on()

    def _pass_on(self) -> None:
        """The turn goes to the next that waits."""
        self._holder = self._waiting.pop(0) if self._waiting else None
        self._changed.notify_all()


turns = Turns()
