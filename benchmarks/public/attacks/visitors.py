"""Attacks of one visitor that would lock out all others: connections, bodies, unread jobs, and many visitors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx

from benchmarks.public import processes
from benchmarks.public.attacks import users
from benchmarks.public.attacks.http import Result, get, raw_status
from benchmarks.public.server import Server
from saliscope import limits
from saliscope.cli import serving

UNREAD, VISITORS, UNFINISHED, SESSIONS, SLOW, MORE = 52, 200, 12, 100, 50, 20
ASKED = 7
"""Questions of another visitor during an attack."""
BUSY = 8.0
"""Seconds of processor time of the server for all huge bodies; parsing one of them would take more."""
PEAK = 64.0
"""Megabytes that refused bodies may take while they are received, and that may stay."""
PATIENCE = 600.0


def one_visitor(server: Server) -> Iterator[Result]:
    """Keep the page busy as one visitor; another one must be served."""
    yield from slow_heads(server)
    yield from many_connections(server)
    yield from huge_bodies(server)
    yield from unfinished_bodies(server)
    yield from jobs(server)
    yield from crowd(server)
    yield from never_read(server)  # Gradio keeps the state of `limits.SESSIONS` visitors, which exists by now


def slow_heads(server: Server) -> Iterator[Result]:
    """Send nothing, a part of a head, and heads of one byte a moment, also after an answer."""
    answered = b"GET /robots.txt HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    starts = {"nothing": b"", "a part": b"GET / HTTP/1.1\r\nHost: ", "drops": b"GET /"}
    starts["drops after an answer"] = answered
    open_ones = []
    for name, start in starts.items():
        for _ in range(SLOW):
            connection = socket.create_connection(server.address, timeout=20)
            connection.sendall(start)
            open_ones.append((name, connection))
    left, until = dict(enumerate(open_ones)), time.monotonic() + 4 * limits.HEAD_SECONDS + 10
    while left and time.monotonic() < until:
        time.sleep(0.5)
        for number, (name, connection) in list(left.items()):
            if _is_closed(connection, b"a" if name.startswith("drops") else b""):
                del left[number]
    for name in starts:
        yield Result(f"connections with {name} that stay", sum(each == name for each, _ in left.values()), 0)
    yield Result("an answer afterwards", get(server, "/robots.txt"), 200)
    for _, connection in open_ones:
        connection.close()


def _is_closed(connection: socket.socket, drop: bytes) -> bool:
    """Send a little more, and return whether the server has closed the connection."""
    connection.settimeout(0.001)
    try:
        connection.sendall(drop)
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:  # a reset
        return True
    return True


def many_connections(server: Server) -> Iterator[Result]:
    """Open more connections than an address may have; another address gets one."""
    serving.allow_many_connections()
    open_ones, refused = list[socket.socket](), 0
    try:
        for _ in range(limits.CONNECTIONS + MORE):
            open_ones.append(socket.create_connection(server.address, timeout=20))
            open_ones[-1].sendall(b"GET /slow HTTP/1.1\r\n")
        for connection in reversed(open_ones):
            connection.settimeout(1.0 if refused < MORE else 0.001)
            with contextlib.suppress(OSError):  # it waits for the rest of the head, or was reset
                refused += b" 429 " in connection.recv(100)
        text = b"GET /robots.txt HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        with socket.create_connection(server.address, timeout=20, source_address=("127.0.0.2", 0)) as other:
            other.sendall(text)
            found = other.recv(100)
    finally:
        for connection in open_ones:
            connection.close()
    yield Result("connections of one address are refused", refused >= MORE, True)
    yield Result("another address meanwhile", found[:12], b"HTTP/1.1 200")
    time.sleep(1.0)  # until the server has noticed their ends
    yield Result("an answer afterwards", get(server, "/robots.txt"), 200)


def _grown(server: Server, before: float) -> bool:
    """Return whether the server has more memory than before, except for what a request needs."""
    return _resident(server) > before + PEAK


def _resident(server: Server) -> float:
    return processes.megabytes(server.process.pid) if server.process else 0.0


def _processor_seconds(server: Server) -> float:
    return processes.processor_seconds(server.process.pid) if server.process else 0.0


def huge_bodies(server: Server) -> Iterator[Result]:
    """Send many empty lists, which take seconds to parse and gigabytes of memory."""
    before, lists = _resident(server), b"[" + b"[]," * (limits.AGENT // 3 - 2) + b"0]"
    statuses, stop = set[int](), threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            statuses.add(get(server, "/robots.txt"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = _processor_seconds(server)
    for route, size, status in (
        ("/mcp", len(lists), 404),
        ("/gradio_api/queue/join", limits.BODY, 400),
        ("/gradio_api/call/explain", limits.BODY, 400),
        ("/gradio_api/run/explain", limits.BODY, 400),
    ):
        answer = httpx.post(server.url + route, content=lists[:size], timeout=60)
        yield Result(f"POST {route}: {size >> 20} MB of lists", answer.status_code, status)
    stop.set()
    watcher.join()
    used = _processor_seconds(server) - started
    print(f"huge bodies: {used:.1f} s of processor time", flush=True)
    yield Result("answers meanwhile", statuses, {200})
    yield Result(f"huge bodies take more than {BUSY:g} s of processor time", used > BUSY, False)
    head = f"POST /mcp\r\nContent-Length: {limits.AGENT}\r\nContent-Type: application/json"
    yield Result("POST /mcp is refused before its body", raw_status(server, head), 404)
    yield Result("memory after huge bodies has grown", _grown(server, before), False)


def unfinished_bodies(server: Server) -> Iterator[Result]:
    """Send bodies without their ends."""
    before = _resident(server)
    part = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    for route, size, start in (
        ("/gradio_api/queue/join", limits.BODY, b"["),
        ("/gradio_api/upload", limits.UPLOAD, part),
        ("/gradio_api/upload", limits.UPLOAD, b"no part"),
    ):
        kind = "multipart/form-data; boundary=b" if route.endswith("upload") else "application/json"
        head = f"POST {route} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n"
        open_ones = []
        for _ in range(UNFINISHED):
            connection = socket.create_connection(server.address, timeout=1.0)
            open_ones.append(connection)
            with contextlib.suppress(TimeoutError):  # the server does not read all of them at once
                connection.sendall(head.encode() + start.ljust(size - 1))
        yield Result(f"an answer during {UNFINISHED} bodies without ends: {route}", get(server, "/config"), 200)
        until = time.monotonic() + 3 * limits.BODY_PAUSE + limits.BODY_WAIT + limits.DISCARD_SECONDS
        ended = sum(_ends(connection, until) for connection in open_ones)
        yield Result(f"{route}: bodies of {start[:3]!r} that end by themselves", ended, UNFINISHED)
    yield Result("memory after unfinished bodies has grown", _grown(server, before), False)


def _ends(connection: socket.socket, until: float) -> bool:
    """Return whether the server ends a request that does not go on."""
    with connection, contextlib.suppress(ConnectionError):
        try:
            while True:
                connection.settimeout(max(0.01, until - time.monotonic()))
                if not connection.recv(65536):
                    break
        except TimeoutError:
            return False
    return True


def _is_served(server: Server, image: dict[str, Any], seconds: float = 60.0) -> bool:
    """Return whether a visitor gets Grad-CAM."""
    return users.call(server, "explain", [image, "", "grad_cam", "", "", None, ""], seconds)[0] == "complete"


def _served(server: Server, image: dict[str, Any]) -> tuple[int, int]:
    """Ask for Grad-CAM again and again.

    Returns  the number of answers, and of answers to the slow method that were computed before the last of them
    """
    before = len(server.lines())
    served = 0
    for _ in range(ASKED):
        if not _is_served(server, image):
            break  # others would wait as long
        served += 1
    methods = [str(line.get("method")) for line in server.lines()[before:] if line.get("outcome") == "done"]
    last = max([number for number, method in enumerate(methods) if method == "grad_cam"], default=-1)
    return served, methods[: last + 1].count("score_cam")


def jobs(server: Server, unread: int = UNREAD) -> Iterator[Result]:
    """Call a slow method again and again without reading the answers, at any rate.

    A slow job that computes already may end before each answer of another visitor, but those that wait come later.
    """
    image = {"path": users.upload(server, users.IMAGE.read_bytes()), "meta": users.FILE}
    yield Result("a visitor is served before", _served(server, image), (ASKED, 0))
    slow = {"data": [image, "", "score_cam", "", "", None, ""]}
    codes = [
        httpx.post(f"{server.url}/gradio_api/call/explain", json=slow, timeout=60).status_code for _ in range(unread)
    ]
    yield Result(f"{unread} unread calls are accepted or refused", set(codes) <= {200, 429}, True)
    served, earlier = _served(server, image)
    yield Result("answers to another visitor", served, ASKED)
    yield Result(f"at most one of the {unread} calls is answered before each of them", earlier <= served, True)
    stop = threading.Event()

    def flood() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            while not stop.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    client.post("/gradio_api/call/explain", json=slow)

    attackers = [threading.Thread(target=flood) for _ in range(4)]
    for attacker in attackers:
        attacker.start()
    time.sleep(2)
    served, earlier = _served(server, image)
    stop.set()
    for attacker in attackers:
        attacker.join()
    yield Result("answers to another visitor during a flood", served, ASKED)
    yield Result("at most one call of the flood is answered before each of them", earlier <= served, True)


def never_read(server: Server) -> Iterator[Result]:
    """Ask as sessions that never read their answers, with and without a stream."""
    before, event = _resident(server), _event(server, "first")
    for streams in (False, True):
        connections = []
        for number in range(SESSIONS):
            session = f"unread{streams}{number}"
            message = {"data": [None] * len(event["inputs"]), "fn_index": event["id"], "session_hash": session}
            httpx.post(f"{server.url}/gradio_api/queue/join", json=message, timeout=60)
            if streams:
                connection = socket.create_connection(server.address, timeout=20)
                text = f"GET /gradio_api/queue/data?session_hash={session} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
                connection.sendall(text.encode())
                connections.append(connection)
        image = {"path": users.upload(server, users.IMAGE.read_bytes()), "meta": users.FILE}
        served = _is_served(server, image, PATIENCE)
        yield Result(f"another visitor is served beside {SESSIONS} sessions, streams: {streams}", served, True)
        time.sleep(limits.UNHEARD + limits.SEND_SECONDS * streams)
        for connection in connections:
            connection.close()
    print(f"memory after {2 * SESSIONS} unread sessions: {_resident(server) - before:+.0f} MB", flush=True)
    yield Result("memory after unread sessions has grown", _grown(server, before), False)


def _event(server: Server, name: str) -> dict[str, Any]:
    """Return what the page says of an event."""
    config = httpx.get(f"{server.url}/config", timeout=60).json()
    found: dict[str, Any] = next(each for each in config["dependencies"] if each["api_name"] == name)
    return found


def crowd(server: Server) -> Iterator[Result]:
    """Open the page as many visitors at once."""
    event = _event(server, "first")

    async def visit(client: httpx.AsyncClient, number: int) -> str:
        session = f"crowd{number}"
        message = {"data": [None] * len(event["inputs"]), "fn_index": event["id"], "session_hash": session}
        joined = await client.post("/gradio_api/queue/join", json=message)
        if joined.status_code != 200:
            return f"{joined.status_code} {joined.text[:80]}"
        async with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as stream:
            async for line in stream.aiter_lines():
                step = json.loads(line[6:]) if line.startswith("data: ") else {}
                if step.get("msg") == "process_completed":
                    return "answered" if step["success"] else "failed"
        return "ended"

    async def all_of_them() -> list[str]:
        bounds = httpx.Limits(max_connections=2 * VISITORS)
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=bounds) as client:
            return await asyncio.gather(*(visit(client, number) for number in range(VISITORS)))

    found = asyncio.run(all_of_them())
    yield Result(f"{VISITORS} visitors at once", sorted(set(found)), ["answered"])
