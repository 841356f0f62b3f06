"""What the guard checks in a request before Gradio sees it: its size, its time, its route and its JSON."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import re
import tempfile
from typing import Any

import gradio.routes
import pytest

from saliscope import limits
from saliscope.page.serving import arguments, endpoints, guard
from saliscope.page.serving.door.bodies import Budget
from saliscope.page.serving.door.json_bodies import check_json
from saliscope.page.serving.door.refusals import Refusal
from saliscope.page.serving.guard import Guard
from tests.saliscope.page.guarded import JOIN, MB, UPLOAD, Seen, ask, reading, respond, send_request
from tests.support.coroutines import finished

UPLOADS = os.environ.get("GRADIO_TEMP_DIR") or os.path.join(tempfile.gettempdir(), "gradio")
FILE = {"path": f"{UPLOADS}/abc/photo.png", "meta": {"_type": "gradio.FileData"}}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits for the parts of a body."""
    for name, seconds in {"BODY_PAUSE": 0.3, "BODY_WAIT": 0.3, "DISCARD_SECONDS": 0.05}.items():
        monkeypatch.setattr(limits, name, seconds)


# The size of a body


def test_a_request_passes_unchanged_with_and_without_a_declared_length() -> None:
    small = json.dumps({"data": [FILE, "Grüße", 1.5, None, {"url": "/gradio_api/file=x"}]}).encode()
    large = json.dumps({"image": "QUJD" * (MB // 2), "b": [1, 2]}).encode()
    for path, body, step in ((JOIN, small, 9), ("/mcp", large, 100_000)):
        parts = [body[start : start + step] for start in range(0, len(body), step)] + [b""]
        for headers in ({"content-length": str(len(body))}, {}):
            seen = ask(path=path, chunks=parts, headers=headers)
            assert (seen.status, seen.body, seen.after) == (200, body, "http.disconnect"), (path, headers)


def test_each_path_has_its_size_limit() -> None:
    caps = {f"{path}{end}": cap for path, cap in ((UPLOAD, limits.UPLOAD), ("/mcp", limits.AGENT)) for end in ("", "/")}
    for path, cap in {**caps, JOIN: limits.BODY, "/gradio_api/call/explain": limits.BODY}.items():
        over = ask(path=path, headers={"content-length": str(cap + 1)})
        assert (over.status, over.called) == (
            413,
            False,
        ) and f"exceeds the size limit of {cap // MB} MB" in over.detail, path
        assert ask(path=path, chunks=b'""', headers={"content-length": str(cap)}).status == 200, path
    assert ask("GET", "/config", [b"x" * MB] * 2).status == 413
    assert ask(headers={"content-length": "9" * 1000}).status == 413


def test_a_missing_or_false_content_length_is_caught_by_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY", 300_000)
    monkeypatch.setattr(limits, "UPLOAD", 3 * MB)
    for declared in (None, "10", "-1", "ten", "", "٣"):
        headers = {} if declared is None else {"content-length": declared}
        read = ask(chunks=[b" " * 65536] * (limits.BODY // 65536 + 1), headers=headers)
        assert (read.status, read.called) == (413, False), declared
        streamed = ask(path=UPLOAD, chunks=[b"x" * MB] * (limits.UPLOAD // MB + 1), headers=headers)
        assert streamed.status == 413 and len(streamed.body) <= limits.UPLOAD, declared


def test_a_body_that_is_too_large_has_one_answer() -> None:
    """FastAPI answers 400 to anything that goes wrong while a body is read; an answer may also have started."""

    async def catching(scope: Any, receive: Any, send: Any) -> None:
        with contextlib.suppress(Exception):
            while True:
                await receive()
        await respond(send, 400, [], b"There was an error parsing the body")

    async def started(scope: Any, receive: Any, send: Any) -> None:
        await respond(send)
        while (await receive()).get("more_body"):
            continue

    found = [ask(path=UPLOAD, chunks=[b"x" * MB] * 40, app=app) for app in (catching, started)]
    assert [(seen.status, seen.starts) for seen in found] == [(413, 1), (200, 1)]
    assert b"parsing" not in found[0].answer


def test_an_error_of_the_app_is_that_of_the_server() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask(app=app)


def test_too_many_values_are_refused_while_they_arrive(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JSON_DELIMITERS", 30_000)
    monkeypatch.setattr(guard, "check_json", lambda *_, **__: pytest.fail("parsed"))
    for path in ("/mcp", JOIN, "/gradio_api/call/explain", "/gradio_api/run/x", "/gradio_api/cancel"):
        seen = ask(path=path, chunks=[b"[], " * 4000] * 60, is_complete=False)
        assert seen.status == 400 and seen.headers[b"connection"] == [b"close"], path


def test_an_upload_has_few_parts() -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\nx\r\n'
    for count, status in ((limits.UPLOAD_PARTS, 200), (limits.UPLOAD_PARTS + 1, 400)):
        text = part.upper() * count
        chunks = [text[start : start + 1001] for start in range(0, len(text), 1001)]
        assert ask(path=UPLOAD, chunks=chunks).status == status


# The time of a body


def test_a_body_arrives_in_time_and_makes_progress(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    steady = {"path": UPLOAD, "chunks": [bytes(limits.BODY_STEP)] * 10, "pause": 0.05}
    for path in (JOIN, UPLOAD):
        assert ask(path=path, chunks=[b" "] * 100, pause=0.02).status == 408
    assert ask(**steady).status == 200, "slow, but it continues"
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.2)
    assert ask(**steady).status == 408


def test_a_request_ends_if_its_client_leaves_or_its_answer_comes_early(quick: None) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await respond(send, 400, [], b"no")

    assert ask(chunks=[]).status == 400
    early = ask(path=UPLOAD, chunks=[b"x"] * 3, headers={"content-length": "100"}, app=app, is_complete=False)
    assert (early.status, early.headers[b"connection"], early.parts_read) == (400, [b"close"], 3)


def test_unfinished_bodies_end_and_leave_nothing_reserved(quick: None) -> None:
    """Twelve of one address: most are not even read; another address is answered at once."""

    async def work() -> tuple[list[Seen], Seen, Guard]:
        shared = Guard(reading(Seen()), agents=True)
        unfinished, other = [Seen() for _ in range(12)], Seen()
        sent: dict[str, Any] = {"path": "/mcp", "chunks": [b" " * MB] * 3, "is_complete": False}
        sent |= {"headers": {"content-length": str(40 * MB)}, "client": ("1.1.1.1", 1)}
        tasks = [asyncio.create_task(send_request(shared, seen, **sent)) for seen in unfinished]
        await asyncio.sleep(0.02)
        await asyncio.wait_for(send_request(shared, other, client=("2.2.2.2", 1)), 1)
        assert sum(each.parts_read for each in unfinished) <= 4, "one of them is read, the others wait"
        await asyncio.gather(*tasks)
        return unfinished, other, shared

    unfinished, other, shared = finished(work())
    assert other.status == 200 and {each.status for each in unfinished} <= {408, 503}
    assert [budget.reserved for budget in shared.budgets.values()] == [0, 0, 0]


def test_a_budget_admits_in_order_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODIES", {"x": (3, 2, 100, 60)})
    monkeypatch.setattr(limits, "BODY_WAIT", 0.05)
    monkeypatch.setattr(limits, "WAITING_BODIES", 1)

    async def work() -> None:
        budget = Budget("x")
        async with budget.reserve("a", 50):
            with pytest.raises(Refusal, match="Too many") as caught:
                async with budget.reserve("a", 20):
                    pass
            assert caught.value.status == 503
            async with budget.reserve("b", 50):
                assert budget.reserved == 100
                waiting = asyncio.create_task(budget.reserve("c", 1).__aenter__())
                await asyncio.sleep(0)
                with pytest.raises(Refusal) as caught:
                    async with budget.reserve("c", 1):
                        pass
                assert caught.value.status == 429, "too many of this address wait"
            await waiting
        assert budget.reserved == 1

    finished(work())


# Routes


def test_routes_below_a_root_path_are_open_or_closed() -> None:
    """test_attack.py asks the whole page for all routes."""
    for method, path, status in (("GET", "/config", 200), ("GET", "/monitoring", 403), ("POST", "/login", 403)):
        assert ask(method, "/space" + path, b"", root_path="/space").status == status, path


def test_agents_that_are_off_get_404_before_their_body_is_read(quick: None) -> None:
    for method, path in (("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"), ("POST", "/mcp/")):
        seen = Seen()
        declared = {"content-length": str(42 * MB)}
        finished(send_request(Guard(reading(seen)), seen, method, path, [], declared, is_complete=False))
        assert (seen.status, seen.called, seen.headers[b"connection"]) == (404, False, [b"close"])
        assert "--mcp" in seen.detail


def test_web_sockets_are_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def never(*_: Any) -> None:
        pytest.fail("the app was reached")

    finished(Guard(never)({"type": "websocket", "path": "/", "headers": []}, never, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_names_of_uploads_are_not_passed_on() -> None:
    """Gradio keeps something of every name that it hears."""
    passed = list[bytes]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["query_string"])
        await reading(Seen())(scope, receive, send)

    here, query = Guard(app), b"upload_id=name"
    assert ask(path=UPLOAD, chunks=b"x", guarded=here, query_string=query).status == 200
    assert ask("GET", "/gradio_api/upload_progress", b"", guarded=here, query_string=query).status == 403
    assert passed == [b""]


# JSON


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def status(body: bytes) -> int:
    """The status of a refused body, or 200."""
    try:
        check_json(body)
    except Refusal as refusal:
        return refusal.status
    return 200


PASSING = [
    {"data": [FILE, {**FILE, "url": "http://127.0.0.1:7860/gradio_api/file=/tmp/x.png", "orig_name": "x", "size": 12}]},
    {"data": ["https://example.org is text in a text field"], "session_hash": "0f8fad5b-d9cb-469f-a165-70867728950e"},
    {
        "data": ["\N{GRINNING FACE}", "å", -1.5e300, [[[[[[[1]]]]]]]],
        "session_hash": None,
        "event_data": {"channel": 18},
    },
    "text",
]


def test_requests_of_page_and_clients_pass() -> None:
    for body in PASSING:
        for is_escaped in (True, False):
            assert status(json.dumps(body, ensure_ascii=is_escaped).encode()) == 200, body
    data_url = json.dumps({"params": {"picture": {"path": "data:image/png;base64,AAAA"}, "url": "data:,"}}).encode()
    assert ask(path="/mcp/", chunks=data_url).status == 200 and ask(path="/mcp/", chunks=nested(900)).status == 400


def test_unknown_endpoints_and_arguments_are_refused() -> None:
    """Gradio ignores them or reports an internal server error."""
    for function in (endpoints.explain, endpoints.list_layers, endpoints.list_models):
        arguments.register(function)
    arguments.register_events([3])
    seven = [None, "", "", "", "", None, ""]
    for route, message, status, word in (
        ("call/explain", {"data": seven}, 200, ""),
        ("call/explain", {"data": [*seven, "more"]}, 400, "takes 7 arguments, got 8"),
        ("call/explain", {"data": seven[:2]}, 400, "image, model, method, layer, target, options, bands"),
        ("run/list_models", {"data": ["timm"]}, 400, "takes 0 arguments, got 1"),
        ("call/explain", {"data": seven, "methode": "rise"}, 400, "Did you mean method?"),
        ("call/v2/list_layers", {"modell": "efficientnet_lite0"}, 400, "Did you mean model?"),
        ("call/explian", {"data": seven}, 404, "Unknown endpoint. Available: explain, "),
        ("call/explian", {"data": [], "fn_index": 3}, 200, ""),
        ("queue/join", {"data": [], "fn_index": 4}, 404, "Unknown event"),
        ("queue/join", {"data": [], "fn_index": True}, 404, "Unknown event"),
    ):
        seen = ask(path=f"/gradio_api/{route}", chunks=json.dumps(message).encode())
        assert seen.status == status and (seen.called or word in seen.detail), (route, message)
    arguments.register_events([])


MALFORMED = [b"{", b"nonsense", b"\xff\xfe\xfd", b'["\\ud800"]', b'{"\\udfff": 1}', b"[" + b"9" * 5000 + b"]"]
MALFORMED += [f"[{number}]".encode() for number in ("NaN", "Infinity", "1e999", "-1e999")]
SESSIONS = ('["a"]', '{"a": 1}', "7", "true", '"../../etc"', '"a b"', '"a\\n"', f'"{"a" * 65}"')
MALFORMED += [f'{{"session_hash": {name}}}'.encode() for name in SESSIONS]
MALFORMED += [nested(limits.JSON_DEPTH + 1), nested(900), nested(200_000), b"[" + b"0," * limits.JSON_ITEMS + b"0]"]
MALFORMED += [b'{"a":' * depth + b"1" + b"}" * depth for depth in (40, 100_000)]
METAS: list[Any] = [None, "gradio.FileData", {}, {"_type": "gradio.filedata"}, {"_type": ["gradio.FileData"]}]
WRONG_FILES: list[Any] = [{"path": "/etc/passwd"}, *({"path": "/etc/passwd", "meta": meta} for meta in METAS)]
WRONG_FILES += [{**FILE, **more} for more in ({"path": None}, {"path": ["a"]}, {"orig_name": 5}, {"url": "data:,"})]
WRONG_FILES += [{"path": None, "url": "data:image/png;base64,AAAA"}, {"url": " DATA:image/png;base64,AAAA"}]
MALFORMED += [json.dumps({"data": [file]}).encode() for file in WRONG_FILES]
MALFORMED += [json.dumps({"event_data": {"path": "/etc/passwd"}, "data": []}).encode()]


def test_malformed_requests_are_refused() -> None:
    for body in MALFORMED:
        assert status(body) == 400, body[:100]


def test_links_and_files_outside_the_upload_folder_are_refused_with_the_reason() -> None:
    """Gradio refuses the latter as well, and answers `error: null`."""
    links = ["http://example.org/a.png", "https://example.org", "ftp://a/b", "file:///etc/passwd", "gs://b/c"]
    outside = ["/etc/passwd", "app.py", "", "a\0b", "x" * 100_000, UPLOADS, f"{UPLOADS}/../x.png", f"{UPLOADS}-b/x.png"]
    reasons = dict.fromkeys(links, "Links are not supported") | dict.fromkeys(outside, "Upload the image first")
    for path, reason in reasons.items():
        seen = ask(chunks=json.dumps({"data": [{**FILE, "path": path}]}).encode())
        assert (seen.status, seen.called) == (403, False) and reason in seen.detail, path[:60]


LINK = {"path": "http://127.0.0.1:9/a.png", "meta": {"_type": "gradio.FileData"}}
NESTED: dict[str, Any] = {
    "in a list": {"data": [None, [[LINK]]]},
    "in an object": {"data": [{"files": {"a": [{"b": LINK}]}}]},
    "in a file": {"data": [{**FILE, "more": LINK}]},
    "next to a file": {"data": [FILE, {**LINK, "url": "/gradio_api/file=x"}]},
    "the data of an event": {"data": [], "event_data": {"image": LINK}},
    "the whole body": LINK,
    "a list": [LINK],
    "without a mark": {"data": [{"path": LINK["path"]}]},
    "with a name of another case": {"data": [{**LINK, "path": "HTTPS://example.org/a.png"}]},
    "the second of two names": '{"data": [{"path": "a", "path": "http://a/b", "meta": {"_type": "gradio.FileData"}}]}',
}


def test_no_route_passes_a_link_on_however_deep_it_is() -> None:
    """Gradio would download it. The routes are those of the installed version."""
    source = inspect.getsource(gradio.routes)
    routes = {f"/gradio_api{path}" for path in re.findall(r'@router\.(?:post|put|patch|delete)\(\s*f?"(.*?)"', source)}
    routes |= {f"/gradio_api/{path}" for path in ("call/v2/explain", "run/explain/", "api/explain", "queue/join/")}
    assert {"/gradio_api/queue/join", "/gradio_api/component_server"} < routes and len(routes) > 10
    for path in (re.sub(r"\{.*?\}", "explain", route) for route in routes - {UPLOAD}):
        for where, body in NESTED.items():
            for encoding in ("utf-8", "utf-16"):
                content = (body if isinstance(body, str) else json.dumps(body)).encode(encoding)
                seen = ask(path=path, chunks=content)
                assert (seen.status, seen.called) == (403, False), (path, where, encoding)


# Answers


def test_a_cancelled_receive_still_returns_the_disconnect() -> None:
    """Starlette polls `receive` in a cancelled scope: a wrapper that awaits in between never returns the message."""
    import anyio

    heard: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(3):
            with anyio.CancelScope() as at_once:
                at_once.cancel()
                heard.append((await receive())["type"])
        await respond(send)

    ask("GET", "/gradio_api/queue/data", [], app=app)
    assert heard == ["http.disconnect"] * 3
