"""Attacks of one visitor on others: forged choices, files and results of others, sessions, and event streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from benchmarks.public.client import FILE, TIME, Result, call, check, connections, explain, status, statuses, upload
from benchmarks.public.server import Server

EVIL = ("nothing", "../../etc/passwd", "os.system", "__class__", "a" * 100_000, "\0", "{{7*7}}", "'; DROP TABLE x", -1)
NO_FILE = "The image must be an uploaded file. Upload it first."
SPECS = ("timm:resnet18", "hf:x/y", "hf:/etc", "hub:x/y:z", "evil.py:build", "os:system", "torchvision:x")
CHOICES: list[tuple[dict[str, Any], str]] = [
    *(({"model": spec}, "Unknown model") for spec in SPECS),
    *(({"options": {name: 10**9}}, "Grad-CAM has no option") for name in ("a", "batch_size", "samples", "__class__")),
    ({"options": {"precision": "x"}}, "Grad-CAM has no option"),
    *(({"options": options}, "options must be a JSON object") for options in ([], "x")),
    *(({"image": file}, NO_FILE) for file in ("x", 5, [], {})),
    ({"image": None}, "No image selected."),
    ({"image": {"path": "/etc/passwd", "meta": FILE}}, "refused 403"),
    ({"image": {"path": None, "meta": FILE}}, "refused 400"),
    ({"image": {"path": [1]}}, "refused 400"),
]
"""Arguments that the page does not offer, and the start of the message."""
UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13"
UPGRADE += "\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
STREAMS = {
    "event streams": "GET /gradio_api/queue/data?session_hash=stream{} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "heartbeats": "GET /gradio_api/heartbeat/heart{} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}


def choices(server: Server) -> Iterator[Result]:
    """Send values that the page does not offer."""
    rows = list(CHOICES)
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
    started = httpx.post(f"{server.url}/gradio_api/call/list_models", json={"data": []}, timeout=TIME)
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
    for name, text in STREAMS.items():
        with connections(server, 100, text):
            yield Result(f"an answer during 100 {name}", call(server, "list_models", [])[0], "complete")
    with ThreadPoolExecutor(40) as pool:
        post = ("POST /gradio_api/call/list_models", {"data": []})
        codes = set(pool.map(lambda _: status(server, *post), range(80)))
    yield Result("answers to 80 calls at once", codes, {200})
    yield Result("an answer afterwards", call(server, "list_models", [])[0], "complete")
