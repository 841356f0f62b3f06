"""Attacks with single requests: paths, links, bodies, headers, unknown endpoints and other websites."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from benchmarks.public import client
from benchmarks.public.client import FILE, IMAGE, LISTED, Result, Server, check, status, statuses, upload
from saliscope import limits

UPLOAD = "POST /gradio_api/upload\r\nContent-Type: multipart/form-data; boundary=b"
PART = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
HIDDEN = "GET /gradio_api/proxy=x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
WAITS = "Transfer-Encoding: chunked\r\nX: waits"
"""A request whose body is not complete: the server waits for the rest."""
INVALID = {
    **dict.fromkeys(("GET /\r\nX: a\0b", "GET /\r\nX\n: a", "GET /\r\n: a", "GET /\x01", "GET{} /", "GET  /"), 400),
    "GET /\r\nX: " + "a" * 70_000: 431,
    "GET /gradio_api/file=/tmp/x%0d%0aSet-Cookie:a=b": 404,
}


def paths(server: Server) -> Iterator[Result]:
    """Read files outside the folders that the page serves."""
    outside = [path.format(uploads=server.uploads) for path in LISTED["outside"]]
    rows = [(route + path, found) for (route, found), path in itertools.product(LISTED["files"].items(), outside)]
    for route, found in LISTED["folders"].items():
        rows += [(route + path, found) for path in LISTED["leaving"]]
    rows += [(route + "..%5capp.py", 404) for route in LISTED["folders"]]  # a file name on Linux, which does not exist
    yield from check(server, ((f"GET {path}", b"", found) for path, found in rows))
    stored = []
    for name, found in LISTED["names"].items():
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
        answer = client.call(server, "explain", ["https://example.com is a text", "", "", "", "", None, ""])
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
    for kind, start in LISTED["begun"].items():
        with client.connections(server, 150, start):
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
    for head, body in LISTED["smuggled"].items():
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
    yield from check(server, ((head, {} if "POST" in head else b"", found) for head, found in LISTED["closed"].items()))
    for number in (-1, 10**6, "x", 1.5, [], True):
        message = {"data": [], "fn_index": number, "session_hash": "attack"}
        yield from check(server, [("POST /gradio_api/queue/join", message, 404)])
    message = {"fn_name": "__init__", "component_id": 1}
    yield from check(server, [("POST /gradio_api/component_server", message, 400)])


# Other websites: names that point to this machine (DNS rebinding), and requests from their scripts

ASKED = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
MODELS = "/gradio_api/run/list_models"


def hosts(server: Server) -> Iterator[Result]:
    """Ask under other names, and as other websites."""
    port = server.address[1]

    def ask(method: str, path: str, **head: str) -> tuple[int, str, list[str]]:
        """Return the status, the text, and the headers that allow something to other websites."""
        with contextlib.suppress(httpx.InvalidURL, httpx.LocalProtocolError, httpx.RemoteProtocolError):
            data = {"json": {"data": []}} if method == "POST" else {}
            answer = httpx.request(method, server.url + path, headers=head, timeout=20, **data)
            allowed = [name for name in answer.headers if name.startswith("access-control-")]
            return answer.status_code, answer.text, allowed
        return 400, "", []

    for host, path in itertools.product(LISTED["foreign"], ("/", "/config", "/gradio_api/info")):
        status, text, _ = ask("GET", path, Host=host.format(port=port))
        # uvicorn refuses a header that is not valid
        yield Result(f"GET {path} of {host}", status in (400, 421), True)
        yield Result(f"GET {path} of {host} in the answer", host.partition(":")[0] in text, False)
    for host in LISTED["own"]:
        yield Result(f"GET /config of {host}", ask("GET", "/config", Host=host.format(port=port))[0], 200)
    for host, origin in itertools.product(("127.0.0.1", "[::1]", "localhost"), LISTED["origins"]):
        head = {"Host": f"{host}:{port}", "Origin": origin.format(port=port)}
        yield Result(f"GET: headers for {origin} to {host}", ask("GET", "/config", **head)[2], [])
        yield Result(f"OPTIONS: headers for {origin} to {host}", ask("OPTIONS", MODELS, **head, **ASKED)[2], [])
        yield Result(f"POST of {origin} to {host}", ask("POST", MODELS, **head)[::2], (403, []))
    own = ask("POST", MODELS, Host=f"127.0.0.1:{port}", Origin=server.url)
    yield Result("POST of the page itself", own[0], 200)
    found = statuses(server, f"GET /config\r\nHost: 127.0.0.1:{port}", seconds=0.7)
    yield Result("two hosts", found[:1], [400])  # the second one is that of `statuses`


# Security headers of every answer, compared with their exact texts

SCRIPTS = re.compile(r"[\"'(](?:\./|/)?((?:hl|assets|static)/[\w./-]+\.(?:js|css|jpg|svg|woff2))")


def policy(server: Server) -> Iterator[Result]:
    """Ask for pages, files and errors of every kind."""
    with httpx.Client(base_url=server.url, timeout=60) as visitor:
        linked = sorted(set(SCRIPTS.findall(visitor.get("/").text)))
        yield Result("the page links files", len(linked) > 3, True)
        files = ["/hl-examples/coffee.jpg", f"/gradio_api/file={upload(server, IMAGE.read_bytes())}"]
        found = dict.fromkeys([*LISTED["pages"], *(f"/{path}" for path in linked), *files], (200,))
        for path, expected in (found | dict.fromkeys(LISTED["missing"], (403, 404))).items():
            answer = visitor.get(path)
            yield Result(f"GET {path[:60]}: {answer.status_code}", answer.status_code in expected, True)
            yield from _headers(f"GET {path[:60]}", answer)
        for name, body in LISTED["others"].items():
            yield from _headers(name, visitor.request(*name.split(), json=body))
        with visitor.stream("GET", "/gradio_api/queue/data", params={"session_hash": "policy"}) as stream:
            yield from _headers("an event stream", stream)


def _headers(name: str, answer: httpx.Response) -> Iterator[Result]:
    for header, text in LISTED["expected"].items():
        yield Result(f"{header} of {name}", answer.headers.get_list(header), [text])
