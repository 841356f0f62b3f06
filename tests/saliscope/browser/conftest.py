"""Fixtures: the app in a separate process and a Chromium page that allows no external request and no console error."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[3]
STATIC = ROOT / "saliscope" / "page"
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
def served(
    folder: Path, *start: str, cwd: Path = ROOT, program: str | Path = sys.executable, **environment: str
) -> Iterator[str]:
    """Run `python app.py` (or the command `start`) and yield its address once it responds."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    wanted = {**os.environ, **QUIET, "GRADIO_TEMP_DIR": str(folder / "uploads"), **environment}
    with open(folder / "app.log", "wb") as log:
        process = subprocess.Popen(
            [str(program), *(start or ("app.py",)), "--port", str(port)],
            cwd=cwd,
            env=wanted,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_for_answer(address, process, folder / "app.log")
            yield address
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for_answer(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
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
        page.set_default_timeout(PATIENCE)
        # Playwright polls at every frame by default, which forces the browser to render continuously on the CPU.
        page.wait_for_function = partial(page.wait_for_function, polling=50)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))

    def sent(self, since: int, part: str = "") -> list[str]:
        """Return the requests after the first `since` ones whose address contains `part`; a blob is none."""
        return [url for url in self.requests[since:] if part in url and not url.startswith("blob:")]

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
        self.until(f"Number(document.getElementById('hl-{name}')?.dataset.id || 0) > {after}")
        return self.number(name)

    def settled(self) -> None:
        """Wait until all computations have finished; the rail's maps and norms and the small maps come last."""
        self.until(
            "Number(document.getElementById('hl-strip')?.dataset.id || 0)"
            " > Number(document.getElementById('hl-overlay')?.dataset.id || 0)"
            " && document.documentElement.dataset.hlState !== 'landing'"
            " && document.getElementById('hl-strip').dataset.norms !== 'asked'"
            " && ![...document.querySelectorAll('#hl-bars canvas[data-small]:not([data-drawn])')]"
            ".some((each) => each.checkVisibility())"
            " || ['error', 'idle'].includes(document.documentElement.dataset.hlState)"
        )

    def after(self, act: Callable[[], object], name: str = "overlay") -> None:
        """Run an action and wait until a component shows a newer answer."""
        self.after_partial(act, name)
        if name == "overlay":
            self.settled()

    def after_partial(self, act: Callable[[], object], name: str = "overlay") -> None:
        """Run an action and wait for the first partial map of a slow method."""
        before = self.number(name)
        act()
        self.painted(name, before)

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

    def state(self, *kinds: str) -> None:
        """Wait until the page is in one of these states, such as "done", "error" or "stopped"."""
        self.until("(kinds) => kinds.includes(document.documentElement.dataset.hlState)", kinds)

    def until(self, condition: str, arg: object = None) -> None:
        """Wait until a condition in JavaScript holds."""
        self.page.wait_for_function(condition, arg=arg)

    def open_options(self) -> None:
        """Open the options of the method."""
        self.page.locator("#hl-more summary").first.click()

    def start_long_run(self) -> None:
        """Start SmoothGrad with 1,000 samples and wait for its first partial map."""
        self.open("?method=smooth_grad&options=" + urllib.parse.quote('{"samples": 3}'))
        self.open_options()
        self.page.locator("#hl-option-samples").fill("1000")
        self.page.locator("#hl-option-samples").blur()
        self.after_partial(lambda: self.page.locator("#hl-explain").click())

    def example(self, name: str) -> None:
        """Explain an example."""
        self.after(lambda: self.page.locator(f"#hl-examples button[data-id={name}]").click())

    def shot(self) -> str:
        """Return the pixels of the large image."""
        return str(self.page.evaluate("document.querySelector('#hl-overlay canvas').toDataURL()"))

    def pixels(self, selector: str = "#hl-overlay canvas") -> np.ndarray:
        """Return the red, green, blue and alpha of a canvas [h, w, 4]."""
        data = self.page.locator(selector).first.evaluate("(canvas) => canvas.toDataURL()")
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2]))).convert("RGBA"), dtype=int)

    def saved(self, item: str, within: str = "#hl-overlay") -> Path:
        """Save by an item of the menu Save, and return the downloaded file."""
        menu = self.page.locator(within).get_by_role("button", name="Save", exact=True)
        if menu.get_attribute("aria-expanded") == "false":
            menu.click()
        return self.download(lambda: self.page.locator(within).get_by_role("button", name=item).click())

    def download(self, act: Callable[[], object]) -> Path:
        """Return the file that an action downloads, with its suggested name."""
        with self.page.expect_download() as started:
            act()
        path = Path(started.value.path())
        folder = path.with_suffix(".saved")
        folder.mkdir()
        return path.rename(folder / started.value.suggested_filename)

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
            page.locator("#hl-image .hl-image-remove").first.click()
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


@pytest.fixture(scope="session")
def scripts(browser) -> Iterator[Any]:
    """A page without a server that imports the modules of saliscope/page: `import("/wire.js")`."""
    page = browser.new_page()

    def respond(route: Any) -> None:
        name = urllib.parse.urlsplit(route.request.url).path[1:]
        if name:
            route.fulfill(path=STATIC / name, content_type="text/javascript")
        else:
            route.fulfill(body="<!doctype html>", content_type="text/html")

    page.route("http://scripts/**", respond)
    page.goto("http://scripts/")
    yield page
    page.close()


@pytest.fixture
def window(browser, app: str) -> Iterator[Callable[..., Visit]]:
    """Return a function that opens a browser context of a size for one visitor.

    Afterwards there must have been no request to another host and no console error.
    """
    with contextlib.ExitStack() as stack:

        def new(width: int = 1280, height: int = 900, address: str = app, **settings: Any) -> Visit:
            context = browser.new_context(viewport={"width": width, "height": height}, **{**STILL, **settings})
            stack.callback(context.close)
            visit = Visit(context.new_page(), address)
            stack.callback(visit.check)
            return visit

        yield new


@pytest.fixture(scope="session")
def _desktop(browser) -> Iterator[Any]:
    """A browser context whose cache keeps the files of the page, which would take half a second for each test."""
    size = {"width": 1280, "height": 900}
    context = browser.new_context(viewport=size, permissions=["clipboard-read", "clipboard-write"], **STILL)
    yield context
    context.close()


@pytest.fixture
def visit(_desktop: Any, app: str) -> Iterator[Visit]:
    """A new tab of a visitor; a test about what the browser stores uses `window`."""
    visit = Visit(_desktop.new_page(), app)
    yield visit
    visit.page.close()
    visit.check()


@pytest.fixture
def first_view(visit: Visit) -> Visit:
    """The page with its first example and default settings."""
    return visit.open()


@pytest.fixture
def small_view(visit: Visit) -> Visit:
    """The page with a network of two convolutions, for tests to which the network does not matter."""
    return visit.open("?model=bands3")


@pytest.fixture
def phone(window: Callable[..., Visit]) -> Visit:
    """The same on a narrow dark screen."""
    return window(390, 844, color_scheme="dark", device_scale_factor=2).open()
