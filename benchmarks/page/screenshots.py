"""Write the screenshots of docs/page.md into docs/screenshots: `python -m benchmarks.page.screenshots`."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from benchmarks.public.client import ROOT, running
from tests.saliscope.browser.conftest import ARGUMENTS, STILL, Visit, chromium

FOLDER = ROOT / "docs" / "screenshots"
SIZE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 780}
VIEWS = {
    "compare": ("Compare", None),
    "channels": ("Channels", None),
    "erase": ("Erase", "Erase the highest"),
    "concepts": ("Concepts", "Find concepts"),
}
"""File, name of the view, and the button that is pressed in it."""
STILL_TIME = 6
"""Seconds after which a view has drawn its answer."""


def save(page: Any, name: str) -> None:
    """Write a screenshot as WebP."""
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.save(FOLDER / f"{name}.webp", quality=75, method=6)


def explain(visit: Visit) -> None:
    """Open the page with an example, and wait until its sentence and its check are there."""
    visit.open("?example=dog")
    visit.until("document.querySelector('#hl-status .hl-headline')?.textContent.includes('Without')")
    visit.until("!/Comparing with controls|Randomizing weights/.test(document.body.textContent)")
    visit.page.mouse.move(0, 0)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with running() as server, sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        visit = Visit(browser.new_page(viewport=SIZE, **STILL), server.url)
        explain(visit)
        save(visit.page, "explain")
        for name, (title, button) in VIEWS.items():
            visit.open_view(title)
            if button:
                visit.page.get_by_role("button", name=button, exact=True).click()
            visit.page.mouse.move(0, 0)
            visit.page.wait_for_timeout(1000 * STILL_TIME)
            save(visit.page, name)
        phone = Visit(browser.new_page(viewport=PHONE, has_touch=True, **STILL), server.url)
        explain(phone)
        save(phone.page, "phone")
        browser.close()


if __name__ == "__main__":
    main()
