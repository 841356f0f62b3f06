"""The tab of many pictures as a visitor uses it: uploads, the report in its frame, saving it, refusals in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.page.conftest import PATIENCE, Visit

EXAMPLES = sorted((Path(__file__).parents[2] / "assets" / "examples").glob("*.jpg"))


def ended(visit: Visit, kind: str) -> str:
    visit.page.wait_for_function(
        f"document.querySelector('#hl-many .hl-line').dataset.kind === '{kind}'", timeout=PATIENCE
    )
    return visit.page.locator("#hl-many .hl-line").inner_text()


def test_uploads_become_a_report_that_can_be_saved(visit: Visit) -> None:
    visit.open()
    page, own = visit.page, visit.page.locator("#hl-many")
    page.get_by_role("tab", name="Many pictures").click()
    own.get_by_role("button", name="Explain all").click()
    assert ended(visit, "error") == "Choose pictures, or a zip of them, first."
    page.locator("#hl-many-files input[type=file]").set_input_files([str(path) for path in EXAMPLES[:3]])
    page.wait_for_function("document.querySelectorAll('#hl-many-files tr, #hl-many-files .file').length >= 3")
    own.get_by_role("button", name="Explain all").click()
    assert ended(visit, "done") == "3 pictures explained by Grad-CAM for EfficientNet-Lite0."
    frame = page.frame_locator("#hl-many iframe")
    frame.get_by_role("heading", level=1).wait_for(timeout=PATIENCE)
    assert "3 pictures" in frame.get_by_role("heading", level=1).inner_text()
    assert not own.get_by_role("button", name="Stop").is_enabled()
    with page.expect_download() as download:
        own.get_by_role("button", name="Save report").click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    assert download.value.suggested_filename == "report.html" and text.startswith("<!doctype html>")
    visit.check()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 768])
def test_no_width_scrolls_sideways(browser: Any, app: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="dark")
    visit = Visit(context.new_page(), app).open()
    visit.page.get_by_role("tab", name="Many pictures").click()
    visit.page.locator("#hl-many-files input[type=file]").set_input_files([str(path) for path in EXAMPLES])
    visit.page.wait_for_timeout(2000)
    visit.page.locator("#hl-many").get_by_role("button", name="Explain all").click()
    ended(visit, "done")
    assert visit.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    visit.check()
    context.close()
