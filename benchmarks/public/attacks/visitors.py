"""Attacks of one visitor that would lock out all others: huge and unfinished bodies, unread jobs, and many visitors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import statistics
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

UNREAD, VISITORS, UNFINISHED, SESSIONS = 52, 200, 12, 100
SLOWER = 3.0
"""Times the idle time of Grad-CAM that another visitor may wait during an attack."""
PEAK = 64.0
"""Megabytes that refused bodies may take while they are received, and that may stay."""
PATIENCE = 600.0


def one_visitor(server: Server) -> Iterator[Result]:
    """Keep the page busy as one visitor; another one must be served."""
    yield from _huge_bodies(server)
    yield from _unfinished_bodies(server)
    yield from _jobs(server)
    yield from _crowd(server)
    yield from _never_read(server)  # Gradio keeps the state of `limits.SESSIONS` visitors, which exists by now


def _grown(server: Server, before: float) -> bool:
    """Return whether the server has more memory than before, except for what a request needs."""
    return _resident(server) > before + PEAK


def _resident(server: Server) -> float:
    return processes.megabytes(server.process.pid) if server.process else 0.0


def _huge_bodies(server: Server) -> Iterator[Result]:
    """Send many empty lists, which take seconds to parse and gigabytes of memory."""
    before, lists = _resident(server), b"[" + b"[]," * (limits.AGENT // 3 - 2) + b"0]"
    slowest, stop = [0.0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            started = time.monotonic()
            get(server, "/robots.txt")
            slowest[0] = max(slowest[0], time.monotonic() - started)

    watcher = threading.Thread(target=watch)
    watcher.start()
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
    yield Result("answers meanwhile come within 2 s", slowest[0] < 2.0, True)
    head = f"POST /mcp\r\nContent-Length: {limits.AGENT}\r\nContent-Type: application/json"
    yield Result("POST /mcp is refused before its body", raw_status(server, head), 404)
    yield Result("memory after huge bodies has grown", _grown(server, before), False)


def _unfinished_bodies(server: Server) -> Iterator[Result]:
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
        ended = sum(_ends(connection) for connection in open_ones)
        yield Result(f"{route}: bodies of {start[:3]!r} that end by themselves", ended, UNFINISHED)
    yield Result("memory after unfinished bodies has grown", _grown(server, before), False)


def _ends(connection: socket.socket) -> bool:
    """Return whether the server ends a request that does not go on."""
    connection.settimeout(3 * limits.BODY_PAUSE + limits.BODY_WAIT + limits.DISCARD_SECONDS)
    with connection, contextlib.suppress(ConnectionError):
        try:
            while connection.recv(65536):
                pass
        except TimeoutError:
            return False
    return True


def _seconds(server: Server, image: dict[str, Any]) -> float:
    """Return how long a visitor waits for Grad-CAM."""
    started = time.monotonic()
    event, _ = users.call(server, "explain", [image, "", "grad_cam", "", "", None, ""])
    return time.monotonic() - started if event == "complete" else float("inf")


def _jobs(server: Server) -> Iterator[Result]:
    """Call a slow method again and again without reading the answers, at any rate."""
    image = {"path": users.upload(server, users.IMAGE.read_bytes()), "meta": users.FILE}
    idle = statistics.median(_seconds(server, image) for _ in range(7))
    slow = {"data": [image, "", "score_cam", "", "", None, ""]}
    codes = [
        httpx.post(f"{server.url}/gradio_api/call/explain", json=slow, timeout=60).status_code for _ in range(UNREAD)
    ]
    times = [_seconds(server, image) for _ in range(7)]
    yield Result(f"{UNREAD} unread calls are accepted or refused", set(codes) <= {200, 429}, True)
    yield Result("another visitor is served", max(times) < float("inf"), True)
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
    times += [_seconds(server, image) for _ in range(7)]
    stop.set()
    for attacker in attackers:
        attacker.join()
    print(f"Grad-CAM: {idle:.2f} s idle, {statistics.median(times):.2f} s during the attack", flush=True)
    yield Result(f"Grad-CAM takes at most {SLOWER:g} times as long", statistics.median(times) <= SLOWER * idle, True)


def _never_read(server: Server) -> Iterator[Result]:
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
        served = _seconds(server, image) < float("inf")
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


def _crowd(server: Server) -> Iterator[Result]:
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
