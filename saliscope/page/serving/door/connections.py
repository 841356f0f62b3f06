"""Limits of connections: their number per address, the time for the head of a request, and the number of tiny chunks.

The server closes a connection only after an answer. A client that sends nothing, or one byte of the head now and then,
would keep its connection and a file descriptor forever. The server also parses all data that has arrived before
anything else runs, and a few kilobytes in chunks of one byte take as long as a megabyte. Middleware sees neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from typing import Any

from saliscope import limits
from saliscope.page.serving.door.hosts import Hosts
from saliscope.page.serving.door.refusals import App, Message, Receive, Send

TOO_MANY = b"Too many connections of this address. Close some of its pages."
ANSWER = (
    b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
    b"retry-after: 10\r\nconnection: close\r\n\r\n%b" % (len(TOO_MANY), TOO_MANY)
)
TINY = re.compile(rb"\r\n0*[0-9a-fA-F]{1,2}[ \t]*(?:;[^\r\n]*)?\r\n")
"""The head of a chunk of less than 256 bytes, after another chunk or the head of the request."""


class Connections:
    """The open connections. All methods are called in the event loop, except `limit`."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._count: Counter[str] = Counter()
        self._open: dict[object, Any] = {}
        """The transport of each connection, by the address and port of its client."""
        self._heads: dict[object, float] = {}
        """The time since which a connection has no complete head."""
        self._running: Counter[object] = Counter()
        """The number of its requests: one may still be ending when the next one starts."""
        self._tiny: Counter[object] = Counter()
        """Tiny chunks of its current request."""

    def limit(self, server: Any) -> None:
        """Make a running uvicorn server report its connections, by replacing the class of its option `http`."""
        config = server.config
        config.http_protocol_class = _reporting(config.http_protocol_class, self)

    def opened(self, client: Any, transport: Any) -> bool:
        """Count a connection; return whether its address may have it."""
        address = self._address(client)
        if address and self._count[address] >= min(limits.CONNECTIONS, most_files() // 2):
            return False
        self._count[address] += 1
        self._open[client] = transport
        self._heads[client] = time.monotonic()
        return True

    def closed(self, client: Any) -> None:
        """Forget a connection."""
        if self._open.pop(client, None) is not None:
            self._heads.pop(client, None)
            self._tiny.pop(client, None)
            address = self._address(client)
            self._count[address] -= 1
            if not self._count[address]:
                del self._count[address]

    def accepts(self, client: Any, data: bytes) -> bool:
        """Return whether data of a connection may be parsed."""
        if tiny := len(TINY.findall(data)):
            self._tiny[client] += tiny
        return self._tiny[client] <= limits.TINY_CHUNKS

    @contextlib.contextmanager
    def request(self, client: Any) -> Any:
        """The head of a request is complete; after the block, the next one is expected."""
        client = tuple(client or ())
        self._heads.pop(client, None)
        self._running[client] += 1
        try:
            yield
        finally:
            self._running[client] -= 1
            if not self._running[client]:
                del self._running[client]
                if client in self._open:
                    self._heads[client] = time.monotonic()
                    self._tiny.pop(client, None)

    async def watch(self) -> None:
        """End connections without a complete head from time to time."""
        while True:
            await asyncio.sleep(1.0)
            self.end_slow()

    def end_slow(self) -> int:
        """End connections whose head takes too long; return how many."""
        late = time.monotonic() - limits.HEAD_SECONDS
        slow = [client for client, since in self._heads.items() if since <= late]
        for client in slow:
            del self._heads[client]
            self._open[client].close()
        return len(slow)

    def _address(self, client: Any) -> str:
        """Return the address of a connection, or an empty string for a proxy, which connects for all visitors."""
        return "" if self._hosts.is_proxy(client) else self._hosts.address([], {"client": client})


def most_files() -> int:
    """Return how many files and connections this process may have open."""
    try:
        import resource  # not on Windows
    except ImportError:
        return 2 * limits.CONNECTIONS
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2 * limits.CONNECTIONS if most == resource.RLIM_INFINITY else most


def _reporting(protocol: Any, connections: Connections) -> Any:
    """Return a class of connections like another one, an `asyncio.Protocol`, that also reports them."""

    class Reporting(protocol):
        """A connection that is counted."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._client = tuple((transport.get_extra_info("peername") or ())[:2])
            if not connections.opened(self._client, transport):
                self._client = ()
                transport.write(ANSWER)
                transport.close()

        def data_received(self, data: bytes) -> None:
            if connections.accepts(self._client, data):
                super().data_received(data)
            else:
                self.transport.abort()

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            connections.closed(self._client)

    return Reporting


class Heads:
    """Middleware that tells the connections which of them have a complete head; the outermost one."""

    def __init__(self, app: App, connections: Connections) -> None:
        self.app, self.connections = app, connections

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or watch the connections while the server runs."""
        if scope["type"] == "lifespan":
            watch = asyncio.create_task(self.connections.watch())
            try:
                await self.app(scope, receive, send)
            finally:
                watch.cancel()
            return
        with self.connections.request(scope.get("client")):
            await self.app(scope, receive, send)
