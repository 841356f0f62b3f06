"""Latency of the page: start, click to overlay, clicks during another visitor's run, Stop, channels, a slow line.

`python -m benchmarks.page` prints all of them, and `--only clicks` (start, long, slow) only these parts.
The app is started, and elements are clicked, `--starts` times, with a `--pause` in seconds between clicks.

Needs playwright and Chromium. "page ready": the controls and the status line exist; "map": the first example's stored
map is drawn; "network": the first map that the network computed is drawn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks import options
from benchmarks.public.client import processor_seconds, running
from tests.saliscope.browser.conftest import ARGUMENTS, chromium

READY = "!!document.querySelector('#hl-explain') && !!document.querySelector('#hl-status .hl-line')"
NUMBER = "Number(document.getElementById('hl-overlay')?.dataset.id || 0)"
STATE = "document.documentElement.dataset.hlState === '{}'"
ANSWERED = STATE.format("done")
SIZE = {"viewport": {"width": 1440, "height": 900}}
SLOW = {"offline": False, "latency": 400, "downloadThroughput": 50_000, "uploadThroughput": 50_000}
CLICKS = {
    "example": ("#hl-examples button", (7, 3, 4)),
    "class": ("#hl-bars button", (1, 2, 0)),
    "block": ("#hl-strip .hl-rail-box:not([aria-disabled])", (2, 5, 8)),
}
"""The elements to click, and their positions in order; every click is a new question."""
Times = dict[str, float]
Parts = Iterator[tuple[str, Times]]
"""The name and the numbers of each part of a measurement."""


def opened(browser: Any, address: str, condition: str = ANSWERED) -> Any:
    """Open a page as a new visitor, and wait for a condition."""
    page = browser.new_context(**SIZE).new_page()
    page.set_default_timeout(300_000)
    page.goto(address, wait_until="commit")
    page.wait_for_function(condition)
    return page


def starts(browser: Any, options: argparse.Namespace) -> Parts:
    """Yield milliseconds from process start to each event."""
    for _ in range(options.starts):
        started, events = time.monotonic(), {}
        with running(wait=False) as server:
            events["served"] = 1000 * (time.monotonic() - started)
            page = opened(browser, server.url, READY)
            for name, condition in {"page ready": READY, "map": f"{NUMBER} > 0", "network": ANSWERED}.items():
                page.wait_for_function(condition)
                events[name] = 1000 * (time.monotonic() - started)
            page.close()
        yield "start", events


def clicks(browser: Any, options: argparse.Namespace) -> Parts:
    """Yield the median milliseconds of each kind of click, and of drawing and the server's processor.

    For about three seconds after a map, it is compared with its controls.
    """
    with running(wait=False) as server:
        process, page = server.process.pid, opened(browser, server.url)
        for kind, (_, positions) in CLICKS.items():
            rows = []
            for turn in range(options.starts):
                page.wait_for_timeout(1000 * options.pause)  # small maps of the last answer arrive after its map
                used = processor_seconds(process)
                found = timed_click(page, kind, positions[turn % len(positions)])
                rows.append(found | {"processor": 1000 * (processor_seconds(process) - used)})
            yield kind, {part: statistics.median(each[part] for each in rows) for part in rows[0]}


def timed_click(page: Any, kind: str, position: int) -> Times:
    """Point at an element and click it; return the milliseconds until the map is drawn, and those of drawing."""
    selector = CLICKS[kind][0]
    page.locator(selector).nth(position).hover()
    page.wait_for_timeout(300)  # a layer's map is previewed when it is pointed at
    clicked, drawn = page.evaluate(
        f"""async ([selector, position]) => {{
          const before = {NUMBER}, clicked = performance.now();
          document.querySelectorAll(selector)[position].click();
          while ({NUMBER} === before) await new Promise((done) => setTimeout(done, 2));
          return [performance.now() - clicked, Number(document.getElementById("hl-overlay").dataset.ms)];
        }}""",
        [selector, position],
    )
    return {"click to map": clicked, "drawing": drawn}


def during_a_long_run(browser: Any, _: argparse.Namespace) -> Parts:
    """Yield milliseconds of another visitor's first map and click during RISE, of Stop and of drawing channels."""
    with running(wait=False) as server:
        opened(browser, server.url).close()
        one = opened(browser, f"{server.url}/?method=rise", f"{NUMBER} > 0 && {STATE.format('busy')}")
        started = time.monotonic()
        other = opened(browser, f"{server.url}/?example=cat")
        found = {"page opened during RISE": 1000 * (time.monotonic() - started)}
        clicks = []
        for position in CLICKS["example"][1]:
            other.wait_for_timeout(1500)  # small maps of the last answer arrive after its map
            clicks.append(timed_click(other, "example", position)["click to map"])
        found["quick answer during RISE"] = statistics.median(clicks)
        assert one.evaluate(STATE.format("busy")), "RISE ended too early"
        started = time.monotonic()
        one.click("#hl-stop")
        one.wait_for_function(STATE.format("stopped"))
        found["Stop"] = 1000 * (time.monotonic() - started)
        other.locator("#hl-navigation [role=tab]", has_text="Channels").click()
        other.wait_for_function("Number(document.getElementById('hl-grid')?.dataset.id || 0) > 0")
        found["drawing 1,280 channels"] = float(other.evaluate("document.getElementById('hl-grid').dataset.ms"))
        yield "a long run", found


def over_a_slow_line(browser: Any, _: argparse.Namespace) -> Parts:
    """Yield milliseconds and requests until the stored image, the controls and the first drawn map.

    The line has a latency of 400 ms and 50 kB/s in both directions; the browser has no cache, then that of the first
    visit.
    """
    with running(wait=False) as server:
        time.sleep(20)  # the server imports torch and compresses its script meanwhile, as after a while of running
        page = browser.new_context(**SIZE).new_page()
        line = page.context.new_cdp_session(page)
        line.send("Network.enable")
        line.send("Network.emulateNetworkConditions", SLOW)
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        for visit in ("first visit", "next visit"):
            requests.clear()
            started, found = time.monotonic(), {}
            page.goto(server.url, wait_until="commit")
            picture = "document.querySelector('#hl-first img')?.naturalWidth > 0"
            for name, condition in {"picture": picture, "controls": READY, "map": f"{NUMBER} > 0"}.items():
                page.wait_for_function(condition, timeout=300_000)
                found[name] = 1000 * (time.monotonic() - started)
                # those in the memory of the browser do not count
                found[f"{name}, requests"] = sum(not url.startswith(("data:", "blob:")) for url in requests)
            yield visit, found


PARTS = {"start": starts, "clicks": clicks, "long": during_a_long_run, "slow": over_a_slow_line}


def main() -> None:
    """Print the latencies in milliseconds."""
    given = options(__doc__, starts=3, pause=1.5, only=tuple(PARTS))
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        for name in given.only:
            for part, found in PARTS[name](browser, given):
                print(f"{part}:", ", ".join(f"{what} {value:.1f}" for what, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
