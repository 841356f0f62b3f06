"""Attacks of one visitor on others: forged choices, files and results of others, sessions, and event streams."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx

from benchmarks.public.attacks.http import Result, post
from benchmarks.public.server import ROOT, Server

IMAGE = ROOT / "assets" / "examples" / "coffee.jpg"
FILE = {"_type": "gradio.FileData"}
TIME = 60


def upload(server: Server, content: bytes, name: str = "image.jpg") -> str:
    """Upload a file and return its path on the server."""
    answer = httpx.post(f"{server.url}/gradio_api/upload", files={"files": (name, content)}, timeout=TIME)
    return str(answer.raise_for_status().json()[0])


def call(server: Server, name: str, data: list[Any], seconds: float = 5 * TIME) -> tuple[str, Any]:
    """Call an endpoint; return the last event and its data, "refused" and the status, or "late"."""
    started = httpx.post(f"{server.url}/gradio_api/call/{name}", json={"data": data}, timeout=TIME)
    if started.status_code != 200:
        return "refused", started.status_code
    event, data_of_it, until = "none", "null", time.monotonic() + seconds
    address = f"{server.url}/gradio_api/call/{name}/{started.json()['event_id']}"
    with httpx.stream("GET", address, timeout=TIME) as stream:
        for line in stream.iter_lines():  # heartbeats come meanwhile
            if time.monotonic() > until:
                return "late", None
            kind, _, text = line.partition(": ")
            event, data_of_it = (text if kind == "event" else event), (text if kind == "data" else data_of_it)
    return event, json.loads(data_of_it)


def explain(server: Server, **changed: Any) -> tuple[str, Any]:
    """Explain the example, with changed arguments."""
    path = upload(server, IMAGE.read_bytes())
    arguments = {"image": {"path": path, "meta": FILE}, "model": "", "method": "", "layer": "", "target": ""}
    arguments |= {"options": None, "bands": ""}
    return call(server, "explain", [*(arguments | changed).values()])


def answers_correctly(server: Server) -> bool:
    """Return whether the page still recognizes its example."""
    event, answer = explain(server)
    return event == "complete" and answer[0]["predictions"][0]["name"] == "espresso"


def choices(server: Server) -> Iterator[Result]:
    """Send values that the page does not offer."""
    evil = (
        "nothing",
        "../../etc/passwd",
        "os.system",
        "__class__",
        "a" * 100_000,
        "\0",
        "{{7*7}}",
        "'; DROP TABLE x",
        -1,
    )
    for name, known in {"model": "model", "method": "method", "layer": "layer", "target": "class", "bands": ""}.items():
        for value in (*evil, [], {}, True, None, 1e308):
            got = outcome(*explain(server, **{name: value}))
            is_text = isinstance(value, str) and len(value) <= 500
            if value is None or (is_text and name == "bands"):  # the default; and this image has no bands to choose
                expected = "complete"
            else:
                expected = f"Unknown {known}" if is_text else f"{name} must be"
            yield Result(f"{name} = {str(value)[:20]!r}", got[: len(expected)], expected)
    for models in ("timm:resnet18", "hf:x/y", "hf:/etc", "hub:x/y:z", "evil.py:build", "os:system", "torchvision:x"):
        yield Result(f"model = {models}", outcome(*explain(server, model=models))[:13], "Unknown model")
    for options in ({"a": 1}, {"batch_size": 10**9}, {"samples": -1}, {"__class__": 1}, [], "x", {"precision": "x"}):
        got, expected = outcome(*explain(server, options=options)), "Grad-CAM has no option"
        expected = expected if isinstance(options, dict) else "options must be a JSON object"
        yield Result(f"options = {options!r}", got[: len(expected)], expected)
    for file in ("x", 5, [], {}):
        message = "The image must be an uploaded file. Upload it first."
        yield Result(f"image = {file!r}", outcome(*explain(server, image=file)), message)
    yield Result("no image", outcome(*explain(server, image=None))[:18], "No image selected.")
    files = {403: {"path": "/etc/passwd", "meta": FILE}, 400: {"path": None, "meta": FILE}}
    for status, forged in (*files.items(), (400, {"path": [1]})):
        yield Result(f"image = {forged}", explain(server, image=forged), ("refused", status))


def outcome(event: str, answer: Any) -> str:
    """Return the message of an error, or the name of another event with the status."""
    if event == "error":
        return str(answer["error"])
    return event if event == "complete" else f"{event} {answer}"


def users(server: Server) -> Iterator[Result]:
    """Read files and results of another visitor."""
    secret = upload(server, b"secret" * 100, "private.jpg")
    owned = httpx.get(f"{server.url}/gradio_api/file={secret}", timeout=TIME)
    yield Result("a file is served under its unguessable name", owned.status_code, 200)
    digest = secret.removeprefix(f"{server.uploads}/").partition("/")[0]
    yield Result("the name has 256 bits", len(digest) >= 64, True)
    for path in (
        secret[:-1],
        secret.replace(digest, digest[:-1] + ("0" if digest[-1] != "0" else "1")),
        str(server.uploads),
    ):
        got = httpx.get(f"{server.url}/gradio_api/file={path}", timeout=TIME).status_code
        yield Result("a file under another name", got, 403)
    got = httpx.get(f"{server.url}/gradio_api/file={server.uploads}/{digest}", timeout=TIME).status_code
    yield Result("the folder of a file", got, 403)
    started = httpx.post(f"{server.url}/gradio_api/call/list_models", json={"data": []}, timeout=TIME).json()[
        "event_id"
    ]
    yield Result("the event has 128 bits", len(started) >= 32, True)
    for event in (started[:-1] + "0", "0" * 32, "../" + started, "%00"):
        leaks = "complete" in _result(server, event)
        yield Result(f"the result of event {event[:6]}", leaks, False)
    yield Result("the result of its event", "complete" in _result(server, started), True)
    yield Result("a result is sent once", "complete" in _result(server, started), False)
    yield from _sessions(server)


def _result(server: Server, event: str) -> str:
    """Return what the server sends for an event; it ends the answer early if it does not know the event."""
    text = ""
    address = f"{server.url}/gradio_api/call/list_models/{event}"
    ended = (httpx.RemoteProtocolError, httpx.ReadTimeout)  # a stream without an answer sends nothing but heartbeats
    with contextlib.suppress(*ended), httpx.stream("GET", address, timeout=5) as stream:
        for part in stream.iter_text():
            text += part
    return text


def _sessions(server: Server) -> Iterator[Result]:
    """Use the session of another visitor, who only loses what a visitor may lose: nothing is read."""
    for name in ("../x", "a b", "a" * 65, "\n", 7, ["a"], {"a": 1}, True):
        message = {"data": [], "fn_index": 0, "session_hash": name}
        yield Result(f"session {str(name)[:10]!r}", post(server, "queue/join", message), 400)
    for route, data in (
        ("cancel", {"session_hash": "x", "fn_index": 0, "event_id": "y"}),
        ("reset", {"event_id": "y"}),
    ):
        yield Result(f"{route} of another visitor", post(server, route, data), 200)
    with httpx.stream("GET", f"{server.url}/gradio_api/queue/data?session_hash=other", timeout=5) as stream:
        yield Result("stream of an unknown session", stream.status_code, 200)  # it sends only heartbeats


def streams(server: Server) -> Iterator[Result]:
    """Open web sockets, and many event streams that are never read."""
    for path in ("/", "/gradio_api/queue/join", "/queue/join", "/ws"):
        yield Result(f"web socket {path}", _web_socket(server, path), 403)
    sessions = [f"stream{number}" for number in range(100)]
    connections = [socket.create_connection(server.address, timeout=20) for _ in sessions]
    for name, connection in zip(sessions, connections, strict=True):
        text = f"GET /gradio_api/queue/data?session_hash={name} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        connection.sendall(text.encode())
    yield Result("an answer during 100 event streams", call(server, "list_models", [])[0], "complete")
    for connection in connections:
        connection.close()
    hearts = [socket.create_connection(server.address, timeout=20) for _ in range(100)]
    for number, connection in enumerate(hearts):
        connection.sendall(f"GET /gradio_api/heartbeat/heart{number} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    yield Result("an answer during 100 heartbeats", call(server, "list_models", [])[0], "complete")
    for connection in hearts:
        connection.close()
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        codes = list(pool.map(lambda _: post(server, "call/list_models", {"data": []}), range(80)))
    others = sorted(set(codes) - {200})
    yield Result("other answers to 80 calls at once", others, [])
    yield Result("an answer afterwards", call(server, "list_models", [])[0], "complete")


def _web_socket(server: Server, path: str) -> int:
    key = base64.b64encode(os.urandom(16)).decode()
    text = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    text += f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    with socket.create_connection(server.address, timeout=10) as connection:
        connection.sendall(text.encode())
        line = connection.recv(4096).split(b"\r\n")[0]
    return int(line[9:12]) if line[9:12].isdigit() else 0
