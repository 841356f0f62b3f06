"""The page in Chromium: settings, uploads, hostile files and names, keyboard, narrow screens and dark mode."""

from __future__ import annotations

import base64
import json
import re
import struct
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.saliscope.browser.conftest import ROOT, Visit, expect, served

HOSTILE = [
    "${Object.assign(window,{__xss:1})}",
    "{{value}}",
    '<img src=x onerror="window.__xss=1">',
    "<script>window.__xss=1</script>",
    "`;window.__xss=1;`",
    "'\"><svg onload=window.__xss=1>",
]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """Write a small image to upload."""
    path = tmp_path / "holiday.jpg"
    Image.open(ROOT / "assets/examples/cat.jpg").crop((20, 10, 320, 260)).save(path)
    return path


def pressed(visit: Visit) -> list[str]:
    """Return the example that is marked as shown, if any."""
    return visit.page.locator("#hl-examples button[aria-pressed=true]").evaluate_all(
        "(all) => all.map((each) => each.dataset.id)"
    )


def test_the_first_example_is_explained_and_settings_are_changed(first_view: Visit) -> None:
    visit = first_view
    assert re.match(r"Grad-CAM for .+ at head of .+ · \d", visit.status), visit.status
    assert re.match(r".+, \d+%\. ", visit.headline), visit.headline
    visit.until("document.querySelectorAll('#hl-strip .hl-rail-box canvas').length >= 4")
    assert pressed(visit) == ["dog"]

    before = len(visit.requests)
    visit.after(lambda: visit.choose("layer", "stages.2.0.expand.0"))
    assert "stages.2.0.expand.0" in visit.status
    assert not [url for url in visit.requests[before:] if "run/predict" in url], "a choice is one request"
    visit.after(lambda: visit.choose("class", "goldfish"))
    assert "goldfish" in visit.status
    visit.after(lambda: visit.choose("method", "Saliency"))
    assert "Saliency" in visit.status and "stages.2" not in visit.status


def test_an_upload_is_explained_and_a_file_that_is_no_image_is_reported(first_view: Visit, photo: Path) -> None:
    """The old map is marked, and nothing else about the last image stays."""
    visit, page = first_view, first_view.page
    before = visit.shot()
    visit.after(lambda: visit.upload(photo))
    assert visit.shot() != before and pressed(visit) == []

    bomb = struct.pack(">I4sII5sI", 13, b"IHDR", 60000, 60000, b"\x08\x02\x00\x00\x00", 0)
    is_reported(visit, photo.with_name("bomb.png"), b"\x89PNG\r\n\x1a\n" + bomb)
    visit.until("getComputedStyle(document.querySelector('#hl-overlay canvas')).opacity < 0.7")
    marks = "['hl-bars', 'hl-guide', 'hl-trust'].map((id) => document.getElementById(id).dataset.outdated || '')"
    assert page.evaluate(marks) == ["gone"] * 3 and not page.locator("#hl-bars").is_visible()
    visit.example("cat")
    visit.until("getComputedStyle(document.querySelector('#hl-overlay canvas')).opacity > 0.99")
    assert page.evaluate(marks) == [""] * 3

    page.locator("#hl-image button[aria-label='Remove Image']").first.click()
    visit.state("idle")
    assert "click an example" in page.locator("#hl-overlay .hl-empty").inner_text()
    assert not visit.headline and not page.locator("#hl-status .hl-next").is_visible()


def is_reported(visit: Visit, path: Path, content: bytes) -> None:
    """Check that a file is refused with a message."""
    path.write_bytes(content)
    visit.after(lambda: visit.upload(path), "status")
    visit.state("error")
    assert len(visit.status) > 30 and visit.status.endswith(".") and "Error" not in visit.status, path
    # The browser's preview of the file fails.
    visit.errors[:] = [each for each in visit.errors if "Failed to load resource" not in each]


@pytest.mark.slow
def test_files_that_are_not_images_are_reported(visit: Visit, tmp_path: Path) -> None:
    visit.open()
    is_reported(visit, tmp_path / "page.png", b"<html><script>alert(1)</script></html>")
    is_reported(visit, tmp_path / "empty.jpg", b"")
    is_reported(visit, tmp_path / "broken.jpg", b"\xff\xd8\xff\xe0" + b"\x00" * 200)
    is_reported(visit, tmp_path / "drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>")
    assert "SVG" in visit.status


@pytest.mark.parametrize("text", [HOSTILE[0], *(pytest.param(text, marks=pytest.mark.slow) for text in HOSTILE[1:])])
def test_hostile_names_are_shown_as_text(visit: Visit, tmp_path: Path, text: str) -> None:
    """File names, and all names in a link."""
    name = urllib.parse.quote(text)
    options = urllib.parse.quote(json.dumps({text: text}))
    visit.open(f"?example={name}&layer={name}&class={name}&method={name}&options={options}")
    assert "Unknown" in visit.page.locator("#hl-findings").inner_text()
    for view in ("Channels", "API", "Explain"):
        visit.open_view(view)
    path = tmp_path / (text.replace("/", "") + ".jpg")
    Image.new("RGB", (80, 80), (20, 90, 120)).save(path, "JPEG")
    visit.after(lambda: visit.upload(path))
    assert visit.page.evaluate("window.__xss") is None


GIVE = """([name, kind, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)), given = new DataTransfer();
  given.items.add(new File([bytes], "given.png", { type: "image/png" }));
  const shared = { bubbles: true, cancelable: true };
  const event = kind === "paste" ? new ClipboardEvent("paste", { clipboardData: given, ...shared })
    : new DragEvent(kind, { dataTransfer: given, ...shared });
  document.querySelector(name).dispatchEvent(event);
}"""


@pytest.mark.slow
def test_an_image_is_dropped_or_pasted_anywhere_and_resets_a_class_that_is_not_pinned(
    visit: Visit, photo: Path
) -> None:
    page, data = visit.open("?class=goldfish").page, base64.b64encode(photo.read_bytes()).decode()

    page.evaluate(GIVE, ["#hl-head", "dragenter", data])
    assert page.locator(".hl-veil").is_visible()
    visit.after(lambda: page.evaluate(GIVE, ["#hl-head", "drop", data]))
    assert page.locator(".hl-veil").is_hidden() and "for goldfish" not in visit.status and pressed(visit) == []
    first = page.locator("#hl-image img").first.get_attribute("src")
    Image.new("RGB", (90, 70), (30, 30, 200)).save(photo)
    visit.after(lambda: page.evaluate(GIVE, ["#hl-status", "paste", base64.b64encode(photo.read_bytes()).decode()]))
    assert page.locator("#hl-image img").first.get_attribute("src") != first

    visit.after(lambda: visit.choose("class", "goldfish"))
    page.locator("#hl-pin input").check()
    visit.example("cat")
    assert "for goldfish" in visit.status and pressed(visit) == ["cat"]


def test_options_belong_to_the_method_and_an_invalid_one_is_reported_at_its_field(visit: Visit) -> None:
    """The last answer stays, marked as outdated until the number is valid again."""
    page = visit.open("?method=smooth_grad&options=%7B%22samples%22%3A3%7D").page
    visit.open_options()
    field = page.locator("#hl-option-samples")
    options = page.locator("#hl-options label")
    expect(options).to_have_text(["samples", "sigma", "seed", "precision"], ignore_case=True)
    expect(field).to_have_value("3")

    field.fill("-5")
    visit.state("error")
    expect(page.locator("#hl-status .hl-line")).to_contain_text("Invalid options: samples “-5”")
    expect(field).to_have_attribute("aria-invalid", "true")
    note = "Must be a whole number from 1 to 1000, not -5."
    expect(page.locator("#hl-option-samples-note")).to_have_text(note)
    visit.until("getComputedStyle(document.querySelector('#hl-overlay canvas')).opacity < 0.7")
    page.locator("#hl-explain").click()
    visit.after(lambda: field.fill("4"))
    visit.state("done")
    expect(field).to_have_attribute("aria-invalid", "false")
    visit.open_view("API")
    expect(page.locator("#hl-api pre").first).to_contain_text("'samples': 4")


@pytest.mark.slow
def test_a_model_that_cannot_be_downloaded_is_reported(visit: Visit) -> None:
    visit.open()
    visit.choose("model", "ResNet-18")
    visit.state("error")
    expect(visit.page.locator("#hl-status")).to_contain_text("Choose a model that it has: Eff")
    visit.after(lambda: visit.choose("model", "EfficientNet-Lite0"))
    assert "Grad-CAM" in visit.status


def test_a_link_to_an_unknown_model_shows_the_default_model_with_a_notice(visit: Visit) -> None:
    page = visit.open("?model=resnet5000&example=cat").page
    notice = page.locator("#hl-findings").inner_text()
    assert "The model of this link is not available. Unknown model 'resnet5000'" in notice
    assert "resnet50" in notice.replace("resnet5000", ""), "the nearest name"
    assert "EfficientNet-Lite0" in notice and "EfficientNet-Lite0" in visit.status
    page.locator("#hl-findings button", has_text="Use EfficientNet-Lite0").click()
    expect(page.locator("#hl-findings")).not_to_contain_text("resnet5000")
    page.wait_for_url(lambda url: "resnet5000" not in url)


MISNAMED = """() => [...document.querySelectorAll('button, summary, [role=tab], [role=option], [role=menuitem]')]
  .filter((each) => each.checkVisibility()).map((each) => {
    const ids = each.getAttribute('aria-labeledby'), plain = (text) => text.toLowerCase().replace(/\\s+/g, ' ').trim();
    const parts = ids?.split(' ').map((id) => document.getElementById(id).textContent) ?? [];
    const name = ids ? parts.join(' ') : each.getAttribute('aria-label');
    const text = plain(each.innerText), isWord = /\\p{L}|\\p{N}/u.test(text); // not a symbol
    return name && isWord && !plain(name).includes(text) ? [name, text] : null;
  }).filter(Boolean)"""
"""The controls whose accessible name lacks their visible text: what a user says does not reach them."""


def test_everything_is_reachable_by_keyboard(visit: Visit) -> None:
    visit.open()
    page = visit.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "hl-skip"
    page.locator("#hl-model input").focus()
    sent = len(visit.requests)
    for _ in range(4):
        page.keyboard.press("Tab")
    assert not [url for url in visit.requests[sent:] if "queue/join" in url], "moving the focus computes nothing"
    assert not page.evaluate(MISNAMED)

    page.locator("#hl-overlay canvas").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert re.search(r"at row \d, column \d of 7 × 7", page.locator("#hl-overlay .hl-read").inner_text())

    page.locator("#hl-strip .hl-rail-box[aria-pressed=true]").focus()
    page.keyboard.press("ArrowLeft")
    visit.after(lambda: page.keyboard.press("Enter"))
    assert "at head" not in visit.status

    page.get_by_role("tab", name="Channels").click()
    visit.painted("grid", 0)
    assert not page.evaluate(MISNAMED)
    page.locator("#hl-grid [role=option]").first.focus()
    page.keyboard.press("ArrowRight")
    chosen = page.evaluate("document.activeElement.dataset.channel")
    assert chosen == page.locator("#hl-grid [role=option]").nth(1).get_attribute("data-channel")
    visit.after(lambda: page.keyboard.press("Enter"), "channel")
    assert page.locator("#hl-opened input").input_value() == chosen


def test_a_phone_shows_the_result_first_and_everything_fits(phone: Visit, tmp_path: Path) -> None:
    """Narrow and dark: the settings are one row, menus are in the window, and an upload is one tap away."""
    visit, page = phone, phone.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    background = page.evaluate("getComputedStyle(document.querySelector('.gradio-container')).backgroundColor")
    assert max(map(int, re.findall(r"\d+", background)[:3])) < 60, background
    assert page.locator("#hl-overlay .hl-frame").bounding_box()["width"] >= 340
    wide = page.locator("#hl-overlay canvas").first.evaluate("(c) => c.width / c.getBoundingClientRect().width")
    assert wide == pytest.approx(2, abs=0.01), "the resolution of the screen"
    assert page.locator("#hl-overlay canvas").first.bounding_box()["y"] < 422
    chosen = page.evaluate(
        """() => {
          const seen = document.querySelector('#hl-strip .hl-rail-scroll').getBoundingClientRect();
          const box = document.querySelector('.hl-rail-box[aria-pressed=true]').getBoundingClientRect();
          return box.left >= seen.left && box.right <= seen.right && box.width >= 14;
        }"""
    )
    assert chosen, "the selected layer is visible"
    page.locator("#hl-trust summary").click()
    expect(page.locator("#hl-trust .hl-plot .hl-line-name"), "each line is labeled").to_have_count(8)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#hl-trust summary").click()
    page.locator("#hl-overlay .hl-share > button").click()
    menu = page.locator("#hl-overlay .hl-share-items").bounding_box()
    assert menu["y"] >= 0 and menu["y"] + menu["height"] < 845, "the open menu is in the window"
    page.keyboard.press("Escape")
    page.evaluate("scrollTo(0, 0)")
    more = page.locator("#hl-navigation [aria-haspopup=menu]").bounding_box()
    assert more["x"] + more["width"] <= 390, "all views can be reached"

    fold = page.locator("#hl-fold button")
    assert fold.inner_text() == "German shepherd · head · Grad-CAM" and page.locator("#hl-explain").is_hidden()
    fold.click()
    visit.after(lambda: page.locator("#hl-explain").click())
    page.locator("#hl-explain").wait_for(state="hidden")
    visit.until("document.querySelector('#hl-status').getBoundingClientRect().top < 300")

    Image.new("RGB", (96, 64), (40, 120, 200)).save(tmp_path / "blue.png")
    with page.expect_file_chooser() as opened:
        page.locator("#hl-examples .hl-upload").click()
    visit.after(lambda: opened.value.set_files(tmp_path / "blue.png"))
    assert pressed(visit) == [] and "German shepherd, 94%" not in visit.headline


@pytest.mark.slow
def test_on_a_space_no_other_host_is_requested(window: Any, tmp_path: Path) -> None:
    with served(tmp_path, SPACE_ID="somebody/saliscope", SYSTEM="spaces") as address:
        window(address=address).open().check()
