"""Attacks by other websites: names that point to this machine (DNS rebinding), and requests from their scripts."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import httpx

from benchmarks.public.client import Result, statuses
from benchmarks.public.server import Server

FOREIGN = ("evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "8.8.8.8")
FOREIGN += ("[2001:db8::1]", "evil.example@127.0.0.1", "127.0.0.1:x", "'\"><script>", "0x7f000001", "a b", "127.1")
OWN = ("127.0.0.1:{port}", "localhost:{port}", "LOCALHOST", "localhost.", "[::1]:{port}", "127.0.0.1:9000")
ORIGINS = ("https://evil.example", "null", "http://localhost:1", "http://127.0.0.1.evil.example:{port}", "file://", "x")
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

    for host, path in itertools.product(FOREIGN, ("/", "/config", "/gradio_api/info")):
        status, text, _ = ask("GET", path, Host=host.format(port=port))
        # uvicorn refuses a header that is not valid
        yield Result(f"GET {path} of {host}", status in (400, 421), True)
        yield Result(f"GET {path} of {host} in the answer", host.partition(":")[0] in text, False)
    for host in OWN:
        yield Result(f"GET /config of {host}", ask("GET", "/config", Host=host.format(port=port))[0], 200)
    for host, origin in itertools.product(("127.0.0.1", "[::1]", "localhost"), ORIGINS):
        head = {"Host": f"{host}:{port}", "Origin": origin.format(port=port)}
        yield Result(f"GET: headers for {origin} to {host}", ask("GET", "/config", **head)[2], [])
        yield Result(f"OPTIONS: headers for {origin} to {host}", ask("OPTIONS", MODELS, **head, **ASKED)[2], [])
        yield Result(f"POST of {origin} to {host}", ask("POST", MODELS, **head)[::2], (403, []))
    own = ask("POST", MODELS, Host=f"127.0.0.1:{port}", Origin=server.url)
    yield Result("POST of the page itself", own[0], 200)
    found = statuses(server, f"GET /config\r\nHost: 127.0.0.1:{port}", seconds=0.7)
    yield Result("two hosts", found[:1], [400])  # the second one is that of `statuses`
