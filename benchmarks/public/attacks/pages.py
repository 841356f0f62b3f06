"""Scripts in every text that the page shows, in Chromium: none may run."""

from __future__ import annotations

import io
import urllib.parse
import zipfile
from collections.abc import Iterator
from typing import Any

from PIL import Image

from benchmarks.public.attacks.http import Result
from benchmarks.public.server import Server

PAYLOADS = (
    "<img src=x onerror=ran()>",
    '"><script>ran()</script>',
    "<svg/onload=ran()>",
    "javascript:ran()",
    "'-ran()-'",
    "${ran()}",
    "{{constructor.constructor('ran()')()}}",
    "</script><script>ran()</script>",
    "<iframe srcdoc='<script>parent.ran()</script>'>",
)
QUERY = (
    "model",
    "layer",
    "method",
    "class",
    "target",
    "example",
    "image",
    "bands",
    "tab",
    "opt",
    "options",
    "pin",
    "unit",
)
PNG = {"mimeType": "image/png"}
INIT = "window.hits = 0; window.ran = () => { window.hits += 1; };"
ANSWERED = "() => ['done', 'error'].includes(document.documentElement.dataset.hlState)"


def image(name: str = "PNG", **options: Any) -> bytes:
    """Return a small image."""
    file = io.BytesIO()
    Image.effect_noise((64, 64), 90).convert("RGB").save(file, name, **options)
    return file.getvalue()


def scripts(server: Server) -> Iterator[Result]:
    """Yield one result per kind of text."""
    from playwright.sync_api import sync_playwright

    from tests.hooklens.browser.conftest import ARGUMENTS, chromium

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.add_init_script(INIT)
        page = context.new_page()
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.set_default_timeout(60_000)
        for number, payload in enumerate(PAYLOADS):
            page.goto(f"{server.url}/?{urllib.parse.urlencode(dict.fromkeys(QUERY, payload))}")
            _settle(page)
            yield Result(f"links with {payload[:24]}", page.evaluate("window.hits"), (0,))
            page.goto(f"{server.url}/#{urllib.parse.quote(payload)}")
            if number == 0:
                _settle(page)
            yield Result(f"fragment with {payload[:24]}", page.evaluate("window.hits"), (0,))
        yield from _files(page, server)
        yield Result("dialogs", len(dialogs), (0,))
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(server.url)
        _settle(page)
        other = [url for url in requests if not url.startswith((server.url, "data:", "blob:"))]
        yield Result("requests to other hosts", len(other), (0,))
        browser.close()


def _files(page: Any, server: Server) -> Iterator[Result]:
    """Upload images and a zip archive with scripts in their names and their metadata."""
    for payload in PAYLOADS[:4]:
        page.goto(server.url)
        _settle(page)
        name = payload.replace("/", "\u2215") + ".png"
        page.set_input_files(
            "#hl-image input[type=file]", files=[{"name": name, "mimeType": "image/png", "buffer": image()}]
        )
        page.wait_for_timeout(1500)
        _settle(page)
        yield Result(f"file named {name[:24]}", page.evaluate("window.hits"), (0,))
    broken = {**PNG, "name": "<img src=x onerror=ran()>.png", "buffer": b"<script>ran()</script>"}
    page.set_input_files("#hl-image input[type=file]", files=[broken])
    page.wait_for_timeout(1500)
    yield Result("a file that is a script", page.evaluate("window.hits"), (0,))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for payload in PAYLOADS[:5]:
            file.writestr(f"{payload.replace('/', '')}/{payload.replace('/', '')}.png", image())
    many = page.locator("#hl-many input[type=file]")
    if many.count():
        many.first.set_input_files(
            [{"name": PAYLOADS[0] + ".zip", "mimeType": "application/zip", "buffer": archive.getvalue()}]
        )
        page.wait_for_timeout(2000)
    yield Result("an archive with scripts in its names", page.evaluate("window.hits"), (0,))


def _settle(page: Any) -> None:
    page.wait_for_function(ANSWERED, polling=100)
