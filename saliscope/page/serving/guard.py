"""ASGI middleware in front of Gradio that refuses requests which Gradio would accept unchecked.

In Gradio 6.31, bodies have no size limit, a multipart field without a file name is kept in memory, any argument of any
endpoint may be a link that the server fetches, a file object without `meta` reaches a handler unchecked, and a dozen
routes are open that this page does not use. The guard refuses them:

    403  closed routes, links instead of files, POST to any route that is not listed
    413  bodies larger than `limits.body(path)`, by declared length and by counting
    408  bodies that do not arrive in time
    404  unknown endpoints
    431  headers that are too long
    400  JSON that is invalid, too deep or too long, unknown files, unknown arguments, or uploads without a file name

This is plain ASGI, because BaseHTTPMiddleware would break event streams and hide disconnects. As a second line of
defense, `install_no_links` disables the functions that fetch links.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import math
import os
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NoReturn

from saliscope import limits
from saliscope.page.serving import arguments

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

CLOSED_ROUTES = re.compile(
    r"/(gradio_api/)?(file[=/]+(https?|ftp|data|file):|proxy=|process_recording|deep_link|vibe|undo-vibe|monitoring|profiling"
    r"|custom_component|run-history|dev/|stream/)",
    re.IGNORECASE,
)
POST = re.compile(r"/gradio_api/(upload|queue/join|call/.+|run/.+|api/.+|component_server|cancel|reset)/?|/mcp/?")
NO_JSON = re.compile(r"/gradio_api/upload/?")
AGENTS = re.compile(r"/mcp/?")
UPLOADED = re.compile(r"[0-9a-f]{64}")  # Gradio names the folder of an upload after a hash of its content
FORWARDED = re.compile(rb"[\w.,:/ \[\]-]*")  # hosts, addresses, ports, schemes and paths
HOSTS = {name.strip().lower() for name in os.environ.get("SALISCOPE_HOSTS", "").split(",")} - {""}
"""Names of the page behind a proxy that changes the header Host."""
ON_SPACE = bool(os.environ.get("SPACE_ID"))
"""On a Hugging Face Space every request comes from the proxy of the platform, which knows the name of the page."""
SESSION = re.compile(rf"[A-Za-z0-9_-]{{0,{limits.SESSION_NAME}}}")

CONTENT_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; media-src 'self' blob:; font-src 'self' data:; connect-src 'self' blob: data:; "
    "worker-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-src 'none'; "
    "frame-ancestors 'self' https://huggingface.co https://*.hf.space"
)
HEADERS = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)

CLOSED = "This address is not available."
TOO_BIG = "The request body exceeds the size limit."
TOO_LATE = "The request body did not arrive in time."
BAD_JSON = "The request body is not valid JSON."
TOO_DEEP = "The JSON has too many values or is nested too deeply."
NO_FILE = "Unknown file. Upload the image first."
NO_NAME = "A file in the upload has no name."
GRADIO_NO_NAME = "File is not an instance of GradioUploadFile"
"""What Gradio says of such a file; it would answer with an internal error."""
NO_LINKS = "Links are not supported. Download the image and upload the file."
UNKNOWN_EVENT = "Unknown event. Reload the page."
TOO_LONG = "The request headers exceed the size limit."
TWO_LENGTHS = "The request has both Content-Length and Transfer-Encoding."
BAD_SESSION = "Invalid session name."


class Refusal(Exception):
    """A refused request, with its HTTP status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Guard:
    """The middleware for `launch(app_kwargs={"middleware": [Middleware(Guard)]})`; it also cleans the upload folder."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle a request, or the start and stop of the server."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:  # web sockets are not used
            await send({"type": "websocket.close", "code": 1008})

    async def _lifespan(self, scope: Message, receive: Receive, send: Send) -> None:
        sweeper = asyncio.create_task(_sweep_regularly())
        try:
            await self.app(scope, receive, send)
        finally:
            sweeper.cancel()

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        body = _Body(receive, limits.body(path), timed=scope["method"] == "POST")
        started = False

        async def send_checked(message: Message) -> None:
            nonlocal started
            if body.refusal and not started:  # the app treats the refusal as an internal error; drop its response
                return
            if message["type"] == "http.response.start":
                started, own_names = True, {name for name, _ in HEADERS}
                app_headers = [pair for pair in message.get("headers", ()) if pair[0].lower() not in own_names]
                message = {**message, "headers": [*app_headers, *HEADERS]}
            await send(message)

        refusal = None
        try:
            _check_route(scope["method"], path)
            scope = {**scope, "headers": _checked_headers(scope)}
            body.check_declared(dict(scope["headers"]))
            source: Receive = body.receive
            if scope["method"] == "POST" and not NO_JSON.fullmatch(path):
                source = await _checked_json(body, receive, path)
            await self.app(scope, source, send_checked)
        except Refusal as error:
            refusal = error
        except Exception as error:
            if isinstance(error, TypeError) and str(error) == GRADIO_NO_NAME:
                refusal = Refusal(400, NO_NAME)
            elif not body.refusal:
                raise
        refusal = refusal or body.refusal
        if refusal and not started:
            await _refuse(send, refusal)


class _Body:
    """A request body with a size limit and a time limit.

    The time limit only applies if a body is expected: the event stream of a GET request polls for a disconnect, and a
    timer would hide it.
    """

    def __init__(self, receive: Receive, limit: int, *, timed: bool) -> None:
        self._receive, self._limit = receive, limit
        self._received, self._complete = 0, not timed
        self._deadline = time.monotonic() + limits.BODY_SECONDS
        self.refusal: Refusal | None = None

    def check_declared(self, headers: dict[bytes, bytes]) -> None:
        """Refuse a body whose declared length exceeds the limit; a missing or wrong length is found by counting."""
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > self._limit:
            self._fail(413, TOO_BIG)

    async def receive(self) -> Message:
        """Return the next message; after the end of the body, wait for a disconnect without a time limit."""
        if self._complete:
            message = await self._receive()
        else:
            message = await self._in_time()
        self._received += len(message.get("body", b""))
        self._complete = self._complete or not message.get("more_body", False)
        if self._received > self._limit:
            self._fail(413, TOO_BIG)
        return message

    async def _in_time(self) -> Message:
        try:
            return await asyncio.wait_for(self._receive(), max(0.0, self._deadline - time.monotonic()))
        except asyncio.TimeoutError:  # in Python 3.10 another class than TimeoutError
            self._fail(408, TOO_LATE)

    def _fail(self, status: int, message: str) -> NoReturn:
        self.refusal = Refusal(status, message)
        raise self.refusal


def _check_route(method: str, path: str) -> None:
    if CLOSED_ROUTES.match(path) or (method not in ("GET", "HEAD", "OPTIONS") and not POST.fullmatch(path)):
        raise Refusal(403, CLOSED)


def _checked_headers(scope: Message) -> list[tuple[bytes, bytes]]:
    """Return the headers without those of a proxy, unless a proxy may have sent them.

    Gradio writes X-Forwarded-Host and X-Gradio-Server into the page, so a visitor could make a cache store a page with
    another host. The second one is for a server of Gradio that is not used here.

    Errors   Refusal 431: too long. Refusal 400: a body with two lengths, which a proxy may read in another way.
    """
    headers: list[tuple[bytes, bytes]] = list(scope["headers"])
    if sum(len(name) + len(value) for name, value in headers) > limits.HEADERS:
        raise Refusal(431, TOO_LONG)
    names = [name.lower() for name, _ in headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise Refusal(400, TWO_LENGTHS)
    if any(name.lower() == b"upgrade" and value.lower() == b"websocket" for name, value in headers):
        raise Refusal(403, CLOSED)  # without a package for web sockets, uvicorn would answer as to any request
    trusted, host = _is_private(scope.get("client")), dict(headers).get(b"host", b"")

    def is_kept(name: bytes, value: bytes) -> bool:
        if name == b"x-forwarded-host" and not _is_own_host(value, host):
            return False
        return not name.startswith(b"x-forwarded-") or (trusted and FORWARDED.fullmatch(value) is not None)

    return [(name, value) for name, value in headers if name != b"x-gradio-server" and is_kept(name, value)]


def _is_own_host(forwarded: bytes, host: bytes) -> bool:
    """Return whether a forwarded host is the one of the request or of the administrator, or comes from a Space."""
    first = forwarded.partition(b",")[0].strip()
    return ON_SPACE or first == host or first.decode("latin-1").lower() in HOSTS


def _is_private(client: Any) -> bool:
    """Return whether a request comes from this machine or a private network, as those of a proxy do."""
    try:
        return ipaddress.ip_address(client[0]).is_private
    except (TypeError, ValueError, IndexError):  # a socket of this machine has no address
        return client is None


async def _checked_json(body: _Body, receive: Receive, path: str) -> Receive:
    """Read and check the whole body; return a `receive` function that replays it and then forwards messages."""
    chunks, more = [], True
    while more:
        part = await body.receive()
        if part["type"] == "http.disconnect":
            raise Refusal(400, BAD_JSON)
        chunks.append(part.get("body", b""))
        more = part.get("more_body", False)
    content, replayed = b"".join(chunks), False
    message = check_json(content, agents=bool(AGENTS.fullmatch(path)))
    if arguments.has_endpoints() and arguments.is_unknown(path, message):
        raise Refusal(404, arguments.unknown_message())
    if arguments.is_unknown_event(message):
        raise Refusal(404, UNKNOWN_EVENT)
    if error := arguments.error_message(path, message):
        raise Refusal(400, error)

    async def replay() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": content, "more_body": False}

    return replay


def check_json(text: bytes, *, agents: bool = False) -> Any:
    """Parse and check a JSON body. Agents may send images as data, which `uploads` decodes.

    Errors   Refusal 400: invalid JSON, NaN or infinity, too deep, too many values, lone surrogates, files without
             Gradio's marker. Refusal 403: links instead of files.
    """
    if not text:
        return None
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refusal(400, BAD_JSON) from None
    if isinstance(value, dict) and not agents:
        name = value.get("session_hash")
        if name is not None and not (isinstance(name, str) and SESSION.fullmatch(name)):
            raise Refusal(400, BAD_SESSION)
    _walk(value, files=not agents)
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _walk(root: object, *, files: bool) -> None:
    """Check every value, depth first, without recursion, because the depth is not trusted."""
    stack, count = [(root, 1)], 0
    while stack:
        value, depth = stack.pop()
        count += 1
        if depth > limits.JSON_DEPTH or count > limits.JSON_ITEMS:
            raise Refusal(400, TOO_DEEP)
        if isinstance(value, str):
            _check_text(value)
        elif isinstance(value, float) and not math.isfinite(value):  # 1e999
            raise Refusal(400, BAD_JSON)
        elif isinstance(value, list):
            stack.extend((item, depth + 1) for item in value)
        elif isinstance(value, dict):
            if files:
                _check_file(value)
            stack.extend((item, depth + 1) for pair in value.items() for item in pair)


def _check_text(text: str) -> None:
    """Refuse lone surrogates, which cannot be encoded."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Refusal(400, BAD_JSON) from None


def _check_file(value: dict[str, Any]) -> None:
    """Refuse file objects that Gradio does not check: only plain paths of uploads are allowed, without a URL."""
    url = value.get("url")
    # Gradio shows an uploaded SVG with a data URL; `uploads` reports that the format is not supported.
    drawing = isinstance(value.get("path"), str) and str(url).startswith("data:image/svg+xml")
    if isinstance(url, str) and url.lstrip().lower().startswith("data:") and not drawing:
        raise Refusal(400, NO_FILE)
    if "path" not in value:
        return
    path, meta = value["path"], value.get("meta")
    if isinstance(path, str) and "://" in path:
        raise Refusal(403, NO_LINKS)
    if not isinstance(path, str) or not isinstance(meta, dict) or meta.get("_type") != "gradio.FileData":
        raise Refusal(400, NO_FILE)
    if not all(isinstance(value.get(name), str | None) for name in ("url", "orig_name", "mime_type")):
        raise Refusal(400, NO_FILE)
    if not _is_uploaded(path):  # Gradio also refuses it, but without a message
        raise Refusal(403, NO_FILE)


def _is_uploaded(path: str) -> bool:
    from gradio.utils import get_upload_folder  # must come after gradio_setup, which the page imports

    folder = os.path.realpath(get_upload_folder())
    try:
        return os.path.realpath(path).startswith(folder + os.sep)
    except (OSError, ValueError):  # invalid file names
        return False


async def _refuse(send: Send, refusal: Refusal) -> None:
    """Send the error; Gradio clients read the message from `detail`."""
    body = json.dumps({"detail": refusal.message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *HEADERS]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def install_no_links() -> None:
    """Replace the functions of Gradio that fetch links by functions that raise an error."""
    import gradio  # as above
    from gradio import processing_utils, routes  # as above

    def refuse() -> NoReturn:
        raise gradio.Error(NO_LINKS, print_exception=False)

    async def no_links(*_: object, **__: object) -> NoReturn:
        refuse()

    def no_links_now(*_: object, **__: object) -> NoReturn:
        refuse()

    for name in ("async_ssrf_protected_download", "async_ssrf_protected_get"):
        setattr(processing_utils, name, no_links)
    for name in ("ssrf_protected_download", "save_url_to_cache", "unsafe_download"):
        setattr(processing_utils, name, no_links_now)
    setattr(routes, "secure_url_stream_response", no_links)  # noqa: B010 the route /file=http… uses its own function


def sweep(folder: str | os.PathLike[str], age: float = limits.KEEP) -> int:
    """Remove leftovers of broken uploads: files in the folder that start with tmp, and empty folders.

    Returns  how many were removed. Complete uploads are deleted by Gradio (`delete_cache`).
    """
    oldest, removed = time.time() - age, 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # in use, not accessible, or already deleted
                if entry.stat(follow_symlinks=False).st_mtime > oldest:
                    continue
                if UPLOADED.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    os.rmdir(entry.path)  # fails if not empty
                elif entry.name.startswith("tmp") and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)
                else:
                    continue
                removed += 1
    return removed


async def _sweep_regularly() -> None:
    from gradio.utils import get_upload_folder  # must come after gradio_setup, which the page imports

    while True:
        await asyncio.to_thread(sweep, get_upload_folder())
        await asyncio.sleep(limits.SWEEP)
