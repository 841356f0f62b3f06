"""Batch view: uploads, the report in its iframe, saving it, and error messages."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image, ImageEnhance

from saliscope import limits
from saliscope.runs.report.images import Links
from saliscope.runs.shards import open_run
from tests.saliscope.browser.conftest import ROOT, Visit, expect, served

EXAMPLES = sorted((ROOT / "assets" / "examples").glob("*.jpg"))


def ended(visit: Visit, kind: str) -> Any:
    """Wait until a run has ended like this, and return the assertions about its status."""
    visit.until(f"document.querySelector('#hl-many .hl-line').dataset.kind === '{kind}'")
    return expect(visit.page.locator("#hl-many .hl-line"))


def test_uploads_become_a_report_that_can_be_saved(visit: Visit, tmp_path: Path) -> None:
    """The images of a zip archive can be stepped through like single files. No sentence is about one image meanwhile."""
    page, own = visit.open("?model=bands3").page, visit.page.locator("#hl-many")
    (name,) = re.findall(r"Grad-CAM for (\w+) ", visit.status)
    page.get_by_role("tab", name="Batch").click()
    page.locator("#hl-status .hl-headline").wait_for(state="hidden")
    expect(page.locator("#hl-status")).not_to_contain_text(name, use_inner_text=True)
    explain = own.get_by_role("button", name="Explain all")
    explain.click()
    ended(visit, "error").to_have_text("No files selected. Choose images or a zip archive of images.")
    with zipfile.ZipFile(tmp_path / "one.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("__MACOSX/._hidden.jpg", b"")
        file.write(EXAMPLES[1], EXAMPLES[1].name)
    own.locator("input[type=file]").set_input_files([str(EXAMPLES[0]), str(tmp_path / "one.zip")])
    explain.click()
    ended(visit, "done").to_have_text("2 images explained with Grad-CAM for A network of 3 channels.")
    frame = page.frame_locator("#hl-many iframe")
    expect(frame.get_by_role("heading", level=1)).to_contain_text("2 images")
    report = visit.download(own.get_by_role("button", name="Save report").click)
    assert report.name == "report.html" and report.read_text(encoding="utf-8").startswith("<!doctype html>")

    steps = page.locator("#hl-steps p")
    visit.after(lambda: own.get_by_role("button", name=f"Explain {EXAMPLES[0].name} on the page").click())
    expect(steps).to_have_text(f"1 of 2: {EXAMPLES[0].name}")
    expect(page.locator("#hl-status .hl-headline")).to_be_visible()
    visit.after(lambda: page.get_by_role("button", name="Next image").click())
    expect(steps).to_have_text(f"2 of 2: {EXAMPLES[1].name}")
    visit.example("dog")
    expect(steps, "another image").to_be_hidden()


def write_animals(path: Path) -> Path:
    """Write a zip archive with 12 variants of the cat and of the coffee, in folders named by class."""
    with zipfile.ZipFile(path, "w") as file:
        for name in ("cat", "coffee"):
            image = Image.open(ROOT / "assets" / "examples" / f"{name}.jpg").convert("RGB").resize((224, 224))
            for k in range(12):
                data = io.BytesIO()
                ImageEnhance.Brightness(image).enhance(0.8 + 0.03 * k).save(data, "JPEG")
                file.writestr(f"{name}/{k:02}.jpg", data.getvalue())
    return path


@pytest.mark.slow
def test_a_visitors_images_are_indexed_for_the_channels_of_this_session(window: Any, tmp_path: Path) -> None:
    """With progress, names from the folders, crops with the photo; then another network removes the index."""
    visit, other = window().open("?model=bands3&example=cat"), window()
    page, own, unit = visit.page, visit.page.locator("#hl-many"), visit.page.locator("#hl-unit")
    page.get_by_role("tab", name="Channels").click()
    page.locator("#hl-grid [role=option]").first.wait_for()
    assert unit.locator(".hl-unit-crops").count() == 0
    page.get_by_role("tab", name="Batch").click()
    own.locator("input[type=file]").set_input_files(str(write_animals(tmp_path / "animals.zip")))
    own.get_by_role("button", name="Index channels").click()
    own.get_by_text(re.compile(r"of 24 images indexed$")).wait_for()
    expect(own.get_by_role("progressbar")).to_be_visible()
    ended(visit, "done").to_contain_text(re.compile(r"^24 images indexed .* channels got a name"))

    own.get_by_role("button", name="Open Channels").click()
    crops = unit.locator(".hl-unit-crops li")
    expect(crops).to_have_count(9)
    names = page.locator("#hl-grid [role=option] em").all_inner_texts()
    assert any("coffee" in name or "cat" in name for name in names)
    expect(unit).to_contain_text("your 24 images")
    photo = unit.get_by_role("img", name=re.compile("whole photo.*photo 1$"))
    expect(photo).to_be_visible()
    crops.nth(4).locator("button").click()
    expect(unit.get_by_role("img", name=re.compile("whole photo.*photo 5$"))).to_be_visible()
    values = crops.locator("b").all_inner_texts()
    unit.get_by_role("button", name="By effect on the predicted class").click()
    assert crops.locator("b").all_inner_texts() != values

    other.open("?model=bands3&example=cat")
    other.page.get_by_role("tab", name="Channels").click()
    other.page.locator("#hl-grid [role=option]").first.wait_for()
    assert other.page.locator("#hl-unit .hl-unit-crops").count() == 0

    visit.after(lambda: visit.choose("model", "EfficientNet-Lite0"), "opened")
    expect(page.locator("#hl-grid .hl-quiet")).to_contain_text("was removed, because the network changed")
    expect(unit.locator(".hl-unit-crops")).to_have_count(0)


@pytest.mark.slow
def test_stop_keeps_the_images_that_are_indexed(visit: Visit, tmp_path: Path) -> None:
    visit.open()
    page, own = visit.page, visit.page.locator("#hl-many")
    page.get_by_role("tab", name="Batch").click()
    own.locator("input[type=file]").set_input_files(str(write_animals(tmp_path / "animals.zip")))
    own.get_by_role("button", name="Index channels").click()
    own.get_by_text(re.compile(r"of 24 images indexed$")).wait_for()
    own.get_by_role("button", name="Stop the batch").click()
    ended(visit, "done").to_contain_text(re.compile(r"^Stopped: \d+ of 24 images indexed"))


@pytest.mark.slow
def test_files_are_uploaded_one_by_one_and_too_many_are_reported(visit: Visit, tmp_path: Path) -> None:
    """Their total size exceeds the limit of one request; a drop adds to the existing files. Then all examples."""
    visit.open()
    page, own = visit.page, visit.page.locator("#hl-many")
    page.get_by_role("tab", name="Batch").click()
    for name in ("a.zip", "b.zip"):  # each is more than half of the limit of a request
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_STORED) as file:
            file.write(EXAMPLES[0], f"{name}/dog.jpg")
            file.writestr("padding.bin", bytes(limits.FILE * 3 // 5))
    (tmp_path / "heavy.zip").write_bytes(bytes(limits.FILE + 1))
    own.locator("input[type=file]").set_input_files([str(tmp_path / "a.zip"), str(tmp_path / "b.zip")])
    own.get_by_text("2 files, ").wait_for()
    own.locator("input[type=file]").set_input_files(str(tmp_path / "heavy.zip"))
    ended(visit, "error").to_contain_text("heavy.zip has 32.0 MB, but at most 32 MB are supported.")
    page.evaluate(
        """() => { const dataTransfer = new DataTransfer(), box = document.querySelector('#hl-many .hl-many-files');
          dataTransfer.items.add(new File([new Uint8Array(9)], 'broken.jpg', { type: 'image/jpeg' }));
          box.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true })); }"""
    )
    own.get_by_text("3 files, ").wait_for()
    own.get_by_role("button", name="Explain all").click()
    ended(visit, "done").to_contain_text("2 of 3 images explained with Grad-CAM")
    expect(own.locator(".hl-line")).to_contain_text("1 could not be read")

    page.reload()
    own.get_by_role("button", name="Try it with the 9 examples").click()
    ended(visit, "done").to_contain_text("9 images explained")
    visit.errors.clear()  # Gradio's, about the event stream of the page before


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
