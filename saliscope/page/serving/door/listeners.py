"""Event streams whose client has stopped reading."""

from __future__ import annotations

import asyncio

from saliscope import limits
from saliscope.page.serving.door.refusals import App, Message, Receive, Send

PART = 64 * 1024
"""Bytes that are passed to the connection at once; it buffers about as many more for a client that does not read."""


class Stalled:
    """The two functions of an event stream: a client that reads nothing for a while counts as disconnected.

    The application then forgets its messages, and its jobs end.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send

    async def run(self, app: App, scope: Message) -> None:
        """Answer a request for a stream."""
        self._over: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        pump = asyncio.create_task(self._pump())
        await asyncio.sleep(0)  # the first `receive` must report a disconnect that has happened already
        try:
            await app(scope, self.receive, self.send)
        finally:
            pump.cancel()

    async def _pump(self) -> None:
        while not self._over.done():
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._end(message)

    def _end(self, message: Message) -> None:
        if not self._over.done():
            self._over.set_result(message)

    async def receive(self) -> Message:
        """Wait for the end of the stream."""
        return self._over.result() if self._over.done() else await asyncio.shield(self._over)

    async def send(self, message: Message) -> None:
        """Send a message in parts, each of which must leave within `limits.SEND_SECONDS`."""
        content = message.get("body", b"")
        parts = [content[start : start + PART] for start in range(0, len(content), PART)] or [content]
        for number, part in enumerate(parts, 1):
            more = number < len(parts) or message.get("more_body", False)
            packed = {**message, "body": part, "more_body": more} if "body" in message else message
            try:
                await asyncio.wait_for(self._send(packed), limits.SEND_SECONDS)
            except asyncio.TimeoutError:  # in Python 3.10 another class than TimeoutError
                self._end({"type": "http.disconnect"})
                await asyncio.sleep(limits.SEND_SECONDS)  # the application cancels this task now
                raise
