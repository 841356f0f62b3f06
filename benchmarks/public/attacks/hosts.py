"""Attacks by other websites: names that point to this machine (DNS rebinding), and requests from their scripts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import httpx

from benchmarks.public.attacks.http import Result, raw_statuses
from benchmarks.public.server import Server

FOREIGN = ("evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "8.8.8.8")
FOREIGN += ("[2001:db8::1]", "evil.example@127.0.0.1", "127.0.0.1:x", "'\"><script>", "0x7f000001", "a b", "127.1")
OWN = ("127.0.0.1:{port}", "localhost:{port}", "LOCALHOST", "localhost.", "[::1]:{port}", "127.0.0.1:9000")
ORIGINS = ("https://evil.example", "null", "http://localhost:1", "http://127.0.0.1.evil.example:{port}", "file://", "x")
CORS = "access-control-"


def hosts(server: Server) -> Iterator[Result]:
    """Ask under other names, and as other websites."""
    port = server.address[1]
    for host in FOREIGN:
        for path in ("/", "/config", "/gradio_api/info"):
            status, text = _get(server, path, host.format(port=port))
            # uvicorn refuses a header that is not valid
            yield Result(f"GET {path} of {host}", status in (400, 421), True)
            yield Result(f"GET {path} of {host} in the answer", host.partition(":")[0] in text, False)
    for host in OWN:
        yield Result(f"GET /config of {host}", _get(server, "/config", host.format(port=port))[0], 200)
    for host in ("127.0.0.1", "[::1]", "localhost"):
        for origin in ORIGINS:
            head = {"Host": f"{host}:{port}", "Origin": origin.format(port=port)}
            yield from _as_website(server, head)
    own = {"Host": f"127.0.0.1:{port}", "Origin": f"http://127.0.0.1:{port}"}
    answer = httpx.post(f"{server.url}/gradio_api/run/list_models", json={"data": []}, headers=own, timeout=60)
    yield Result("POST of the page itself", answer.status_code, 200)
    text = f"GET /config\r\nHost: 127.0.0.1:{port}"
    yield Result("two hosts", raw_statuses(server, text)[:1], [400])  # the second one is that of `raw_statuses`


def _as_website(server: Server, head: dict[str, str]) -> Iterator[Result]:
    """Send requests of a script of another website."""
    name = f"{head['Origin']} to {head['Host'].rpartition(':')[0]}"
    answer = httpx.get(f"{server.url}/config", headers=head, timeout=20)
    yield Result(f"GET: headers for {name}", [each for each in answer.headers if each.startswith(CORS)], [])
    asked = {**head, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    answer = httpx.request("OPTIONS", f"{server.url}/gradio_api/run/list_models", headers=asked, timeout=20)
    yield Result(f"OPTIONS: headers for {name}", [each for each in answer.headers if each.startswith(CORS)], [])
    answer = httpx.post(f"{server.url}/gradio_api/run/list_models", content="{}", headers=head, timeout=20)
    found = [each for each in answer.headers if each.startswith(CORS)]
    yield Result(f"POST of {name}", (answer.status_code, found), (403, []))


def _get(server: Server, path: str, host: str) -> tuple[int, str]:
    with contextlib.suppress(httpx.InvalidURL, httpx.LocalProtocolError, httpx.RemoteProtocolError):
        answer = httpx.get(server.url + path, headers={"Host": host}, timeout=20)
        return answer.status_code, answer.text
    return 400, ""
