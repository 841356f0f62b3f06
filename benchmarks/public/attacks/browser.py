"""A page in Chromium that counts scripts which run, and what a person may do on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
"""Texts with scripts in them. Every script calls `ran`, which exists in all frames of a page."""
ANSWERED = """() => { const kind = document.documentElement.dataset.hlState;
  const line = document.querySelector("#hl-status")?.innerText ?? "";
  return ["done", "error"].includes(kind) || (kind === "idle" && /image/i.test(line)); }"""
"""Also if a link has no image, so that there is nothing to compute."""
FIELDS = "input:not([type=range]):not([type=checkbox]):not([type=radio]):not([type=file]):not([type=color])"
FIELDS += ":not([type=number]):visible, textarea:visible"
BUTTONS = ("Run", "Start", "Compare", "Rank", "Evaluate", "Compute", "Layers", "Table", "Measure")
PATIENCE = 60_000


class Browser:
    """A page and the number of scripts that ran in its frames."""

    def __init__(self, page: Any, server: Server) -> None:
        self.page, self.server, self.hits = page, server, 0
        self.requests: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.expose_function("ran", self._count)
        page.on("dialog", self._dismiss)
        page.on("request", lambda request: self.requests.append(request.url))

    def _count(self) -> None:
        self.hits += 1

    def _dismiss(self, dialog: Any) -> None:
        self.hits += 1
        dialog.dismiss()

    def open(self, query: str = "") -> None:
        """Open the page and wait for its answer."""
        self.page.goto("about:blank")  # an address that differs in its fragment only would not be loaded
        self.page.goto(f"{self.server.url}/{query}")
        self.settle()

    def settle(self) -> None:
        """Wait until the page has an answer."""
        self.page.wait_for_function(ANSWERED, polling=100)

    def new_hits(self) -> int:
        """Return how many scripts ran since the last call."""
        self.page.wait_for_timeout(300)  # an image that does not exist fails a moment later
        hits, self.hits = self.hits, 0
        return hits

    def views(self) -> Iterator[str]:
        """Open every view, and every part of it; yield its name."""
        tabs = self.page.locator("#hl-navigation [role=tab]")
        for number in range(tabs.count()):
            tabs.nth(number).click()
            yield from self._parts(tabs.nth(number).inner_text())
        entries = self.page.locator("#hl-menu [role=menuitem]")
        for number in range(entries.count()):
            self.page.locator("#hl-navigation [aria-haspopup=menu]").first.click()
            name = entries.nth(number).inner_text()
            entries.nth(number).click()
            self.page.keyboard.press("Escape")
            yield from self._parts(name)

    def _parts(self, name: str) -> Iterator[str]:
        self.page.wait_for_timeout(300)
        parts = self.page.locator("[id^=hl-parts-]:visible button")
        names = parts.all_inner_texts()
        if not names:
            yield name
        for part in names:
            parts.filter(has_text=part).first.click()
            self.page.wait_for_timeout(300)
            yield f"{name}: {part}"

    def type_everywhere(self, payload: str) -> None:
        """Type a text into every visible field and confirm it."""
        for field in self.page.locator(FIELDS).all():
            with may_vanish():
                field.fill(payload, timeout=1000)
                self.page.wait_for_timeout(50)  # suggestions
                field.press("Enter", timeout=1000)
        self.page.keyboard.press("Escape")

    def use_everything(self) -> None:
        """Click the buttons that start something, and point at what has hints."""
        for button in BUTTONS:
            self.click(button)
        self.page.wait_for_timeout(1500)
        for target in self.page.locator("#hl-main canvas:visible, #hl-main [title]:visible").all()[:8]:
            with may_vanish():
                target.hover(force=True, timeout=2000)

    def choose_files(self, name: str, content: bytes, within: str = "#hl-main") -> int:
        """Choose a file in every field for files of the current view; return the number of fields."""
        kind, chosen = "application/zip" if name.endswith(".zip") else "image/png", 0
        for field in self.page.locator(f"{within} input[type=file]").all():
            with may_vanish():
                field.set_input_files(files=[{"name": name, "mimeType": kind, "buffer": content}], timeout=1000)
                chosen += 1
        return chosen

    def click(self, name: str, within: str = "#hl-main") -> None:
        """Click a visible button, if there is one that can be clicked."""
        button = self.page.locator(within).get_by_role("button", name=name, exact=True).locator("visible=true")
        with may_vanish():
            if button.count():
                button.first.click(timeout=2000)

    def saved(self, act: Callable[[], object], folder: Path) -> Path | None:
        """Return the file that an action downloads, or None."""
        with may_vanish(), self.page.expect_download(timeout=8000) as download:
            act()
            path = folder / f"saved{Path(download.value.suggested_filename).suffix}"
            download.value.save_as(path)
            return path
        return None

    def open_file(self, path: Path | None) -> None:
        """Open a saved file, if it is one for browsers."""
        if path and path.suffix in (".svg", ".html"):
            self.page.goto(path.as_uri())
            self.page.wait_for_timeout(500)


@contextlib.contextmanager
def may_vanish() -> Iterator[None]:
    """Ignore that a component disappeared or is not enabled, as after some answers."""
    from playwright.sync_api import Error

    with contextlib.suppress(Error):
        yield


@contextlib.contextmanager
def browsers() -> Iterator[Callable[[Server], Browser]]:
    """Yield a function that opens a page in a new browser context."""
    from playwright.sync_api import sync_playwright

    from tests.saliscope.browser.conftest import ARGUMENTS, chromium

    with sync_playwright() as player:
        running = player.chromium.launch(executable_path=chromium(), args=ARGUMENTS)

        def visit(server: Server) -> Browser:
            context = running.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
            return Browser(context.new_page(), server)

        yield visit
        running.close()
