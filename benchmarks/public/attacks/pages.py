"""Scripts in every text that the page shows, in Chromium: none may run."""

from __future__ import annotations

import io
import json
import re
import tempfile
import urllib.parse
import zipfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from benchmarks.public.attacks import own_model
from benchmarks.public.attacks.browser import PATIENCE, PAYLOADS, Browser, browsers
from benchmarks.public.client import Result
from benchmarks.public.server import ROOT, Server, running

NAMES = [payload.replace("/", "\u2215") for payload in PAYLOADS]
"""Payloads as file names, which have no slashes."""
ITEMS = ("Figure, SVG", "Figure, PDF", "Bundle")
PAGE = ROOT / "saliscope" / "page"


def scripts(server: Server) -> Iterator[Result]:
    """Yield one result per kind of text."""
    with browsers() as visit, tempfile.TemporaryDirectory() as place:
        browser = visit(server)
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
        with running("--model", own_model.NAME, **own_model.write(Path(place))) as other:
            yield from _texts(visit(other), Path(place))
            yield from _sentences(visit(other))


def parameters() -> list[str]:
    """Return the names of all parameters in the addresses of the page, from its scripts."""
    names = {"run", "image", "bundle", "view", "__theme", "theme", "deep_link"}  # of reports and of Gradio
    for script in PAGE.rglob("*.js"):
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
    file = io.BytesIO()
    Image.effect_noise((side, side), 90).convert("RGB").save(file, "PNG")
    return file.getvalue()


def _files(browser: Browser) -> Iterator[Result]:
    """Choose images with scripts in their names, and a script as an image."""
    for name in NAMES[:2]:
        browser.open()
        chosen = browser.choose_files(f"{name}.png", _image())
        browser.page.wait_for_timeout(1000)
        browser.settle()
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
    report = browser.saved(lambda: browser.click("Save report", "#hl-many"), folder)
    page.locator("#hl-many").get_by_role("button", name="on the page").first.click()
    page.wait_for_timeout(1500)
    yield Result("names of an archive, step by step", browser.new_hits(), 0)
    browser.open_file(report)
    yield Result("the saved report", (report is not None, browser.new_hits()), (True, 0))


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
    for item in ITEMS:
        browser.open()
        browser.click("Save", "#hl-overlay")
        button = page.locator("#hl-overlay").get_by_role("button", name=item).first
        path = browser.saved(button.click, folder)
        browser.open_file(path)
        yield Result(f"{item} is saved", (path is not None, browser.new_hits()), (True, 0))


def _sentences(browser: Browser) -> Iterator[Result]:
    """Enter scripts as sentences for a network with a text encoder."""
    page = browser.page
    for payload in PAYLOADS[:2]:
        browser.open(f"?{urllib.parse.urlencode({'model': own_model.WORDS, 'class': payload})}")
        field = page.get_by_role("textbox", name="Compared with", exact=True)
        field.fill(payload)
        field.press("Enter")
        page.wait_for_timeout(700)
        browser.settle()
        yield Result(f"the sentence {payload[:12]} is shown", payload in page.locator("#hl-status").inner_text(), True)
        yield Result(f"sentences with {payload[:24]}", browser.new_hits(), 0)
    for view in browser.views():
        yield Result(f"the view {view} with sentences", browser.new_hits(), 0)
