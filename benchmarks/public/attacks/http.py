"""Attacks with single requests: paths, links, bodies, headers and unknown endpoints."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.public.server import Server
from saliscope import limits

FILE = {"_type": "gradio.FileData"}
FILES = {"/gradio_api/file=": 403, "/gradio_api/file/": 403, "/file=": 404}
"""Routes of files, and the status for a file that must not be read. The last one does not exist."""
FOLDERS = {"/hl/": 404, "/hl-examples/": 404, "/hl/thumbnails/": 404, "/theme.css/": 404}
FOLDERS |= {"/assets/": 403, "/static/": 403, "/svelte/": 403}
"""Routes of folders, and the status for a path that leaves them."""
WAITS = "a huge chunk"
"""A request whose body is not complete: the server waits for the rest."""
NAMES = {"../../evil.png": 200, "/etc/evil.png": 200, "..\\evil.png": 200, "a\0b.png": 200, "a" * 300 + ".png": 200}
NAMES |= {".": 200, "..": 400, "": 400, "con": 200}
"""Names of uploads; those with status 200 are stored under another name."""


@dataclass(frozen=True)
class Result:
    """One attack: what the server did, and what it may do."""

    name: str
    got: object
    expected: object


def paths(server: Server) -> Iterator[Result]:
    """Read files outside the folders that the page serves."""
    outside = ("/etc/passwd", "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd")
    outside += (
        "....//....//etc/passwd",
        "/proc/self/environ",
        "app.py",
        "%00/etc/passwd",
        "/etc/passwd%00.png",
        "~/.ssh",
    )
    outside += (f"{server.uploads}/../app.log", f"{server.uploads}/..%2fapp.log", f"{server.uploads}", "\\..\\app.py")
    for (route, status), path in itertools.product(FILES.items(), outside):
        yield Result(f"GET {route}{path}", raw_status(server, f"GET {route}{path}"), status)
    for route, status in FOLDERS.items():
        for path in ("../../../app.py", "..%2f..%2f..%2fapp.py", "%2e%2e%2fapp.py", "/etc/passwd"):
            yield Result(f"GET {route}{path}", raw_status(server, f"GET {route}{path}"), status)
        path = "..%5capp.py"  # a file name on Linux, which does not exist
        yield Result(f"GET {route}{path}", raw_status(server, f"GET {route}{path}"), 404)
    stored = []
    for name, status in NAMES.items():
        file = {"files": (name, b"\x89PNG\r\n\x1a\n")}
        answer = httpx.post(f"{server.url}/gradio_api/upload", files=file, timeout=20)
        yield Result(f"upload named {name[:20]!r}", answer.status_code, status)
        stored += answer.json() if answer.status_code == 200 else []
    outside_ones = [path for path in stored if not Path(path).resolve().is_relative_to(server.uploads.resolve())]
    yield Result("uploads outside their folder", outside_ones, [])
    evil = [folder / "evil.png" for folder in list(server.uploads.parents)[:2]]
    yield Result("files next to the folder of uploads", [path for path in evil if path.exists()], [])


def links(server: Server) -> Iterator[Result]:
    """Make the server fetch a link; a listener counts its connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        connections: list[object] = []
        stop = threading.Event()

        def listen() -> None:
            while not stop.is_set():
                try:
                    connections.append(listener.accept())
                except TimeoutError:
                    continue

        thread = threading.Thread(target=listen)
        thread.start()
        target = f"http://127.0.0.1:{listener.getsockname()[1]}/a.png"
        for text in (target, target.upper(), f"{target}#x", target.replace("127.0.0.1", "localhost")):
            for route in ("/gradio_api/file=", "/gradio_api/file/", "/gradio_api/proxy=", "/proxy="):
                yield Result(f"GET {route}{text}", raw_status(server, f"GET {route}{text}"), 403)
            for file in ({"path": text, "meta": FILE}, {"path": text}, {"path": "x", "url": text, "meta": FILE}):
                for route in ("call/explain", "run/explain", "queue/join", "call/v2/explain"):
                    data = {"image": file} if "v2" in route else {"data": [file, *[""] * 6], "fn_index": 0}
                    yield Result(f"POST {route} {file}", post(server, route, data), 403)
        data = {"data": ["https://example.com is a text", "", "", "", "", None, ""]}
        answer = httpx.post(f"{server.url}/gradio_api/run/explain", json=data, timeout=60)
        # Gradio answers every error of a call with status 500 and its message.
        message = "The image must be an uploaded file. Upload it first."
        yield Result("a link as the image", (answer.status_code, answer.json().get("error")), (500, message))
        stop.set()
        thread.join()
        yield Result("connections of the server to a link", len(connections), 0)


def bodies(server: Server) -> Iterator[Result]:
    """Send bodies that are too large, too slow, or not what they declare."""
    big = limits.BODY + 1
    for route in ("call/explain", "run/explain", "queue/join", "cancel", "component_server"):
        yield Result(f"POST {route} of {big} bytes", post(server, route, b" " * big), 413)
        yield Result(f"POST {route} nested", post(server, route, b"[" * 100_000), 400)
        yield Result(f"POST {route} not JSON", post(server, route, b"\xff{"), 400)
    length = limits.UPLOAD + 1
    head = f"POST /gradio_api/upload\r\nContent-Length: {length}\r\nContent-Type: multipart/form-data; boundary=b"
    yield Result("upload declares too much", raw_status(server, head), 413)
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    start = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    body = f"{len(start):x}\r\n".encode() + start + b"\r\n" + chunk * (limits.UPLOAD // 0x10000 + 1)
    head = "POST /gradio_api/upload\r\nTransfer-Encoding: chunked\r\nContent-Type: multipart/form-data; boundary=b"
    yield Result("upload in chunks is too large", raw_status(server, head, body), 413)
    for name, content in (("no boundary", "multipart/form-data"), ("JSON", "application/json"), ("no type", "")):
        got = httpx.post(
            f"{server.url}/gradio_api/upload", content=b"x" * 50, headers={"content-type": content}
        ).status_code
        yield Result(f"upload with {name}", got, 400)
    begun = {
        "bodies": b"POST /gradio_api/queue/join HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{",
        "headers": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-",
    }
    for kind, start in begun.items():
        slow = [socket.create_connection(server.address, timeout=20) for _ in range(150)]
        for connection in slow:
            connection.sendall(start)
        yield Result(f"an answer during 150 slow {kind}", get(server, "/config"), 200)
        for connection in slow:
            connection.close()


def counts(server: Server) -> Iterator[Result]:
    """Send JSON exactly at a limit, which is accepted, and one byte, value, delimiter or level above it."""
    names = ("{", "data:", "[", ",event_data:")  # delimiters of the text below, and its values besides the list
    start, end = b'{"data": [], "event_data": ', b"}"
    values = limits.JSON_ITEMS - 5  # the object, two names and their values
    delimiters = limits.JSON_DELIMITERS - sum(sum(map(text.count, ",[{:")) for text in names)
    depth = limits.JSON_DEPTH - 1
    kinds: dict[str, Callable[[int], bytes]] = {
        f"{limits.JSON_ITEMS} values": lambda more: b"[" + b"0," * (values + more - 1) + b"0]",
        f"{limits.JSON_DELIMITERS} delimiters": lambda more: b'"' + b":" * (delimiters + more) + b'"',
        f"{limits.JSON_DEPTH} levels": lambda more: b"[" * (depth + more) + b"]" * (depth + more),
        f"{limits.BODY} bytes": lambda more: b" " * (limits.BODY + more - len(start + end) - 1) + b"0",
    }
    for name, make in kinds.items():
        yield Result(f"{name}", post(server, "run/list_models", start + make(0) + end), 200)
        status = 413 if "bytes" in name else 400
        yield Result(f"more than {name}", post(server, "run/list_models", start + make(1) + end), status)


def headers(server: Server) -> Iterator[Result]:
    """Hide a second request in a first one, and send invalid headers."""
    hidden = "GET /gradio_api/proxy=x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    join = "POST /gradio_api/queue/join"
    smuggled = {
        "two lengths": (f"{join}\r\nContent-Length: 2\r\nContent-Length: 60", "{}" + hidden),
        "length and chunks": (f"{join}\r\nContent-Length: 2\r\nTransfer-Encoding: chunked", "0\r\n\r\n" + hidden),
        "unknown encoding": (f"{join}\r\nTransfer-Encoding: xchunked", "0\r\n\r\n" + hidden),
        "two encodings": (f"{join}\r\nTransfer-Encoding: chunked, identity", "0\r\n\r\n" + hidden),
        "a negative length": (f"{join}\r\nContent-Length: -1", hidden),
        "a length in hexadecimal": (f"{join}\r\nContent-Length: 0x10", hidden),
        "a length with a plus": (f"{join}\r\nContent-Length: +2", "{}" + hidden),
        "a space before the colon": (f"{join}\r\nContent-Length : 2", "{}" + hidden),
        "a wrong chunk": (f"{join}\r\nTransfer-Encoding: chunked", "zz\r\n{}\r\n0\r\n\r\n" + hidden),
        WAITS: (f"{join}\r\nTransfer-Encoding: chunked", "ffffffffffffffff1\r\n" + hidden),
    }
    for name, (head, body) in smuggled.items():
        statuses = raw_statuses(server, head, body.encode())
        yield Result(f"{name}: first answer", statuses[0] if statuses else 0, 0 if name == WAITS else 400)
        yield Result(f"{name}: no hidden request", len(statuses) <= 1 or 403 not in statuses[1:], True)
    for name, head in {
        "65 kB of headers": "GET /\r\nX: " + "a" * 70_000,
        "a NUL": "GET /\r\nX: a\0b",
        "a line feed in a name": "GET /\r\nX\n: a",
        "no name": "GET /\r\n: a",
        "a control character in the path": "GET /\x01",
        "an invalid method": "GET{} /",
        "two spaces": "GET  /",
    }.items():
        yield Result(name, raw_status(server, head), 431 if "65 kB" in name else 400)
    for name in ("X-Forwarded-Host", "X-Forwarded-Proto", "X-Original-URL", "X-Rewrite-URL", "Forwarded"):
        answer = httpx.get(server.url, headers={name: "evil.example'\"><script>"}, timeout=20)
        yield Result(f"{name} is not in the page", "evil.example'" in answer.text, False)
    got = raw_statuses(server, "GET /gradio_api/file=/tmp/x%0d%0aSet-Cookie:a=b")
    yield Result("a line break in a path", got[0] if got else 0, 404)


def endpoints(server: Server) -> Iterator[Result]:
    """Call endpoints that do not exist, are closed, or are private."""
    for route in ("nothing", "predict", "__init__", "explain/../x", "a" * 5000, "%00", "constructor"):
        for kind in ("call", "run", "api", "call/v2"):
            yield Result(f"POST {kind}/{route[:20]}", post(server, f"{kind}/{route}", {"data": []}), 404)
    for path in (
        "/monitoring",
        "/gradio_api/deep_link",
        "/gradio_api/vibe-code",
        "/gradio_api/dev/reload",
        "/dev/reload",
    ):
        yield Result(f"GET {path}", get(server, path), 403)
    yield Result("POST /mcp", httpx.post(f"{server.url}/mcp", json={}, timeout=20).status_code, 404)
    for path in ("/docs", "/redoc", "/openapi.json", "/healthz", "/metrics", "/mcp", "/.env", "/.git/config", "/admin"):
        yield Result(f"GET {path}", get(server, path), 404)
    for path in ("/login", "/", "/config", "/gradio_api/upload_progress", "/healthz", "/metrics"):
        answer = httpx.post(f"{server.url}{path}", json={}, timeout=20).status_code
        yield Result(f"POST {path}", answer, 403)
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND", "BREW"):
        yield Result(f"{method} /", raw_status(server, f"{method} /"), 403)
    for number in (-1, 10**6, "x", 1.5, [], True):
        message = {"data": [], "fn_index": number, "session_hash": "attack"}
        yield Result(f"event {number!r}", post(server, "queue/join", message), 404)
    message = {"fn_name": "__init__", "component_id": 1}
    yield Result("a function of a component", post(server, "component_server", message), 400)


def get(server: Server, path: str) -> int:
    """Return the status of a request."""
    return httpx.get(server.url + path, timeout=20).status_code


def post(server: Server, route: str, body: Any) -> int:
    """Return the status of a POST request of an event."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = {"content-type": "application/json"}
    return httpx.post(f"{server.url}/gradio_api/{route}", content=content, headers=head, timeout=60).status_code


def raw_status(server: Server, head: str, body: bytes = b"") -> int:
    """Return the status of a request written as it is, or 0 if the connection was closed."""
    first, _, rest = head.partition("\r\n")
    statuses = raw_statuses(server, "\r\n".join([first, "Connection: close", *[rest] * bool(rest)]), body)
    return statuses[0] if statuses else 0


def raw_statuses(server: Server, head: str, body: bytes = b"") -> list[int]:
    """Return the statuses of all answers to a request written as it is."""
    first, _, rest = head.partition("\r\n")
    text = f"{first} HTTP/1.1\r\nHost: 127.0.0.1\r\n{rest}{chr(13) + chr(10) if rest else ''}\r\n"
    received = b""
    # A server may keep a connection open, or reset it.
    with (
        socket.create_connection(server.address, timeout=20) as connection,
        contextlib.suppress(TimeoutError, ConnectionError),
    ):
        with contextlib.suppress(ConnectionError):  # it may answer and close before it has read everything
            connection.sendall(text.encode("latin-1") + body)
        connection.settimeout(0.7 if b"connection: close" not in text.lower().encode("latin-1") else 20)
        while part := connection.recv(65536):
            received += part
    return [
        int(line[9:12]) for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.1 ") and line[9:12].isdigit()
    ]
