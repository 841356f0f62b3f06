"""Request bodies: bounded one by one, for one address, and in all.

A body first reserves the bytes that it declares, or its limit if it declares nothing, and waits if its address or all
addresses have reserved too much; the server does not read it meanwhile. It ends if it makes no progress.
"""

from __future__ import annotations

import asyncio
import mmap
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

from saliscope import limits
from saliscope.page.serving.door.refusals import Message, Receive, Refusal

TOO_BIG = "The request body exceeds the size limit of {limit} MB."
TOO_LATE = "The request body did not arrive in time."
TOO_MANY = "Too many request bodies at the same time. Try again in a minute."
TOO_DEEP = "The JSON has too many values or is nested too deeply."
TOO_MANY_PARTS = "The upload has more than {most} files. Upload fewer at a time."
DELIMITERS = (b",", b"[", b"{", b":")
"""Every JSON value except the first follows one of them."""
PART = b"content-disposition"
"""The header that every part of a multipart body has."""
LARGE = 256 * 1024
"""Bytes above which a body is read into separate memory, which returns to the system at once."""


@dataclass(eq=False)
class _Waiter:
    address: str
    size: int
    admitted: asyncio.Event


class Budget:
    """How many bodies there are, and how many bytes they have reserved; for the routes of one kind.

    All methods are called in the event loop.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._count: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []

    @asynccontextmanager
    async def reserve(self, address: str, size: int) -> AsyncIterator[None]:
        """Reserve bytes for the duration of the block.

        Errors   Refusal 429 or 503: other bodies, of this address or in all, do not end in time
        """
        waiter = _Waiter(address, size, asyncio.Event())
        if sum(each.address == address for each in self._waiting) >= limits.WAITING_BODIES:
            raise Refusal(429, TOO_MANY)
        self._waiting.append(waiter)
        self._admit()
        try:
            await asyncio.wait_for(waiter.admitted.wait(), limits.BODY_WAIT)
        except asyncio.TimeoutError:  # in Python 3.10 another class than TimeoutError
            raise Refusal(503, TOO_MANY) from None
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        try:
            yield
        finally:
            self._add(address, -1, -size)
            self._admit()

    @property
    def reserved(self) -> int:
        """Bytes that are reserved."""
        return sum(self._bytes.values())

    def _admit(self) -> None:
        most, most_of_one, size, size_of_one = limits.BODIES[self.kind]
        for waiter in list(self._waiting):
            address = waiter.address
            own = self._count[address] < most_of_one and self._bytes[address] + waiter.size <= size_of_one
            if own and self._count.total() < most and self.reserved + waiter.size <= size:
                self._waiting.remove(waiter)
                self._add(address, 1, waiter.size)
                waiter.admitted.set()

    def _add(self, address: str, count: int, size: int) -> None:
        self._count[address] += count
        self._bytes[address] += size
        if not self._count[address]:
            del self._count[address], self._bytes[address]


class Body:
    """A body with limits of its size, its time, and what is counted in it while it arrives.

    The limits of time only apply if a body is expected: the event stream of a GET request polls for a disconnect, and a
    timer would hide it.
    """

    def __init__(self, receive: Receive, limit: int, *, timed: bool, counts: str = "") -> None:
        self._receive, self._limit, self._counts = receive, limit, counts
        self._too_big = TOO_BIG.format(limit=limit // limits.MB)
        self.complete = not timed
        """Whether nothing of the body is missing."""
        self._received = self._found = 0
        self._rest = b""
        self._deadline = time.monotonic() + limits.BODY_SECONDS
        self._since, self._silent = 0, 0.0
        """Bytes since the last progress, and seconds that the server has waited for them."""
        self.refusal: Refusal | None = None

    def check_declared(self, headers: dict[bytes, bytes]) -> int:
        """Refuse a body whose declared length exceeds the limit; a missing or wrong length is found by counting.

        Returns  the bytes to reserve
        """
        length = headers.get(b"content-length", b"")
        if not length.isdigit():
            return self._limit
        if int(length[:20]) > self._limit:
            self._fail(413, self._too_big)
        self._limit = int(length)
        return self._limit

    async def receive(self) -> Message:
        """Return the next message; after the end of the body, wait for a disconnect without a time limit."""
        message = await (self._receive() if self.complete else self._in_time())
        part = message.get("body", b"")
        self._received += len(part)
        self.complete = self.complete or not message.get("more_body", False)
        if self._received > self._limit:
            self._fail(413, self._too_big)
        self._count(part)
        return message

    async def read(self, size: int) -> bytes | None:
        """Read the whole body, of which `size` bytes are reserved; None if the client has gone."""
        if size <= LARGE:
            parts = bytearray()
            async for part in self._parts():
                parts += part
            return None if self._gone else bytes(parts)
        with mmap.mmap(-1, size + 1) as memory:
            async for part in self._parts():
                memory.write(part)
            return None if self._gone else memory[: memory.tell()]

    async def _parts(self) -> AsyncIterator[bytes]:
        self._gone, more = False, True
        while more:
            message = await self.receive()
            self._gone = message["type"] == "http.disconnect"
            more = message.get("more_body", False)
            yield message.get("body", b"")

    async def discard(self) -> None:
        """Receive and forget the rest, for a while and slowly."""
        end = time.monotonic() + limits.DISCARD_SECONDS
        while not self.complete and (left := end - time.monotonic()) > 0:
            try:
                message = await asyncio.wait_for(self._receive(), left)
            except asyncio.TimeoutError:
                return
            self.complete = not message.get("more_body", False)
            await asyncio.sleep(0.005)

    async def _in_time(self) -> Message:
        started = time.monotonic()
        left = min(self._deadline - started, limits.BODY_PAUSE - self._silent)
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, left))
        except asyncio.TimeoutError:  # in Python 3.10 another class than TimeoutError
            self._fail(408, TOO_LATE)
        self._silent += time.monotonic() - started
        self._since += len(message.get("body", b""))
        if self._since >= limits.BODY_STEP:
            self._since, self._silent = 0, 0.0
        return message

    def _count(self, part: bytes) -> None:
        """Refuse JSON with too many values before it is parsed, and multipart bodies with too many parts."""
        if self._counts == "values":
            self._found += sum(part.count(each) for each in DELIMITERS)
            if self._found > limits.JSON_DELIMITERS:
                self._fail(400, TOO_DEEP)
        elif self._counts == "parts":
            text = self._rest + part.lower()
            self._found += text.count(PART)
            self._rest = text[-(len(PART) - 1) :]
            if self._found > limits.UPLOAD_PARTS:
                self._fail(400, TOO_MANY_PARTS.format(most=limits.UPLOAD_PARTS))

    def _fail(self, status: int, message: str) -> NoReturn:
        self.refusal = Refusal(status, message)
        raise self.refusal
