"""The stored answer as a sentence and a picture, which the browser shows while it downloads Gradio and our scripts.

On a slow line that takes ten seconds. The picture is removed when the page draws its first map, at the same place. It
is part of the HTML, because a separate file would wait for the scripts.
"""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hooklens.page.overlay import landing
from hooklens.session import messages

PICTURE = landing.FILE.with_suffix(".jpg")
_TEMPLATE = Path(__file__).with_suffix(".html")


def head(model: str) -> str | None:
    """Return the elements for the start of the page, or None if the server has no stored answer for its model."""
    stored = landing.load_stored(model)
    if stored is None or not PICTURE.is_file():
        return None
    defaults = {name: choice[1] for name, choice in stored["choices"].items()} | {"example": stored["example"]}
    prediction, *rest = map(html.escape, stored["headline"])
    parts = (part if isinstance(part, str) else part["text"] for part in stored["status"])
    content = {
        "title": messages.TITLE,
        "sentence": f"<strong>{prediction}</strong> {' '.join(rest)}",
        "line": html.escape("".join(parts)),
        "picture": f"data:image/jpeg;base64,{base64.b64encode(PICTURE.read_bytes()).decode()}",
        "alt": stored["view"]["words"]["alt"],
        "loading": messages.PAGE_LOADING,
    }
    template = _TEMPLATE.read_text(encoding="utf-8")
    return template.replace("CONTENT", _script_json(content)).replace("DEFAULTS", _script_json(defaults))


def _script_json(value: object) -> str:
    """Return JSON that can stand inside a script element."""
    return json.dumps(value).replace("<", "\\u003c")


class FirstPaint:
    """Middleware that puts the elements at the start of the page: Gradio adds a `head` only when its scripts run."""

    def __init__(self, app: ASGIApp, elements: str | None) -> None:
        self.app, self.elements = app, (elements or "").encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; only the page itself is changed."""
        is_page = scope["type"] == "http" and scope["path"].removeprefix(scope.get("root_path", "")) in ("", "/")
        if not (is_page and self.elements and scope["method"] == "GET"):
            await self.app(scope, receive, send)
            return
        start: Message = {}
        content = b""

        async def insert(message: Message) -> None:
            nonlocal start, content
            if message["type"] == "http.response.start":
                start = message
                return
            content += message.get("body", b"")
            if message.get("more_body", False):
                return
            changed = content.replace(b"<head>", b"<head>" + self.elements, 1)
            headers = MutableHeaders(raw=list(start["headers"]))
            headers["content-length"] = str(len(changed))
            await send({**start, "headers": headers.raw})
            await send({"type": "http.response.body", "body": changed})

        await self.app(scope, receive, insert)
