"""A refused request, and the types of ASGI."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Refusal(Exception):
    """A refused request, with its HTTP status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message

    def answer(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[Message, Message]:
        """Return the answer to the request; Gradio clients read the message from `detail`."""
        content = json.dumps({"detail": self.message}).encode()
        own = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode()), *headers]
        if self.status in (429, 503):
            own.append((b"retry-after", b"10"))
        start = {"type": "http.response.start", "status": self.status, "headers": own}
        return start, {"type": "http.response.body", "body": content}
