"""Security headers of every answer, compared with their exact texts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx

from benchmarks.public.client import IMAGE, Result, upload
from benchmarks.public.server import Server

EXPECTED = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; media-src 'self' blob:; font-src 'self' data:; connect-src 'self' blob: data:; "
        "worker-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-src 'none'; "
        "frame-ancestors 'self'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}
"""Written out, because a comparison with the code of the page would not notice that a rule is missing there."""
PAGES = "/ /?model=x /config /theme.css /robots.txt /gradio_api/info /gradio_api/startup-events".split()
MISSING = "/nothing /hl/nothing.js /hl-examples/nothing.jpg /gradio_api/file=/etc/passwd /monitoring /mcp".split()
SCRIPTS = re.compile(r"[\"'(](?:\./|/)?((?:hl|assets|static)/[\w./-]+\.(?:js|css|jpg|svg|woff2))")
OTHERS = {"HEAD /": None, "OPTIONS /config": None, "PUT /": None, "POST /login": None}
OTHERS |= {"POST /gradio_api/run/list_models": {"data": []}, "POST /gradio_api/call/explain": {"data": []}}
OTHERS |= {"POST /gradio_api/call/nothing": {}}


def policy(server: Server) -> Iterator[Result]:
    """Ask for pages, files and errors of every kind."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        linked = sorted(set(SCRIPTS.findall(client.get("/").text)))
        yield Result("the page links files", len(linked) > 3, True)
        files = ["/hl-examples/coffee.jpg", f"/gradio_api/file={upload(server, IMAGE.read_bytes())}"]
        found = dict.fromkeys([*PAGES, *(f"/{path}" for path in linked), *files], (200,))
        for path, expected in (found | dict.fromkeys(MISSING, (403, 404))).items():
            answer = client.get(path)
            yield Result(f"GET {path[:60]}: {answer.status_code}", answer.status_code in expected, True)
            yield from _headers(f"GET {path[:60]}", answer)
        for name, body in OTHERS.items():
            yield from _headers(name, client.request(*name.split(), json=body))
        with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": "policy"}) as stream:
            yield from _headers("an event stream", stream)


def _headers(name: str, answer: httpx.Response) -> Iterator[Result]:
    for header, text in EXPECTED.items():
        yield Result(f"{header} of {name}", answer.headers.get_list(header), [text])
