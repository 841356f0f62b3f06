"""The last job of each visitor and part of the page: whether it was stopped, its deadline, and what it answers.

Gradio's own `cancels` frees the place in the queue while a plain function computes on; a token of our own lets the work
end itself, with the best map so far.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator

from ui import limits

KEPT = 4 * limits.SESSIONS


class Run:
    """A job's token. `stopped()` is asked by the work between two steps."""

    def __init__(self, seconds: float, name: str = "", question: str = "") -> None:
        self.seconds, self.name = seconds, name
        self.until = time.monotonic() + seconds
        self.questions = {question} if question else set()
        """Signatures of what it answers: as it was asked, and with its names resolved."""
        self.superseded = False
        """Whether the visitor has asked something else since: its answer is not to be shown."""
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ask the work to end."""
        self._stop.set()

    def supersede(self) -> None:
        """Ask the work to end, for another question of the same visitor."""
        self.superseded = True
        self._stop.set()

    @property
    def visitor(self) -> str:
        return self.name.partition("/")[0]

    @property
    def left(self) -> float:
        """Seconds until its deadline."""
        return max(0.0, self.until - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """True when the visitor asked for the end; False when only the deadline has passed."""
        return self._stop.is_set()

    def stopped(self) -> bool:
        """True when the work should end now."""
        return self._stop.is_set() or time.monotonic() > self.until

    def __reduce__(self) -> tuple[type[Run], tuple[float]]:
        # A GPU on a Space runs the work in another process: there only the deadline can end it.
        return Run, (self.left,)


_last: OrderedDict[str, Run] = OrderedDict()
_lock = threading.Lock()


@contextlib.contextmanager
def begin(
    name: str | None, seconds: float = limits.SECONDS, question: str = "", again: bool = False
) -> Iterator[Run | None]:
    """A new job of this visitor; a former one that still runs is asked to end.

    None where the last one answers the same question, or has, or was stopped at it: a choice by mouse raises its event
    twice. `again` begins a job all the same.
    """
    run = Run(seconds, name or "", question)
    if name:
        with _lock:
            former = _last.pop(name, None)
            known = former is not None and question in former.questions and not again
            _last[name] = former if former and known else run
            while len(_last) > KEPT:
                _last.popitem(last=False)[1].stop()
        if known:
            yield None
            return
        if former:
            former.supersede()
    yield run


def stop(session: str | None) -> None:
    """Ask this visitor's job to end."""
    with _lock:
        run = _last.get(session or "")
    if run:
        run.stop()


def end(session: str | None) -> None:
    """The visitor has left: ask all jobs of theirs to end, those of single tabs ("session/part") too."""
    with _lock:
        jobs = [_last.pop(name) for name, run in list(_last.items()) if run.visitor == session]
    for run in jobs:
        run.supersede()
