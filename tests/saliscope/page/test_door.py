"""What the guard checks before Gradio sees a request: bodies, hosts and websites, the pace, streams, and the disk."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from saliscope import limits
from saliscope.errors import Refused
from saliscope.page.serving import guard
from saliscope.page.serving.door import uploads
from saliscope.page.serving.door.bodies import Budget
from saliscope.page.serving.door.hosts import Hosts
from saliscope.page.serving.door.origins import hide_origins
from saliscope.page.serving.door.pace import Pace
from saliscope.page.serving.door.refusals import Refusal
from saliscope.page.serving.door.uploads import FULL_DISK, Uploads
from saliscope.page.serving.guard import Guard
from saliscope.session.jobs import visitors
from tests.saliscope.page.test_guard import JOIN, Seen, ask, reading
from tests.support.coroutines import finished

MB = limits.MB


class Client:
    """One request in an event loop, whose client sends its parts and then nothing more."""

    def __init__(self, path: str, parts: list[bytes], size: int | None = None, address: str = "1.1.1.1") -> None:
        self.parts, self.read, self.status, self.headers, self.answered = list(parts), 0, 0, dict[bytes, bytes](), 0.0
        length = [] if size is None else [(b"content-length", str(size).encode())]
        self.scope = {"type": "http", "method": "POST", "path": path, "headers": length, "client": (address, 1)}
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if self.parts:
            self.read += 1
            return {"type": "http.request", "body": self.parts.pop(0), "more_body": True}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            self.answered = time.monotonic()


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"BODY_PAUSE": 0.1, "BODY_WAIT": 0.3, "DISCARD_SECONDS": 0.05}.items():
        monkeypatch.setattr(limits, name, seconds)


# Bodies


def test_agents_that_are_off_get_404_before_their_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def work() -> Client:
        client = Client("/mcp", [], 42 * MB)
        await Guard(reading(Seen(), []))(client.scope, client.receive, client.send)
        return client

    client = finished(work())
    assert client.status == 404 and client.headers[b"connection"] == b"close"
    for method, path in (("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"), ("POST", "/mcp/")):
        off = ask(method, path, b"{}", agents=False)
        assert (off.status, off.called) == (404, False) and "--mcp" in off.detail
    assert ask(path="/mcp", chunks=b"{}", agents=True).status == 200


@pytest.mark.parametrize("path", ["/mcp", JOIN, "/gradio_api/call/explain", "/gradio_api/run/x", "/gradio_api/cancel"])
def test_too_many_values_are_refused_while_they_arrive(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JSON_DELIMITERS", 30_000)
    monkeypatch.setattr(guard, "check_json", lambda *_, **__: pytest.fail("parsed"))

    async def work() -> Client:
        client = Client(path, [b"[], " * 4000] * 60)
        await Guard(reading(Seen(), []), agents=True)(client.scope, client.receive, client.send)
        return client

    quick(monkeypatch)
    client = finished(work())
    assert client.status == 400 and client.headers[b"connection"] == b"close"


def test_a_large_body_arrives_unchanged_and_is_parsed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"image": "QUJD" * (MB // 2), "b": [1, 2]}).encode()
    parts = [body[start : start + 100_000] for start in range(0, len(body), 100_000)]
    for headers in ({"content-length": str(len(body))}, {}):
        seen = ask(path="/mcp", chunks=parts, headers=headers)
        assert seen.status == 200 and seen.body == body


def test_unfinished_bodies_end_and_leave_nothing_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve of one address: most are not even read; another address is answered at once."""
    quick(monkeypatch)
    seen = Seen()

    async def work() -> tuple[list[Client], Client, Guard]:
        shared = Guard(reading(seen, []), agents=True)
        clients = [Client("/mcp", [b" " * MB] * 3, 40 * MB) for _ in range(12)]
        tasks = [asyncio.create_task(shared(each.scope, each.receive, each.send)) for each in clients]
        await asyncio.sleep(0.02)
        other = Client(JOIN, [], 2, address="2.2.2.2")
        asking = asyncio.create_task(shared({**other.scope, "path": JOIN}, _whole(b"{}"), other.send))
        await asyncio.wait_for(asking, 1)
        assert sum(each.read for each in clients) <= 4, "one of them is read, the others wait"
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        return clients, other, shared

    clients, other, shared = finished(work())
    assert other.status == 200 and {each.status for each in clients} <= {408, 503}
    assert [budget.reserved for budget in shared.budgets.values()] == [0, 0, 0]


def _whole(body: bytes) -> Any:
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return parts.pop() if parts else {"type": "http.disconnect"}

    return receive


def test_a_body_that_trickles_ends_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    for path in (JOIN, "/gradio_api/upload"):
        seen = ask(path=path, chunks=[b" "] * 100, pause=0.02)
        assert seen.status == 408 and "in time" in seen.detail
    steady = ask(path="/gradio_api/upload", chunks=[bytes(limits.BODY_STEP)] * 10, pause=0.03)
    assert steady.status == 200, "slow, but it continues"


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


def test_an_upload_has_few_parts() -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\nx\r\n'
    for count, status in ((limits.UPLOAD_PARTS, 200), (limits.UPLOAD_PARTS + 1, 400)):
        text = part.upper() * count
        chunks = [text[start : start + 1001] for start in range(0, len(text), 1001)]
        assert ask(path="/gradio_api/upload", chunks=chunks).status == status


def test_a_connection_ends_if_the_answer_comes_before_the_end_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})

    async def work() -> Client:
        client = Client("/gradio_api/upload", [b"x"] * 3, 100)
        await asyncio.wait_for(Guard(app)(client.scope, client.receive, client.send), 5)
        return client

    client = finished(work())
    assert (client.status, client.headers[b"connection"], client.parts) == (400, b"close", [])


# Hosts and websites


def hosts(host: str | None = None, *names: str, proxies: int = 0) -> Hosts:
    return Hosts(host, names, proxies)


SCOPE = {"server": ("192.168.1.5", 7860)}


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1", "127.0.0.1:7860", "127.9.9.9", "[::1]", "[::1]:7860"],
)
def test_the_names_of_this_machine_are_always_answered(host: str) -> None:
    assert all(rule.answers(host, SCOPE) for rule in (hosts(), hosts("0.0.0.0"), hosts("page.example")))


FOREIGN = ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "localhost.evil.example", "", "a b"]
FOREIGN += ["x" * 300]
FOREIGN += ["evil@127.0.0.1", "127.0.0.1:x", "127.0.0.1:123456", "0x7f000001", "127.1", "2130706433", "[::1", "[evil]"]
FOREIGN += ["127.0.0.1,evil.example", "'\"><script>", "::1]", "localhost\0", "127.0.0.1/x", "null", "*", "ⓛocalhost"]


@pytest.mark.parametrize("host", FOREIGN)
def test_a_foreign_host_is_refused_on_every_route(host: str) -> None:
    for rule in (hosts(), hosts("0.0.0.0"), hosts("page.example"), hosts(None, "page.example")):
        assert not rule.answers(host, SCOPE)
    headers = {"host": host.encode().decode("latin-1")} if host.isascii() else {"host": "evil.example"}
    for method, path in (("GET", "/"), ("GET", "/config"), ("POST", JOIN), ("GET", "/gradio_api/queue/data")):
        seen = ask(method, path, b"{}" if method == "POST" else b"", headers=headers)
        assert (seen.status, seen.called) == (421, False) and "SALISCOPE_HOSTS" in seen.detail
        assert not host.strip("*:/[]x") or host not in seen.answer.decode()


def test_addresses_in_digits_and_the_name_of_the_machine_are_answered_on_all_interfaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Lab-PC.uni.example")
    everywhere, here = hosts("0.0.0.0"), hosts()
    for host in ("192.168.1.77:7860", "10.0.0.3", "203.0.113.7", "[2001:db8::7]:80"):
        assert everywhere.answers(host, SCOPE) and hosts("::").answers(host, SCOPE) and not here.answers(host, SCOPE)
    assert here.answers("192.168.1.5:1", SCOPE), "the address at which the connection has arrived"
    for host in ("lab-pc", "lab-pc.local:7860", "lab-pc.uni.example"):
        assert everywhere.answers(host, SCOPE) and not here.answers(host, SCOPE)
    assert hosts("Page.Example").answers("page.example:80", SCOPE)
    assert not hosts("page.example").answers("192.168.1.77", SCOPE)
    assert hosts(None, "Maps.example", "other.example:8443").answers("other.example", SCOPE)


def test_the_environment_names_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALISCOPE_HOSTS", " a.example, B.example:8443 ,")
    monkeypatch.setenv("SPACE_HOST", "me-maps.hf.space")
    monkeypatch.setenv("SALISCOPE_PROXIES", "2")
    found = Hosts()
    assert all(found.answers(host, {}) for host in ("a.example", "b.example", "me-maps.hf.space"))
    assert not found.answers("other.hf.space", {}) and found.proxies == 2
    monkeypatch.setenv("SALISCOPE_PROXIES", "one")
    with pytest.raises(Refused, match="SALISCOPE_PROXIES is 'one'"):
        Hosts()


ORIGINS = ["https://evil.example", "null", "file://", "http://localhost:3000", "http://127.0.0.1", "https://[::1]"]
ORIGINS += ["x", "http://page.example.evil.example:80", "chrome-extension://abc", "http://evil.example@page.example:80"]
CORS = [(b"Access-Control-Allow-Origin", b"*"), (b"access-control-allow-credentials", b"true"), (b"vary", b"Origin")]


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "[::1]:7860", "localhost:7860"])
@pytest.mark.parametrize("origin", ORIGINS)
def test_other_websites_can_neither_read_nor_ask(origin: str, host: str) -> None:
    headers = {"host": host, "origin": origin}
    read = ask("GET", "/config", b"", headers=headers, answered=CORS)
    assert read.status == 200 and not [name for name in read.headers if name.startswith(b"access-control-")]
    asked = {**headers, "access-control-request-method": "POST"}
    preflight = ask("OPTIONS", JOIN, b"", headers=asked, answered=CORS)
    assert not [name for name in preflight.headers if name.startswith(b"access-control-")]
    for path in (JOIN, "/gradio_api/upload", "/gradio_api/run/explain", "/mcp"):
        assert ask(path=path, headers=headers).status == 403


def test_the_proxy_of_a_space_may_change_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    space = hosts(None, "me-maps.hf.space")
    given = {"host": "service.internal", "x-forwarded-host": "me-maps.hf.space"}
    assert ask("GET", "/", b"", headers=given, hosts=space, client=("10.0.0.1", 1)).status == 421
    monkeypatch.setattr("saliscope.page.serving.door.hosts.ON_SPACE", True)
    assert ask("GET", "/", b"", headers=given, hosts=space, client=("10.0.0.1", 1)).status == 200
    foreign = {**given, "x-forwarded-host": "evil.example"}
    assert ask("GET", "/", b"", headers=foreign, hosts=space, client=("10.0.0.1", 1)).status == 421


def test_gradio_sees_no_origin_but_the_guard_does() -> None:
    """Its own middleware for other websites is in front of the guard, and answers `[::1]` and preflights."""
    from gradio.route_utils import CustomCORSMiddleware

    started = list[Any]()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            started.append((message["status"], [name for name, _ in message["headers"] if b"access-control" in name]))

    app = SimpleNamespace(middleware_stack=CustomCORSMiddleware(Guard(reading(Seen(), []))))
    hide_origins(app)
    headers = [(b"host", b"[::1]:7860"), (b"origin", b"https://evil.example"), (b"content-length", b"2")]
    for method in ("GET", "OPTIONS", "POST"):
        scope = {"type": "http", "method": method, "path": JOIN, "headers": headers, "query_string": b""}
        finished(app.middleware_stack(scope, _whole(b"{}"), send))
    assert started == [(200, []), (200, []), (403, [])]
    with pytest.raises(RuntimeError):
        hide_origins(SimpleNamespace())


def test_the_page_itself_may_ask() -> None:
    for host in ("127.0.0.1:7860", "[::1]:7860", "localhost:7860"):
        assert ask(headers={"host": host, "origin": f"http://{host}"}).status == 200
    public = hosts(None, "maps.example")
    for origin in ("https://maps.example", "https://maps.example:8443"):
        assert ask(headers={"host": "127.0.0.1:7860", "origin": origin}, hosts=public).status == 200
    behind = {"host": "127.0.0.1:7860", "x-forwarded-host": "maps.example", "origin": "https://evil.example"}
    assert ask(headers=behind, hosts=public, client=("10.0.0.1", 1)).status == 403


@pytest.mark.parametrize(
    ("peer", "forwarded", "proxies", "address"),
    [
        ("8.8.8.8", "1.2.3.4", 0, "8.8.8.8"),
        ("127.0.0.1", "1.2.3.4", 1, "1.2.3.4"),
        ("10.0.0.2", "6.6.6.6, 1.2.3.4", 1, "1.2.3.4"),
        ("10.0.0.2", "6.6.6.6; 1.2.3.4", 1, "1.2.3.4"),  # two headers
        ("10.0.0.2", "6.6.6.6, 1.2.3.4, 10.0.0.7", 2, "1.2.3.4"),
        ("10.0.0.2", "1.2.3.4", 3, "1.2.3.4"),
        ("8.8.8.8", "1.2.3.4", 1, "8.8.8.8"),
        ("10.0.0.2", "", 1, "10.0.0.2"),
        ("10.0.0.2", "<script>", 1, "unknown"),
        ("10.0.0.2", "1.2.3.4:5678", 1, "1.2.3.4"),
        ("10.0.0.2", "[2001:db8:1:2:3:4:5:6]:80", 1, "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "", 0, "2001:db8:1:2::/64"),
        ("::ffff:1.2.3.4", "", 0, "1.2.3.4"),
        ("fe80::1%eth0", "", 0, "fe80::/64"),
    ],
)
def test_the_address_of_a_visitor_is_read_from_the_right(peer: str, forwarded: str, proxies: int, address: str) -> None:
    headers = [(b"x-forwarded-for", part.encode()) for part in (forwarded.split("; ") if forwarded else [])]
    assert hosts(proxies=proxies).address(headers, {"client": (peer, 1)}) == address


# The pace of an address


def test_an_address_that_sends_too_fast_waits_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RATE": 50.0, "BURST": 5.0, "WAITING_REQUESTS": 4}.items():
        monkeypatch.setattr(limits, name, value)

    async def work() -> None:
        pace, passed = Pace(), list[int]()

        async def send(number: int) -> None:
            await pace.wait("6.6.6.6")
            passed.append(number)

        tasks = [asyncio.create_task(send(number)) for number in range(10)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert passed == [0, 1, 2, 3, 4]
        await asyncio.wait_for(pace.wait("1.1.1.1"), 1)
        assert len(passed) == 5, "another address does not wait"
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert passed == list(range(9))
        assert isinstance(done[-1], Refusal) and done[-1].status == 429
        await pace.wait("6.6.6.6")
        assert not pace._waiting

    finished(work())


def test_the_first_event_of_a_session_counts_as_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio creates the state of all components for it, and again if it has kept that of others since."""
    monkeypatch.setattr(limits, "SESSIONS", 2)
    costs: list[float] = []

    async def note(self: Pace, address: str, cost: float = 1.0) -> None:
        costs.append(cost)

    monkeypatch.setattr(Pace, "wait", note)
    guarded = Guard(reading(Seen(), []))
    for session in ("a", "b", "a", "c", "a", "b"):
        assert ask(chunks=json.dumps({"session_hash": session}).encode(), guarded=guarded).status == 200
    more = limits.SESSION_COST
    assert costs == [1, more, 1, more, 1, 1, more, 1, 1, more]
    costs.clear()
    for _ in range(2):
        ask(path="/gradio_api/call/explain", guarded=guarded)
    assert costs == [1, more, 1, more], "without a name, each event has a session of its own"


# Streams and visitors


def test_a_stream_that_is_not_read_counts_as_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEND_SECONDS", 0.05)
    visitor, parts = visitors.arrive("never-reads", "1.1.1.1"), list[int]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert visitor.is_listening
        await send({"type": "http.response.start", "status": 200, "headers": []})
        sending = asyncio.create_task(send({"type": "http.response.body", "body": bytes(MB), "more_body": True}))
        assert (await asyncio.wait_for(receive(), 5))["type"] == "http.disconnect"
        sending.cancel()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            parts.append(len(message["body"]))
            await asyncio.sleep(10 if len(parts) > 2 else 0)

    async def receive() -> Any:
        await asyncio.sleep(10)

    query = b"session_hash=never-reads"
    scope = {"type": "http", "method": "GET", "path": "/gradio_api/queue/data", "headers": [], "query_string": query}
    finished(asyncio.wait_for(Guard(app)(scope, receive, send), 5))
    assert max(parts) <= 64 * 1024 and len(parts) == 3 and not visitor.is_listening


def test_the_streams_of_an_address_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAMS", 0)
    assert ask("GET", "/gradio_api/queue/data", b"").status == 429
    assert ask("GET", "/config", b"").status == 200


def test_the_listener_of_a_call_is_found_by_its_event() -> None:
    found = list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(scope["state"]["visitor"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"event_id": "event1"}'})

    assert ask(path="/gradio_api/call/explain", app=app, client=("1.2.3.4", 1)).status == 200
    assert found[0].address == "1.2.3.4" and not found[0].is_listening

    async def listening(scope: Any, receive: Any, send: Any) -> None:
        found.append(found[0].is_listening)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    ask("GET", "/gradio_api/call/explain/event1", b"", app=listening)
    assert found[1] is True and not found[0].is_listening


def test_a_request_that_is_answered_at_once_listens_until_it_is_left() -> None:
    found = list[bool]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        visitor = scope["state"]["visitor"]
        assert visitors.current.get() is visitor
        await receive()
        found.append(visitor.is_listening)
        left.set()
        await receive()
        await asyncio.sleep(0)
        found.append(visitor.is_listening)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    left = asyncio.Event()
    parts = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> Any:
        if parts:
            return parts.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        return None

    scope = {"type": "http", "method": "POST", "path": "/gradio_api/run/x", "headers": [], "client": ("1.2.3.4", 1)}
    finished(asyncio.wait_for(Guard(app)(scope, receive, send), 5))
    assert found == [True, False]


# The disk


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr(limits, "UPLOADS", 1000)
    monkeypatch.setattr(limits, "UPLOADED_FILES", 1000)
    monkeypatch.setattr(limits, "DISK_RESERVE", 0)
    return tmp_path


def store(folder: Path, number: int, size: int, ago: float) -> Path:
    path = folder / f"{number:064x}" / "image.png"
    path.parent.mkdir()
    path.write_bytes(bytes(size))
    for each in (path, path.parent):
        os.utime(each, (time.time() - ago, time.time() - ago))
    return path


def room(size: int, owners: dict[Path, str] | None = None) -> None:
    shared = Uploads()
    for path, owner in (owners or {}).items():
        shared.own([str(path)], owner)
    shared._size = limits.UPLOADS  # as after many uploads
    finished(shared.make_room(size))


def test_the_least_recently_used_uploads_make_room(folder: Path) -> None:
    old, older, new = (store(folder, number, 300, ago) for number, ago in ((1, 900), (2, 1800), (3, 1)))
    room(300)
    assert (old.exists(), older.exists(), new.exists()) == (True, False, True)
    uploads.touch(str(old))
    with pytest.raises(Refusal, match="no room") as caught:
        room(800)
    assert caught.value.status == 507 and old.exists() and new.exists(), "they are in use"


def test_the_address_with_the_most_loses_its_files_first(folder: Path) -> None:
    theirs = [store(folder, number, 200, 400 - number) for number in range(3)]
    mine = store(folder, 9, 200, 3000)
    room(300, {**dict.fromkeys(theirs, "6.6.6.6"), mine: "1.1.1.1"})
    assert mine.exists() and not theirs[0].exists() and theirs[2].exists()


def test_an_address_cannot_keep_the_folder_full(folder: Path) -> None:
    """All files were used in the last minutes, but most of them belong to one address."""
    theirs = [store(folder, number, 200, 40 - number) for number in range(4)]
    mine = store(folder, 9, 200, 60)
    room(200, {**dict.fromkeys(theirs, "6.6.6.6"), mine: "1.1.1.1"})
    assert mine.exists() and [path.exists() for path in theirs] == [False, True, True, True]


def test_the_number_of_files_is_limited_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UPLOADED_FILES", 5)
    paths = [store(folder, number, 1, 1000 - number) for number in range(8)]
    room(1)
    assert [path.exists() for path in paths] == [False] * 4 + [True] * 4


def test_results_are_removed_too_although_nobody_asks_for_their_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SWEEP", 0.01)
    for number in range(4):
        path = folder / f"tmp{number}-map.npy"
        path.write_bytes(bytes(400))
        os.utime(path, (time.time() - 1000 + number, time.time() - 1000 + number))

    async def clean() -> None:
        task = asyncio.create_task(Uploads().keep_clean())
        for _ in range(500):
            await asyncio.sleep(0.01)
            if len(os.listdir(folder)) == 2:
                break
        task.cancel()

    finished(clean())
    assert sorted(os.listdir(folder)) == ["tmp2-map.npy", "tmp3-map.npy"]


def test_using_an_upload_keeps_it(folder: Path) -> None:
    path = store(folder, 1, 10, 7200)
    assert ask(chunks=json.dumps({"data": [{"path": str(path), "meta": {"_type": "gradio.FileData"}}]}).encode()).status
    assert uploads.sweep(folder, age=3600) == 0 and path.exists()


def test_a_full_disk_is_one_message(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from saliscope.session import engine, messages

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/secret/path")

    seen = ask(path="/gradio_api/upload", chunks=b"x", app=app)
    assert (seen.status, seen.detail) == (507, FULL_DISK) and b"secret" not in seen.answer
    assert engine.message_of(OSError(errno.ENOSPC, "x"), "unknown") == messages.FULL_DISK
    monkeypatch.setattr(uploads.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 0}))
    assert uploads.is_full() and ask(path="/gradio_api/upload", chunks=b"x").status == 507
    assert ask(chunks=b"{}").status == 200, "everything else works"


def test_another_version_of_gradio_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradio import processing_utils

    monkeypatch.delattr(processing_utils, "async_ssrf_protected_get")
    with pytest.raises(RuntimeError, match=r"no gradio\.processing_utils\.async_ssrf_protected_get"):
        guard.install_no_links()


def test_uploads_are_in_a_folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("GRADIO_TEMP_DIR", "/given")
    uploads.use_own_folder()
    assert os.environ["GRADIO_TEMP_DIR"] == "/given"
    chosen = []
    for _ in range(2):
        monkeypatch.delenv("GRADIO_TEMP_DIR")
        uploads.use_own_folder()
        chosen.append(Path(os.environ["GRADIO_TEMP_DIR"]))
    assert chosen[0] == chosen[1] and chosen[0].parent == tmp_path and chosen[0].stat().st_mode & 0o077 == 0
    chosen[0].rmdir()
    chosen[0].symlink_to(tmp_path)
    monkeypatch.delenv("GRADIO_TEMP_DIR")
    uploads.use_own_folder()
    assert Path(os.environ["GRADIO_TEMP_DIR"]) not in (chosen[0], tmp_path), "a link of another user is not followed"
