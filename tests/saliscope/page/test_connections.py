"""Connections: how many an address may have, and how long a head may take, with a real server of uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvicorn

from saliscope import limits
from saliscope.page.serving.door.connections import TOO_MANY, Connections, Heads
from saliscope.page.serving.door.hosts import Hosts

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
OPEN, LATE = GET.replace(b"/ ", b"/open "), GET.replace(b"/ ", b"/late ")
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
Connect = Callable[..., socket.socket]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer "ok": /open without an end until the client leaves, and /late ends some time after its answer."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    if scope["path"] == "/open":
        await send({"type": "http.response.body", "body": b"o", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
    await send({"type": "http.response.body", "body": b"ok"})
    if scope["path"] == "/late":
        await asyncio.sleep(0.2)


@contextlib.contextmanager
def served(proxies: int = 0) -> Iterator[Connect]:
    """Run a server with limits of its connections; yield a function that opens one and sends its start."""
    connections = Connections(Hosts(proxies=proxies))
    server = uvicorn.Server(uvicorn.Config(Heads(app, connections), port=0, log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    connections.limit(server)
    address = server.servers[0].sockets[0].getsockname()

    def connect(start: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        connection = socket.create_connection(address, timeout=20, source_address=(source, 0))
        connection.sendall(start)
        return connection

    yield connect
    server.should_exit = server.force_exit = True
    thread.join(20)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.5)
    with served() as found:
        yield found


def answer(connection: socket.socket, end: bytes = b"ok") -> bytes:
    """Return the next answer."""
    received = b""
    while not received.endswith(end) and (part := connection.recv(65536)):
        received += part
    return received


def ends(connection: socket.socket, drop: bytes = b"") -> bytes:
    """Send a byte now and then until the server closes the connection; return what it has sent."""
    connection.settimeout(0.1)
    received, until = b"", time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(TimeoutError):
            try:
                connection.sendall(drop)
                part = connection.recv(65536)
            except ConnectionError:  # reset by the server
                return received
            if not part:
                return received
            received += part
    raise AssertionError("the connection stays")


def test_a_connection_without_a_complete_head_is_closed(connect: Connect) -> None:
    """At its start, and after an answer; others are answered meanwhile."""
    starts = (b"", b"GET ", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
    slow = [(connect(start), drop) for start in starts for drop in (b"", b"a")]
    reused = connect(GET)
    assert b"200" in answer(reused)
    reused.sendall(b"GET / HTT")
    with ThreadPoolExecutor(7) as threads:
        assert set(threads.map(lambda each: ends(*each), [*slow, (reused, b"P")])) == {b""}


def test_a_stream_and_several_requests_on_a_connection_stay(connect: Connect) -> None:
    """What answered one request of a connection may return while the next one is being answered."""
    stream, several, reused = connect(OPEN), connect(), connect(LATE)
    assert answer(reused).endswith(b"ok")
    reused.sendall(OPEN)
    for _ in range(6):
        several.sendall(GET)
        assert b"200" in answer(several)
        time.sleep(0.3)
    for each in (stream, reused):
        assert answer(each, b"\r\n\r\no").startswith(b"HTTP/1.1 200")
        each.settimeout(0.1)
        with pytest.raises(TimeoutError):
            each.recv(65536)


def test_a_body_in_many_tiny_chunks_ends_the_connection(connect: Connect) -> None:
    """The server would parse all of them before it does anything else."""
    for chunk in (b"1\r\na\r\n", b"00fF;x=y\r\n" + bytes(255) + b"\r\n", b"1 \r\n1\r\n"):
        many = CHUNKED + chunk * (3 * limits.TINY_CHUNKS)
        reused = connect()
        for _ in range(2):  # it starts again with each request
            reused.sendall(CHUNKED + chunk * (limits.TINY_CHUNKS // 2) + b"0\r\n\r\n")
            assert b"200" in answer(reused)
        for cut in (0, len(CHUNKED) - 30, len(CHUNKED)):
            connection = connect(many[:cut])
            with contextlib.suppress(ConnectionError):
                connection.sendall(many[cut:])
            assert b"200" not in ends(connection)
    large = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    assert b"200" in answer(connect(CHUNKED + large * 20 + b"0\r\n\r\n"))


def test_an_address_has_a_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy has those of all its visitors."""
    monkeypatch.setattr(limits, "CONNECTIONS", 3)
    with served() as connect:
        some = [connect(b"GET ") for _ in range(3)]
        assert TOO_MANY in ends(connect())
        assert b"200" in answer(connect(GET, source="127.0.0.2"))
        some[0].close()
        until = time.monotonic() + 20
        while b"200" not in (found := answer(connect(GET))):
            assert time.monotonic() < until, found
            time.sleep(0.05)
    with served(proxies=1) as connect:
        assert all(b"200" in answer(each) for each in [connect(GET) for _ in range(9)])


def test_an_address_cannot_have_all_files_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (6, 6))
    found = Connections(Hosts(proxies=0))
    assert [found.opened(("1.1.1.1", port), object()) for port in range(4)] == [True] * 3 + [False]
    assert found.opened(("2.2.2.2", 1), object())
    for port in range(4):
        found.closed(("1.1.1.1", port))
    assert found.opened(("1.1.1.1", 9), object())
