"""Connections: how many an address may have, and how long a head may take, with a real server of uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvicorn

from saliscope import limits
from saliscope.page.serving.door.connections import TOO_MANY, Connections, Heads, most_files
from saliscope.page.serving.door.hosts import Hosts

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


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


class Served:
    """A server with limits of its connections."""

    def __init__(self, proxies: int = 0) -> None:
        self.connections = Connections(Hosts(proxies=proxies))
        config = uvicorn.Config(Heads(app, self.connections), port=0, log_level="error", lifespan="on")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        self.connections.limit(self.server)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def connect(self, start: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20, source_address=(source, 0))
        connection.sendall(start)
        return connection

    def close(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(20)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.5)
    found = Served()
    yield found
    found.close()


def answer(connection: socket.socket) -> bytes:
    """Return the next answer."""
    received = b""
    while not received.endswith(b"ok") and (part := connection.recv(65536)):
        received += part
    return received


def ends(connection: socket.socket, drop: bytes = b"") -> bytes:
    """Send a byte now and then until the server closes the connection; return what it has sent."""
    connection.settimeout(0.1)
    received, until = b"", time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if drop:
                connection.sendall(drop)
            part = connection.recv(65536)
        except TimeoutError:
            continue
        except OSError:  # reset by the server
            return received
        if not part:
            return received
        received += part
    raise AssertionError("the connection stays")


def test_a_connection_without_a_complete_head_is_closed(served: Served) -> None:
    starts = (b"", b"GET ", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
    slow = [(served.connect(start), drop) for start in starts for drop in (b"", b"a")]
    assert b"ok" in answer(served.connect(GET)), "others are answered"
    with ThreadPoolExecutor(len(slow)) as threads:
        assert set(threads.map(lambda each: ends(*each), slow)) == {b""}


def test_a_slow_head_after_an_answer_is_closed(served: Served) -> None:
    connection = served.connect(GET)
    assert b"200" in answer(connection)
    connection.sendall(b"GET / HTT")
    assert b"200" not in ends(connection, b"P")


def test_a_stream_and_several_requests_on_a_connection_stay(served: Served) -> None:
    stream, several = served.connect(GET.replace(b"/ ", b"/open ")), served.connect()
    for _ in range(6):
        several.sendall(GET)
        assert b"200" in answer(several)
        time.sleep(0.3)
    stream.settimeout(0.1)
    assert stream.recv(65536).startswith(b"HTTP/1.1 200")
    with pytest.raises(TimeoutError):
        while stream.recv(65536) != b"":
            pass


CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("chunk", [b"1\r\na\r\n", b"00fF;x=y\r\n" + bytes(255) + b"\r\n", b"1 \r\n1\r\n"])
def test_a_body_in_many_tiny_chunks_ends_the_connection(served: Served, chunk: bytes) -> None:
    """The server would parse all of them before it does anything else."""
    few, many = chunk * limits.TINY_CHUNKS, chunk * (3 * limits.TINY_CHUNKS)
    connection = served.connect()
    for _ in range(2):  # it starts again with each request
        connection.sendall(CHUNKED + few[: len(few) // 2] + b"0\r\n\r\n")
        assert b"200" in answer(connection)
    for cut in (0, len(CHUNKED) - 30, len(CHUNKED)):
        connection = served.connect((CHUNKED + many)[:cut])
        with contextlib.suppress(ConnectionError):
            connection.sendall((CHUNKED + many)[cut:])
        ends(connection)
    large = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    connection = served.connect(CHUNKED + large * 20 + b"0\r\n\r\n")
    assert b"200" in answer(connection)


def test_an_address_has_a_number_of_connections(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 600.0)
    monkeypatch.setattr(limits, "CONNECTIONS", 3)
    some = [served.connect(b"GET ") for _ in range(3)]
    assert TOO_MANY in ends(served.connect())
    other = served.connect(GET, source="127.0.0.2")
    assert b"200" in answer(other)
    some[0].close()
    until = time.monotonic() + 20
    while b"200" not in (found := answer(served.connect(GET))):
        assert time.monotonic() < until, found
        time.sleep(0.05)


def test_a_proxy_has_the_connections_of_all_its_visitors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS", 3)
    served = Served(proxies=1)
    try:
        assert all(b"200" in answer(each) for each in [served.connect(GET) for _ in range(9)])
    finally:
        served.close()


def test_an_address_cannot_have_all_files_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (6, 6))
    found = Connections(Hosts(proxies=0))
    assert most_files() == 6
    assert [found.opened(("1.1.1.1", port), object()) for port in range(4)] == [True] * 3 + [False]
    assert found.opened(("2.2.2.2", 1), object())
    for port in range(3):
        found.closed(("1.1.1.1", port))
    found.closed(("1.1.1.1", 3))
    assert found.opened(("1.1.1.1", 9), object())


def test_a_stream_stays_after_a_request_that_ends_late(served: Served) -> None:
    """What answered the first request of the connection returns while the second one is being answered."""
    connection = served.connect(GET.replace(b"/ ", b"/late "))
    assert answer(connection).endswith(b"ok")
    connection.sendall(GET.replace(b"/ ", b"/open "))
    received = b""
    while not received.endswith(b"\r\n\r\no"):
        received += connection.recv(65536)
    connection.settimeout(2.0)
    with pytest.raises(TimeoutError):
        connection.recv(65536)
    connection.close()
