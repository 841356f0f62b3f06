"""Scripts in every text that the page shows, in Chromium: none may run."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
import urllib.parse
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Error, sync_playwright

from benchmarks.public.client import ROOT, Result, Server, running
from tests.saliscope.browser.conftest import ARGUMENTS, Visit, chromium
from tests.support.image_files import save

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
PATIENCE = 60_000
NAMES = [payload.replace("/", "\u2215") for payload in PAYLOADS]
"""Payloads as file names, which have no slashes."""
MODEL, WORDS = "scripts", "words"
CODE = """
from collections import OrderedDict
from torch import nn
PAYLOADS = {payloads!r}
TITLE, CLASSES, WEIGHTS = PAYLOADS[0], len(PAYLOADS), PAYLOADS[2]
PREPROCESSING = {{"size": 64, "resize": 64, "mean": (0.5,) * 3, "std": (0.5,) * 3}}
def labels():
    return list(PAYLOADS)
def build():
    layers = OrderedDict()
    for number, payload in enumerate(PAYLOADS):
        name, conv = payload.replace(".", "\u2024"), nn.Conv2d(8 if number else 3, 8, 3, 2 if number < 3 else 1, 1)
        layers[name] = nn.Sequential(OrderedDict({{name: conv, "relu": nn.ReLU()}}))
    layers |= {{"pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "fc": nn.Linear(8, CLASSES)}}
    return nn.Sequential(layers)
"""
TEXT = """
from tests.support.two_encoders import build
TITLE = {title!r}
PREPROCESSING = {{"size": 32, "resize": 32, "mean": (0.5,) * 3, "std": (0.5,) * 3}}
"""


# A page in Chromium that counts scripts which run, and what a person may do on it


class Browser(Visit):
    """A page and the scripts that ran in its frames."""

    def __init__(self, page: Any, server: Server) -> None:
        super().__init__(page, server.url)
        self.hits: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.expose_function("ran", lambda: self.hits.append("ran"))
        page.on("dialog", lambda dialog: (self.hits.append("dialog"), dialog.dismiss()))

    def open(self, query: str = "") -> None:
        """Open the page and wait for its answer."""
        self.page.goto("about:blank")  # an address that differs in its fragment only would not be loaded
        self.page.goto(f"{self.address}/{query}")
        self.until(ANSWERED)

    def new_hits(self) -> int:
        """Return how many scripts ran since the last call."""
        self.page.wait_for_timeout(300)  # an image that does not exist fails a moment later
        count = len(self.hits)
        self.hits.clear()
        return count

    def views(self) -> Iterator[str]:
        """Open every view, and every part of it; yield its name."""
        for name in self.page.locator("#hl-navigation [role=tab], #hl-menu [role=menuitem]").all_inner_texts():
            self.open_view(name)
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
            with contextlib.suppress(Error):
                field.fill(payload, timeout=1000)
                self.page.wait_for_timeout(50)  # suggestions
                field.press("Enter", timeout=1000)
        self.page.keyboard.press("Escape")

    def use_everything(self) -> None:
        """Click the buttons that start something, and point at what has hints."""
        for button in ("Run", "Start", "Compare", "Rank", "Evaluate", "Compute", "Layers", "Table", "Measure"):
            self.click(button)
        self.page.wait_for_timeout(1500)
        for target in self.page.locator("#hl-main canvas:visible, #hl-main [title]:visible").all()[:8]:
            with contextlib.suppress(Error):
                target.hover(force=True, timeout=2000)

    def choose_files(self, name: str, content: bytes, within: str = "#hl-main") -> int:
        """Choose a file in every field for files of the current view; return the number of fields."""
        kind, chosen = "application/zip" if name.endswith(".zip") else "image/png", 0
        for field in self.page.locator(f"{within} input[type=file]").all():
            with contextlib.suppress(Error):
                field.set_input_files(files=[{"name": name, "mimeType": kind, "buffer": content}], timeout=1000)
                chosen += 1
        return chosen

    def click(self, name: str, within: str = "#hl-main") -> None:
        """Click a visible button, if there is one that can be clicked."""
        button = self.page.locator(within).get_by_role("button", name=name, exact=True).locator("visible=true")
        with contextlib.suppress(Error):
            if button.count():
                button.first.click(timeout=2000)

    def saves(self, act: Callable[[], object], folder: Path) -> bool:
        """Return whether an action downloads a file, and open it, if it is one for browsers."""
        with contextlib.suppress(Error), self.page.expect_download(timeout=8000) as download:
            act()
            path = folder / f"saved{Path(download.value.suggested_filename).suffix}"
            download.value.save_as(path)
            if path.suffix in (".svg", ".html"):
                self.page.goto(path.as_uri())
                self.page.wait_for_timeout(500)
            return True
        return False


# The attacks


def scripts(server: Server) -> Iterator[Result]:
    """Yield one result per kind of text."""
    size = {"width": 1280, "height": 900}
    with sync_playwright() as player, tempfile.TemporaryDirectory() as place:
        chrome = player.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        browser = Browser(chrome.new_page(viewport=size), server)
        browser.open()
        browser.page.evaluate(f"document.body.append(document.createRange().createContextualFragment({PAYLOADS[0]!r}))")
        yield Result("a script that does run is counted", browser.new_hits(), 1)
        yield from links(browser)
        browser.open()
        for view in browser.views():
            browser.type_everywhere("".join(PAYLOADS[:3]))
            yield Result(f"scripts in the fields of {view}", browser.new_hits(), 0)
        yield from _files(browser)
        yield from _report(browser, Path(place))
        own = (server.url, "data:", "blob:", "about:", "file:")
        yield Result("requests to other hosts", [url for url in browser.requests if not url.startswith(own)], [])
        with running("--model", MODEL, **write_models(Path(place))) as other:
            yield from _texts(Browser(chrome.new_page(viewport=size), other), Path(place))
            yield from _sentences(Browser(chrome.new_page(viewport=size), other))


def parameters() -> list[str]:
    """Return the names of all parameters in the addresses of the page, from its scripts."""
    names = {"run", "image", "bundle", "view", "__theme", "theme", "deep_link"}  # of reports and of Gradio
    for script in (ROOT / "saliscope" / "page").rglob("*.js"):
        text = script.read_text(encoding="utf-8")
        if "bindParameters" in text:
            for listed in re.findall(r"(?:bindParameters\(\s*|NAMES = |REQUEST_PARAMETERS = )\[([^\]]+)\]", text):
                names |= set(re.findall(r'"(\w+)"', listed))
    return sorted(names)


def links(browser: Browser) -> Iterator[Result]:
    """Put a script into all parameters of the address, as it is and where a parameter has a structure."""
    names = parameters()
    yield Result("parameters of the address are known", len(names) >= 25, True)
    queries = [f"?{urllib.parse.urlencode(dict.fromkeys(names, payload))}" for payload in PAYLOADS]
    queries.append(f"#{urllib.parse.quote(' '.join(PAYLOADS))}")
    for payload in PAYLOADS[:2]:
        panel = urllib.parse.urlencode(dict.fromkeys(("method", "target", "layer", "model"), payload))
        given = {"options": json.dumps({payload: payload}), "edit": f"fill.{payload}_flip.{payload}"}
        given |= {f"panel{number}": panel for number in range(1, 5)}
        given |= {"true": payload, "class": payload, "tab": "compare", "limits": f"{payload},{payload}"}
        queries.append(f"?{urllib.parse.urlencode(given)}")
    for query in queries:
        browser.open(query)
        yield Result(f"a link with {query[:60]}", browser.new_hits(), 0)
    browser.open("?model=unknown5")  # a word instead of a script, which shows that the page displays it
    yield Result("an unknown model is shown", "unknown5" in browser.page.locator("body").inner_text(), True)


def _image(side: int = 64) -> bytes:
    return save(Image.effect_noise((side, side), 90).convert("RGB"), "PNG")


def _files(browser: Browser) -> Iterator[Result]:
    """Choose images with scripts in their names, and a script as an image."""
    for name in NAMES[:2]:
        browser.open()
        chosen = browser.choose_files(f"{name}.png", _image())
        browser.page.wait_for_timeout(1000)
        browser.until(ANSWERED)
        for _ in browser.views():  # second images
            chosen += browser.choose_files(f"{name}.png", _image(80))
            browser.page.wait_for_timeout(300)
        yield Result(f"files named {name[:24]}", browser.new_hits(), 0)
        yield Result(f"fields for files named {name[:12]}", chosen >= 4, True)
    browser.open()
    browser.choose_files(f"{NAMES[0]}.png", b"<script>ran()</script>")
    browser.page.wait_for_timeout(1500)
    yield Result("a file that is a script", browser.new_hits(), 0)


def _report(browser: Browser, folder: Path) -> Iterator[Result]:
    """Explain an archive with scripts as names, and open its report in the page, on its own, and image by image."""
    archive, page = io.BytesIO(), browser.page
    with zipfile.ZipFile(archive, "w") as target:
        for number, name in enumerate(NAMES):
            target.writestr(f"{name}/{name}.png", _image(64 + number))
    browser.open()
    page.locator("#hl-navigation [role=tab]", has_text="Batch").click()
    page.locator("#hl-many input[type=file]").first.wait_for(state="attached")
    browser.choose_files(f"{NAMES[0]}.zip", archive.getvalue(), "#hl-many")
    browser.click("Explain all", "#hl-many")
    ended = "['done', 'error'].includes(document.querySelector('#hl-many .hl-line').dataset.kind)"
    page.wait_for_function(ended, timeout=5 * PATIENCE)
    frame = page.frame_locator("#hl-many iframe")
    frame.get_by_role("heading", level=1).wait_for()
    text = frame.locator("body").inner_text()
    yield Result("the report shows the names", "<img src=x onerror=ran()>" in text, True)
    for each in frame.locator("button, summary").all():
        each.dispatch_event("click")  # one of them opens a dialog
    yield Result("names in an archive, in the report", browser.new_hits(), 0)
    page.locator("#hl-many").get_by_role("button", name="on the page").first.click()
    page.wait_for_timeout(1500)
    yield Result("names of an archive, step by step", browser.new_hits(), 0)
    page.locator("#hl-navigation [role=tab]", has_text="Batch").click()
    saved = browser.saves(lambda: browser.click("Save report", "#hl-many"), folder)
    yield Result("the saved report", (saved, browser.new_hits()), (True, 0))


def _texts(browser: Browser, folder: Path) -> Iterator[Result]:
    """Open every view with a network of scripts, start what it offers, and open the files that it saves."""
    page = browser.page
    browser.open()
    page.locator("#hl-bars button[data-index]").first.wait_for()
    shown = page.locator("body").inner_text()
    yield Result("class names are shown", any(payload in shown for payload in PAYLOADS), True)
    yield Result("title, classes and layers", browser.new_hits(), 0)
    for field in ("model", "layer", "class", "method"):
        combobox = page.locator(f"#hl-{field} [role=combobox]").locator("visible=true")
        if combobox.count():
            combobox.first.click()
            page.wait_for_timeout(300)
            combobox.first.press("Escape")
            yield Result(f"the list of {field}", browser.new_hits(), 0)
    for view in browser.views():
        browser.use_everything()
        yield Result(f"the view {view} of this network", browser.new_hits(), 0)
    for item in ("Figure, SVG", "Figure, PDF", "Bundle"):
        browser.open()
        browser.click("Save", "#hl-overlay")
        button = page.locator("#hl-overlay").get_by_role("button", name=item).first
        saved = browser.saves(button.click, folder)
        yield Result(f"{item} is saved", (saved, browser.new_hits()), (True, 0))


def _sentences(browser: Browser) -> Iterator[Result]:
    """Enter scripts as sentences for a network with a text encoder."""
    page = browser.page
    for payload in PAYLOADS[:2]:
        browser.open(f"?{urllib.parse.urlencode({'model': WORDS, 'class': payload})}")
        field = page.get_by_role("textbox", name="Compared with", exact=True)
        field.fill(payload)
        field.press("Enter")
        page.wait_for_timeout(700)
        browser.until(ANSWERED)
        yield Result(f"the sentence {payload[:12]} is shown", payload in page.locator("#hl-status").inner_text(), True)
        yield Result(f"sentences with {payload[:24]}", browser.new_hits(), 0)
    for view in browser.views():
        yield Result(f"the view {view} with sentences", browser.new_hits(), 0)


def write_models(folder: Path) -> dict[str, str]:
    """Write model files; return the variables of the app that offers them."""
    models = folder / "models"
    models.mkdir()
    (models / f"{MODEL}.py").write_text(CODE.format(payloads=PAYLOADS), encoding="utf-8")
    (models / f"{WORDS}.py").write_text(TEXT.format(title=PAYLOADS[1]), encoding="utf-8")
    (models / "<img src=x onerror=ran()>.py").write_text("raise ValueError('<img src=x onerror=ran()>')\n")
    return {"SALISCOPE_MODELS_DIR": str(models)}
