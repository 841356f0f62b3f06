"""Attacks of one visitor on others: forged choices, files and results of others, sessions, streams, a full disk.

`one_visitor` would lock out all others: connections, bodies, unread jobs, and many visitors.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from benchmarks.public import client
from benchmarks.public.attacks.http import PART
from benchmarks.public.client import FILE, IMAGE, Result, Server, call, check, connections, explain, status, upload
from saliscope import limits
from saliscope.cli import serving

EVIL = ("nothing", "../../etc/passwd", "os.system", "__class__", "a" * 100_000, "\0", "{{7*7}}", "'; DROP TABLE x", -1)
UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13"
UPGRADE += "\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="


def choices(server: Server) -> Iterator[Result]:
    """Send values that the page does not offer."""
    rows = list(client.LISTED["choices"])
    for name, known in {"model": "model", "method": "method", "layer": "layer", "target": "class", "bands": ""}.items():
        for value in (*EVIL, [], {}, True, None, 1e308):
            is_text = isinstance(value, str) and len(value) <= 500
            # None is the default; and this image has no bands to choose
            is_default = value is None or (is_text and name == "bands")
            message = "complete" if is_default else f"Unknown {known}" if is_text else f"{name} must be"
            rows.append(({name: value}, message))
    for changed, expected in rows:
        event, answer = explain(server, **changed)
        got = answer["error"] if event == "error" else event if event == "complete" else f"{event} {answer}"
        yield Result(str(changed)[:60], str(got)[: len(expected)], expected)


def users(server: Server) -> Iterator[Result]:
    """Read files and results of another visitor."""
    secret = upload(server, b"secret" * 100, "private.jpg")
    digest = secret.removeprefix(f"{server.uploads}/").partition("/")[0]
    yield Result("the name has 256 bits", len(digest) >= 64, True)
    other = secret.replace(digest, digest[:-1] + ("0" if digest[-1] != "0" else "1"))
    refused = (secret[:-1], other, str(server.uploads), f"{server.uploads}/{digest}")
    rows = [(f"GET /gradio_api/file={secret}", b"", 200)]  # under its unguessable name
    yield from check(server, rows + [(f"GET /gradio_api/file={path}", b"", 403) for path in refused])
    started = httpx.post(f"{server.url}/gradio_api/call/list_models", json={"data": []}, timeout=client.TIME)
    own = started.json()["event_id"]
    yield Result("the event has 128 bits", len(own) >= 32, True)
    for event in (own[:-1] + "0", "0" * 32, "../" + own, "%00"):
        yield Result(f"the result of event {event[:6]}", _is_sent(server, event), False)
    yield Result("the result of its event", _is_sent(server, own), True)
    yield Result("a result is sent once", _is_sent(server, own), False)
    for name in ("../x", "a b", "a" * 65, "\n", 7, ["a"], {"a": 1}, True):
        message = {"data": [], "fn_index": 0, "session_hash": name}
        yield from check(server, [("POST /gradio_api/queue/join", message, 400)])
    # another visitor only loses what a visitor may lose: nothing is read
    forged = {"cancel": {"session_hash": "x", "fn_index": 0, "event_id": "y"}, "reset": {"event_id": "y"}}
    yield from check(server, ((f"POST /gradio_api/{route}", data, 200) for route, data in forged.items()))
    with httpx.stream("GET", f"{server.url}/gradio_api/queue/data?session_hash=other", timeout=5) as stream:
        yield Result("stream of an unknown session", stream.status_code, 200)  # it sends only heartbeats


def _is_sent(server: Server, event: str) -> bool:
    """Return whether the server sends the result of an event; it ends the answer early if it does not know it."""
    parts = list[str]()
    address = f"{server.url}/gradio_api/call/list_models/{event}"
    ended = (httpx.RemoteProtocolError, httpx.ReadTimeout)  # a stream without an answer sends nothing but heartbeats
    with contextlib.suppress(*ended), httpx.stream("GET", address, timeout=5) as stream:
        parts.extend(stream.iter_text())
    return "complete" in "".join(parts)


def streams(server: Server) -> Iterator[Result]:
    """Open web sockets, and many event streams that are never read."""
    for path in ("/", "/gradio_api/queue/join", "/queue/join", "/ws"):
        yield Result(f"web socket {path}", client.statuses(server, f"GET {path}\r\n{UPGRADE}", seconds=2.0)[:1], [403])
    for name, text in client.LISTED["streams"].items():
        with connections(server, 100, text):
            yield Result(f"an answer during 100 {name}", call(server, "list_models", [])[0], "complete")
    with ThreadPoolExecutor(40) as pool:
        post = ("POST /gradio_api/call/list_models", {"data": []})
        codes = set(pool.map(lambda _: status(server, *post), range(80)))
    yield Result("answers to 80 calls at once", codes, {200})
    yield Result("an answer afterwards", call(server, "list_models", [])[0], "complete")


# The disk: uploads that fill it, and uploads that stay

PARTS = 30
"""Megabytes of one upload."""


def disk(server: Server) -> Iterator[Result]:
    """Upload many files at once, look for old ones, and upload more than the folder may have."""
    many = [("files", (f"{number}.png", b"\x89PNG")) for number in range(limits.UPLOAD_PARTS + 1)]
    answer = httpx.post(f"{server.url}/gradio_api/upload", files=many, timeout=60)
    yield Result(f"an upload of {len(many)} files", answer.status_code, 400)
    unfinished = len([path for path in server.uploads.glob("tmp*") if path.is_file()])
    yield Result("files of one refused upload are at most its parts", unfinished <= limits.UPLOAD_PARTS, True)
    yield from old_files(server)
    yield from quota(server)


def old_files(server: Server) -> Iterator[Result]:
    """Look whether uploads of long ago are removed, also those of an earlier process, and no others."""
    own, young = (Path(upload(server, os.urandom(999))) for _ in range(2))
    earlier, part = server.uploads / ("0123" * 16) / "image.png", server.uploads / "tmpearlier"
    foreign = server.uploads / "not-of-the-page"
    earlier.parent.mkdir()
    old, now = (own, earlier, part), time.time()
    for path in (*old, foreign, young):
        path.touch()
        for each in {path, path.parent} - {server.uploads}:
            os.utime(each, (now, now - (0.5 if path == young else 1.01) * limits.KEEP))
    until = time.monotonic() + 4 * limits.SWEEP  # cleanups
    while time.monotonic() < until and any(path.exists() for path in old):
        time.sleep(0.2)
    yield Result("an upload, one of an earlier process, and a part stay", [path.exists() for path in old], [False] * 3)
    yield Result("a younger upload stays", young.exists(), True)
    yield Result("a file that is not of the page stays", foreign.exists(), True)


def quota(server: Server) -> Iterator[Result]:
    """Upload more than the folder may have."""
    first, codes, largest = upload(server, IMAGE.read_bytes()), set(), 0
    for _ in range(limits.UPLOADS // (PARTS * limits.MB) + 4):
        files = {"files": ("x.png", os.urandom(1024) * 1024 * PARTS)}
        codes.add(httpx.post(f"{server.url}/gradio_api/upload", files=files, timeout=60).status_code)
        largest = max(largest, sum(path.stat().st_size for path in server.uploads.rglob("*") if path.is_file()))
    yield Result("answers to many uploads", codes <= {200, 507}, True)
    yield Result("bytes in the folder stay below the quota", largest <= limits.UPLOADS, True)
    yield Result("an image that is in use stays", os.path.exists(first), True)


# One visitor who keeps the page busy

UNREAD, VISITORS, UNFINISHED, SESSIONS, SLOW, MORE = 52, 200, 12, 100, 50, 20
ASKED = 7
"""Questions of another visitor during an attack."""
BUSY = 8.0
"""Seconds of processor time of the server for all huge bodies; parsing one of them would take more."""
PEAK = 64.0
"""Megabytes that refused bodies may take while they are received, and that may stay."""
PATIENCE = 600.0
ROBOTS = "GET /robots.txt HTTP/1.1\r\nHost: 127.0.0.1\r\n"
STARTS = {"nothing": "", "a part": "GET / HTTP/1.1\r\nHost: ", "drops": "GET /"}
STARTS["drops after an answer"] = ROBOTS + "\r\n"


def one_visitor(server: Server) -> Iterator[Result]:
    """Keep the page busy as one visitor; another one must be served."""
    attacks = (slow_heads, many_connections, tiny_chunks, huge_bodies, unfinished_bodies, jobs, crowd)
    for attack in (*attacks, never_read):  # Gradio keeps the state of `limits.SESSIONS` visitors, which exists by then
        yield from attack(server)
        yield Result(f"an answer after {attack.__name__}", status(server, "GET /robots.txt"), 200)


def slow_heads(server: Server) -> Iterator[Result]:
    """Send nothing, a part of a head, and heads of one byte a moment, also after an answer."""
    with contextlib.ExitStack() as stack:
        left = {name: stack.enter_context(connections(server, SLOW, text)) for name, text in STARTS.items()}
        until = time.monotonic() + 4 * limits.HEAD_SECONDS + 10
        while any(left.values()) and time.monotonic() < until:
            time.sleep(0.5)
            for name, each in left.items():
                left[name] = [one for one in each if not _is_closed(one, b"a" * name.startswith("drops"))]
        for name, each in left.items():
            yield Result(f"connections with {name} that stay", len(each), 0)


def _is_closed(connection: socket.socket, drop: bytes = b"", seconds: float = 0.001) -> bool:
    """Send a little more, and return whether the server closes the connection within some seconds."""
    until = time.monotonic() + seconds
    try:
        connection.settimeout(seconds)
        connection.sendall(drop)
        while connection.recv(65536):
            connection.settimeout(max(0.001, until - time.monotonic()))
    except OSError as error:
        return not isinstance(error, TimeoutError)  # but a reset
    return True


def many_connections(server: Server) -> Iterator[Result]:
    """Open more connections than an address may have; another address gets one."""
    serving.allow_many_connections()
    with connections(server, limits.CONNECTIONS + MORE, "GET /slow HTTP/1.1\r\n") as open_ones:
        refused = 0
        for connection in reversed(open_ones):
            connection.settimeout(1.0 if refused < MORE else 0.001)
            with contextlib.suppress(OSError):  # it waits for the rest of the head, or was reset
                refused += b" 429 " in connection.recv(100)
        with socket.create_connection(server.address, timeout=20, source_address=("127.0.0.2", 0)) as other:
            other.sendall(f"{ROBOTS}Connection: close\r\n\r\n".encode())
            yield Result("another address meanwhile", other.recv(100)[:12], b"HTTP/1.1 200")
    yield Result("connections of one address are refused", refused >= MORE, True)
    time.sleep(1.0)  # until the server has noticed their ends


def tiny_chunks(server: Server) -> Iterator[Result]:
    """Send bodies in chunks of one byte, which take the server seconds to parse."""
    head = "POST /gradio_api/queue/join\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json"
    for chunk in (b"1\r\n \r\n", b"0001;a=b\r\n \r\n"):
        found = status(server, head, chunk * 20 * limits.TINY_CHUNKS + b"0\r\n\r\n")
        yield Result(f"an answer to tiny chunks {chunk!r}", found, 0)


def huge_bodies(server: Server) -> Iterator[Result]:
    """Send many empty lists, which take seconds to parse and gigabytes of memory."""
    before, lists = client.megabytes(server.process.pid), b"[" + b"[]," * (limits.AGENT // 3 - 2) + b"0]"
    found, started = set[int](), client.processor_seconds(server.process.pid)
    with client.repeatedly(lambda: found.add(status(server, "GET /robots.txt")), pause=0.02):
        routes = ("/gradio_api/queue/join", "/gradio_api/call/explain", "/gradio_api/run/explain")
        for route, size, expected in (("/mcp", len(lists), 404), *((route, limits.BODY, 400) for route in routes)):
            answer = httpx.post(server.url + route, content=lists[:size], timeout=60)
            yield Result(f"POST {route}: {size >> 20} MB of lists", answer.status_code, expected)
    used = client.processor_seconds(server.process.pid) - started
    yield Result("answers meanwhile", found, {200})
    yield Result(f"huge bodies take {used:.1f} s, more than {BUSY:g} s of processor time", used > BUSY, False)
    head = f"POST /mcp\r\nContent-Length: {limits.AGENT}\r\nContent-Type: application/json"
    yield Result("POST /mcp is refused before its body", status(server, head), 404)
    yield _memory("huge bodies", server, before)


def unfinished_bodies(server: Server) -> Iterator[Result]:
    """Send bodies without their ends."""
    before = client.megabytes(server.process.pid)
    kinds = (("queue/join", limits.BODY, b"["), ("upload", limits.UPLOAD, PART), ("upload", limits.UPLOAD, b"no part"))
    for route, size, start in kinds:
        kind = "multipart/form-data; boundary=b" if route == "upload" else "application/json"
        head = f"POST /gradio_api/{route} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
        with connections(server, UNFINISHED, f"{head}Content-Length: {size}\r\n\r\n") as open_ones:
            for connection in open_ones:
                connection.settimeout(1.0)
                with contextlib.suppress(TimeoutError):  # the server does not read all of them at once
                    connection.sendall(start.ljust(size - 1))
            name = f"{UNFINISHED} bodies of {start[:3]!r} without ends: {route}"
            yield Result(f"an answer during {name}", status(server, "GET /config"), 200)
            until = time.monotonic() + 3 * limits.BODY_PAUSE + limits.BODY_WAIT + limits.DISCARD_SECONDS
            ended = [_is_closed(each, seconds=max(0.01, until - time.monotonic())) for each in open_ones]
            yield Result(f"{name} end by themselves", all(ended), True)
    yield _memory("unfinished bodies", server, before)


def _memory(name: str, server: Server, before: float) -> Result:
    """Return whether the server has more memory than before, except for what a request needs."""
    grown = client.megabytes(server.process.pid) - before
    return Result(f"memory after {name} has grown by {grown:+.0f} MB", grown > PEAK, False)


def _is_served(server: Server, seconds: float = 60.0) -> bool:
    """Return whether a visitor gets Grad-CAM."""
    return explain(server, seconds, method="grad_cam")[0] == "complete"


def _served(name: str, server: Server) -> Iterator[Result]:
    """Ask for Grad-CAM again and again, while another visitor calls a slow method.

    A slow job that computes already may end before each answer, but those that wait come later.
    """
    before, served = len(server.lines()), 0
    while served < ASKED and _is_served(server):  # after a failure, others would wait as long
        served += 1
    methods = [str(line.get("method")) for line in server.lines()[before:] if line.get("outcome") == "done"]
    last = max([number for number, method in enumerate(methods) if method == "grad_cam"], default=-1)
    yield Result(f"answers to another visitor {name}", served, ASKED)
    earlier = methods[: last + 1].count("score_cam")
    yield Result(f"at most one call is answered before each of them {name}", earlier <= served, True)


def jobs(server: Server, unread: int = UNREAD) -> Iterator[Result]:
    """Call a slow method again and again without reading the answers, at any rate."""
    image = {"path": upload(server, IMAGE.read_bytes()), "meta": FILE}
    slow = ("POST /gradio_api/call/explain", {"data": [image, "", "score_cam", "", "", None, ""]})
    yield from _served("before", server)
    codes = {status(server, *slow) for _ in range(unread)}
    yield Result(f"{unread} unread calls are accepted or refused", codes <= {200, 429}, True)
    yield from _served(f"beside {unread} unread calls", server)
    with client.repeatedly(lambda: status(server, *slow), count=4):
        time.sleep(2)
        yield from _served("during a flood", server)


def never_read(server: Server) -> Iterator[Result]:
    """Ask as sessions that never read their answers, with and without a stream."""
    before, visitor = client.megabytes(server.process.pid), httpx.Client(base_url=server.url, timeout=60)
    config = visitor.get("/config").json()
    stream = "GET /gradio_api/queue/data?session_hash=unread{} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for streams in (False, True):
        for number in range(SESSIONS):
            name = f"unread{number}" if streams else f"without{number}"
            with contextlib.suppress(httpx.HTTPError):
                client.Visitor(visitor, name, config).post("hl-page", "open", address="", first=True)
        with connections(server, SESSIONS * streams, stream):
            served = _is_served(server, PATIENCE)
            words = f"another visitor is served while there are {SESSIONS} sessions, streams: {streams}"
            yield Result(words, served, True)
            time.sleep(limits.UNHEARD + limits.SEND_SECONDS * streams)
    yield _memory(f"{2 * SESSIONS} unread sessions", server, before)


def crowd(server: Server) -> Iterator[Result]:
    """Open the page as many visitors at once."""
    bounds = httpx.Limits(max_connections=2 * VISITORS)
    with httpx.Client(base_url=server.url, timeout=PATIENCE, limits=bounds) as many:
        config = many.get("/config").json()

        def visit(number: int) -> str:
            try:
                client.Visitor(many, f"crowd{number}", config).send("hl-page", "open", first=True)
            except (RuntimeError, httpx.HTTPError) as error:
                return str(error)[:80]
            return "answered"

        with ThreadPoolExecutor(VISITORS) as pool:
            found = sorted(set(pool.map(visit, range(VISITORS))))
    yield Result(f"{VISITORS} visitors at once", found, ["answered"])
