"""Compression of event streams, which carry all answers: text that Gradio sends uncompressed.

Each message is compressed as soon as it is complete, with the earlier ones of its stream as context. So it does not
wait for the next one, and repeated parts are sent only once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import brotli
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEVEL, WINDOW = 5, 20
"""The level of the compression, and the base-2 logarithm of the bytes that it keeps in memory to refer to."""
PATH = "/gradio_api/queue/data"
"""The stream of answers; others are short, but stay open as long as the page."""
CALL = "/gradio_api/call/"
"""Streams of the answers to programs."""


Compressor = tuple[Callable[[bytes], bytes], Callable[[], bytes]]
"""Functions that compress a part of a stream completely, and that return its end."""


def _brotli() -> Compressor:
    stream = brotli.Compressor(quality=LEVEL, lgwin=WINDOW)
    return lambda data: stream.process(data) + stream.flush(), stream.finish


def _gzip() -> Compressor:
    stream = zlib.compressobj(LEVEL, wbits=31)
    return lambda data: stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH), stream.flush


KINDS = {"br": _brotli, "gzip": _gzip}


class Streams:
    """Middleware that compresses event streams for browsers that accept it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""
        answers = path == PATH
        accepted = Headers(scope=scope).get("accept-encoding", "") if answers else ""
        kind = next((name for name in KINDS if name in accepted), None)
        if kind is None:
            is_stream = answers or (path.startswith(CALL) and scope["method"] == "GET")
            await (self._stream(scope, receive, send) if is_stream else self.app(scope, receive, send))
            return
        stream: Compressor | None = None

        async def compress(message: Message) -> None:
            nonlocal stream
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message["headers"]))
                if headers.get("content-type", "").startswith("text/event-stream"):
                    stream = KINDS[kind]()
                    headers["content-encoding"] = kind
                    headers.add_vary_header("accept-encoding")
                    message = {**message, "headers": headers.raw}
            elif stream is not None and message["type"] == "http.response.body":
                body = message.get("body", b"")
                add, end = stream
                packed = add(body) if body else b""
                if not message.get("more_body", False):
                    packed += end()
                message = {**message, "body": packed}
            await send(message)

        await self._stream(scope, receive, compress)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a stream; one whose session or event has ended is ended without a traceback in the log.

        Gradio tells the client about it in the stream, and then raises an error, too late for another status.
        """
        try:
            await self.app(scope, receive, send)
        except RuntimeError as error:
            if not isinstance(error.__cause__, HTTPException):
                raise
            await send({"type": "http.response.body", "body": b"", "more_body": False})
