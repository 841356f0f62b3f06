"""The queue for the network: one job computes at a time, quick jobs first, visitors in turn.

Gradio's queue is first come, first served: a quick request would wait for a long one of another user, and the latest
request of a user would wait for the previous ones. Therefore every job starts at once and waits for its turn here. A
long job lets quick jobs go first. Among jobs of a kind, the turn goes to the address that waits longest since its last
turn, then to such a session: a visitor who asks once does not wait for all jobs of a visitor who asks many times.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from saliscope.compute.jobs.memory import FreedMemory
from saliscope.compute.jobs.places import places
from saliscope.compute.jobs.runs import Run

QUICK = 0.5
"""Estimated seconds of a quick job, and seconds that a long job usually computes before it yields its turn."""


class Turn:
    """The position of a job in the queue, and its compute time."""

    def __init__(self, run: Run, long: bool, min_seconds: float, brief: bool = False) -> None:
        self.run, self.long, self.min_seconds = run, long, min_seconds
        self.rank = 0 if not long else 1 if brief else 2
        """Quick jobs go first, then brief ones, then all others."""
        self.left = run.seconds if long else QUICK
        """Estimated seconds of remaining work."""
        self.resumes = False
        """Whether it has yielded its turn, and comes before other long jobs."""
        self.start = 0.0
        self.earlier = 0.0
        """Start of the current turn, and seconds computed in previous turns."""

    @property
    def spent(self) -> float:
        """Seconds of compute time."""
        return self.earlier + time.monotonic() - self.start


class Turns:
    """The queue: `enqueue` a job, `wait` for its turn, and `report` the progress of a long job."""

    def __init__(self) -> None:
        self._memory = FreedMemory()
        self._changed = threading.Condition()
        self._holder: Turn | None = None
        self._waiting: list[Turn] = []
        self._count = 0
        self._last: dict[object, int] = {}
        """When an address or a session had its last turn, as a count of all turns."""

    @contextlib.contextmanager
    def enqueue(self, run: Run, *, long: bool, min_seconds: float = QUICK, brief: bool = False) -> Iterator[Turn]:
        """Add a job to the queue for the duration of the block; call `wait` before any work.

        A long job computes for `min_seconds` before it yields its turn to quick jobs. A `brief` one takes about as long
        as a quick job, but no one waits for it: it yields to quick jobs, and other long jobs yield to it.
        """
        turn = Turn(run, long, min_seconds, brief)
        if long:
            places.become_long(run)
        with self._changed:
            self._waiting.append(turn)
            if self._holder is None:
                self._start_next()
        try:
            yield turn
        finally:
            with self._changed:
                if self._holder is turn:
                    self._start_next()
                elif turn in self._waiting:
                    self._waiting.remove(turn)

    def wait(self, turn: Turn) -> Iterator[tuple[float, int, bool]]:
        """Wait for the turn; yield every 0.5 s the estimated waiting time, the jobs ahead, and whether of another user.

        The time limit of the job starts with its turn. Returns early if the job is stopped.
        """
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._holder is turn or turn.run.cancelled, 0.5):
                    break
                order = sorted(self._waiting, key=self._order)
                jobs_ahead = [each for each in (self._holder, *order[: order.index(turn)]) if each]
                seconds = sum(other.left for other in jobs_ahead)
                other_user = any(other.run.session != turn.run.session for other in jobs_ahead)
            yield seconds, len(jobs_ahead), other_user
        turn.start = time.monotonic()
        turn.run.until = turn.start + turn.run.seconds

    def waiting(self) -> int:
        """Return the number of jobs that wait."""
        return len(self._waiting)

    def report(self, turn: Turn, fraction: float | None) -> None:
        """Report the progress of a long job; waiting quick and brief jobs go first, and the time limit is extended."""
        now, turn.left = time.monotonic(), turn.run.left
        if fraction:
            turn.left = min(turn.left, turn.spent * (1 - fraction) / fraction)
        with self._changed:
            unheard = not turn.run.visitor.is_listening
            may_yield = self._holder is turn and turn.long and (unheard or now - turn.start >= turn.min_seconds)
            if not may_yield or all(other.rank >= turn.rank for other in self._waiting):
                return
            turn.resumes = True
            self._waiting.append(turn)
            self._start_next()
            while not self._changed.wait_for(lambda: self._holder is turn or turn.run.cancelled, 0.25):
                pass  # a stopped run does not notify this condition
        turn.earlier += now - turn.start
        turn.start = time.monotonic()
        turn.run.until += turn.start - now

    def _order(self, turn: Turn) -> tuple[int, bool, bool, int, int]:
        """Return the key by which jobs wait; jobs with the same key wait in the order in which they came."""
        visitor = turn.run.visitor
        session = (visitor.address, visitor.session)
        last, last_of_session = self._last.get(visitor.address, 0), self._last.get(session, 0)
        return turn.rank, not turn.resumes, not visitor.is_listening, last, last_of_session

    def _start_next(self) -> None:
        """Start the next job in the queue."""
        if self._holder is None:
            self._memory.job_started()
        else:
            self._memory.job_ended(is_last=not self._waiting)
        self._holder = min(self._waiting, key=self._order) if self._waiting else None
        if self._holder is None:
            self._last.clear()
        else:
            self._waiting.remove(self._holder)
            visitor = self._holder.run.visitor
            self._count += 1
            self._last[visitor.address] = self._last[visitor.address, visitor.session] = self._count
        self._changed.notify_all()


turns = Turns()
