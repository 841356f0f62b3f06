"""The latest job of each user and part of the page: whether it was stopped, its time limit, and its request.

Gradio's `cancels` only frees the slot in the queue while the function keeps running. A separate token lets the work
stop by itself and return the best map so far.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from saliscope import limits
from saliscope.compute.jobs import places as place
from saliscope.compute.jobs import visitors
from saliscope.errors import Refused

MAX_CACHED = 1024


class Run:
    """The token of a job. The work checks `stopped()` between two steps."""

    def __init__(self, seconds: float, name: str = "", question: str = "", number: int | None = None) -> None:
        self.seconds, self.name, self.number = seconds, name, number
        self.until = time.monotonic() + seconds
        self.question = question
        """What the job is about, for a part of the page that shows why it has ended."""
        self.superseded = False
        """Whether the user has sent another request since, so that this answer must not be shown."""
        self.ended = False
        """Whether the work has ended."""
        self.about: dict[str, Any] = {}
        """Names of the model, the method and the layer, and the size of the image, once they are known."""
        self.is_loading = False
        """Whether a network is being loaded, which cannot be interrupted."""
        self.failure: BaseException | None = None
        """The error that ended the work, until the observers have seen it."""
        self.outcome = ""
        """How the work ended: done, refused, stopped, superseded or failed."""
        self.began, self.took = time.monotonic(), 0.0
        self.session = name.partition("/")[0]
        self.visitor = visitors.of(self.session)
        self._stop, self.wake = threading.Event(), threading.Event()

    def stop(self) -> None:
        """Stop the work at its next check."""
        self._stop.set()
        self.wake.set()

    def supersede(self) -> None:
        """Stop the work because the same user sent another request."""
        self.superseded = True
        self.stop()

    @property
    def kind(self) -> str:
        """The part of the page that requested the work, "map" for the overlay, "api" for endpoints."""
        return (self.name.partition("/")[2] or "map") if self.name else "api"

    def end(self) -> None:
        """Record the end of the work, and call the observers."""
        self.ended, self.took = True, time.monotonic() - self.began
        errors = sys.modules.get("explainers.errors")  # importing it would take seconds
        refusals = (Refused, errors.ExplainerError) if errors else (Refused,)
        self.outcome = "done" if self.failure is None else "failed"
        if self.superseded or self.cancelled:
            self.outcome = "superseded" if self.superseded else "stopped"
        elif isinstance(self.failure, refusals):
            self.outcome = "refused"
        for observe in observers:
            observe(self)
        self.failure = None  # its traceback would keep images and maps until the user's next run

    @property
    def left(self) -> float:
        """Seconds until the time limit."""
        return max(0.0, self.until - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether the user stopped the job; False if only the time limit has passed."""
        return self._stop.is_set()

    def stopped(self) -> bool:
        """Return whether the work should stop now."""
        return self._stop.is_set() or time.monotonic() > self.until

    def __reduce__(self) -> tuple[type[Run], tuple[float]]:
        # On a shared GPU the work runs in another process, where only the time limit can stop it.
        return Run, (self.left,)


observers: list[Callable[[Run], None]] = []
"""Functions that are called with every run that has ended."""
leavers: list[Callable[[str | None], None]] = []
"""Functions that are called with the session of every user who has left."""
_last: OrderedDict[str, Run] = OrderedDict()
_running: set[Run] = set()
_lock = threading.Lock()


@contextlib.contextmanager
def start(
    name: str | None, seconds: float = limits.SECONDS, question: str = "", number: int | None = None
) -> Iterator[Run | None]:
    """Start a new job of this user and stop the previous one.

    Yields None if the latest job has the same or a larger `number`: a request may be sent twice, and two requests in
    quick succession may start in the wrong order.

    Errors   Refused if the visitor has too many jobs
    """
    run = Run(seconds, name or "", question, number)
    if name:
        with _lock:
            previous = _last.pop(name, None)
            ignored = previous is not None and (number or math.inf) <= (previous.number or 0)
            _last[name] = previous if previous and ignored else run
            while len(_last) > MAX_CACHED:
                _last.popitem(last=False)[1].stop()
        if ignored:
            yield None
            return
        if previous:
            previous.supersede()
    place.places.arrive(run)
    with _lock:
        _running.add(run)
    try:
        yield run
    except GeneratorExit:
        run.stop()  # the visitor has left
        raise
    except BaseException as error:
        run.failure = error
        raise
    finally:
        with _lock:
            _running.discard(run)
        place.places.leave(run)
        run.end()


def is_heard(run: Run) -> bool:
    """Wait until somebody listens to a run, and return whether anybody does; it has computed meanwhile.

    The stream is opened after the answer to the request, within one round trip. The user may have stopped the run
    before, and then waits for its last answer.
    """
    visitor = run.visitor
    while not visitor.is_listening and not run.superseded:
        if time.monotonic() - max(visitor.last_heard, run.began) > limits.UNHEARD:
            break
        time.sleep(0.01)
    return visitor.is_listening


def end_unheard() -> int:
    """Stop the jobs of visitors who have left; return how many were stopped."""
    with _lock:
        found = list(_running)
    return place.end_unheard(found, time.monotonic())


def running() -> int:
    """Return the number of runs that have started and not ended."""
    return len(_running)


def stop_all() -> None:
    """Stop all runs; long methods return their best map so far."""
    with _lock:
        found = list(_running)
    for run in found:
        run.stop()


def stop(session: str | None) -> None:
    """Stop the job of this user."""
    with _lock:
        run = _last.get(session or "")
    if run:
        run.stop()


def is_loading(session: str | None) -> bool:
    """Return whether the job of this user loads a network, which cannot be interrupted."""
    with _lock:
        run = _last.get(session or "")
    return run is not None and run.is_loading and not run.ended


def supersede(name: str | None) -> Run | None:
    """Stop the job with this name without showing its results; returns it if it was running."""
    with _lock:
        run = _last.get(name or "")
    if run is None or run.ended or run.cancelled:
        return None
    run.supersede()
    return run


def end(session: str | None) -> None:
    """Stop all jobs of a user who has left, including those of single tabs ("session/part")."""
    with _lock:
        jobs = [_last.pop(name) for name, run in list(_last.items()) if run.session == session]
    for run in jobs:
        run.supersede()
    for leave in leavers:
        leave(session)
