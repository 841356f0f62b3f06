"""Caching by browsers: files with a hash in their name never change."""

from __future__ import annotations

import re

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HASHED = re.compile(r"/assets/[\w.-]+-[\w-]{8,10}\.(js|css|woff2?|svg)|/hl/.*-[0-9a-f]{16}\.(js|jpg|webp)")
IMMUTABLE = "public, max-age=31536000, immutable"


class Caching:
    """Middleware that adds the header to files that were found."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        is_hashed = HASHED.fullmatch(path) is not None

        async def send_with_caching(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                message = {**message, "headers": list(message["headers"])}
                MutableHeaders(raw=message["headers"])["cache-control"] = IMMUTABLE
            await send(message)

        await self.app(scope, receive, send_with_caching if is_hashed else send)
