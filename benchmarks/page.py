"""How long a visitor waits: process start to page ready, and click to overlay. `python -m benchmarks.page` prints both.

Needs playwright and a Chromium. "Ready" is the moment at which the page can be used: its controls and the status line
are there; "map" the moment at which the first example's map is painted, which is kept with the project; "network" the
moment at which the network itself has answered.
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
ANSWERED = "document.documentElement.dataset.hlState === 'done'"
CLICKS = {
    "example": "#hl-examples button[data-id={}]",
    "class": "#hl-top5 button:nth-child({})",
    "stage": "#hl-strip button:nth-child({})",
}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def start(port: int, folder: str) -> subprocess.Popen[bytes]:
    """The app with the model on board, fetching nothing."""
    quiet = {"HOOKLENS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "GRADIO_TEMP_DIR": folder}
    command = [sys.executable, "app.py", "--port", str(port)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **quiet}, stdout=subprocess.DEVNULL)


def until_served(address: str) -> None:
    """Wait for the first answer."""
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.02)


def one_start(browser: Any, folder: str) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds from the process's start to each moment; then the clicks' milliseconds."""
    port = free_port()
    began = time.monotonic()
    process = start(port, folder)
    try:
        until_served(f"http://127.0.0.1:{port}")
        moments = {"served": time.monotonic() - began}
        page = browser.new_page()
        page.set_default_timeout(300_000)
        page.goto(f"http://127.0.0.1:{port}", wait_until="commit")
        for name, condition in {"page ready": READY, "map": f"{NUMBER} > 0", "network": ANSWERED}.items():
            page.wait_for_function(condition)
            moments[name] = time.monotonic() - began
        clicks = {name: click(page, selector) for name, selector in CLICKS.items()}
        page.close()
        return moments, clicks
    finally:
        process.terminate()
        process.wait(30)


def click(page: Any, selector: str) -> float:
    """Median milliseconds from a click to the painted map; each click asks for something else."""
    found = []
    for choice in ("cat", "macaw", "goldfish") if "{}" in selector and "data-id" in selector else (2, 3, 1):
        page.wait_for_timeout(1500)  # the strip of the last answer is still computed after its overlay
        found.append(
            page.evaluate(
                f"""async (selector) => {{
                  const before = {NUMBER}, began = performance.now();
                  document.querySelector(selector).click();
                  while ({NUMBER} === before) await new Promise((done) => setTimeout(done, 5));
                  return performance.now() - began;
                }}""",
                selector.format(choice),
            )
        )
    return statistics.median(found)


def main() -> None:
    """Print the figures of a few starts."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=3)
    starts = parser.parse_args().starts
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as player, tempfile.TemporaryDirectory() as folder:
        browser = player.chromium.launch(executable_path=path, args=ARGUMENTS)
        for _ in range(starts):
            moments, clicks = one_start(browser, folder)
            waited = ", ".join(f"{name} {value:.1f} s" for name, value in moments.items())
            shown = ", ".join(f"{name} {value:.0f} ms" for name, value in clicks.items())
            print(f"{waited}; click to overlay: {shown}")
        browser.close()


if __name__ == "__main__":
    main()
