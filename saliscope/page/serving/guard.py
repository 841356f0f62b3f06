"""ASGI middleware in front of Gradio that refuses requests which Gradio would accept unchecked.

In Gradio 6.31, any host is answered and any website may read, bodies have no size limit, a multipart field without a
file name is kept in memory, any argument of any endpoint may be a link that the server fetches, a file object without
`meta` reaches a handler unchecked, and a dozen routes are open that this page does not use. The guard refuses them:

    421  other hosts than those of the page
    403  closed routes, links instead of files, POST to any route that is not listed or from other websites
    404  unknown endpoints, and the route of agents if they are off; before the body is read
    408  bodies that do not arrive in time
    413  bodies larger than `limits.body(path)`, by declared length and by counting
    429  too many requests or bodies of one address
    431  headers that are too long
    400  JSON that is invalid, too deep or too long, unknown files, unknown arguments, or uploads without a file name
    503  too many bodies in all
    507  uploads while the disk is full

It tells `saliscope.compute.jobs` who asks for a job and who listens. This is plain ASGI, because BaseHTTPMiddleware
would break event streams and hide disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import parse_qs

from saliscope import limits
from saliscope.compute.jobs import runs, visitors
from saliscope.compute.jobs.visitors import Visitor
from saliscope.errors import means_full_disk
from saliscope.page.serving import arguments
from saliscope.page.serving.door.bodies import Body, Budget
from saliscope.page.serving.door.hosts import FOREIGN_PAGE, FRAMES, NOT_HERE, Hosts
from saliscope.page.serving.door.json_bodies import BAD_JSON, check_json
from saliscope.page.serving.door.listeners import Stalled
from saliscope.page.serving.door.pace import Pace, Sessions
from saliscope.page.serving.door.refusals import App, Message, Receive, Refusal, Send
from saliscope.page.serving.door.uploads import FULL_DISK, Uploads

CLOSED_ROUTES = re.compile(
    r"/(gradio_api/)?(file[=/]+(https?|ftp|data|file):|proxy=|process_recording|deep_link|vibe|undo-vibe|monitoring|profiling"
    r"|custom_component|run-history|dev/|stream/|upload_progress)",
    re.IGNORECASE,
)
POST = re.compile(r"/gradio_api/(upload|queue/join|call/.+|run/.+|api/.+|component_server|cancel|reset)/?|/mcp/?")
UPLOAD = re.compile(r"/gradio_api/upload/?")
AGENTS = re.compile(r"/mcp/?")
CALL = re.compile(r"/gradio_api/call/.+")
"""The answer has the name of an event, under which its stream is requested."""
AT_ONCE = re.compile(r"/gradio_api/(run|api)/.+|/mcp/?")
"""Routes that answer a request for a job at once; the others answer in an event stream."""
STREAM = re.compile(r"/gradio_api/(?:queue/data|call/.+/(?P<event>[^/]+))")
PAGES = re.compile(r"/|/config|/gradio_api/(info|startup-events)/?")

CONTENT_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; media-src 'self' blob:; font-src 'self' data:; connect-src 'self' blob: data:; "
    "worker-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-src 'none'; "
    f"frame-ancestors {FRAMES}"
)
HEADERS = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)

CLOSE = (b"connection", b"close")
CLOSED = "This address is not available."
NO_AGENTS = "Agents are off. The page was started without --mcp."
NO_NAME = "A file in the upload has no name."
GRADIO_NO_NAME = "File is not an instance of GradioUploadFile"
"""What Gradio says of such a file; it would answer with an internal error."""
UNKNOWN_EVENT = "Unknown event. Reload the page."
TOO_LONG = "The request headers exceed the size limit."
TWO_LENGTHS = "The request has both Content-Length and Transfer-Encoding."
TOO_MANY_STREAMS = "Too many open event streams of this address. Close some of its pages."


class Guard:
    """The middleware for `launch(app_kwargs={"middleware": [Middleware(Guard)]})`; it also cleans the upload folder.

    `hosts` says where the page answers, and `agents` whether it offers tools for them.
    """

    def __init__(self, app: App, hosts: Hosts | None = None, agents: bool = False) -> None:
        self.app, self.hosts, self.agents = app, hosts or Hosts(), agents
        self.budgets = {kind: Budget(kind) for kind in limits.BODIES}
        self.pace, self.sessions = Pace(), Sessions()
        self.uploads = Uploads()
        self._streams: dict[str, int] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle a request, or the start and stop of the server."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:  # web sockets are not used
            await send({"type": "websocket.close", "code": 1008})

    async def _lifespan(self, scope: Message, receive: Receive, send: Send) -> None:
        tasks = [asyncio.create_task(self.uploads.keep_clean()), asyncio.create_task(_end_unheard())]
        try:
            await self.app(scope, receive, send)
        finally:
            for task in tasks:
                task.cancel()

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        has_body = any(pair[0] == b"transfer-encoding" for pair in scope["headers"])
        has_body |= dict(scope["headers"]).get(b"content-length", b"0") != b"0"
        counts = "" if scope["method"] != "POST" else "parts" if UPLOAD.fullmatch(path) else "values"
        body = Body(receive, limits.body(path), timed=has_body or scope["method"] == "POST", counts=counts)
        started = False

        async def send_checked(message: Message) -> None:
            nonlocal started
            if body.refusal and not started:  # the app treats the refusal as an internal error; drop its response
                return
            if message["type"] == "http.response.start":
                started = True
                end = () if body.complete else (CLOSE,)
                message = {**message, "headers": [*_without_own(message.get("headers", ())), *HEADERS, *end]}
            await (send(message) if body.complete else _send_before_rest(message, send, body))

        refusal = None
        try:
            scope = await self._admit(scope, path)
            await self._pass_on(scope, path, body, receive, send_checked)
        except Refusal as error:
            refusal = error
        except Exception as error:
            if isinstance(error, TypeError) and str(error) == GRADIO_NO_NAME:
                refusal = Refusal(400, NO_NAME)
            elif means_full_disk(error):
                refusal = Refusal(507, FULL_DISK)
            elif not body.refusal:
                raise
        refusal = refusal or body.refusal
        if refusal and not started:
            start, content = refusal.answer([*HEADERS, *(() if body.complete else (CLOSE,))])
            await send(start)
            await _send_before_rest(content, send, body)

    async def _admit(self, scope: Message, path: str) -> Message:
        """Return the scope of a request that may be read, with the address of the visitor.

        Errors   Refusal
        """
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        _check_headers(headers)
        given = dict(headers)
        if b"host" in given and not self.hosts.answers_request(given, scope):
            raise Refusal(421, NOT_HERE)
        if AGENTS.fullmatch(path) and not self.agents:
            raise Refusal(404, NO_AGENTS)
        _check_route(scope["method"], path)
        headers = self.hosts.forwarded(headers, scope)
        origin = (scope.get("state", {}).get("origin") or given.get(b"origin", b"")).decode("latin-1")
        if origin and self.hosts.is_foreign(origin, dict(headers)):
            if scope["method"] == "POST":
                raise Refusal(403, FOREIGN_PAGE)
            headers = [pair for pair in headers if pair[0] != b"origin"]
        address = self.hosts.address(headers, scope)
        is_job = scope["method"] == "POST"
        await self.pace.wait(address, 1.0 if is_job else limits.PAGE_COST if PAGES.fullmatch(path) else 0.1)
        return {**scope, "headers": headers, "state": {**scope.get("state", {}), "address": address}}

    async def _pass_on(self, scope: Message, path: str, body: Body, receive: Receive, send: Send) -> None:
        address: str = scope["state"]["address"]
        if scope["method"] == "GET" and (stream := STREAM.fullmatch(path)):
            name = stream["event"] or parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])[-1]
            visitor = visitors.find(name)
            with self._stream(address), visitor.listening() if visitor else contextlib.nullcontext():
                stalled = Stalled(body.receive, send)
                await stalled.run(self.app, scope)
            return
        size = body.check_declared(dict(scope["headers"]))
        if scope["method"] != "POST":
            await self.app(scope, body.receive, send)
            return
        kind = "uploads" if UPLOAD.fullmatch(path) else "agents" if AGENTS.fullmatch(path) else "json"
        async with self.budgets[kind].reserve(address, size):
            if kind == "uploads":
                await self.uploads.make_room(size)
                # Gradio would store the name of every upload whose progress may be requested, and never remove one.
                scope = {**scope, "query_string": b""}
                await self.app(scope, body.receive, self._noting_owner(address, send))
                return
            if kind == "agents" and size > limits.PARSED_HERE:  # with an image, which is stored
                await self.uploads.make_room(size)
            content = await body.read(size)
            if content is None:
                raise Refusal(400, BAD_JSON)
            session = await _checked_session(content, path)
            if self.sessions.is_new(session):
                await self.pace.wait(address, limits.SESSION_COST)
            visitor = visitors.arrive(session, address) if session else Visitor("", address)
            scope["state"]["visitor"] = visitor
            await self._ask(scope, path, content, receive, send)

    async def _ask(self, scope: Message, path: str, content: bytes, receive: Receive, send: Send) -> None:
        """Pass a request for a job on. One that is answered at once ends when the client leaves."""
        visitor: Visitor = scope["state"]["visitor"]
        gone = asyncio.ensure_future(receive()) if AT_ONCE.fullmatch(path) else None
        if gone:
            visitor = scope["state"]["visitor"] = Visitor(visitor.session, visitor.address, listeners=1)
            gone.add_done_callback(lambda _: visitor.leave())
        visitors.current.set(visitor)
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await (asyncio.shield(gone) if gone else receive())
            replayed = True
            return {"type": "http.request", "body": content, "more_body": False}

        async def send_noted(message: Message) -> None:
            if CALL.fullmatch(path) and message["type"] == "http.response.body":
                with contextlib.suppress(ValueError, KeyError, TypeError):  # an error is not an event
                    visitors.alias(json.loads(message.get("body", b""))["event_id"], visitor)
            await send(message)

        try:
            await self.app(scope, replay, send_noted)
        finally:
            if gone:
                gone.cancel()

    def _noting_owner(self, address: str, send: Send) -> Send:
        """Return a function that sends the answer to an upload, and notes whose files are in it."""

        async def note(message: Message) -> None:
            if message["type"] == "http.response.body":
                with contextlib.suppress(ValueError, TypeError):  # an error
                    self.uploads.own(json.loads(message.get("body", b"")), address)
            await send(message)

        return note

    @contextlib.contextmanager
    def _stream(self, address: str) -> Iterator[None]:
        """Count an event stream of an address.

        Errors   Refusal 429
        """
        if self._streams.get(address, 0) >= limits.STREAMS:
            raise Refusal(429, TOO_MANY_STREAMS)
        self._streams[address] = self._streams.get(address, 0) + 1
        try:
            yield
        finally:
            self._streams[address] -= 1
            if not self._streams[address]:
                del self._streams[address]


async def _end_unheard() -> None:
    while True:
        await asyncio.sleep(1.0)
        runs.end_unheard()


def _check_headers(headers: list[tuple[bytes, bytes]]) -> None:
    """Check the headers of a request.

    Errors   Refusal 431: too long. Refusal 400: a body with two lengths, which a proxy may read in another way.
             Refusal 403: a web socket.
    """
    if sum(len(name) + len(value) for name, value in headers) > limits.HEADERS:
        raise Refusal(431, TOO_LONG)
    names = [name.lower() for name, _ in headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise Refusal(400, TWO_LENGTHS)
    if any(name.lower() == b"upgrade" and value.lower() == b"websocket" for name, value in headers):
        raise Refusal(403, CLOSED)  # without a package for web sockets, uvicorn would answer as to any request


def _check_route(method: str, path: str) -> None:
    if CLOSED_ROUTES.match(path) or (method not in ("GET", "HEAD", "OPTIONS") and not POST.fullmatch(path)):
        raise Refusal(403, CLOSED)


def _without_own(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer without those that the guard sets, and without those for other websites."""
    own = {name for name, _ in HEADERS}
    return [
        pair for pair in headers if pair[0].lower() not in own and not pair[0].lower().startswith(b"access-control-")
    ]


async def _checked_session(content: bytes, path: str) -> str:
    """Check the body of a request and return the name of its session, or an empty string.

    Errors   Refusal
    """
    agents = bool(AGENTS.fullmatch(path))
    if len(content) > limits.PARSED_HERE:
        message = await asyncio.to_thread(check_json, content, agents=agents)
    else:
        message = check_json(content, agents=agents)
    if arguments.is_unknown(path, message):
        raise Refusal(404, arguments.unknown_message())
    if arguments.is_unknown_event(message):
        raise Refusal(404, UNKNOWN_EVENT)
    if error := arguments.error_message(path, message):
        raise Refusal(400, error)
    session = message.get("session_hash") if isinstance(message, dict) and not agents else None
    return session if isinstance(session, str) and not CALL.fullmatch(path) else ""


async def _send_before_rest(message: Message, send: Send, body: Body) -> None:
    """Send a message of an answer whose request is not complete; after the last one, receive the rest for a while.

    A client that still sends would lose the answer when the connection closes, and one that does not would keep it.
    """
    if message["type"] != "http.response.body" or message.get("more_body", False):
        await send(message)
        return
    await send({**message, "more_body": True})
    await body.discard()
    await send({"type": "http.response.body", "body": b"", "more_body": False})
