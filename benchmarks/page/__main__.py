"""Latency of the page: start, click to overlay, clicks during another visitor's run, Stop, channels, a slow line.

`python -m benchmarks.page` prints all of them. `--other PATH` measures another version of the project in turns, and
`--only clicks` (start, long, slow, shifts) only one part.

Needs playwright and Chromium. "page ready": the controls and the status line exist; "map": the first example's stored
map is drawn; "network": the first map that the network computed is drawn.
"""

from __future__ import annotations

import argparse
import functools
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TRACED = Path(__file__).with_name("traced_server.py")
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


def start(port: int, folder: str, tree: Path = ROOT, notes: str = "") -> subprocess.Popen[bytes]:
    """Start the app of a tree with the built-in model, offline; with `notes`, a file for the times of its parts."""
    offline = {"SALISCOPE_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "GRADIO_TEMP_DIR": folder, "PYTHONPATH": str(tree)}
    script = [str(TRACED), str(tree), notes] if notes else ["-m", "saliscope"]
    command = [sys.executable, *script, "serve", "--port", str(port)]
    return subprocess.Popen(command, cwd=tree, env={**os.environ, **offline}, stdout=subprocess.DEVNULL)


def until_served(address: str) -> None:
    """Wait for the first response."""
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.02)


def one_start(browser: Any, folder: str, tree: Path) -> dict[str, float]:
    """Return seconds from process start to each event."""
    port = free_port()
    started = time.monotonic()
    process = start(port, folder, tree)
    try:
        until_served(f"http://127.0.0.1:{port}")
        events = {"served": time.monotonic() - started}
        page = browser.new_page()
        page.set_default_timeout(300_000)
        page.goto(f"http://127.0.0.1:{port}", wait_until="commit")
        for name, condition in {"page ready": READY, "map": f"{NUMBER} > 0", "network": ANSWERED}.items():
            page.wait_for_function(condition)
            events[name] = time.monotonic() - started
        page.close()
        return events
    finally:
        process.terminate()
        process.wait(30)


def clicks_in_turns(browser: Any, folder: str, trees: list[Path], rounds: int, pause: float) -> list[str]:
    """Return one line per kind of click and tree: the median milliseconds of the click and of its parts.

    `pause` are the seconds between clicks. For about three seconds after a map, it is compared with its controls.
    """
    processes, pages = [], []
    times: dict[tuple[str, Path], list[dict[str, float]]] = {}
    try:
        for tree in trees:
            port, notes = free_port(), f"{folder}/{len(pages)}.notes"
            processes.append(start(port, folder, tree, notes))
            until_served(f"http://127.0.0.1:{port}")
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            count_bytes(page)
            page.goto(f"http://127.0.0.1:{port}")
            page.wait_for_function(ANSWERED, timeout=300_000)
            pages.append((tree, page, notes))
        for turn in range(rounds):
            for name, (selector, positions) in CLICKS.items():
                for tree, page, notes in pages:
                    page.wait_for_timeout(1000 * pause)  # small maps of the last answer arrive after its map
                    server = processes[trees.index(tree)].pid
                    before, used = received(page), processor_time(server)
                    found = timed_click(page, selector, positions[turn % len(positions)])
                    parts = parts_of(found, Path(notes)) | {"processor": processor_time(server) - used}
                    page.wait_for_timeout(1500)
                    parts |= {"processor with what follows": processor_time(server) - used}
                    times.setdefault((name, tree), []).append(parts | {"kB": (received(page) - before) / 1000})
    finally:
        for process in processes:
            process.terminate()
            process.wait(30)
    lines = []
    for (name, tree), found in times.items():
        medians = {part: statistics.median(each[part] for each in found) for part in found[0]}
        shown = ", ".join(f"{part} {value:.0f}" for part, value in medians.items())
        lines.append(f"{name}{'' if len(trees) == 1 else f' ({tree.name})'}, milliseconds: {shown}")
    return lines


def count_bytes(page: Any) -> None:
    """Count the bytes that a page receives, compressed."""
    line, total = page.context.new_cdp_session(page), [0]
    line.send("Network.enable")
    line.on("Network.dataReceived", lambda event: total.append(total.pop() + event["encodedDataLength"]))
    page.received_bytes = total


def received(page: Any) -> int:
    """Return the bytes that a page has received."""
    return int(page.received_bytes[0])


def processor_time(process: int) -> float:
    """Return the milliseconds of processor time of a process, which other load hardly changes."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed_click(page: Any, selector: str, position: int) -> dict[str, float]:
    """Point at an element and click it; return the times of the click and of the drawn map, and of drawing."""
    page.locator(selector).nth(position).hover()
    page.wait_for_timeout(300)  # a layer's map is previewed when it is pointed at
    found: dict[str, float] = page.evaluate(
        f"""async ([selector, position]) => {{
          const before = {NUMBER}, origin = performance.timeOrigin, clicked = origin + performance.now();
          document.querySelectorAll(selector)[position].click();
          while ({NUMBER} === before) await new Promise((done) => setTimeout(done, 2));
          const drawn = origin + performance.now(), paint = Number(document.getElementById("hl-overlay").dataset.ms);
          return {{ clicked, drawn, paint }};
        }}""",
        [selector, position],
    )
    return found


def parts_of(found: dict[str, float], notes: Path) -> dict[str, float]:
    """Return the milliseconds of a click and of its parts.

    browser: until the request that asks for the map; queue: until its handler starts; model: the computation of the
    map; server: from the request until the map is sent, with queue and model; transfer: until the browser draws.
    """
    clicked, drawn = found["clicked"], found["drawn"]
    lines = [line.split(" ", 1) for line in notes.read_text(encoding="utf-8").splitlines()]
    events = [(1000 * float(at), name) for at, name in lines if clicked <= 1000 * float(at) <= drawn]

    def first(name: str, after: float = clicked) -> float:
        return next((at for at, each in events if each == name and at >= after), drawn)

    handler = first("handler")
    asked = max((at for at, name in events if name == "request join" and at <= handler), default=clicked)
    model = first("model", handler)
    sent = first("sent process_generating", first("step Answer", handler))
    return {
        "click to map": drawn - clicked,
        "browser": asked - clicked,
        "queue": handler - asked,
        "model": first("computed", model) - model,
        "server": sent - asked,
        "transfer": max(0.0, drawn - found["paint"] - sent),
        "paint": found["paint"],
    }


def during_a_long_run(browser: Any, folder: str, tree: Path) -> dict[str, float]:
    """Return milliseconds of another visitor's first map and click during RISE, of Stop and of drawing channels."""
    port = free_port()
    process = start(port, folder, tree)
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
        found["quick answer during RISE"] = statistics.median(
            each["drawn"] - each["clicked"] for each in clicks(other, "example")
        )
        running = one.evaluate("document.documentElement.dataset.hlState")
        assert running == "busy", "RISE ended too early"
        started = time.monotonic()
        one.click("#hl-stop")
        one.wait_for_function("document.documentElement.dataset.hlState === 'stopped'")
        found["Stop"] = 1000 * (time.monotonic() - started)
        other.locator("#hl-navigation [role=tab]", has_text="Channels").click()
        other.wait_for_function("Number(document.getElementById('hl-grid')?.dataset.id || 0) > 0")
        found["drawing 1,280 channels"] = float(other.evaluate("document.getElementById('hl-grid').dataset.ms"))
        return found
    finally:
        process.terminate()
        process.wait(30)


def over_a_slow_line(browser: Any, folder: str, tree: Path) -> str:
    """Return seconds and requests until the stored picture, the controls and the first drawn map, and layout shifts.

    The line has a latency of 400 ms and 50 kB/s in both directions; the browser has no cache, then that of the first
    visit. Shifts are those after the first drawn map.
    """
    port, found = free_port(), []
    process = start(port, folder, tree)
    address = f"http://127.0.0.1:{port}"
    try:
        until_served(address)
        time.sleep(20)  # the server imports torch and compresses its script meanwhile, as after a while of running
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        line = page.context.new_cdp_session(page)
        line.send("Network.enable")
        line.send("Network.emulateNetworkConditions", SLOW)
        page.add_init_script(SHIFTS)
        requests: list[Any] = []
        local = ("data:", "blob:")  # in the memory of the browser
        page.on("request", lambda request: None if request.url.startswith(local) else requests.append(request))
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


def layout_shifts(browser: Any, folder: str, tree: Path) -> dict[str, float]:
    """Return the layout shifts of actions after the first map, counting those that follow an input."""
    port = free_port()
    process = start(port, folder, tree)
    try:
        until_served(f"http://127.0.0.1:{port}")
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.add_init_script(SHIFTS)
        page.goto(f"http://127.0.0.1:{port}")
        page.wait_for_function(f"{NUMBER} > 0", timeout=300_000)
        views = page.locator("#hl-navigation [role=tab]")
        image = str(tree / "assets" / "examples" / "cat.jpg")
        actions: dict[str, Callable[[], object]] = {
            "first answer": lambda: page.wait_for_function(ANSWERED, timeout=300_000),
            **{name: functools.partial(timed_click, page, CLICKS[name][0], CLICKS[name][1][0]) for name in CLICKS},
            "upload": lambda: page.locator("#hl-image input[type=file]").first.set_input_files(image),
            **{f"view {k + 1}": views.nth(k).click for k in range(1, views.count())},
            "view 1": views.nth(0).click,
        }
        found = {}
        for name, act in actions.items():
            page.evaluate("window.shifts = 0")
            act()
            page.wait_for_timeout(4000)
            found[name] = float(page.evaluate("window.shifts"))
        return found
    finally:
        process.terminate()
        process.wait(30)


def clicks(page: Any, name: str) -> list[dict[str, float]]:
    """Click the elements of a kind in turn, see `timed_click`."""
    selector, positions = CLICKS[name]
    found = []
    for position in positions:
        page.wait_for_timeout(1500)  # as above
        found.append(timed_click(page, selector, position))
    return found


def main() -> None:
    """Print the latencies."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--pause", type=float, default=1.5, help="seconds between clicks")
    parser.add_argument("--other", type=Path, help="another version of the project, measured in turns")
    parser.add_argument("--only", choices=("start", "clicks", "long", "slow", "shifts"))
    options = parser.parse_args()
    trees = [ROOT, *([options.other.resolve()] if options.other else [])]
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    path = path or shutil.which("chromium-headless-shell")

    def wants(part: str) -> bool:
        return options.only in (None, part)

    with sync_playwright() as player, tempfile.TemporaryDirectory() as folder:
        browser = player.chromium.launch(executable_path=path, args=ARGUMENTS)
        for turn in range(options.starts):
            for tree in trees:
                if wants("start"):
                    events = one_start(browser, folder, tree)
                    print(f"{tree.name}:", ", ".join(f"{name} {value:.1f} s" for name, value in events.items()))
                if wants("long") and not turn:
                    found = during_a_long_run(browser, folder, tree)
                    print(f"{tree.name}:", ", ".join(f"{name} {value:.0f} ms" for name, value in found.items()))
        if wants("clicks"):
            print(*clicks_in_turns(browser, folder, trees, options.starts, options.pause), sep="\n")
        if wants("shifts"):
            found = layout_shifts(browser, folder, ROOT)
            print("layout shifts:", ", ".join(f"{name} {value:.4f}" for name, value in found.items()))
        for tree in trees if wants("slow") else ():
            print(f"{tree.name}:", over_a_slow_line(browser, folder, tree))
        browser.close()


if __name__ == "__main__":
    main()
