"""Fixtures: the app in a separate process and a Chromium page that allows no external request and no console error."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE = 120_000
"""Timeout in milliseconds. Long, because torch may still be importing and the machine may be busy."""
WRITE_DELAY = 500
"""Milliseconds after which a change is in the address."""
STILL = {"reduced_motion": "reduce"}
"""Without animations, which the browser would render on the CPU."""
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "SALISCOPE_OFFLINE": "1"}


def chromium() -> str | None:
    """Return the path of a Chromium, or None."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")  # the first opens no windows
    return os.environ.get("CHROMIUM") or next((path for name in names if (path := shutil.which(name))), None)


def expect(locator: Any, message: str | None = None) -> Any:
    """Return Playwright's assertions about `locator`, which wait until they hold."""
    from playwright.sync_api import expect as playwright_expect

    playwright_expect.set_options(timeout=PATIENCE / 4)
    return playwright_expect(locator, message)


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


@contextlib.contextmanager
def served(folder: Path, *start: str, cwd: Path = ROOT, **environment: str) -> Iterator[str]:
    """Run `python app.py` (or the command `start`) and yield its address once it responds."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    wanted = {**os.environ, **QUIET, "GRADIO_TEMP_DIR": str(folder / "uploads"), **environment}
    with open(folder / "app.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, *(start or ("app.py",)), "--port", str(port)],
            cwd=cwd,
            env=wanted,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _answers(address, process, folder / "app.log")
            yield address
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _answers(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            if urllib.request.urlopen(address, timeout=5).status == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"no answer from {address}: {log.read_text()}")


@pytest.fixture(scope="session")
def browser():
    """Start a headless Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    path = chromium()
    if path is None:
        pytest.skip("no Chromium on this machine; `make test` installs one, CHROMIUM names one elsewhere")
    with api.sync_playwright() as player:
        running = player.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield running
        running.close()


class Visit:
    """A page of the app, with its requests and console errors."""

    def __init__(self, page, address: str) -> None:
        self.page, self.address = page, address
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.unchanged = ""
        """The address of a page that shows its first view and can be used by another test."""
        page.set_default_timeout(PATIENCE)
        # Playwright polls at every frame by default, which forces the browser to render continuously on the CPU.
        page.wait_for_function = partial(page.wait_for_function, polling=50)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))

    def open(self, query: str = "") -> Visit:
        """Open the page and wait for the first overlay."""
        self.page.goto(self.address + "/" + query)
        self.painted("overlay", 0)
        self.settled()
        self.errors[:] = self._own_errors()
        return self

    def number(self, name: str) -> int:
        """Return the id of the answer that a component shows."""
        return int(self.page.evaluate(f"document.getElementById('hl-{name}')?.dataset.id || 0"))

    def painted(self, name: str, after: int) -> int:
        """Wait until a component shows an answer newer than `after`."""
        self.page.wait_for_function(
            f"Number(document.getElementById('hl-{name}')?.dataset.id || 0) > {after}", timeout=PATIENCE
        )
        return self.number(name)

    def settled(self) -> None:
        """Wait until all computations have finished; the rail's maps and norms and the small maps come last."""
        self.page.wait_for_function(
            "Number(document.getElementById('hl-strip')?.dataset.id || 0)"
            " > Number(document.getElementById('hl-overlay')?.dataset.id || 0)"
            " && document.documentElement.dataset.hlState !== 'landing'"
            " && document.getElementById('hl-strip').dataset.norms !== 'asked'"
            " && ![...document.querySelectorAll('#hl-bars canvas[data-small]:not([data-drawn])')]"
            ".some((each) => each.checkVisibility())"
            " || ['error', 'idle'].includes(document.documentElement.dataset.hlState)",
            timeout=PATIENCE,
        )

    def after(self, act: Callable[[], object], name: str = "overlay") -> None:
        """Run an action and wait until a component shows a newer answer."""
        before = self.number(name)
        act()
        self.painted(name, before)
        if name == "overlay":
            self.settled()

    def after_partial(self, act: Callable[[], object]) -> None:
        """Run an action and wait for the first partial map of a slow method."""
        before = self.number("overlay")
        act()
        self.painted("overlay", before)

    def choose(self, name: str, text: str) -> None:
        """Select from a dropdown by typing."""
        field = self.page.locator(f"#hl-{name} [role=combobox]").first
        field.click()
        field.press("Control+a")
        field.press_sequentially(text)  # a list shows 100 names at first
        rows = self.page.locator(f"#hl-{name} [role=option][data-value]")
        (rows if name == "method" else rows.filter(has_text=re.compile(re.escape(text)))).first.click()

    def open_view(self, name: str) -> None:
        """Open a view of the page: a tab, or an entry of the menu."""
        tab = self.page.locator("#hl-navigation [role=tab]").filter(has_text=name)
        if tab.count():
            tab.first.click()
        else:
            self.page.locator("#hl-navigation [aria-haspopup=menu]").click()
            self.page.get_by_role("menuitem", name=name).click()

    def open_colors(self) -> None:
        """Open the color settings of the map."""
        button = self.page.locator("#hl-overlay .hl-popover > button")
        if button.get_attribute("aria-expanded") == "false":
            button.click()

    @property
    def headline(self) -> str:
        """Return the sentence above the map."""
        return self.page.locator("#hl-status .hl-headline").inner_text()

    @property
    def status(self) -> str:
        """Return the text of the status line."""
        return self.page.locator("#hl-status .hl-line").inner_text()

    def upload(self, path: Path) -> None:
        """Upload a file, as a user would."""
        page = self.page
        if page.locator("#hl-image input[type=file]").count() == 0:
            page.locator("#hl-image button[aria-label='Remove Image']").first.click()
        page.locator("#hl-image input[type=file]").first.set_input_files(str(path))

    def _own_errors(self) -> list[str]:
        """Return the errors without those of Gradio about the event stream of a page that was left.

        The server forgets the session of such a page, so a request that it still sent gets a 404.
        """
        left = ("AbortError: signal is aborted", "Connection errored out")
        own = [each for each in self.errors if not any(word in each for word in left)]
        was_left = len(own) < len(self.errors)
        return [each for each in own if not (was_left and "Unexpected error 404" in each)]

    def check(self) -> None:
        """Check that there was no request to another host and no console error."""
        foreign = [url for url in self.requests if not url.startswith((self.address, "data:", "blob:"))]
        assert not foreign, foreign
        assert not self._own_errors(), self.errors


@pytest.fixture
def visit(browser, app: str) -> Iterator[Visit]:
    """Open a new browser context, and check at the end that there were no external requests or console errors."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **STILL)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    found = Visit(context.new_page(), app)
    yield found
    found.check()
    context.close()


@pytest.fixture(scope="session")
def _desktop(browser, app: str) -> Iterator[Visit]:
    yield from _window(browser, app, {"viewport": {"width": 1280, "height": 900}})


@pytest.fixture(scope="session")
def _phone(browser, app: str) -> Iterator[Visit]:
    yield from _window(browser, app, {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"})


def _window(browser, app: str, settings: dict) -> Iterator[Visit]:
    context = browser.new_context(**settings, **STILL)
    yield Visit(context.new_page(), app)
    context.close()


@pytest.fixture
def first_view(_desktop: Visit, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """The page with its first example and default settings, opened for several tests; other tests use `visit`."""
    yield from _share(_desktop, request)


@pytest.fixture
def phone(_phone: Visit, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """The same on a narrow dark screen."""
    yield from _share(_phone, request)


def _share(visit: Visit, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """Open the page, unless the test before has left it as it was: its address contains the settings."""
    visit.requests.clear()
    visit.errors.clear()
    if visit.unchanged:
        visit.page.keyboard.press("Escape")
        visit.page.get_by_role("tab", name="Explain view").click()
        visit.page.mouse.move(2, 2)
        visit.page.wait_for_timeout(WRITE_DELAY)
    if visit.page.url != visit.unchanged:
        visit.open()
        visit.page.wait_for_timeout(WRITE_DELAY)
    opened, failures, visit.unchanged = visit.page.url, request.session.testsfailed, ""
    yield visit
    visit.check()
    if request.session.testsfailed == failures:
        visit.unchanged = opened
