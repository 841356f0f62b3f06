"""Attacks of one visitor on others: forged choices, files and results of others, sessions, streams, a full disk."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from benchmarks.public import client
from benchmarks.public.client import IMAGE, Result, call, check, connections, explain, status, statuses, upload
from benchmarks.public.server import Server
from saliscope import limits

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
    text = ""
    address = f"{server.url}/gradio_api/call/list_models/{event}"
    ended = (httpx.RemoteProtocolError, httpx.ReadTimeout)  # a stream without an answer sends nothing but heartbeats
    with contextlib.suppress(*ended), httpx.stream("GET", address, timeout=5) as stream:
        for part in stream.iter_text():
            text += part
    return "complete" in text


def streams(server: Server) -> Iterator[Result]:
    """Open web sockets, and many event streams that are never read."""
    for path in ("/", "/gradio_api/queue/join", "/queue/join", "/ws"):
        yield Result(f"web socket {path}", statuses(server, f"GET {path}\r\n{UPGRADE}", seconds=2.0)[:1], [403])
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
SWEEPS = 4
"""Cleanups until an old file must be gone."""


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
    until = time.monotonic() + SWEEPS * limits.SWEEP
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
