"""The stored answer as a sentence and an image, which the browser shows while it downloads Gradio and our scripts.

On a slow line that takes eight seconds. The image is the crop of the stored answer with a transparent layer over it.
It is removed when the page draws its first map, at the same place. It is part of the HTML, because separate files would
wait for the scripts.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import threading
from pathlib import Path

import brotli
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from saliscope.compute import messages, model_cache
from saliscope.page.first_paint.bundle import FAST, SMALLEST, Bundle, lower_priority
from saliscope.page.overlay import landing

MAX_PAGES = 4
"""Compressed pages in memory; they differ by the address of the server."""
_TEMPLATE = Path(__file__).with_suffix(".html")


def head(model: str) -> str | None:
    """Return the elements for the start of the page, or None if the server has no stored answer for its model."""
    stored = landing.load_stored(model)
    if stored is None or not landing.LAYER.is_file():
        return None
    defaults = {name: choice[1] for name, choice in stored["choices"].items()} | {"example": stored["example"]}
    prediction, *rest = map(html.escape, stored["headline"])
    line = (part if isinstance(part, str) else part["text"] for part in stored["status"])
    content = {
        "title": messages.TITLE,
        "sentence": f"<strong>{prediction}</strong> <span>{' '.join(rest)}</span>",
        "line": html.escape("".join(line)),
        "layer": f"data:image/webp;base64,{base64.b64encode(landing.LAYER.read_bytes()).decode()}",
        "alt": stored["view"]["words"]["alt"],
        "loading": messages.PAGE_LOADING,
    }
    template = _TEMPLATE.read_text(encoding="utf-8")
    parts = {"CONTENT": content, "DEFAULTS": defaults, "STORED": landing.initial_props(stored)}
    return re.sub("|".join(parts), lambda match: _script_json(parts[match[0]]), template)


def _script_json(value: object) -> str:
    """Return JSON that can stand inside a script element."""
    return json.dumps(value).replace("<", "\\u003c")


class Compressed:
    """The page, compressed as far as possible once the model is loaded, which takes a second; fast until then."""

    def __init__(self) -> None:
        self._smallest: dict[bytes, bytes] = {}

    def get(self, page: bytes) -> bytes:
        """Return the compressed page."""
        key = hashlib.sha256(page).digest()
        if model_cache.ready.is_set() and key not in self._smallest and len(self._smallest) < MAX_PAGES:
            self._smallest[key] = b""  # only one thread compresses it
            threading.Thread(target=self._compress, args=[key, page], name="compress", daemon=True).start()
        return self._smallest.get(key) or brotli.compress(page, quality=FAST)

    def _compress(self, key: bytes, page: bytes) -> None:
        lower_priority()
        self._smallest[key] = brotli.compress(page, quality=SMALLEST)


class FirstPaint:
    """Middleware that edits the page's HTML: `elements` come first, and the bundle replaces Gradio's own elements.

    Gradio adds a `head` only when its scripts run.
    """

    def __init__(self, app: ASGIApp, elements: str | None, bundle: Bundle | None = None) -> None:
        self.app, self.elements, self.bundle = app, elements or "", bundle
        self._compressed = Compressed()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; only the page itself is changed."""
        is_page = scope["type"] == "http" and scope["path"].removeprefix(scope.get("root_path", "")) in ("", "/")
        if not (is_page and (self.elements or self.bundle) and scope["method"] == "GET"):
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
            changed = self.edit(content.decode()).encode()
            headers = MutableHeaders(raw=list(start["headers"]))
            if "br" in Headers(scope=scope).get("accept-encoding", ""):
                changed = self._compressed.get(changed)
                headers["content-encoding"] = "br"
                headers.add_vary_header("accept-encoding")
            headers["content-length"] = str(len(changed))
            await send({**start, "headers": headers.raw})
            await send({"type": "http.response.body", "body": changed})

        await self.app(scope, receive, insert)

    def edit(self, page: str) -> str:
        """Return the page with the elements."""
        elements, bundle = self.elements, self.bundle
        if bundle and bundle.entry in page:
            page = page.replace(bundle.sheet, "").replace(bundle.entry, "")
            elements = bundle.elements + elements
            if theme := re.search(r'"theme_hash": ?"(\w+)"', page):  # Gradio's modules wait for it before they draw
                elements += f'<link rel="preload" as="style" href="theme.css?v={theme[1]}">'
        return page.replace("<head>", f"<head>{elements}", 1)
