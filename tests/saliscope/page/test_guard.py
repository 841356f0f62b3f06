"""The guard by itself, over plain ASGI calls, and in front of a Gradio app on the loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from saliscope import limits
from saliscope.page.serving import guard
from saliscope.page.serving.door import progress, refusals
from saliscope.page.serving.door.hosts import Hosts
from saliscope.page.serving.door.json_bodies import check_json
from saliscope.page.serving.door.refusals import Refusal
from saliscope.page.serving.door.uploads import sweep
from saliscope.page.serving.guard import Guard
from tests.support.coroutines import finished

MB = limits.MB
UPLOADS = os.environ.get("GRADIO_TEMP_DIR") or os.path.join(tempfile.gettempdir(), "gradio")
FILE = {"path": f"{UPLOADS}/abc/photo.png", "meta": {"_type": "gradio.FileData"}}
JOIN = "/gradio_api/queue/join"


# The guard by itself


@dataclass
class Seen:
    """What the app behind the guard received, and the response to the client."""

    called: bool = False
    body: bytes = b""
    after: list[str] = field(default_factory=list)
    status: int = 0
    headers: dict[bytes, list[bytes]] = field(default_factory=dict)
    answer: bytes = b""
    starts: int = 0

    @property
    def detail(self) -> str:
        return json.loads(self.answer)["detail"]


def reading(seen: Seen, headers: list[tuple[bytes, bytes]]) -> refusals.App:
    """An app that reads its whole body, calls `receive` once more for the disconnect, and answers 200."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.called, more = True, True
        while more:
            message = await receive()
            seen.body += message.get("body", b"")
            more = message.get("more_body", False)
        seen.after.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    return app


def ask(
    method: str = "POST",
    path: str = JOIN,
    chunks: list[bytes] | bytes = b"{}",
    headers: dict[str, str] | None = None,
    app: refusals.App | None = None,
    pause: float = 0.0,
    answered: list[tuple[bytes, bytes]] | None = None,
    agents: bool = True,
    hosts: Hosts | None = None,
    guarded: Guard | None = None,
    **scope: Any,
) -> Seen:
    """One request to a guarded app."""
    seen = Seen()
    parts = [chunks] if isinstance(chunks, bytes) else list(chunks)
    queue = [{"type": "http.request", "body": part, "more_body": k + 1 < len(parts)} for k, part in enumerate(parts)]

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause)
        return queue.pop(0) if queue else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            seen.starts, seen.status = seen.starts + 1, message["status"]
            for name, value in message["headers"]:
                seen.headers.setdefault(name.lower(), []).append(value)
        else:
            seen.answer += message.get("body", b"")

    pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    request = {"type": "http", "method": method, "path": path, "headers": pairs, "query_string": b"", **scope}
    here = guarded or Guard(app or reading(seen, answered or []), hosts, agents)
    finished(here(request, receive, send))
    return seen


def test_a_valid_request_passes_unchanged_and_the_disconnect_reaches_the_app():
    body = json.dumps({"data": [FILE, "Grüße", 1.5, None, {"url": "http://127.0.0.1:7860/gradio_api/file=x"}]}).encode()
    seen = ask(chunks=[body[:5], body[5:9], b"", body[9:]])
    assert (seen.status, seen.body, seen.after) == (200, body, ["http.disconnect"])


@pytest.mark.parametrize(
    ("path", "cap"),
    [
        ("/gradio_api/upload", limits.UPLOAD),
        ("/gradio_api/upload/", limits.UPLOAD),
        (JOIN, limits.BODY),
        ("/mcp", limits.AGENT),
        ("/mcp/", limits.AGENT),
        ("/gradio_api/call/explain", limits.BODY),
        ("/gradio_api/cancel", limits.BODY),
    ],
)
def test_each_path_has_its_size_limit(path, cap):
    assert limits.body(path) == cap
    over = ask(path=path, headers={"content-length": str(cap + 1)})
    assert (over.status, over.called) == (413, False) and "exceeds" in over.detail
    at = ask(path=path, chunks=b'""', headers={"content-length": str(cap)})
    assert at.status == 200


@pytest.mark.parametrize("declared", [None, "10", "-1", "ten", "1e3", "", "٣"])
def test_a_missing_or_false_content_length_is_caught_by_counting(declared, monkeypatch):
    monkeypatch.setattr(limits, "BODY", 300_000)
    monkeypatch.setattr(limits, "UPLOAD", 3 * MB)
    headers = {} if declared is None else {"content-length": declared}
    parts = [b" " * 65536] * (limits.BODY // 65536 + 1)
    seen = ask(chunks=parts, headers=headers)
    assert (seen.status, seen.called) == (413, False)
    parts = [b"x" * MB] * (limits.UPLOAD // MB + 1)
    seen = ask(path="/gradio_api/upload", chunks=parts, headers=headers)
    assert seen.status == 413 and len(seen.body) <= limits.UPLOAD


def test_the_body_of_a_get_and_a_content_length_of_a_thousand_digits_are_limited_too():
    assert ask("GET", "/config", [b"x" * MB] * 2).status == 413
    assert ask(headers={"content-length": "9" * 1000}).status == 413


def test_an_app_that_catches_the_refusal_does_not_replace_the_413():
    """FastAPI answers 400 to anything that goes wrong while a body is read."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with contextlib.suppress(Exception):
            while True:
                await receive()
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"There was an error parsing the body"})

    seen = ask(path="/gradio_api/upload", chunks=[b"x" * MB] * 40, app=app)
    assert (seen.status, seen.starts) == (413, 1) and "parsing" not in seen.answer.decode()


def test_a_started_response_is_not_started_again():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive()).get("more_body"):
            continue

    seen = ask(path="/gradio_api/upload", chunks=[b"x" * MB] * 40, app=app)
    assert (seen.status, seen.starts) == (200, 1)


def test_an_error_of_the_app_propagates():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask(app=app)


def test_a_slow_body_times_out(monkeypatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.1)
    monkeypatch.setattr(limits, "DISCARD_SECONDS", 0.05)
    for path in (JOIN, "/gradio_api/upload"):
        seen = ask(path=path, chunks=[b"x"] * 50, pause=0.02)
        assert seen.status == 408 and "in time" in seen.detail


def test_a_disconnect_in_the_body_ends_the_request():
    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": JOIN, "headers": []}
    finished(asyncio.wait_for(Guard(reading(Seen(), []))(scope, gone, send), 2))
    assert sent[0]["status"] == 400


def test_a_cancelled_receive_still_returns_the_disconnect():
    """Starlette polls `receive` in a cancelled scope: a wrapper that awaits in between never returns the message."""
    import anyio

    heard: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(3):
            with anyio.CancelScope() as at_once:
                at_once.cancel()
                heard.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        return None

    scope = {"type": "http", "method": "GET", "path": "/gradio_api/queue/data", "headers": [], "query_string": b""}
    finished(Guard(app)(scope, receive, send))
    assert heard == ["http.disconnect"] * 3


CLOSED = """
    /gradio_api/file=http://example.org/a.png /gradio_api/file=https://example.org/a.png
    /gradio_api/file=HTTPS://example.org /gradio_api/file/http://example.org/a.png
    /gradio_api/file/https://example.org/a.png /gradio_api/file=ftp://example.org /gradio_api/file=file:///etc/passwd
    /gradio_api/proxy=https://example.org /gradio_api/Proxy=x /gradio_api/process_recording /gradio_api/deep_link
    /gradio_api/vibe-edit/ /gradio_api/vibe-code /gradio_api/vibe-starter-queries /gradio_api/undo-vibe-edit
    /gradio_api/run-history/connect /gradio_api/profiling/traces /gradio_api/dev/reload
    /gradio_api/custom_component/1/client/component/index.js /gradio_api/stream/abc/1/2/playlist.m3u8
    /monitoring /monitoring/summary /MONITORING
""".split()
OPEN = [("HEAD", "/"), ("OPTIONS", "/gradio_api/upload")]
OPEN += [
    ("GET", path)
    for path in """
        / /config /theme.css /hl/overlay/overlay.js /assets/index.js /gradio_api/info /gradio_api/startup-events
        /gradio_api/heartbeat/abc /gradio_api/queue/data /gradio_api/call/explain/1234
        /gradio_api/file=/tmp/gradio/abc/http_photo.png
    """.split()
]
OPEN += [
    ("POST", path)
    for path in """
        /gradio_api/upload /gradio_api/queue/join /gradio_api/call/explain /gradio_api/call/v2/explain
        /gradio_api/run/explain /gradio_api/api/explain /gradio_api/cancel /gradio_api/reset
        /gradio_api/component_server /mcp /mcp/
    """.split()
]
REFUSED = [("POST", "/"), ("POST", "/login"), ("POST", "/gradio_api/stream/1"), ("POST", "/gradio_api/else")]
REFUSED += [("PUT", "/hl/a.js"), ("DELETE", "/gradio_api/upload/x"), ("PATCH", "/config"), ("TRACE", "/")]
REFUSED += [("POST", "/gradio_api/upload/../x")]
REFUSED += [(method, path) for path in CLOSED for method in ("GET", "HEAD", "POST")]


def test_only_the_routes_of_the_page_are_open():
    for method, path in REFUSED:
        seen = ask(method, path, b"")
        assert (seen.status, seen.called) == (403, False), (method, path)
        assert ask(method, "/space" + path, b"", root_path="/space").status == 403, (method, path)
    for method, path in OPEN:
        assert ask(method, path, b"").status == 200, (method, path)


def test_the_progress_of_unknown_uploads_is_not_asked_for(monkeypatch):
    """Gradio keeps something of every name that it hears."""
    monkeypatch.setattr(progress, "WAIT", 0.2)
    monkeypatch.setattr(progress, "MOST", 3)
    passed = list[bytes]()

    async def app(scope, receive, send):
        passed.append(scope["query_string"])
        await reading(Seen(), [])(scope, receive, send)

    here = Guard(app)

    def of(name: str, method: str = "GET") -> bytes:
        path = "/gradio_api/upload" if method == "POST" else "/gradio_api/upload_progress"
        return ask(method, path, b"x" * 9 if method == "POST" else b"", guarded=here, query_string=name.encode()).answer

    for name in ("upload_id=invented", "", "upload_id=", "upload_id=a/b", f"upload_id={'a' * 65}", "upload_id=%C3%A9"):
        assert of(name) == progress.DONE, name
    assert passed == []
    for number in range(5):
        of(f"upload_id=name{number}", "POST")
    of("upload_id=name1", "POST")
    of("upload_id=a%20b&more=1", "POST")
    of("upload_id=a&upload_id=name1", "POST")
    first = [b"upload_id=name0", b"upload_id=name1", b"upload_id=name2"]
    assert passed == [*first, b"", b"", b"upload_id=name1", b"", b""]
    passed.clear()
    assert of("upload_id=name2") == b"ok" and of("upload_id=name3") == progress.DONE and len(passed) == 1


# JSON


def nested(depth: int, pair: str = "[]") -> bytes:
    return (pair[0] * depth + pair[1] * depth).encode()


@pytest.mark.parametrize(
    "body",
    [
        {"data": [FILE]},
        {
            "data": [
                {**FILE, "url": "http://127.0.0.1:7860/gradio_api/file=/tmp/x.png", "orig_name": "x.png", "size": 12}
            ]
        },
        {"data": ["https://example.org is text in a text field"], "session_hash": "k3j4h5g6f7d"},
        {
            "data": [FILE],
            "session_hash": "0f8fad5b-d9cb-469f-a165-70867728950e",
        },
        {"data": [], "session_hash": None, "fn_index": 3, "event_data": {"channel": 18}},
        {"data": ["\N{GRINNING FACE}", "å", -1.5e300]},
        {"data": [[[[[[[[1]]]]]]]]},
        [],
        "text",
    ],
)
def test_requests_of_page_and_clients_pass(body):
    check_json(json.dumps(body).encode())
    check_json(json.dumps(body, ensure_ascii=False).encode())


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"nonsense",
        b"\xff\xfe\xfd",
        b'{"data": [NaN]}',
        b'{"data": [Infinity]}',
        b'{"data": [1e999]}',
        b'{"data": [-1e999]}',
        b'{"data": ["\\ud800"]}',
        b'{"\\udfff": 1}',
        b"[" + b"9" * 5000 + b"]",
        b'{"session_hash": ["a"]}',
        b'{"session_hash": {"a": 1}}',
        b'{"session_hash": 7}',
        b'{"session_hash": true}',
        b'{"session_hash": "../../etc"}',
        b'{"session_hash": "a b"}',
        b'{"session_hash": "a\\n"}',
        b'{"session_hash": "' + b"a" * 65 + b'"}',
        nested(limits.JSON_DEPTH + 1),
        nested(900),
        nested(200_000),
        b'{"a":' * 40 + b"1" + b"}" * 40,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"[" + b"0," * (limits.JSON_ITEMS + 1) + b"0]",
        json.dumps({"data": [{"path": "/etc/passwd"}]}).encode(),
        json.dumps({"data": [{"path": "/etc/passwd", "meta": None}]}).encode(),
        json.dumps({"data": [{"path": "/etc/passwd", "meta": "gradio.FileData"}]}).encode(),
        json.dumps({"data": [{"path": "/etc/passwd", "meta": {}}]}).encode(),
        json.dumps({"data": [{"path": "/etc/passwd", "meta": {"_type": "gradio.filedata"}}]}).encode(),
        json.dumps({"data": [{"path": "/etc/passwd", "meta": {"_type": ["gradio.FileData"]}}]}).encode(),
        json.dumps({"data": [{**FILE, "path": None}]}).encode(),
        json.dumps({"data": [{**FILE, "path": 3}]}).encode(),
        json.dumps({"data": [{**FILE, "mime_type": ["x"]}]}).encode(),
        json.dumps({"data": [{**FILE, "orig_name": 5}]}).encode(),
        json.dumps({"data": [{**FILE, "path": ["a"]}]}).encode(),
        json.dumps({"data": [{"path": None, "url": "data:image/png;base64,AAAA"}]}).encode(),
        json.dumps({"data": [{"url": " DATA:image/png;base64,AAAA"}]}).encode(),
        json.dumps({"data": [{**FILE, "url": "data:,"}]}).encode(),
        json.dumps({"data": [[{"deep": [{"path": "/etc/passwd"}]}]]}).encode(),
        json.dumps({"event_data": {"path": "/etc/passwd"}, "data": []}).encode(),
    ],
)
def test_malformed_requests_are_refused_by_the_guard(text):
    with pytest.raises(Refusal) as caught:
        check_json(text)
    assert caught.value.status == 400
    if len(text) < limits.BODY:
        assert ask(chunks=text).status == 400


@pytest.mark.parametrize(
    "path", ["http://example.org/a.png", "https://example.org", "ftp://a/b", "file:///etc/passwd", "gs://b/c"]
)
def test_a_link_instead_of_a_file_is_refused_with_the_reason(path):
    seen = ask(chunks=json.dumps({"data": [{**FILE, "path": path}]}).encode())
    assert (seen.status, seen.called) == (403, False) and "Links are not supported" in seen.detail


def test_every_route_that_takes_json_is_checked():
    for path in ("/gradio_api/call/explain", "/gradio_api/call/v2/explain", "/gradio_api/run/x", "/gradio_api/cancel"):
        assert ask(path=path, chunks=nested(900)).status == 400
        assert ask(path=path, chunks=json.dumps({"x": {"path": "/etc/passwd"}}).encode()).status == 400
    data_url = json.dumps({"params": {"picture": {"path": "data:image/png;base64,AAAA"}, "url": "data:,"}}).encode()
    for path in ("/mcp", "/mcp/"):
        assert ask(path=path, chunks=data_url).status == 200
        assert ask(path=path, chunks=nested(900)).status == 400


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "app.py", "", "a\0b", "x" * 100_000, UPLOADS, UPLOADS + "/../x.png", UPLOADS + "-other/x.png"],
)
def test_a_file_outside_the_upload_folder_is_refused_with_the_reason(path):
    """Gradio refuses these as well, and answers `error: null`."""
    seen = ask(chunks=json.dumps({"data": [{**FILE, "path": path}]}).encode())
    assert (seen.status, seen.called) == (403, False) and "Upload the image first" in seen.detail


# Headers, other kinds of connection


def test_every_response_has_the_security_headers_once():
    theirs = [
        (b"Content-Security-Policy", b"default-src *"),
        (b"content-type", b"text/html"),
        (b"X-Content-Type-Options", b"x"),
    ]
    for seen in (ask(answered=theirs), ask(path="/gradio_api/proxy=x"), ask(chunks=b"{"), ask("GET", "/", b"")):
        policy = seen.headers[b"content-security-policy"]
        assert len(policy) == 1 and b"default-src 'self'" in policy[0] and b"object-src 'none'" in policy[0]
        assert seen.headers[b"x-content-type-options"] == [b"nosniff"]
        assert seen.headers[b"referrer-policy"] == [b"same-origin"]
    assert ask(answered=theirs).headers[b"content-type"] == [b"text/html"]


def test_the_content_policy_allows_no_other_host():
    parts = dict(part.strip().split(" ", 1) for part in guard.CONTENT_POLICY.split(";"))
    for name, value in parts.items():
        if name != "frame-ancestors":
            assert "http" not in value and "*" not in value, (name, value)
    assert parts["frame-ancestors"] == "'self'", "only a Space is shown in a frame of another website"


def forwarded(
    host: str, client: tuple[str, int] | None = ("10.0.0.2", 1), names: str = "page.example", **headers: str
) -> dict[str, str]:
    """The headers that reach the app of a request to the host page.example that may come from a proxy."""
    found: list[dict[str, str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await send({"type": "http.response.start", "status": 200, "headers": []})

    given = {"host": "page.example", "x-forwarded-host": host, **headers}
    hosts = Hosts("page.example", names.split(","))
    assert ask("GET", "/", headers=given, app=app, client=client, hosts=hosts).status == 200
    return found[0]


def test_only_a_proxy_says_which_host_was_requested_and_only_a_known_one() -> None:
    own = {"host": "page.example", "x-forwarded-host": "page.example"}
    assert forwarded("page.example") == own
    for foreign in ("evil.example", "evil.example, page.example", "page.example.evil.example", "page.example:1", ""):
        assert forwarded(foreign) == {"host": "page.example"}, foreign
    assert forwarded("page.example", client=("8.8.8.8", 1)) == {"host": "page.example"}
    assert forwarded("x", **{"x-gradio-server": "http://evil.example"}) == {"host": "page.example"}
    secure = {"x-forwarded-proto": "https"}
    assert forwarded("page.example", **secure) == own | secure
    assert forwarded("page.example", **{"x-forwarded-proto": "<script>"}) == own
    assert forwarded("page.example", client=("8.8.8.8", 1), **secure) == {"host": "page.example"}

    both = forwarded("Maps.example, page.example", names="maps.example")
    assert both["x-forwarded-host"] == "Maps.example, page.example"
    assert "x-forwarded-host" not in forwarded("evil.example", names="maps.example")
    assert "x-forwarded-host" not in forwarded('maps.example"><script>', names="maps.example")


def test_web_sockets_are_closed():
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def never(*_: Any) -> None:
        pytest.fail("the app was reached")

    finished(Guard(never)({"type": "websocket", "path": "/", "headers": []}, never, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_leftover_uploads_are_swept_while_the_server_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr(limits, "SWEEP", 0.01)
    monkeypatch.setattr(sweep, "__defaults__", (0.0,))
    leftover = tmp_path / "tmpabc123"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            leftover.write_bytes(b"x")
            for _ in range(500):
                await asyncio.sleep(0.01)
                if not leftover.exists():
                    break
            assert not leftover.exists()

    async def live() -> set[Any]:
        await Guard(app)({"type": "lifespan"}, None, None)
        await asyncio.sleep(0)
        return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    assert all(task.cancelling() or task.done() for task in finished(live())), "the sweeper must end with the server"


def test_sweeping_deletes_what_was_not_used_for_long_and_nothing_of_others(tmp_path):
    long_ago, digest = time.time() - 7200, "0123456789abcdef" * 4
    (tmp_path / digest).mkdir()
    (tmp_path / digest.replace("0", "1")).mkdir()
    (tmp_path / digest.replace("0", "1") / "photo.png").write_bytes(b"x")  # of an earlier process
    (tmp_path / digest.replace("0", "2")).mkdir()
    (tmp_path / digest.replace("0", "2") / "used.png").write_bytes(b"x")
    (tmp_path / "tmp_folder").mkdir()
    (tmp_path / "other").mkdir()
    for name in ("tmp1234", "tmpnew", "photo.png", "tmp_folder/tmpdeep"):
        (tmp_path / name).write_bytes(b"x")
    os.symlink(tmp_path / "photo.png", tmp_path / "tmplink")
    for place in tmp_path.rglob("*"):
        if place.name not in ("tmpnew", "used.png"):
            os.utime(place, (long_ago, long_ago), follow_symlinks=False)

    assert sweep(tmp_path, age=3600) == 3
    left = {str(place.relative_to(tmp_path)) for place in tmp_path.rglob("*")}
    other = digest.replace("0", "2")
    assert left == {
        other,
        f"{other}/used.png",
        "tmp_folder",
        "tmp_folder/tmpdeep",
        "other",
        "tmpnew",
        "photo.png",
        "tmplink",
    }
    assert sweep(tmp_path / "not there") == 0


# In front of Gradio; test_attack.py asks the whole page


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A small app behind the guard, in this process."""
    ended: list[bool] = []

    def forever() -> Iterator[int]:
        try:
            for number in range(600):
                yield number
                time.sleep(0.05)
        finally:
            ended.append(True)

    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("uploads")
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        patch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
        patch.setenv("HF_HUB_OFFLINE", "1")
        import gradio
        from starlette.middleware import Middleware

        with gradio.Blocks(analytics_enabled=False) as demo:
            gradio.api(forever, api_name="forever")
        _, url, _ = demo.queue().launch(
            prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", share=False, ssr_mode=False,
            run_history=False, show_error=False, max_file_size=limits.FILE,
            app_kwargs={"middleware": [Middleware(Guard)]},
        )  # fmt: skip
        yield SimpleNamespace(url=url.rstrip("/"), ended=ended, folder=folder)
        demo.close()


def post(url: str, **body: Any) -> Any:
    import httpx

    return httpx.post(url, timeout=20, **body)


def test_an_upload_over_the_limit_is_refused_and_leaves_no_file(served):
    before = set(served.folder.rglob("*"))
    name = post(f"{served.url}/gradio_api/upload", files={"files": ("big.png", bytes(limits.FILE + 300 * 1024))})
    assert name.status_code == 413
    assert set(served.folder.rglob("*")) == before
    # Without a file name Gradio would keep it all in memory; sent in pieces it declares no length.
    head = b'--b\r\nContent-Disposition: form-data; name="files"\r\n\r\n'
    pieces = (head if k == 0 else bytes(MB) for k in range(limits.FILE // MB + 4))
    chunked = post(
        f"{served.url}/gradio_api/upload", content=pieces, headers={"content-type": "multipart/form-data; boundary=b"}
    )
    assert chunked.status_code == 413 and "exceeds" in chunked.json()["detail"]
    small = post(
        f"{served.url}/gradio_api/upload",
        content=head + b"x\r\n--b--\r\n",
        headers={"content-type": "multipart/form-data; boundary=b"},
    )
    assert small.status_code == 400 and "no name" in small.json()["detail"]


def test_a_disconnect_ends_the_generator(served):
    """Middleware that drops disconnects would leave it running for half a minute."""
    import httpx

    event = post(f"{served.url}/gradio_api/call/forever", json={"data": []}).json()["event_id"]
    with httpx.stream("GET", f"{served.url}/gradio_api/call/forever/{event}", timeout=20) as stream:
        assert any("generating" in line for line in stream.iter_lines())
    deadline = time.monotonic() + 10
    while not served.ended and time.monotonic() < deadline:
        time.sleep(0.05)
    assert served.ended


def test_sweeping_deletes_the_file_of_an_aborted_upload(served):
    host, port = served.url.removeprefix("http://").split(":")
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n' + bytes(100_000)
    kind = b"Content-Type: multipart/form-data; boundary=b\r\n"
    request = b"POST /gradio_api/upload HTTP/1.1\r\nHost: 127.0.0.1\r\n" + kind
    with socket.create_connection((host, int(port))) as line:
        line.sendall(request + b"Content-Length: 500000\r\n\r\n" + head)
        deadline = time.monotonic() + 10
        while not list(served.folder.glob("tmp*")) and time.monotonic() < deadline:
            time.sleep(0.02)
    time.sleep(0.2)
    assert list(served.folder.glob("tmp*")), "Gradio cleans up by itself now: sweeping may go"
    assert sweep(served.folder, age=3600) == 0
    assert sweep(served.folder, age=-1) >= 1
    assert not list(served.folder.glob("tmp*"))


def test_every_function_of_gradio_that_fetches_a_link_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    import gradio
    from gradio import processing_utils, routes

    downloads = ("ssrf_protected_download", "save_url_to_cache", "unsafe_download")
    streams = ("async_ssrf_protected_download", "async_ssrf_protected_get")
    for name in (*downloads, *streams):
        monkeypatch.setattr(processing_utils, name, getattr(processing_utils, name))
    monkeypatch.setattr(routes, "secure_url_stream_response", routes.secure_url_stream_response)
    guard.install_no_links()

    for name in downloads:
        with pytest.raises(gradio.Error):
            getattr(processing_utils, name)("http://127.0.0.1:9/", "folder")
    for function in (*(getattr(processing_utils, name) for name in streams), routes.secure_url_stream_response):
        with pytest.raises(gradio.Error):
            finished(function("http://127.0.0.1:9/"))
