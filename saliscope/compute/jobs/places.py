"""Places for jobs that hold an image: a fair choice among the visitors that wait for one.

A job starts without a place, resolves its names, and waits for a place before it opens its image, so a waiting job only
takes a thread. Then it waits for its turn to compute (`turns.py`).

- A session has at most `limits.RUNNING` places of each kind, and `limits.WAITING` jobs that wait until it has a place
  for them. On a busy server, all of them wait.
- An address never has all places, so that the next visitor finds one. Jobs to which no one listens do not count for
  those to which somebody does.
- Free places go to the address with the fewest, then to the one that waits longest since its last place; the same
  among its sessions. A job to which no one listens comes last.
- Long jobs have separate places: a job that turns out to be long moves there.
- The more jobs there are, the fewer a single address may have: always less than what is left for others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from saliscope import limits
from saliscope.compute.jobs.visitors import Visitor
from saliscope.errors import Refused

QUICK, LONG = "quick", "long"
BUSY = "You have {count} requests in progress, which is the maximum. Wait for one of them, or stop one."
FULL = "{count} requests are in progress, which is the maximum for now. Try again in a minute."
REPORT, SLOWEST = 0.5, 15.0
"""Seconds between two reports of a job that waits, up to the second number for those far behind."""


class Job(Protocol):
    """What `Places` needs to know of a run."""

    visitor: Visitor
    wake: threading.Event
    """Set when the job is stopped or gets a place."""

    @property
    def cancelled(self) -> bool:
        """Whether the job was stopped."""


class Places:
    """The jobs that have a place, and those that wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[Any, None] = {}
        self._placed: dict[Any, str] = {}
        self._waiting: dict[Any, str] = {}
        self._clock = 0
        self._last: dict[object, int] = {}
        """When an address or a session last got a place, as a count of all places given."""

    def arrive(self, job: Job) -> None:
        """Count a new job.

        Errors   Refused if the session or its address has too many jobs, or if there are too many in all
        """
        address = job.visitor.address
        with self._lock:
            if address:
                own = [each for each in self._jobs if each.visitor is job.visitor and not each.cancelled]
                placed = sum(each in self._placed for each in own)
                if job.visitor.session and len(own) >= max(placed, limits.RUNNING) + limits.WAITING:
                    raise Refused(BUSY.format(count=len(own)))
                of_address = sum(each.visitor.address == address for each in self._jobs)
                if of_address >= limits.JOBS - len(self._jobs):
                    raise Refused(FULL.format(count=len(self._jobs)))
            self._jobs[job] = None

    def leave(self, job: Job) -> None:
        """Forget a job that has ended, and give its place to the next one."""
        with self._lock:
            self._jobs.pop(job, None)
            self._waiting.pop(job, None)
            if self._placed.pop(job, None):
                self._grant()
            if not self._jobs:
                self._last.clear()

    def wait(self, job: Job, kind: str = QUICK) -> Iterator[int]:
        """Wait for a place, unless the job has one; yield from time to time how many jobs are ahead.

        Returns early if the job is stopped. A job that did not arrive, such as one of a program, needs no place.
        """
        with self._lock:
            if job in self._placed or job not in self._jobs:
                return
            self._waiting[job] = kind
            self._grant()
        while job in self._waiting and not job.cancelled:
            ahead = self.ahead(job)
            if not job.wake.wait(min(max(REPORT, 0.1 * ahead), SLOWEST)) and job.visitor.is_listening:
                yield ahead

    def become_long(self, job: Job) -> None:
        """Move a job to the places of long jobs. If none is free, it keeps its place, and its session has one less."""
        with self._lock:
            if self._placed.get(job) == QUICK and self._may_have(job, LONG, session=False):
                self._placed[job] = LONG
                self._grant()

    def ahead(self, job: Job) -> int:
        """Return how many jobs have a place or come first."""
        with self._lock:
            order = self._order()
            placed = sum(kind == self._waiting.get(job) for kind in self._placed.values())
            return placed + sum(order(other) < order(job) for other in self._waiting)

    def waiting(self) -> int:
        """Return the number of jobs that wait for a place."""
        return len(self._waiting)

    def _grant(self) -> None:
        while candidates := [job for job, kind in self._waiting.items() if self._may_have(job, kind)]:
            job = min(candidates, key=self._order())
            self._placed[job] = self._waiting.pop(job)
            self._clock += 1
            self._last[job.visitor.address] = self._last[job.visitor.address, job.visitor.session] = self._clock
            job.wake.set()

    def _may_have(self, job: Any, kind: str, *, session: bool = True) -> bool:
        """Return whether there is a place for a job, without the last ones if all others belong to its address."""
        most, visitor = limits.PLACES[kind], job.visitor
        placed = [each for each, its in self._placed.items() if its == kind]
        if visitor.is_listening and len(placed) < 2 * most:  # it does not wait for jobs to which no one listens
            placed = [each for each in placed if each.visitor.is_listening]
        if job.cancelled or len(placed) >= most:
            return False
        if not visitor.address:
            return True
        of_address = sum(each.visitor.address == visitor.address for each in placed)
        of_session = sum(each.visitor is visitor and not each.cancelled for each in placed)
        running = limits.RUNNING if session and visitor.session else most
        return of_address < max(1, most * 3 // 4) and of_session < running

    def _order(self) -> Callable[[Any], tuple[bool, int, int, int, int]]:
        """Return the key by which jobs wait."""
        counts = Counter(each.visitor.address for each in self._placed)
        numbers = {job: number for number, job in enumerate(self._waiting)}

        def key(job: Any) -> tuple[bool, int, int, int, int]:
            visitor = job.visitor
            session = (visitor.address, visitor.session)
            last, last_of_session = self._last.get(visitor.address, 0), self._last.get(session, 0)
            return not visitor.is_listening, counts[visitor.address], last, last_of_session, numbers[job]

        return key


def end_unheard(jobs: Iterable[Any], now: float) -> int:
    """Stop the jobs to which no one has listened for `limits.UNHEARD` seconds.

    Returns  how many were stopped
    """
    gone = [
        job for job in jobs if not job.visitor.is_listening and not job.cancelled
        and now - max(job.visitor.last_heard, job.began) > limits.UNHEARD
    ]  # fmt: skip
    for job in gone:
        job.stop()
    return len(gone)


places = Places()
