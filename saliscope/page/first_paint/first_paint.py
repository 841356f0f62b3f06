"""The stored answer as a sentence and an image, which the browser shows while it downloads Gradio and our scripts.

On a slow line that takes eight seconds. The image is the crop of the stored answer with a transparent layer over it.
It is removed when the page draws its first map, at the same place. It is part of the HTML, because separate files would
wait for the scripts.
"""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path

import brotli
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from saliscope.compute import messages
from saliscope.compute.bundles import links
from saliscope.images import examples
from saliscope.page.overlay import stored as landing

PREVIEW = examples.ASSETS / "preview.jpg"
"""The image of a link to the page on other websites."""
PREVIEW_SIZE = (1200, 630)
FOREIGN = re.compile(r'<meta\s+(?:property="og:|name="twitter:)[^>]*>')
"""What Gradio says about such a link; a website may read the last one of several."""
QUALITY = 5
"""Level of brotli: 4 milliseconds for each request; level 11 takes 0.2 seconds for 6% fewer bytes."""
_TEMPLATE = Path(__file__).with_suffix(".html")
# Later, these rules would move the whole page.
_MARGINS = "<style>:root:root :is(.gradio-container > .main.app, #hl-root .html-container) { padding: 0; }</style>"


def head(script: str, model: str | None) -> str:
    """Return the elements for the start of the page, with the stored answer if the server has one for its model."""
    elements = f'{_MARGINS}<link rel="modulepreload" href="hl/{script}">'
    stored = landing.load_stored(model) if model else None
    if stored is None or not landing.LAYER.is_file():
        return elements
    defaults = {name: choice[1] for name, choice in stored["choices"].items()}
    defaults |= {"example": stored["example"], "v": str(links.VERSION)}
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
    parts = {"CONTENT": content, "DEFAULTS": defaults, "STORED": landing.initial(stored)}
    return elements + re.sub("|".join(parts), lambda match: _script_json(parts[match[0]]), template)


def _script_json(value: object) -> str:
    """Return JSON that can stand inside a script element."""
    return json.dumps(value).replace("<", "\\u003c")


def link_preview(address: str) -> str:
    """Return the elements with what other websites show for a link to the page at this address."""
    facts = {"title": messages.TITLE, "description": messages.TAGLINE, "image": f"{address}/hl/{PREVIEW.name}"}
    width, height = PREVIEW_SIZE
    more = {"type": "website", "image:width": width, "image:height": height, "image:alt": messages.PREVIEW_ALT}
    pairs = [
        ("name", "description", messages.TAGLINE),
        *(("property", f"og:{name}", value) for name, value in (facts | more).items()),
        ("name", "twitter:card", "summary_large_image"),
        *(("name", f"twitter:{name}", value) for name, value in facts.items()),
    ]
    metas = (f'<meta {kind}="{name}" content="{html.escape(str(value))}">' for kind, name, value in pairs)
    return f"<title>{messages.TITLE}</title>{''.join(metas)}"


def _address(scope: Scope) -> str:
    """Return the address of the page for a visitor. The guard has removed headers that no proxy has sent."""
    headers = Headers(scope=scope)
    scheme, host = (
        headers.get(f"x-forwarded-{name}", default).partition(",")[0].strip()
        for name, default in (("proto", scope["scheme"]), ("host", headers.get("host", "")))
    )
    return f"{scheme}://{host}{scope.get('root_path', '')}"


class FirstPaint:
    """Middleware that adds `elements` to the start of the page's HTML.

    Gradio adds a `head` only when its scripts run.
    """

    def __init__(self, app: ASGIApp, elements: str) -> None:
        self.app, self.elements = app, elements

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; only the page itself is changed."""
        is_page = scope["type"] == "http" and scope["path"].removeprefix(scope.get("root_path", "")) in ("", "/")
        if not (is_page and scope["method"] == "GET"):
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
            changed = self.edit(content.decode(), _address(scope)).encode()
            headers = MutableHeaders(raw=list(start["headers"]))
            if "br" in Headers(scope=scope).get("accept-encoding", ""):
                changed = brotli.compress(changed, quality=QUALITY)
                headers["content-encoding"] = "br"
                headers.add_vary_header("accept-encoding")
            headers["content-length"] = str(len(changed))
            await send({**start, "headers": headers.raw})
            await send({"type": "http.response.body", "body": changed})

        await self.app(scope, receive, insert)

    def edit(self, page: str, address: str) -> str:
        """Return the page with the elements, and with our own preview of a link to this address."""
        return FOREIGN.sub("", page).replace("<head>", f"<head>{link_preview(address)}{self.elements}", 1)
