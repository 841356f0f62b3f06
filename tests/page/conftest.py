"""The app as a process of its own, Chromium in front of it, and for every page: no foreign request, no error."""

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

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE = 120_000
"""Milliseconds to wait for anything: torch may be imported meanwhile, and the machine may be busy with other work."""
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HOOKLENS_OFFLINE": "1"}


def chromium() -> str | None:
    """The path of a Chromium, or None."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")  # the first draws no windows
    return os.environ.get("CHROMIUM") or next((path for name in names if (path := shutil.which(name))), None)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


@contextlib.contextmanager
def served(folder: Path, *start: str, cwd: Path = ROOT, **environment: str) -> Iterator[str]:
    """Run `python app.py`, or what `start` says instead, and hand out its address once it answers."""
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
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the running app; HOOKLENS_ADDRESS names one that runs already."""
    if given := os.environ.get("HOOKLENS_ADDRESS"):
        yield given.rstrip("/")
        return
    with served(tmp_path_factory.mktemp("app")) as address:
        yield address


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    path = chromium()
    if path is None:
        pytest.skip("no Chromium on this machine; `make test` installs one, CHROMIUM names one elsewhere")
    with api.sync_playwright() as player:
        running = player.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield running
        running.close()


class Visit:
    """A page of the app, with its requests and its console errors."""

    def __init__(self, page, address: str) -> None:
        self.page, self.address = page, address
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.set_default_timeout(PATIENCE)
        # Playwright asks at every frame, which makes the browser draw one after the other, on these processors in full.
        page.wait_for_function = partial(page.wait_for_function, polling=50)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))

    def open(self, query: str = "") -> Visit:
        """Open the page and wait for the first overlay."""
        self.page.goto(self.address + "/" + query)
        self.painted("overlay", 0)
        self.settled()
        # Gradio complains about the event stream of the page that was left; that is no fault of this one.
        left = ("AbortError: signal is aborted", "Connection errored out")
        self.errors[:] = [each for each in self.errors if not any(word in each for word in left)]
        return self

    def number(self, name: str) -> int:
        """The number of the answer that a component shows."""
        return int(self.page.evaluate(f"document.getElementById('hl-{name}')?.dataset.id || 0"))

    def painted(self, name: str, after: int) -> int:
        """Wait until a component shows an answer later than `after`."""
        self.page.wait_for_function(
            f"Number(document.getElementById('hl-{name}')?.dataset.id || 0) > {after}", timeout=PATIENCE
        )
        return self.number(name)

    def settled(self) -> None:
        """Wait until nothing is computed any more: the rail's maps and norms come last, and small maps beside bars."""
        self.page.wait_for_function(
            "Number(document.getElementById('hl-strip')?.dataset.id || 0)"
            " > Number(document.getElementById('hl-overlay')?.dataset.id || 0)"
            " && document.documentElement.dataset.hlState !== 'landing'"
            " && document.getElementById('hl-strip').dataset.norms !== 'asked'"
            " && !document.querySelector('#hl-bars canvas[data-small]:not([data-drawn])')"
            " || ['error', 'idle'].includes(document.documentElement.dataset.hlState)",
            timeout=PATIENCE,
        )

    def after(self, act: Callable[[], object], name: str = "overlay") -> None:
        """Do something and wait until a component shows a later answer."""
        before = self.number(name)
        act()
        self.painted(name, before)
        if name == "overlay":
            self.settled()

    def after_partial(self, act: Callable[[], object]) -> None:
        """Do something and wait for the first partial map of a long method."""
        before = self.number("overlay")
        act()
        self.painted("overlay", before)

    def choose(self, name: str, text: str) -> None:
        """Choose from a list by typing."""
        if name == "method":
            self.page.locator("#hl-method button[aria-haspopup]").click()
            self.page.locator("#hl-method [role=combobox]").fill(text)
            self.page.locator("#hl-method [role=option]").first.click()
            return
        field = self.page.locator(f"#hl-{name} input").first
        field.click()
        if field.is_editable():
            field.press("Control+a")
            field.press_sequentially(text)  # a list shows a hundred names, and filters at keys alone
        self.page.locator(f"#hl-{name} ul[role=listbox] li").filter(has_text=re.compile(re.escape(text))).first.click()

    @property
    def status(self) -> str:
        """The status line's words."""
        return self.page.locator("#hl-status .hl-line").inner_text()

    def upload(self, path: Path) -> None:
        """Give the page a file, as a visitor would."""
        page = self.page
        if page.locator("#hl-picture input[type=file]").count() == 0:
            page.locator("#hl-picture button[aria-label='Remove Image']").first.click()
        page.locator("#hl-picture input[type=file]").first.set_input_files(str(path))

    def check(self) -> None:
        """No request to another host, and no error in the console."""
        foreign = [url for url in self.requests if not url.startswith((self.address, "data:", "blob:"))]
        assert not foreign, foreign
        assert not self.errors, self.errors


@pytest.fixture
def visit(browser, app: str) -> Iterator[Visit]:
    """A fresh visitor; at the end no foreign request and no console error are allowed."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    found = Visit(context.new_page(), app)
    yield found
    found.check()
    context.close()
