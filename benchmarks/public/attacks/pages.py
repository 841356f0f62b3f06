"""Scripts in every text that the page shows, in Chromium: none may run."""

from __future__ import annotations

import json
import tempfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.public.attacks import own_model
from benchmarks.public.attacks.browser import PAYLOADS, Browser, archive, browsers, file_name, image, parameters
from benchmarks.public.attacks.http import Result
from benchmarks.public.server import Server, running


def scripts(server: Server) -> Iterator[Result]:
    """Yield one result per kind of text."""
    with browsers() as visit:
        browser = visit(server)
        browser.open()
        browser.page.evaluate(f"document.body.append(document.createRange().createContextualFragment({PAYLOADS[0]!r}))")
        yield Result("a script that does run is counted", browser.new_hits(), 1)
        yield from links(browser)
        yield from _fields(browser)
        yield from _files(browser)
        own = (server.url, "data:", "blob:", "about:", "file:")
        hosts = {url for url in browser.requests if not url.startswith(own)}
        yield Result("requests to other hosts", sorted(hosts), [])
        with tempfile.TemporaryDirectory() as place:
            variables = own_model.write(Path(place))
            with running("--model", own_model.NAME, **variables) as other:
                yield from own_model.texts(visit(other), Path(place))
                yield from own_model.sentences(visit(other))


def links(browser: Browser) -> Iterator[Result]:
    """Put a script into all parameters of the address, as it is and where a parameter has a structure."""
    names = parameters()
    yield Result("parameters of the address are known", len(names) >= 25, True)
    for payload in PAYLOADS:
        browser.open(f"?{urllib.parse.urlencode(dict.fromkeys(names, payload))}")
        yield Result(f"links with {payload[:24]}", browser.new_hits(), 0)
    browser.open(f"#{urllib.parse.quote(' '.join(PAYLOADS))}")
    yield Result("fragment with scripts", browser.new_hits(), 0)
    for payload in PAYLOADS[:2]:
        panel = urllib.parse.urlencode(dict.fromkeys(("method", "target", "layer", "model"), payload))
        given = {"options": json.dumps({payload: payload}), "edit": f"fill.{payload}_flip.{payload}"}
        given |= {f"panel{number}": panel for number in range(1, 5)}
        given |= {"true": payload, "class": payload, "tab": "compare", "limits": f"{payload},{payload}"}
        browser.open(f"?{urllib.parse.urlencode(given)}")
        yield Result(f"structured links with {payload[:24]}", browser.new_hits(), 0)
    browser.open("?model=unknown5")  # a word instead of a script, which shows that the page displays it
    yield Result("an unknown model is shown", "unknown5" in browser.page.locator("body").inner_text(), True)


def _fields(browser: Browser) -> Iterator[Result]:
    """Type scripts into all fields of all views."""
    browser.open()
    for view in browser.views():
        typed = browser.type_everywhere("".join(PAYLOADS[:3]))
        yield Result(f"scripts in {typed} fields of {view}", browser.new_hits(), 0)


def _files(browser: Browser) -> Iterator[Result]:
    """Choose images and a zip archive with scripts in their names."""
    for payload in PAYLOADS[:2]:
        name = file_name(payload) + ".png"
        browser.open()
        chosen = browser.choose_files(name, image())
        browser.page.wait_for_timeout(1000)
        browser.settle()
        for _ in browser.views():  # second images
            chosen += browser.choose_files(name, image(80))
            browser.page.wait_for_timeout(300)
        yield Result(f"files named {name[:24]}", browser.new_hits(), 0)
        yield Result(f"fields for files named {name[:12]}", chosen >= 4, True)
    browser.open()
    browser.choose_files(file_name(PAYLOADS[0]) + ".png", b"<script>ran()</script>")
    browser.page.wait_for_timeout(1500)
    yield Result("a file that is a script", browser.new_hits(), 0)
    yield from _report(browser)


def _report(browser: Browser) -> Iterator[Result]:
    """Explain an archive, and open its report in the page, on its own, and image by image."""
    page = browser.page
    browser.open("?tab=batch")
    for _ in browser.views():
        if page.locator("#hl-many").is_visible():
            break
    file = {"name": f"{file_name(PAYLOADS[0])}.zip", "mimeType": "application/zip", "buffer": archive()}
    page.locator("#hl-many input[type=file]").set_input_files(files=[file])
    browser.click("Explain all", "#hl-many")
    page.wait_for_function("['done', 'error'].includes(document.querySelector('#hl-many .hl-line').dataset.kind)")
    frame = page.frame_locator("#hl-many iframe")
    frame.get_by_role("heading", level=1).wait_for()
    text = frame.locator("body").inner_text()
    yield Result("the report shows the names", "<img src=x onerror=ran()>" in text, True)
    for number in range(frame.locator("button, summary").count()):
        frame.locator("button, summary").nth(number).dispatch_event("click")  # one of them opens a dialog
    yield Result("names in an archive, in the report", browser.new_hits(), 0)
    with tempfile.TemporaryDirectory() as place:
        report = browser.saved(lambda: browser.click("Save report", "#hl-many"), Path(place))
        page.locator("#hl-many").get_by_role("button", name="on the page").first.click()
        page.wait_for_timeout(1500)
        yield Result("names of an archive, step by step", browser.new_hits(), 0)
        yield Result("a report is saved", report is not None, True)
        if report:
            page.goto(report.as_uri())
            page.wait_for_timeout(500)
            yield Result("the saved report", browser.new_hits(), 0)
