"""Attacks with single requests: paths, links, bodies, headers and unknown endpoints."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from benchmarks.public.client import FILE, Result, call, check, connections, status, statuses
from benchmarks.public.server import Server
from saliscope import limits

FILES = {"/gradio_api/file=": 403, "/gradio_api/file/": 403, "/file=": 404}
"""Routes of files, and the status for a file that must not be read. The last one does not exist."""
OUTSIDE = ("/etc/passwd", "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "app.py")
OUTSIDE += ("....//....//etc/passwd", "/proc/self/environ", "%00/etc/passwd", "/etc/passwd%00.png", "~/.ssh")
OUTSIDE += ("{uploads}/../app.log", "{uploads}/..%2fapp.log", "{uploads}", "\\..\\app.py")
FOLDERS = {"/hl/": 404, "/hl-examples/": 404, "/theme.css/": 404}
FOLDERS |= {"/assets/": 403, "/static/": 403, "/svelte/": 403}
"""Routes of folders, and the status for a path that leaves them."""
LEAVING = ("../../../app.py", "..%2f..%2f..%2fapp.py", "%2e%2e%2fapp.py", "/etc/passwd")
NAMES = {"../../evil.png": 200, "/etc/evil.png": 200, "..\\evil.png": 200, "a\0b.png": 200, "a" * 300 + ".png": 200}
NAMES |= {".": 200, "..": 400, "": 400, "con": 200}
"""Names of uploads; those with status 200 are stored under another name."""
UPLOAD = "POST /gradio_api/upload\r\nContent-Type: multipart/form-data; boundary=b"
PART = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
BEGUN = {
    "bodies": "POST /gradio_api/queue/join HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n[",
    "headers": "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-",
}
HIDDEN = "GET /gradio_api/proxy=x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
WAITS = "Transfer-Encoding: chunked\r\nX: waits"
"""A request whose body is not complete: the server waits for the rest."""
SMUGGLED = {
    "Content-Length: 2\r\nContent-Length: 60": "{}",
    "Content-Length: 2\r\nTransfer-Encoding: chunked": "0\r\n\r\n",
    "Transfer-Encoding: xchunked": "0\r\n\r\n",
    "Transfer-Encoding: chunked, identity": "0\r\n\r\n",
    "Content-Length: -1": "",
    "Content-Length: 0x10": "",
    "Content-Length: +2": "{}",
    "Content-Length : 2": "{}",
    "Transfer-Encoding: chunked": "zz\r\n{}\r\n0\r\n\r\n",
    WAITS: "ffffffffffffffff1\r\n",
}
"""Headers and the start of a body, after which a second request is hidden."""
INVALID = {
    **dict.fromkeys(("GET /\r\nX: a\0b", "GET /\r\nX\n: a", "GET /\r\n: a", "GET /\x01", "GET{} /", "GET  /"), 400),
    "GET /\r\nX: " + "a" * 70_000: 431,
    "GET /gradio_api/file=/tmp/x%0d%0aSet-Cookie:a=b": 404,
}
CLOSED = {
    **dict.fromkeys(("GET /monitoring", "GET /gradio_api/deep_link", "GET /gradio_api/vibe-code"), 403),
    **dict.fromkeys(("GET /dev/reload", "GET /gradio_api/dev/reload", "POST /login", "POST /", "POST /config"), 403),
    **dict.fromkeys(("POST /gradio_api/upload_progress", "POST /healthz", "POST /metrics"), 403),
    **dict.fromkeys((f"{method} /" for method in "PUT DELETE PATCH TRACE CONNECT PROPFIND BREW".split()), 403),
    **dict.fromkeys((f"GET /{path}" for path in "docs redoc openapi.json healthz metrics mcp .env admin".split()), 404),
    **dict.fromkeys(("GET /.git/config", "POST /mcp"), 404),
}


def paths(server: Server) -> Iterator[Result]:
    """Read files outside the folders that the page serves."""
    outside = [path.format(uploads=server.uploads) for path in OUTSIDE]
    rows = [(route + path, found) for (route, found), path in itertools.product(FILES.items(), outside)]
    rows += [(route + path, found) for (route, found), path in itertools.product(FOLDERS.items(), LEAVING)]
    rows += [(route + "..%5capp.py", 404) for route in FOLDERS]  # a file name on Linux, which does not exist
    yield from check(server, ((f"GET {path}", b"", found) for path, found in rows))
    stored = []
    for name, found in NAMES.items():
        file = {"files": (name, b"\x89PNG\r\n\x1a\n")}
        answer = httpx.post(f"{server.url}/gradio_api/upload", files=file, timeout=20)
        yield Result(f"upload named {name[:20]!r}", answer.status_code, found)
        stored += answer.json() if answer.status_code == 200 else []
    outside = [path for path in stored if not Path(path).resolve().is_relative_to(server.uploads.resolve())]
    yield Result("uploads outside their folder", outside, [])
    evil = [folder / "evil.png" for folder in list(server.uploads.parents)[:2]]
    yield Result("files next to the folder of uploads", [path for path in evil if path.exists()], [])


def links(server: Server) -> Iterator[Result]:
    """Make the server fetch a link; a listener counts its connections."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        target = f"http://127.0.0.1:{listener.getsockname()[1]}/a.png"
        for text in (target, target.upper(), f"{target}#x", target.replace("127.0.0.1", "localhost")):
            for route in ("/gradio_api/file=", "/gradio_api/file/", "/gradio_api/proxy=", "/proxy="):
                yield from check(server, [(f"GET {route}{text}", b"", 403)])
            for file in ({"path": text, "meta": FILE}, {"path": text}, {"path": "x", "url": text, "meta": FILE}):
                for route in ("call/explain", "run/explain", "queue/join", "call/v2/explain"):
                    data = {"image": file} if "v2" in route else {"data": [file, *[""] * 6], "fn_index": 0}
                    yield from check(server, [(f"POST /gradio_api/{route}", data, 403)])
        answer = call(server, "explain", ["https://example.com is a text", "", "", "", "", None, ""])
        message = "The image must be an uploaded file. Upload it first."
        yield Result("a link as the image", (answer[0], answer[1]["error"]), ("error", message))
        listener.settimeout(0.5)
        connected = 0
        with contextlib.suppress(TimeoutError):
            while listener.accept():
                connected += 1
        yield Result("connections of the server to a link", connected, 0)


def bodies(server: Server) -> Iterator[Result]:
    """Send bodies that are too large, too slow, or not what they declare."""
    kinds = ((b" " * (limits.BODY + 1), 413), (b"[" * 100_000, 400), (b"\xff{", 400))
    routes = ("call/explain", "run/explain", "queue/join", "cancel", "component_server")
    yield from check(server, ((f"POST /gradio_api/{route}", *kind) for route in routes for kind in kinds))
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    body = f"{len(PART):x}\r\n".encode() + PART + b"\r\n" + chunk * (limits.UPLOAD // 0x10000 + 1)
    rows = [(f"{UPLOAD}\r\nContent-Length: {limits.UPLOAD + 1}", b"", 413)]
    rows += [(f"{UPLOAD}\r\nTransfer-Encoding: chunked", body, 413)]
    for kind in ("multipart/form-data", "application/json", ""):
        head = f"POST /gradio_api/upload\r\nContent-Type: {kind}\r\nContent-Length: 50"
        rows.append((head, b"x" * 50, 400))
    yield from check(server, rows)
    for kind, start in BEGUN.items():
        with connections(server, 150, start):
            yield Result(f"an answer during 150 slow {kind}", status(server, "GET /config"), 200)


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
        for more, expected in ((0, 200), (1, 413 if "bytes" in name else 400)):
            found = status(server, "POST /gradio_api/run/list_models", start + make(more) + end)
            yield Result(f"{more} more than {name}", found, expected)


def headers(server: Server) -> Iterator[Result]:
    """Hide a second request in a first one, and send invalid headers."""
    for head, body in SMUGGLED.items():
        found = statuses(server, f"POST /gradio_api/queue/join\r\n{head}", (body + HIDDEN).encode(), seconds=0.7)
        yield Result(f"{head}: first answer", found[:1], [] if head == WAITS else [400])
        yield Result(f"{head}: no hidden request", len(found) <= 1 or 403 not in found[1:], True)
    yield from check(server, ((head, b"", found) for head, found in INVALID.items()))
    for name in ("X-Forwarded-Host", "X-Forwarded-Proto", "X-Original-URL", "X-Rewrite-URL", "Forwarded"):
        answer = httpx.get(server.url, headers={name: "evil.example'\"><script>"}, timeout=20)
        yield Result(f"{name} is not in the page", "evil.example'" in answer.text, False)


def endpoints(server: Server) -> Iterator[Result]:
    """Call endpoints that do not exist, are closed, or are private."""
    unknown = ("nothing", "predict", "__init__", "explain/../x", "a" * 5000, "%00", "constructor")
    for kind, route in itertools.product(("call", "run", "api", "call/v2"), unknown):
        yield from check(server, [(f"POST /gradio_api/{kind}/{route}", {"data": []}, 404)])
    yield from check(server, ((head, {} if "POST" in head else b"", found) for head, found in CLOSED.items()))
    for number in (-1, 10**6, "x", 1.5, [], True):
        message = {"data": [], "fn_index": number, "session_hash": "attack"}
        yield from check(server, [("POST /gradio_api/queue/join", message, 404)])
    message = {"fn_name": "__init__", "component_id": 1}
    yield from check(server, [("POST /gradio_api/component_server", message, 400)])
