"""Requests to an application behind the guard, as plain ASGI calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from saliscope import limits
from saliscope.page.serving.door.hosts import Hosts
from saliscope.page.serving.door.refusals import App, Send
from saliscope.page.serving.guard import Guard
from tests.support.coroutines import finished

MB = limits.MB
JOIN = "/gradio_api/queue/join"
UPLOAD = "/gradio_api/upload"


@dataclass
class Seen:
    """What the application behind the guard received, and the response to the client."""

    called: bool = False
    body: bytes = b""
    after: str = ""
    """The message after the body."""
    parts_read: int = 0
    status: int = 0
    starts: int = 0
    headers: dict[bytes, list[bytes]] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    """The parts of the answer."""

    @property
    def answer(self) -> bytes:
        return b"".join(self.parts)

    @property
    def detail(self) -> str:
        """The message of a refusal."""
        return str(json.loads(self.answer)["detail"])


async def respond(send: Send, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = (), *parts: bytes) -> None:
    """Send the start of an answer, and its parts if it has any."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    for number, part in enumerate(parts, 1):
        await send({"type": "http.response.body", "body": part, "more_body": number < len(parts)})


def reading(seen: Seen, headers: Sequence[tuple[bytes, bytes]] = ()) -> App:
    """An app that reads its whole body, calls `receive` once more for the disconnect, and answers 200."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.called, more = True, True
        while more:
            message = await receive()
            seen.body += message.get("body", b"")
            more = message.get("more_body", False)
        seen.after = (await receive())["type"]
        await respond(send, 200, headers, b"ok")

    return app


async def send_request(
    app: App,
    seen: Seen,
    method: str = "POST",
    path: str = JOIN,
    chunks: list[bytes] | bytes = b"{}",
    headers: dict[str, str] | None = None,
    pause: float = 0.0,
    is_complete: bool = True,
    left: asyncio.Event | None = None,
    **scope: Any,
) -> None:
    """Send a request and note the answer. The client leaves at once after it, or when `left` is set.

    A client whose request is not complete sends nothing more and stays.
    """
    parts = [chunks] if isinstance(chunks, bytes) else list(chunks)
    queue = [
        {"type": "http.request", "body": part, "more_body": not is_complete or number < len(parts)}
        for number, part in enumerate(parts, 1)
    ]

    async def receive() -> dict[str, Any]:
        if pause:
            await asyncio.sleep(pause)
        if queue:
            seen.parts_read += 1
            return queue.pop(0)
        if not is_complete or left:
            await (left or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            seen.starts, seen.status = seen.starts + 1, message["status"]
            for name, value in message["headers"]:
                seen.headers.setdefault(name.lower(), []).append(value)
        else:
            seen.parts.append(message.get("body", b""))

    pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    request = {"type": "http", "method": method, "path": path, "headers": pairs, "query_string": b"", **scope}
    await asyncio.wait_for(app(request, receive, send), 20)  # type: ignore[arg-type]


def ask(
    method: str = "POST",
    path: str = JOIN,
    chunks: list[bytes] | bytes = b"{}",
    *,
    app: App | None = None,
    guarded: Guard | None = None,
    hosts: Hosts | None = None,
    answered: Sequence[tuple[bytes, bytes]] = (),
    **more: Any,
) -> Seen:
    """Send one request to an app behind the guard, by default one that reads and answers with `answered` as headers."""
    seen = Seen()
    here = guarded or Guard(app or reading(seen, answered), hosts, agents=True)
    finished(send_request(here, seen, method, path, chunks, **more))
    return seen
