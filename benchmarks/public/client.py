"""Requests to a running app: as they are written, of a program, and of the page."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import httpx
from PIL import Image

import explainers
from benchmarks.public.server import ROOT, Server

EXAMPLES = sorted((ROOT / "assets" / "examples").glob("*.jpg"))
IMAGE = ROOT / "assets" / "examples" / "coffee.jpg"
FILE = {"_type": "gradio.FileData"}
TIME = 60
STATUS = re.compile(rb"^HTTP/1\.1 (\d{3})", re.MULTILINE)
SIDES = (224, 500, 1000, 1600, 3000)
MAPS = ("grid", "pixels", "heat", "features")
LAYERS = ("", "", "", "blocks.1", "blocks.3", "blocks.5", "head")


@dataclass(frozen=True)
class Result:
    """One attack: what the server did, and what it may do."""

    name: str
    got: object
    expected: object


def statuses(server: Server, head: str, body: Any = b"", seconds: float = TIME) -> list[int]:
    """Return the statuses of all answers to a request written as it is; a body that is not bytes becomes JSON."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    first, *lines = head.split("\r\n")
    if body and "\r\nContent-" not in head and "\r\nTransfer-" not in head:
        lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"]
    text = "\r\n".join([f"{first} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""])
    received = b""
    # A server may keep a connection open, or answer and reset it before it has read everything.
    with (
        socket.create_connection(server.address, timeout=seconds) as connection,
        contextlib.suppress(TimeoutError, ConnectionError),
    ):
        with contextlib.suppress(ConnectionError):
            connection.sendall(text.encode("latin-1") + body)
        connection.settimeout(seconds)
        while part := connection.recv(65536):
            received += part
    return [int(found) for found in STATUS.findall(received)]


def status(server: Server, head: str, body: Any = b"") -> int:
    """Return the status of the only answer, or 0 if the connection was closed."""
    first, end, rest = head.partition("\r\n")
    return next(iter(statuses(server, f"{first}\r\nConnection: close{end}{rest}", body)), 0)


def check(server: Server, rows: Iterable[tuple[str, Any, int]]) -> Iterator[Result]:
    """Send requests, each with its body and the status that it must have."""
    for head, body, expected in rows:
        yield Result(f"{head[:80]} {str(body)[:80]}", status(server, head, body), expected)


@contextlib.contextmanager
def connections(server: Server, count: int, text: str | bytes = b"") -> Iterator[list[socket.socket]]:
    """Open connections, each of which sends a text, until the end of the block."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_connection(server.address, timeout=20)) for _ in range(count)]
        for number, each in enumerate(found):
            each.sendall(text.replace("{}", str(number)).encode() if isinstance(text, str) else text)
        yield found


def upload(server: Server, content: bytes, name: str = "image.jpg") -> str:
    """Upload a file and return its path on the server."""
    answer = httpx.post(f"{server.url}/gradio_api/upload", files={"files": (name, content)}, timeout=TIME)
    return str(answer.raise_for_status().json()[0])


def call(server: Server, name: str, data: list[Any], seconds: float = 5 * TIME) -> tuple[str, Any]:
    """Call an endpoint; return the last event and its data, "refused" and the status, or "late"."""
    started = httpx.post(f"{server.url}/gradio_api/call/{name}", json={"data": data}, timeout=TIME)
    if started.status_code != 200:
        return "refused", started.status_code
    found, until = {"event": "none", "data": "null"}, time.monotonic() + seconds
    address = f"{server.url}/gradio_api/call/{name}/{started.json()['event_id']}"
    with httpx.stream("GET", address, timeout=TIME) as stream:
        for line in stream.iter_lines():  # heartbeats come meanwhile
            if time.monotonic() > until:
                return "late", None
            kind, _, text = line.partition(": ")
            found |= {kind: text} if kind in found else {}
    return found["event"], json.loads(found["data"])


def explain(server: Server, seconds: float = 5 * TIME, **changed: Any) -> tuple[str, Any]:
    """Explain the example, with changed arguments."""
    arguments = {"image": {"path": upload(server, IMAGE.read_bytes()), "meta": FILE}, "model": "", "method": ""}
    arguments |= {"layer": "", "target": "", "options": None, "bands": ""}
    return call(server, "explain", [*(arguments | changed).values()], seconds)


def answers_correctly(server: Server) -> bool:
    """Return whether the page still recognizes its example."""
    event, answer = explain(server)
    return event == "complete" and answer[0]["predictions"][0]["name"] == "espresso"


class Visitor:
    """A visitor of the page, who sends the events of the browser."""

    def __init__(self, client: httpx.Client, session: str, config: dict[str, Any] | None = None) -> None:
        self.client, self.session = client, session
        config = config or client.get("/config").json()
        self.events = {event["api_name"]: event for event in config["dependencies"]}
        self.names = {each["id"]: each["props"].get("elem_id") for each in config["components"]}

    def send(self, event: str, form: dict[str, Any], data: Any = None) -> dict[str, str]:
        """Send an event with the values of its inputs and return the texts of its outputs, by the ids of the elements.

        Errors   RuntimeError if the server refuses the event
        """
        call = self.events[event]
        values = [form.get(self.names[ident]) for ident in call["inputs"]]
        trigger = call["targets"][0][0] if call["targets"] else None
        message = {"data": values, "fn_index": call["id"], "session_hash": self.session, "event_data": data}
        self.client.post("/gradio_api/queue/join", json={**message, "trigger_id": trigger}).raise_for_status()
        texts: dict[str, str] = {}
        with self.client.stream("GET", "/gradio_api/queue/data", params={"session_hash": self.session}) as stream:
            for step in (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")):
                outputs = step.get("output", {}).get("data") or []
                pairs = zip(call["outputs"], outputs, strict=False)
                texts |= {self.names[ident]: value for ident, value in pairs if isinstance(value, str)}
                if step.get("msg") == "process_completed":
                    if not step["success"]:
                        raise RuntimeError(f"The server refused {event}.")
                    break
        return texts

    def stop(self) -> None:
        """Press Stop."""
        message = {"data": [], "fn_index": self.events["stop"]["id"], "session_hash": self.session}
        self.client.post("/gradio_api/run/predict", json=message)

    def ask(self, rng: random.Random, patience: float, image: bytes, quick: bool = False) -> None:
        """Ask one question about an image, and about every second time something about its map.

        Slow methods are stopped after some seconds; `quick` asks without them.
        """
        methods = [each for each in explainers.METHODS.values() if each.returns in MAPS and not (quick and each.long)]
        method, path = rng.choice(methods), self.client.post("/gradio_api/upload", files={"files": ("a.jpg", image)})
        form = {"hl-image": {"path": path.json()[0], "orig_name": "a.jpg", "meta": FILE}, "hl-model": ""}
        form |= {"hl-layer": rng.choice(LAYERS), "hl-class": rng.choice(["", str(rng.randrange(1000))])}
        form |= {"hl-method": method.name, "hl-options": "{}", "hl-pin": False}
        timer = threading.Timer(patience, self.stop)
        if method.long:
            timer.start()
        texts = self.send("update", {**form, "hl-address": str(round(1000 * time.monotonic()))})
        timer.cancel()
        self.send("measure", form)
        also = rng.random()
        if also < 0.2:
            self.send("follow", form)
        elif also < 0.21:
            self.send("rank", form, {"seconds": 2.0, "layers": "every"})
        elif also < 0.6 and not method.long and "hl-question" in texts:
            self.send("check", form, {"key": json.loads(texts["hl-question"])["key"]})


def crop(rng: random.Random, side: int) -> bytes:
    """Return a random part of an example as JPEG of this width in pixels."""
    with Image.open(rng.choice(EXAMPLES)) as image:
        part = rng.uniform(0.5, 1.0)
        wide, high = int(part * image.width), int(part * image.height)
        left, top = rng.randint(0, image.width - wide), rng.randint(0, image.height - high)
        small = image.convert("RGB").resize((side, side * high // wide), box=(left, top, left + wide, top + high))
    file = BytesIO()
    small.save(file, "JPEG")
    return file.getvalue()
