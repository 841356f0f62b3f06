"""The pace of requests: an address that sends many must wait, so that other visitors do not.

The server answers all requests in one thread, so a flood of requests would delay everybody, even if all of them were
refused. An address may send `limits.BURST` requests at once, and then `limits.RATE` a second; the rest wait in order,
and are refused if too many wait. A page load with all its scripts costs as much as a few events, and so does the first
event of a session.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict

from saliscope import limits
from saliscope.page.serving.door.refusals import Refusal

TOO_FAST = "Too many requests from this address. Wait a moment."
MAX_KNOWN = 4096
"""Number of addresses that are remembered. Forgetting an older one has no effect: it may send a burst again anyway."""


class Pace:
    """The requests that each address may send now. All methods are called in the event loop."""

    def __init__(self) -> None:
        self._next: OrderedDict[str, float] = OrderedDict()
        """When the request after those already admitted may pass, if the address had sent no burst."""
        self._waiting: Counter[str] = Counter()

    async def wait(self, address: str, cost: float = 1.0) -> None:
        """Wait until a request may pass.

        Errors   Refusal 429 if too many requests of this address wait
        """
        now = time.monotonic()
        due = max(self._next.get(address, 0.0), now - limits.BURST / limits.RATE) + cost / limits.RATE
        if due > now and self._waiting[address] >= limits.WAITING_REQUESTS:
            raise Refusal(429, TOO_FAST)
        self._next[address] = due
        self._next.move_to_end(address)
        if len(self._next) > MAX_KNOWN:
            self._next.popitem(last=False)
        if due <= now:
            return
        self._waiting[address] += 1
        try:
            await asyncio.sleep(due - now)
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]


class Sessions:
    """The sessions whose state Gradio keeps, those with the latest events last."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()

    def is_new(self, session: str) -> bool:
        """Return whether Gradio has to create the state for an event of this session; without a name, it always has."""
        if not session:
            return True
        is_new = session not in self._known
        self._known[session] = None
        self._known.move_to_end(session)
        if len(self._known) > limits.SESSIONS:
            self._known.popitem(last=False)
        return is_new
