"""Who asks for a job: a session of the page, or a call of the API, and the address that it comes from.

A session is a name that the client chooses, so a program can invent as many as it likes. An address stands for one
person or for a whole school. Limits count both (`places.py`). The server tells this module about every request for a
job, and about every event stream, because no one waits for an answer whose stream is closed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextvars import ContextVar

MAX_KNOWN = 8192
"""Visitors that are remembered; those with an open stream or a running job are in use and stay."""


class Visitor:
    """A session, its address, and whether anybody listens to its answers."""

    def __init__(self, session: str = "", address: str = "", listeners: int = 0) -> None:
        self.session, self.address, self.listeners = session, address, listeners
        """Open streams of answers; a visitor who is not known to have any is not waited for."""
        self.last_heard = time.monotonic()
        """When a request came or a stream was closed, in seconds of the monotonic clock."""

    @property
    def is_listening(self) -> bool:
        """Whether a stream is open. Without an address, the job does not come from a client."""
        return self.listeners > 0 or not self.address

    def leave(self) -> None:
        """Count one stream fewer."""
        with _lock:
            self.listeners -= 1
            self.last_heard = time.monotonic()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Count a stream of answers for the duration of the block."""
        with _lock:
            self.listeners += 1
        try:
            yield
        finally:
            self.leave()


current: ContextVar[Visitor | None] = ContextVar("visitor", default=None)
"""The visitor whose request is answered at once, without the queue of events."""
_known: OrderedDict[str, Visitor] = OrderedDict()
_lock = threading.Lock()


def arrive(session: str, address: str) -> Visitor:
    """Return the visitor of a request for a job, with the address that it came from."""
    with _lock:
        visitor = _known.get(session)
        if visitor is None:
            visitor = _known[session] = Visitor(session, address)
        visitor.address, visitor.last_heard = address, time.monotonic()
        _known.move_to_end(session)
        for _ in range(len(_known) - MAX_KNOWN):
            oldest = next(iter(_known))
            _known.move_to_end(oldest) if _known[oldest].listeners else _known.pop(oldest)
    return visitor


def alias(name: str, visitor: Visitor) -> None:
    """Remember the name of an event under which the answer of a visitor is requested."""
    with _lock:
        _known[name] = visitor


def find(session: str) -> Visitor | None:
    """Return the visitor with this session or event, or None."""
    with _lock:
        return _known.get(session)


def of(session: str) -> Visitor:
    """Return the visitor of a job, or a new one without an address for a job that no client requested."""
    return (find(session) if session else None) or current.get() or Visitor(session)
