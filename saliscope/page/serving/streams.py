"""Compression of event streams, which carry all answers: text that Gradio sends uncompressed.

Each message is compressed as soon as it is complete, with the earlier ones of its stream as context. So it does not
wait for the next one, and repeated parts are sent only once.
"""

from __future__ import annotations

import zlib
from typing import Protocol

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


class Compressor(Protocol):
    """Compresses a stream in parts."""

    def add(self, data: bytes) -> bytes:
        """Return the compressed part, complete."""

    def end(self) -> bytes:
        """Return the end of the stream."""


class Brotli:
    """Compress with brotli."""

    def __init__(self) -> None:
        self._stream = brotli.Compressor(quality=LEVEL, lgwin=WINDOW)

    def add(self, data: bytes) -> bytes:
        """Return the compressed part, complete."""
        return bytes(self._stream.process(data) + self._stream.flush())

    def end(self) -> bytes:
        """Return the end of the stream."""
        return bytes(self._stream.finish())


class Gzip:
    """Compress with gzip."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj(LEVEL, wbits=31)

    def add(self, data: bytes) -> bytes:
        """Return the compressed part, complete."""
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        """Return the end of the stream."""
        return self._stream.flush()


KINDS: dict[str, type[Brotli] | type[Gzip]] = {"br": Brotli, "gzip": Gzip}


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
                packed = stream.add(body) if body else b""
                if not message.get("more_body", False):
                    packed += stream.end()
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
