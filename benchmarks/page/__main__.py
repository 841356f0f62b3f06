"""Latency of the page: start, click to overlay, clicks during another visitor's run, Stop, channels, a slow line.

`python -m benchmarks.page` prints all of them.

Needs playwright and Chromium. "page ready": the controls and the status line exist; "map": the first example's stored
map is drawn; "network": the first map that the network computed is drawn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
READY = "!!document.querySelector('#hl-explain') && !!document.querySelector('#hl-status .hl-line')"
NUMBER = "Number(document.getElementById('hl-overlay')?.dataset.id || 0)"
PICTURE = "document.querySelector('#hl-first img')?.naturalWidth > 0"
SLOW = {"offline": False, "latency": 400, "downloadThroughput": 50_000, "uploadThroughput": 50_000}
SHIFTS = """window.shifts = 0;
new PerformanceObserver((list) => list.getEntries().forEach((each) => (window.shifts += each.value)))
  .observe({ type: "layout-shift", buffered: true });"""
ANSWERED = "document.documentElement.dataset.hlState === 'done'"
CLICKS = {
    "example": ("#hl-examples button", (7, 3, 4)),
    "class": ("#hl-bars button", (1, 2, 0)),
    "block": ("#hl-strip .hl-rail-box:not([aria-disabled])", (2, 5, 8)),
}
"""The elements to click, and their positions in order; every click is a new question."""


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(port: int, folder: str) -> subprocess.Popen[bytes]:
    """Start the app with the built-in model, offline."""
    offline = {"HOOKLENS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "GRADIO_TEMP_DIR": folder}
    command = [sys.executable, "-m", "hooklens", "serve", "--port", str(port)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **offline}, stdout=subprocess.DEVNULL)


def until_served(address: str) -> None:
    """Wait for the first response."""
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.02)


def one_start(browser: Any, folder: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return seconds from process start to each event, and milliseconds of each kind of click."""
    port = free_port()
    started = time.monotonic()
    process = start(port, folder)
    try:
        until_served(f"http://127.0.0.1:{port}")
        events = {"served": time.monotonic() - started}
        page = browser.new_page()
        page.set_default_timeout(300_000)
        page.goto(f"http://127.0.0.1:{port}", wait_until="commit")
        for name, condition in {"page ready": READY, "map": f"{NUMBER} > 0", "network": ANSWERED}.items():
            page.wait_for_function(condition)
            events[name] = time.monotonic() - started
        clicks = {name: click(page, name) for name in CLICKS}
        page.close()
        return events, clicks
    finally:
        process.terminate()
        process.wait(30)


def during_a_long_run(browser: Any, folder: str) -> dict[str, float]:
    """Return milliseconds of another visitor's first map and click during RISE, of Stop and of drawing channels."""
    port = free_port()
    process = start(port, folder)
    address = f"http://127.0.0.1:{port}"
    try:
        until_served(address)
        one, other = (browser.new_context().new_page() for _ in range(2))
        one.goto(address)
        one.wait_for_function(ANSWERED, timeout=300_000)
        one.goto(f"{address}/?method=rise")
        one.wait_for_function(f"{NUMBER} > 0 && document.documentElement.dataset.hlState === 'busy'")
        found = {"quick answer during RISE": 0.0}
        started = time.monotonic()
        other.goto(f"{address}/?example=cat")
        other.wait_for_function(ANSWERED)
        found["page opened during RISE"] = 1000 * (time.monotonic() - started)
        found["quick answer during RISE"] = click(other, "example")
        running = one.evaluate("document.documentElement.dataset.hlState")
        assert running == "busy", "RISE ended too early"
        started = time.monotonic()
        one.click("#hl-stop")
        one.wait_for_function("document.documentElement.dataset.hlState === 'stopped'")
        found["Stop"] = 1000 * (time.monotonic() - started)
        other.click("#hl-tabs [data-tab-id=features]")
        other.wait_for_function("Number(document.getElementById('hl-grid')?.dataset.id || 0) > 0")
        found["drawing 1,280 channels"] = float(other.evaluate("document.getElementById('hl-grid').dataset.ms"))
        return found
    finally:
        process.terminate()
        process.wait(30)


def over_a_slow_line(browser: Any, folder: str) -> str:
    """Return seconds and requests until the stored picture, the controls and the first drawn map, and layout shifts.

    The line has a latency of 400 ms and 50 kB/s in both directions; the browser has no cache, then that of the first
    visit. Shifts are those after the first drawn map.
    """
    port, found = free_port(), []
    process = start(port, folder)
    address = f"http://127.0.0.1:{port}"
    try:
        until_served(address)
        time.sleep(8)  # the server imports torch meanwhile, as after a while of running
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        line = page.context.new_cdp_session(page)
        line.send("Network.enable")
        line.send("Network.emulateNetworkConditions", SLOW)
        page.add_init_script(SHIFTS)
        requests: list[Any] = []
        page.on("request", lambda request: None if request.url.startswith("data:") else requests.append(request))
        for visit in ("first visit", "next visit"):
            requests.clear()
            started = time.monotonic()
            page.goto(address, wait_until="commit")
            for name, condition in {"picture": PICTURE, "controls": READY, "map": f"{NUMBER} > 0"}.items():
                page.wait_for_function(condition, timeout=300_000)
                found.append(f"{visit}, {name} {time.monotonic() - started:.1f} s, {len(requests)} requests")
            page.evaluate("window.shifts = 0")
            page.wait_for_timeout(8000)
            found.append(f"layout shift {page.evaluate('window.shifts'):.4f}")
        return "; ".join(found)
    finally:
        process.terminate()
        process.wait(30)


def click(page: Any, name: str) -> float:
    """Return the median milliseconds from a click to the drawn map."""
    selector, positions = CLICKS[name]
    times = []
    for position in positions:
        page.wait_for_timeout(1500)  # small maps and gradient norms of the last answer arrive after its overlay
        times.append(
            page.evaluate(
                f"""async ([selector, position]) => {{
                  const before = {NUMBER}, start = performance.now();
                  document.querySelectorAll(selector)[position].click();
                  while ({NUMBER} === before) await new Promise((done) => setTimeout(done, 5));
                  return performance.now() - start;
                }}""",
                [selector, position],
            )
        )
    return statistics.median(times)


def main() -> None:
    """Print the latencies of a few starts."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=3)
    starts = parser.parse_args().starts
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as player, tempfile.TemporaryDirectory() as folder:
        browser = player.chromium.launch(executable_path=path, args=ARGUMENTS)
        for _ in range(starts):
            events, clicks = one_start(browser, folder)
            waited = ", ".join(f"{name} {value:.1f} s" for name, value in events.items())
            shown = ", ".join(f"{name} {value:.0f} ms" for name, value in clicks.items())
            print(f"{waited}; click to overlay: {shown}")
            print(", ".join(f"{name} {value:.0f} ms" for name, value in during_a_long_run(browser, folder).items()))
        print(over_a_slow_line(browser, folder))
        browser.close()


if __name__ == "__main__":
    main()
