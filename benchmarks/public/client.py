"""The app in a separate process, requests to it, what it uses of the system, and the table that each command prints."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from PIL import Image

import explainers
from tests.support.image_files import save

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 180.0
"""Seconds until the first model must be loaded."""
RUN = "import runpy; {}\nrunpy.run_module('saliscope', run_name='__main__', alter_sys=True)"
EXAMPLES = sorted((ROOT / "assets" / "examples").glob("*.jpg"))
IMAGE = ROOT / "assets" / "examples" / "coffee.jpg"
LISTED: dict[str, Any] = json.loads((ROOT / "benchmarks" / "public" / "attacks" / "requests.json").read_text("utf-8"))
"""The requests of the attacks.

files, folders      routes, and the status for a file that must not be read, or for a path that leaves them
outside, leaving    such files and paths
names               names of uploads; those with status 200 are stored under another name
smuggled            headers and the start of a body, after which a second request is hidden
closed              requests that are refused, and their status
choices             arguments that the page does not offer, and the start of the message
expected            security headers, written out: a comparison with the page's code would not notice a missing rule
"""
FILE = {"_type": "gradio.FileData"}
TIME = 60
SIDES = (224, 500, 1000, 1600, 3000)
MAPS = ("grid", "pixels", "heat", "features")
LAYERS = ("", "", "", "stages.1", "stages.2", "stages.4", "head")


class Server(NamedTuple):
    """A running app."""

    url: str
    process: subprocess.Popen[bytes]
    uploads: Path
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return "127.0.0.1", int(self.url.rpartition(":")[2])

    def lines(self) -> list[dict[str, object]]:
        """Return the JSON lines of all requests."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@contextlib.contextmanager
def running(*arguments: str, before: str = "", wait: bool = True, **variables: str) -> Iterator[Server]:
    """Start the app offline, with environment variables and code that runs before it.

    Waits for its first response, and if `wait` until its model answers.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place, log = Path(folder) / "uploads", Path(folder) / "app.log"
        environment = {**os.environ, "SALISCOPE_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "GRADIO_TEMP_DIR": str(place)}
        environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), **variables}
        program = ["-c", RUN.format(before)] if before else ["-m", "saliscope"]
        command = [sys.executable, *program, "serve", "--port", str(port), "--log-format", "json", *arguments]
        with open(log, "wb") as output:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        server = Server(f"http://127.0.0.1:{port}", process, place, log)
        try:
            _wait(server, wait)
            yield server
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


def _wait(server: Server, model: bool) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and server.process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            httpx.get(server.url, timeout=PATIENCE)
            body, address = {"data": []}, f"{server.url}/gradio_api/run/list_models"
            if not model or httpx.post(address, json=body, timeout=PATIENCE).status_code == 200:
                return
        time.sleep(0.02)
    raise RuntimeError(f"The app does not answer: {server.log.read_text(encoding='utf-8')[-2000:]}")


# Requests: as they are written, of a program, and of the page


class Result(NamedTuple):
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
    connection = socket.create_connection(server.address, timeout=seconds)
    with connection, contextlib.suppress(TimeoutError, ConnectionError):
        with contextlib.suppress(ConnectionError):
            connection.sendall(text.encode("latin-1") + body)
        while part := connection.recv(65536):
            received += part
    return [int(found) for found in re.findall(rb"^HTTP/1\.1 (\d{3})", received, re.MULTILINE)]


def status(server: Server, head: str, body: Any = b"") -> int:
    """Return the status of the only answer, or 0 if the connection was closed."""
    first, end, rest = head.partition("\r\n")
    return next(iter(statuses(server, f"{first}\r\nConnection: close{end}{rest}", body)), 0)


def check(server: Server, rows: Iterable[tuple[str, Any, int]]) -> Iterator[Result]:
    """Send requests, each with its body and the status that it must have."""
    for head, body, expected in rows:
        yield Result(f"{head[:80]} {str(body)[:80]}", status(server, head, body), expected)


@contextlib.contextmanager
def connections(server: Server, count: int, text: str = "") -> Iterator[list[socket.socket]]:
    """Open connections, each of which sends a text, until the end of the block."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_connection(server.address, timeout=20)) for _ in range(count)]
        for number, each in enumerate(found):
            each.sendall(text.replace("{}", str(number)).encode())
        yield found


@contextlib.contextmanager
def repeatedly(act: Callable[[], object], pause: float = 0.0, count: int = 1) -> Iterator[None]:
    """Act again and again in threads until the end of the block; an action may be refused."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(pause):
            with contextlib.suppress(OSError, httpx.HTTPError):
                act()

    with ThreadPoolExecutor(count) as pool:
        for _ in range(count):
            pool.submit(work)
        try:
            yield
        finally:
            stop.set()


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
        events = (config or client.get("/config").json())["dependencies"]
        self.event = next(each for each in events if "submit" in dict(each["targets"]).values())

    def post(self, part: str, event: str, form: dict[str, Any] | None = None, **data: Any) -> str:
        """Send an event of a part with the settings of the page; return its number on the server."""
        asked = {"part": part, "event": event, "form": form or {}, "data": data, "number": time.monotonic_ns() // 10**6}
        message = {"data": [], "fn_index": self.event["id"], "session_hash": self.session, "event_data": asked}
        answer = self.client.post("/gradio_api/queue/join", json={**message, "trigger_id": self.event["targets"][0][0]})
        return str(answer.raise_for_status().json()["event_id"])

    def send(self, part: str, event: str, form: dict[str, Any] | None = None, **data: Any) -> dict[str, Any]:
        """Send an event and return the newest values of its messages, by part and by name of the state.

        Errors   RuntimeError if the server refuses the event
        """
        own, values = self.post(part, event, form, **data), dict[str, Any]()
        with self.client.stream("GET", "/gradio_api/queue/data", params={"session_hash": self.session}) as stream:
            for step in (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")):
                if step.get("event_id") != own:
                    continue
                for output in step.get("output", {}).get("data") or []:
                    # Gradio sends what differs from the last message, here all of it.
                    text = output[0][-1] if isinstance(output, list) and output else output
                    message = json.loads(text) if isinstance(text, str) and text else {}
                    values |= message.get("state", {})
                    values |= {id: props.get("value") for id, props in message.get("props", {}).items()}
                if step["msg"] == "process_completed":
                    if not step["success"]:
                        raise RuntimeError(f"The server refused {event} of {part}.")
                    break
        return values

    def ask(self, rng: random.Random, patience: float, image: bytes, quick: bool = False) -> None:
        """Ask one question about an image, and about every second time something about its map.

        Slow methods are stopped after some seconds; `quick` asks without them.
        """
        methods = [each for each in explainers.METHODS.values() if each.returns in MAPS and not (quick and each.long)]
        method, path = rng.choice(methods), self.client.post("/gradio_api/upload", files={"files": ("a.jpg", image)})
        form = {"image": path.json()[0], "layer": rng.choice(LAYERS), "method": method.name}
        form["target"] = rng.choice(["", str(rng.randrange(1000))])
        timer = threading.Timer(patience, self.post, ["hl-actions", "stop"])
        if method.long:
            timer.start()
        found = self.send("hl-page", "ask", form)
        timer.cancel()
        self.send("hl-strip", "measure", form)
        also = rng.random()
        if also < 0.2:
            self.send("hl-grid", "answered", form)
        elif also < 0.21:
            self.send("hl-ranking", "submit", form, seconds=2.0, layers="every")
        elif also < 0.6 and not method.long and "question" in found:
            self.send("hl-trust", "focus", form, key=found["question"]["key"])


def crop(rng: random.Random, side: int) -> bytes:
    """Return a random part of an example as JPEG of this width in pixels."""
    with Image.open(rng.choice(EXAMPLES)) as image:
        box = (rng.randrange(image.width // 2), rng.randrange(image.height // 2), *image.size)
        return save(image.convert("RGB").resize((side, side * image.height // image.width), box=box), "JPEG")


# What a process uses, from /proc (Linux only)


def processor_seconds(process: int) -> float:
    """Return the processor time of all threads of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes(process: int, name: str = "VmRSS") -> float:
    """Return the resident memory of a process, or its peak with "VmHWM"."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def children(process: int) -> list[int]:
    """Return the numbers of the processes that a process has started and that still run, also by other processes."""
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(number) for number in path.read_text().split()]
    return found + [each for child in found for each in children(child)]


# The table


class Row(NamedTuple):
    """One line of a table: what was tested, what was measured, the limit, and whether it holds."""

    name: str
    measured: str
    limit: str
    passed: bool


def show(title: str, rows: Sequence[Row], failures: Sequence[str] = ()) -> None:
    """Print the rows and the failures, and end with the status 1 if a row has failed or there are failures."""
    print(f"| {title} | measured | limit | result |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row.name} | {row.measured} | {row.limit} | {'passed' if row.passed else 'FAILED'} |")
    for failure in failures:
        print(f"FAILED: {failure}")
    sys.exit(bool(failures) or not all(row.passed for row in rows))
