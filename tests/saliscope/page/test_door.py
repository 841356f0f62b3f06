"""Who may use the page: hosts and websites, the address of a visitor, its pace, and who listens to an answer."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from saliscope import limits
from saliscope.compute.jobs import visitors
from saliscope.errors import Refused
from saliscope.page.serving.door import hosts as rules
from saliscope.page.serving.door.hosts import Hosts
from saliscope.page.serving.door.origins import hide_origins
from saliscope.page.serving.door.pace import Pace
from saliscope.page.serving.door.refusals import Refusal
from saliscope.page.serving.guard import Guard
from tests.saliscope.page.guarded import JOIN, MB, UPLOAD, Seen, ask, reading, respond, send_request
from tests.support.coroutines import finished

# Hosts and websites; test_attack.py asks the whole page

HERE, PAGE = Hosts(names=()), Hosts("page.example", ())
NAMED = Hosts(None, ("page.example", "Maps.example", "other.example:8443"))
SCOPE = {"server": ("192.168.1.5", 7860)}
LOCAL = ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1", "127.0.0.1:7860", "127.9.9.9", "[::1]", "[::1]:7860"]
FOREIGN = ["evil.example:7860", "127.0.0.1.evil.example", "localhost.evil.example", "", "a b", "x" * 300, "[::1"]
FOREIGN += ["[evil]", "127.0.0.1,evil.example", "'\"><script>", "::1]", "localhost\0", "127.0.0.1/x", "null", "*"]
FOREIGN += ["evil@127.0.0.1", "127.0.0.1:x", "127.0.0.1:123456", "0x7f000001", "127.1", "2130706433", "ⓛocalhost"]


def test_the_page_answers_under_its_own_names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Lab-PC.uni.example")
    everywhere = (Hosts("0.0.0.0", ()), Hosts("::", ()))
    rules = (HERE, PAGE, NAMED, *everywhere)
    digits = ["192.168.1.77:7860", "10.0.0.3", "[2001:db8::7]:80"]
    answered: dict[str, tuple[Hosts, ...]] = dict.fromkeys(LOCAL, rules) | dict.fromkeys(FOREIGN, ())
    answered |= dict.fromkeys([*digits, "lab-pc", "lab-pc.local:7860", "lab-pc.uni.example"], everywhere)
    answered |= dict.fromkeys(["page.example:80", "Page.Example"], (PAGE, NAMED))
    answered |= dict.fromkeys(["maps.example", "other.example"], (NAMED,))
    for host, by in answered.items():
        assert tuple(rule for rule in rules if rule.answers(host, SCOPE)) == by, host
    assert [rule.is_public for rule in rules] == [False, True, True, True, True]
    assert HERE.answers("192.168.1.5:1", SCOPE), "the address at which the connection has arrived"


def test_a_foreign_host_is_refused_on_every_route() -> None:
    for method, path in (("GET", "/"), ("GET", "/config"), ("POST", JOIN), ("GET", "/gradio_api/queue/data")):
        seen = ask(method, path, headers={"host": "'\"><script>"})
        assert (seen.status, seen.called) == (421, False) and "SALISCOPE_HOSTS" in seen.detail
        assert "script" not in seen.detail


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


def test_the_proxy_of_a_space_may_change_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def status(forwarded: str) -> int:
        headers = {"host": "service.internal", "x-forwarded-host": forwarded}
        space = Hosts(None, ("me-maps.hf.space",))
        return ask("GET", "/", b"", headers=headers, hosts=space, client=("10.0.0.1", 1)).status

    assert status("me-maps.hf.space") == 421
    monkeypatch.setattr(rules, "ON_SPACE", True)
    assert [status(host) for host in ("me-maps.hf.space", "evil.example")] == [200, 421]


CORS = [(b"Access-Control-Allow-Origin", b"*"), (b"access-control-allow-credentials", b"true")]
THEIRS = [*CORS, (b"X-Content-Type-Options", b"x"), (b"content-type", b"a/b")]


def test_only_the_page_itself_may_ask() -> None:
    """Scripts of other websites can neither read an answer nor start a job; Gradio allows those of this machine."""
    origins = ["https://evil.example", "null", "file://", "x", "http://localhost:3000", "chrome-extension://abc"]
    origins += ["http://page.example.evil.example:80", "http://evil.example@page.example:80"]
    for host in ("127.0.0.1:7860", "[::1]:7860", "localhost:7860"):
        assert ask(headers={"host": host, "origin": f"http://{host}"}).status == 200
        for origin in origins:
            headers = {"host": host, "origin": origin}
            read = ask("GET", "/config", b"", headers=headers, answered=THEIRS)
            assert read.status == 200 and not any(b"access-control-" in name for name in read.headers), origin
            assert read.headers[b"x-content-type-options"] == [b"nosniff"] and b"content-type" in read.headers
            for path in (JOIN, UPLOAD, "/gradio_api/run/explain", "/mcp"):
                assert ask(path=path, headers=headers).status == 403, (origin, path)

    for origin in ("https://maps.example", "https://maps.example:8443"):
        assert ask(headers={"host": "127.0.0.1:7860", "origin": origin}, hosts=NAMED).status == 200
    behind = {"host": "127.0.0.1:7860", "x-forwarded-host": "maps.example", "origin": "https://evil.example"}
    assert ask(headers=behind, hosts=NAMED, client=("10.0.0.1", 1)).status == 403


def test_another_origin_stays_known_where_gradio_does_not_see_it() -> None:
    app = SimpleNamespace(middleware_stack=Guard(reading(Seen())))
    hide_origins(app)
    headers = {"host": "[::1]:7860", "origin": "https://evil.example"}
    for method, status in (("GET", 200), ("POST", 403)):
        seen = Seen()
        finished(send_request(app.middleware_stack, seen, method, headers=headers))
        assert seen.status == status
    with pytest.raises(RuntimeError):
        hide_origins(SimpleNamespace())


def test_only_a_proxy_says_which_host_was_requested_and_only_a_known_one() -> None:
    public = Hosts("page.example", ("page.example", "maps.example"))

    def kept(client: str = "10.0.0.2", **given: str) -> dict[str, str]:
        """The headers of proxies that reach the app of a request to the host page.example."""
        found: dict[str, str] = {}

        async def app(scope: Any, receive: Any, send: Any) -> None:
            found.update({name.decode(): value.decode() for name, value in scope["headers"]})
            await respond(send)

        headers = {"host": "page.example"} | {name.replace("_", "-"): value for name, value in given.items()}
        assert ask("GET", "/", headers=headers, app=app, client=(client, 1), hosts=public).status == 200
        assert found.pop("host") == "page.example"
        return found

    for host in ("maps.example", "Maps.example, page.example"):
        assert kept(x_forwarded_host=host) == {"x-forwarded-host": host}
        assert kept("8.8.8.8", x_forwarded_host=host) == {}
    for host in ("evil.example, page.example", "page.example.evil.example", "page.example:1", ""):
        assert kept(x_forwarded_host=host) == {}
    assert kept(x_gradio_server="http://evil.example") == kept(x_forwarded_proto="<script>") == {}
    assert kept(x_forwarded_proto="https") == {"x-forwarded-proto": "https"}
    assert kept("8.8.8.8", x_forwarded_proto="https") == {}


VISITORS = [
    # peer, X-Forwarded-For, trusted proxies, and the address
    ("8.8.8.8", ["1.2.3.4"], 0, "8.8.8.8"),
    ("127.0.0.1", ["1.2.3.4"], 1, "1.2.3.4"),
    ("10.0.0.2", ["6.6.6.6", "1.2.3.4"], 1, "1.2.3.4"),
    ("10.0.0.2", ["6.6.6.6, 1.2.3.4, 10.0.0.7"], 2, "1.2.3.4"),
    ("10.0.0.2", ["1.2.3.4"], 3, "1.2.3.4"),
    ("8.8.8.8", ["1.2.3.4"], 1, "8.8.8.8"),
    ("10.0.0.2", [], 1, "10.0.0.2"),
    ("10.0.0.2", ["<script>"], 1, "unknown"),
    ("10.0.0.2", ["1.2.3.4:5678"], 1, "1.2.3.4"),
    ("10.0.0.2", ["[2001:db8:1:2:3:4:5:6]:80"], 1, "2001:db8:1:2::/64"),
    ("2001:db8:1:2:ffff::9", [], 0, "2001:db8:1:2::/64"),
    ("::ffff:1.2.3.4", [], 0, "1.2.3.4"),
    ("fe80::1%eth0", [], 0, "fe80::/64"),
]


def test_the_address_of_a_visitor_is_read_from_the_right() -> None:
    for peer, forwarded, proxies, address in VISITORS:
        headers = [(b"x-forwarded-for", part.encode()) for part in forwarded]
        found = Hosts(proxies=proxies).address(headers, {"client": (peer, 1)})
        assert found == address, (peer, forwarded, proxies)


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
        await asyncio.wait_for(pace.wait("1.1.1.1"), 1)
        assert passed == [0, 1, 2, 3, 4], "another address does not wait"
        *_, last = await asyncio.gather(*tasks, return_exceptions=True)
        assert passed == list(range(9)) and isinstance(last, Refusal) and last.status == 429
        again = [asyncio.create_task(send(number)) for number in range(20)]
        await asyncio.sleep(0)
        assert sum(not task.done() for task in again) == 4, "as many as before"
        await asyncio.gather(*again, return_exceptions=True)

    finished(work())


def test_the_first_event_of_a_session_counts_as_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio creates the state of all components for it, and again if it has kept that of others since."""
    monkeypatch.setattr(limits, "SESSIONS", 2)
    costs: list[float] = []

    async def note(self: Pace, address: str, cost: float = 1.0) -> None:
        costs.append(cost)

    monkeypatch.setattr(Pace, "wait", note)
    guarded, more = Guard(reading(Seen())), limits.SESSION_COST
    for session in ("a", "b", "a", "c", "a", "b"):
        assert ask(chunks=json.dumps({"session_hash": session}).encode(), guarded=guarded).status == 200
    assert costs == [1, more, 1, more, 1, 1, more, 1, 1, more]
    costs.clear()
    for _ in range(2):
        ask(path="/gradio_api/call/explain", guarded=guarded)
    assert costs == [1, more, 1, more], "without a name, each event has a session of its own"


# Listeners


def test_a_stream_that_is_not_read_counts_as_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEND_SECONDS", 0.05)
    visitor, parts = visitors.arrive("never-reads", "1.1.1.1"), list[int]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert visitor.is_listening
        await respond(send)
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
    assert [ask("GET", path, b"").status for path in ("/gradio_api/queue/data", "/config")] == [429, 200]


def test_the_listener_of_a_call_is_found_by_its_event() -> None:
    found = list[visitors.Visitor]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            found.append(scope["state"]["visitor"])
        assert found[0].is_listening is (scope["method"] == "GET")
        await respond(send, 200, [], b'{"event_id": "event1"}')

    assert ask(path="/gradio_api/call/explain", app=app, client=("1.2.3.4", 1)).status == 200
    assert ask("GET", "/gradio_api/call/explain/event1", b"", app=app).status == 200
    assert found[0].address == "1.2.3.4" and not found[0].is_listening


def test_a_request_that_is_answered_at_once_listens_until_it_is_left() -> None:
    found, left = list[bool](), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        visitor = scope["state"]["visitor"]
        assert visitors.current.get() is visitor
        await receive()
        found.append(visitor.is_listening)
        left.set()
        await receive()
        await asyncio.sleep(0)
        found.append(visitor.is_listening)
        await respond(send)

    ask(path="/gradio_api/run/explain", app=app, left=left, client=("1.2.3.4", 1))
    assert found == [True, False]
