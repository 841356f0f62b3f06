"""A network whose title, class names and layers are scripts, and sentences for a text encoder."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.public.attacks.browser import PAYLOADS, Browser
from benchmarks.public.attacks.http import Result

NAME, WORDS = "scripts", "words"
CODE = """
from torch import nn
PAYLOADS = {payloads!r}
TITLE = PAYLOADS[0]
CLASSES = len(PAYLOADS)
WEIGHTS = PAYLOADS[2]
PREPROCESSING = {{"size": 64, "resize": 64, "mean": (0.5,) * 3, "std": (0.5,) * 3}}
def labels():
    return list(PAYLOADS)
def build():
    network = nn.Sequential()
    for number, payload in enumerate(PAYLOADS):
        block = nn.Sequential()
        block.add_module(payload.replace(".", "\u2024"), nn.Conv2d(8 if number else 3, 8, 3, 2 if number < 3 else 1, 1))
        block.add_module("relu", nn.ReLU())
        network.add_module(payload.replace(".", "\u2024"), block)
    for name, layer in {{"pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "fc": nn.Linear(8, CLASSES)}}.items():
        network.add_module(name, layer)
    return network
"""
TEXT = """
TITLE = {title!r}
PREPROCESSING = {{"size": 32, "resize": 32, "mean": (0.5,) * 3, "std": (0.5,) * 3}}
from tests.support.two_encoders import build as both
def build():
    return both()
"""
ITEMS = ("Figure, SVG", "Figure, PDF", "Bundle")


def write(folder: Path) -> dict[str, str]:
    """Write two model files; return the variables of the app that offers them."""
    models = folder / "models"
    models.mkdir()
    (models / f"{NAME}.py").write_text(CODE.format(payloads=PAYLOADS), encoding="utf-8")
    (models / f"{WORDS}.py").write_text(TEXT.format(title=PAYLOADS[1]), encoding="utf-8")
    (models / "<img src=x onerror=ran()>.py").write_text("raise ValueError('<img src=x onerror=ran()>')\n")
    return {"SALISCOPE_MODELS_DIR": str(models)}


def texts(browser: Browser, folder: Path) -> Iterator[Result]:
    """Open every view of the page with the network, start what it offers, and open the files that it saves."""
    page = browser.page
    browser.open()
    page.locator("#hl-bars button[data-index]").first.wait_for()
    shown = page.locator("body").inner_text()
    yield Result("class names are shown", any(payload in shown for payload in PAYLOADS), True)
    yield Result("title, classes and layers", browser.new_hits(), 0)
    for field in ("model", "layer", "class", "method"):
        combobox = page.locator(f"#hl-{field} [role=combobox]")
        if combobox.count() and combobox.first.is_visible():
            combobox.first.click()
            page.wait_for_timeout(300)
            combobox.first.press("Escape")
            yield Result(f"the list of {field}", browser.new_hits(), 0)
    from playwright.sync_api import Error

    for view in browser.views():
        for button in ("Run", "Start", "Compare", "Rank", "Evaluate", "Compute", "Layers", "Table", "Measure"):
            browser.click(button)
        browser.page.wait_for_timeout(1500)
        for target in page.locator("#hl-main canvas:visible, #hl-main [title]:visible").all()[:8]:
            with contextlib.suppress(Error):  # it has gone since
                target.hover(force=True, timeout=2000)
        yield Result(f"the view {view} of this network", browser.new_hits(), 0)
    yield from _files(browser, folder)


def _files(browser: Browser, folder: Path) -> Iterator[Result]:
    """Save figures and the diagram of the network, and open them."""
    page = browser.page
    saved: list[Path] = []
    for item in ITEMS:
        browser.open()
        menu = page.locator("#hl-overlay").get_by_role("button", name="Save", exact=True)
        menu.click()
        button = page.locator("#hl-overlay").get_by_role("button", name=item)
        saved += filter(None, [browser.saved(lambda button=button: button.first.click(), folder)])
    yield Result("saved files", len(saved), len(ITEMS))
    for path in saved:
        if path.suffix in (".svg", ".html"):
            page.goto(path.as_uri())
            yield Result(f"{path.name}", browser.new_hits(), 0)


def sentences(browser: Browser) -> Iterator[Result]:
    """Enter scripts as sentences for a network with a text encoder."""
    page = browser.page
    for payload in PAYLOADS[:2]:
        browser.open(f"?{urllib.parse.urlencode({'model': WORDS, 'class': payload})}")
        field = page.get_by_role("textbox", name="Compared with", exact=True)
        field.fill(payload)
        field.press("Enter")
        page.wait_for_timeout(700)
        browser.settle()
        shown = page.locator("#hl-status").inner_text()
        yield Result(f"the sentence {payload[:12]} is shown", payload in shown, True)
        yield Result(f"sentences with {payload[:24]}", browser.new_hits(), 0)
    for view in browser.views():
        yield Result(f"the view {view} with sentences", browser.new_hits(), 0)
