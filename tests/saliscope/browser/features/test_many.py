"""Batch tab: uploads, the report in its iframe, saving it, and error messages."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from saliscope import limits
from saliscope.datasets.report.links import Links
from saliscope.datasets.shards import open_run
from tests.saliscope.browser.conftest import PATIENCE, ROOT, Visit, expect, served

EXAMPLES = sorted((ROOT / "assets" / "examples").glob("*.jpg"))


def ended(visit: Visit, kind: str) -> str:
    visit.until(f"document.querySelector('#hl-many .hl-line').dataset.kind === '{kind}'")
    return visit.page.locator("#hl-many .hl-line").inner_text()


def test_uploads_become_a_report_that_can_be_saved(first_view: Visit, tmp_path: Path) -> None:
    """The images of a zip archive can be stepped through like single files. No sentence is about one image meanwhile."""
    visit = first_view
    page, own = visit.page, visit.page.locator("#hl-many")
    headline, buttons = page.locator("#hl-status .hl-headline"), page.locator("#hl-status button")
    page.get_by_role("tab", name="Batch").click()
    headline.wait_for(state="hidden")
    assert not any(button.is_visible() for button in buttons.all())
    assert "shepherd" not in page.locator("#hl-status").inner_text()
    own.get_by_role("button", name="Explain all").click()
    assert ended(visit, "error") == "No files selected. Choose images or a zip archive of images."
    with zipfile.ZipFile(tmp_path / "one.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("__MACOSX/._hidden.jpg", b"")
        file.write(EXAMPLES[1], EXAMPLES[1].name)
    own.locator("input[type=file]").set_input_files([str(EXAMPLES[0]), str(tmp_path / "one.zip")])
    own.get_by_role("button", name="Explain all").click()
    assert ended(visit, "done") == "2 images explained with Grad-CAM for EfficientNet-Lite0."
    frame = page.frame_locator("#hl-many iframe")
    frame.get_by_role("heading", level=1).wait_for(timeout=PATIENCE)
    assert "2 images" in frame.get_by_role("heading", level=1).inner_text()
    assert not own.get_by_role("button", name="Stop").is_enabled()
    report = visit.download(own.get_by_role("button", name="Save report").click)
    assert report.name == "report.html" and report.read_text(encoding="utf-8").startswith("<!doctype html>")

    steps = page.locator("#hl-steps p")
    visit.after(lambda: own.get_by_role("button", name=f"Explain {EXAMPLES[0].name} on the page").click())
    assert steps.inner_text() == f"1 of 2: {EXAMPLES[0].name}"
    assert page.get_by_role("tab", name="Explain").get_attribute("aria-selected") == "true" and headline.is_visible()
    visit.after(lambda: page.get_by_role("button", name="Next image").click())
    assert steps.inner_text() == f"2 of 2: {EXAMPLES[1].name}"
    visit.example("dog")
    assert not steps.is_visible(), "another image"


@pytest.mark.slow
def test_files_are_uploaded_one_by_one_and_too_many_are_reported(visit: Visit, tmp_path: Path) -> None:
    """Their total size exceeds the limit of one request; a drop adds to the existing files."""
    visit.open()
    page, own = visit.page, visit.page.locator("#hl-many")
    page.get_by_role("tab", name="Batch").click()
    for name in ("a.zip", "b.zip"):  # each is more than half of the limit of a request
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_STORED) as file:
            file.write(EXAMPLES[0], f"{name}/dog.jpg")
            file.writestr("padding.bin", bytes(limits.FILE * 3 // 5))
    (tmp_path / "heavy.zip").write_bytes(bytes(limits.FILE + 1))
    own.locator("input[type=file]").set_input_files([str(tmp_path / "a.zip"), str(tmp_path / "b.zip")])
    own.get_by_text("2 files, ").wait_for(timeout=PATIENCE)
    own.locator("input[type=file]").set_input_files(str(tmp_path / "heavy.zip"))
    assert ended(visit, "error").startswith("heavy.zip has 32.0 MB, but at most 32 MB are supported.")
    page.evaluate(
        """() => { const dataTransfer = new DataTransfer(), box = document.querySelector('#hl-many .hl-many-files');
          dataTransfer.items.add(new File([new Uint8Array(9)], 'broken.jpg', { type: 'image/jpeg' }));
          box.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true })); }"""
    )
    own.get_by_text("3 files, ").wait_for(timeout=PATIENCE)
    own.get_by_role("button", name="Explain all").click()
    status = ended(visit, "done")
    assert status.startswith("2 of 3 images explained with Grad-CAM") and "1 could not be read" in status


@pytest.mark.slow
def test_the_examples_are_explained_by_one_click_in_every_width(window: Any) -> None:
    visit = window(390, color_scheme="dark").open()
    visit.open_view("Batch")
    visit.page.locator("#hl-many").get_by_role("button", name="Try it with the 9 examples").click()
    assert ended(visit, "done").startswith("9 images explained")
    for width in (390, 768):
        visit.page.set_viewport_size({"width": width, "height": 900})
        assert visit.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.slow
def test_a_link_of_the_report_opens_its_image_in_an_app_that_knows_the_run(window: Any, tmp_path: Path) -> None:
    """The address still names the image after a change of method and a reload."""
    done = [sys.executable, "-m", "saliscope", "explain", str(EXAMPLES[0].parent), "--out", str(tmp_path / "run")]
    subprocess.run([*done, "--limit", "2"], cwd=ROOT, check=True, timeout=300)
    row = open_run(tmp_path / "run").table.to_pylist()[1]
    path, _ = Links("", {"method": "grad_cam"}).of({**row, "sha256": "0" * 64})
    with served(tmp_path, "-m", "saliscope", "serve", "--run", str(tmp_path / "run")) as address:
        visit = window(address=address).open(path[1:].replace("0" * 64, row["sha256"]))
        assert f"Grad-CAM for {row['target']}" in visit.status
        expect(visit.page.locator("#hl-examples button[aria-pressed=true]")).to_have_count(0)
        visit.after(lambda: visit.choose("method", "LayerCAM"))
        visit.open(urlsplit(visit.page.url)._replace(scheme="", netloc="").geturl()[1:])
        assert row["sha256"] in visit.page.url and f"LayerCAM for {row['target']}" in visit.status
        visit.page.goto(address + path.replace("class=", "pin=1&class="))
        expect(visit.page.locator("#hl-status")).to_contain_text("--run FOLDER")
