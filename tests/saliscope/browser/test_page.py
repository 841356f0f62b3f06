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

from tests.saliscope.browser.conftest import Visit, expect, served
from tests.saliscope.browser.test_accessibility import FOUND, axe_script

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
    Image.effect_mandelbrot((300, 250), (-2, -1.2, 0.8, 1.2), 60).convert("RGB").save(tmp_path / "holiday 50%.jpg")
    return tmp_path / "holiday 50%.jpg"


def pressed(visit: Visit) -> Any:
    """Return the assertions about the example that is marked as shown."""
    return expect(visit.page.locator("#hl-examples button[aria-pressed=true]"))


def test_the_first_example_is_explained_and_settings_are_changed(first_view: Visit) -> None:
    visit = first_view
    assert re.match(r"Grad-CAM for .+ at head of .+ · \d", visit.status), visit.status
    assert re.match(r".+, \d+%\. ", visit.headline), visit.headline
    pressed(visit).to_have_attribute("data-id", "dog")
    before = len(visit.requests)
    visit.after(lambda: visit.choose("layer", "stages.2.0.expand.0"))
    assert "stages.2.0.expand.0" in visit.status
    assert not visit.sent(before, "run/predict"), "a choice is one request"
    visit.after(lambda: visit.choose("class", "goldfish"))
    assert "goldfish" in visit.status
    visit.after(lambda: visit.choose("method", "Saliency"))
    assert "Saliency" in visit.status and "stages.2" not in visit.status


def test_an_upload_is_explained_and_a_file_that_is_no_image_is_reported(visit: Visit, photo: Path) -> None:
    """The old map is marked, and nothing else about the last image stays."""
    page, before = visit.open("?model=bands3").page, visit.shot()
    visit.after(lambda: visit.upload(photo))
    pressed(visit).to_have_count(0)
    assert visit.shot() != before
    bomb = struct.pack(">I4sII5sI", 13, b"IHDR", 60000, 60000, b"\x08\x02\x00\x00\x00", 0)
    for name, content in (
        ("page.png", b"<html><script>alert(1)</script></html>"),
        ("drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        ("bomb.png", b"\x89PNG\r\n\x1a\n" + bomb),
    ):
        path = photo.with_name(name)
        path.write_bytes(content)
        visit.after(lambda path=path: visit.upload(path), "status")
        visit.state("error")
        assert len(visit.status) > 30 and visit.status.endswith(".") and "Error" not in visit.status, name
    # The browser's previews of the files fail.
    visit.errors[:] = [each for each in visit.errors if "Failed to load resource" not in each]
    marks = "['hl-bars', 'hl-guide', 'hl-trust'].map((id) => document.getElementById(id).dataset.outdated || '')"
    visit.until("getComputedStyle(document.querySelector('#hl-overlay canvas')).opacity < 0.7")
    assert page.evaluate(marks) == ["gone"] * 3
    visit.example("cat")
    visit.until("getComputedStyle(document.querySelector('#hl-overlay canvas')).opacity > 0.99")
    assert page.evaluate(marks) == [""] * 3
    page.locator("#hl-image .hl-image-remove").first.click()
    visit.state("idle")
    expect(page.locator("#hl-overlay .hl-empty")).to_contain_text("Choose an image or an example")
    assert not visit.headline


@pytest.mark.parametrize("text", [HOSTILE[0], *(pytest.param(text, marks=pytest.mark.slow) for text in HOSTILE[1:])])
def test_hostile_names_are_shown_as_text(visit: Visit, tmp_path: Path, text: str) -> None:
    """File names, and all names in a link."""
    name, options = urllib.parse.quote(text), urllib.parse.quote(json.dumps({text: text}))
    visit.open(f"?model=bands3&example={name}&layer={name}&class={name}&method={name}&options={options}")
    expect(visit.page.locator("#hl-findings")).to_contain_text("Unknown")
    for view in ("Channels", "API", "Explain"):
        visit.open_view(view)
    path = tmp_path / (text.replace("/", "") + ".jpg")
    Image.new("RGB", (80, 80), (20, 90, 120)).save(path, "JPEG")
    visit.after(lambda: visit.upload(path))
    assert visit.page.evaluate("window.__xss") is None


GIVE = """([place, kind, name, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)), given = new DataTransfer();
  given.items.add(new File([bytes], name));
  const shared = { bubbles: true, cancelable: true };
  const event = kind === "paste" ? new ClipboardEvent("paste", { clipboardData: given, ...shared })
    : new DragEvent(kind, { dataTransfer: given, ...shared });
  document.querySelector(place).dispatchEvent(event);
}"""


def give(visit: Visit, place: str, kind: str, name: str, data: bytes) -> None:
    """Drop, drag or paste a file over a part of the page."""
    visit.page.evaluate(GIVE, [place, kind, name, base64.b64encode(data).decode()])


@pytest.mark.slow
def test_an_image_is_dropped_or_pasted_anywhere_and_resets_a_class_that_is_not_pinned(
    visit: Visit, photo: Path
) -> None:
    page, veil = visit.open("?class=goldfish").page, visit.page.locator(".hl-veil")
    give(visit, "#hl-head", "dragenter", "given.jpg", photo.read_bytes())
    expect(veil).to_be_visible()
    visit.after(lambda: give(visit, "#hl-head", "drop", "given.jpg", photo.read_bytes()))
    expect(veil).to_be_hidden()
    assert "for goldfish" not in visit.status
    first = page.locator("#hl-image img").first.get_attribute("src")
    Image.new("RGB", (90, 70), (30, 30, 200)).save(photo)
    visit.after(lambda: give(visit, "#hl-status", "paste", "given.jpg", photo.read_bytes()))
    expect(page.locator("#hl-image img").first).not_to_have_attribute("src", first)
    visit.after(lambda: visit.choose("class", "goldfish"))
    page.locator("#hl-pin input").check()
    visit.example("cat")
    assert "for goldfish" in visit.status


def test_options_belong_to_the_method_and_an_invalid_one_is_reported_at_its_field(visit: Visit) -> None:
    """The last answer stays, marked as outdated until the number is valid again."""
    page = visit.open("?model=bands3&method=smooth_grad&options=%7B%22samples%22%3A3%7D").page
    visit.open_options()
    field, options = page.locator("#hl-option-samples"), page.locator("#hl-options label")
    expect(options).to_have_text(["samples", "sigma", "seed", "precision"], ignore_case=True)
    expect(field).to_have_value("3")
    field.fill("-5")
    visit.state("error")
    expect(page.locator("#hl-status .hl-line")).to_contain_text("Invalid options: samples “-5”")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#hl-option-samples-note")).to_have_text("Must be a whole number from 1 to 1000, not -5.")
    visit.until("getComputedStyle(document.querySelector('#hl-overlay canvas')).opacity < 0.7")
    visit.after(lambda: field.fill("4"))
    visit.state("done")
    expect(field).to_have_attribute("aria-invalid", "false")
    visit.open_view("API")
    expect(page.locator("#hl-api pre").first).to_contain_text("'samples': 4")


@pytest.mark.slow
def test_a_link_to_an_unknown_model_shows_the_default_model_with_a_notice(visit: Visit) -> None:
    """A model that cannot be downloaded is reported too."""
    page = visit.open("?model=resnet5000&example=cat").page
    notice = page.locator("#hl-findings")
    expect(notice).to_contain_text("The model of this link is not available. Unknown model 'resnet5000'")
    expect(notice, "the nearest name").to_contain_text(re.compile(r"resnet50\b"))
    assert "EfficientNet-Lite0" in visit.status
    notice.get_by_role("button", name="Use EfficientNet-Lite0").click()
    expect(notice).not_to_contain_text("resnet5000")
    page.wait_for_url(lambda url: "resnet5000" not in url)
    visit.choose("model", "ResNet-18")
    expect(page.locator("#hl-status")).to_contain_text(re.compile("Choose a model that it has: .*EfficientNet-Lite0"))
    expect(page.locator("#hl-model input").first).to_have_value(re.compile("^EfficientNet-Lite0"))
    visit.example("dog")
    assert "Grad-CAM" in visit.status


def test_everything_is_reachable_by_keyboard(visit: Visit) -> None:
    """The name of each control contains its visible text: voice control can find it."""
    page = visit.open("?model=bands3").page
    page.evaluate(axe_script())
    page.keyboard.press("Tab")
    expect(page.locator("#hl-skip")).to_be_focused()
    page.locator("#hl-model input").focus()
    sent = len(visit.requests)
    for _ in range(4):
        page.keyboard.press("Tab")
    assert not visit.sent(sent, "queue/join"), "moving the focus computes nothing"
    assert page.evaluate(FOUND, ["label-content-name-mismatch"]) == []
    page.locator("#hl-overlay canvas").first.focus()
    for key in ("ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator("#hl-overlay .hl-read")).to_contain_text(re.compile(r"at row \d+, column \d+ of 16 × 16"))
    page.locator("#hl-strip .hl-rail-box[aria-pressed=true]").focus()
    page.keyboard.press("ArrowLeft")
    visit.after(lambda: page.keyboard.press("Enter"))
    assert "at relu2" not in visit.status

    page.get_by_role("tab", name="Channels").click()
    visit.painted("grid", 0)
    assert page.evaluate(FOUND, ["label-content-name-mismatch"]) == []
    tiles = page.locator("#hl-grid [role=option]")
    tiles.first.focus()
    page.keyboard.press("ArrowRight")
    expect(tiles.nth(1)).to_be_focused()
    visit.after(lambda: page.keyboard.press("Enter"), "channel")
    expect(page.locator("#hl-opened input")).to_have_value(tiles.nth(1).get_attribute("data-channel"))


def test_a_phone_shows_the_result_first_and_everything_fits(phone: Visit, photo: Path) -> None:
    """Narrow and dark: the settings are one row, menus are in the window, and an upload is one tap away."""
    visit, page, canvas = phone, phone.page, phone.page.locator("#hl-overlay canvas").first
    background = page.evaluate("getComputedStyle(document.querySelector('.gradio-container')).backgroundColor")
    assert max(map(int, re.findall(r"\d+", background)[:3])) < 60, background
    box, wide = canvas.bounding_box(), canvas.evaluate("(c) => c.width / c.getBoundingClientRect().width")
    assert box["width"] >= 340 and box["y"] < 422 and wide == pytest.approx(2, abs=0.01), "the screen's resolution"
    seen, chosen = (
        page.locator(f"#hl-strip .hl-rail-{name}").bounding_box() for name in ("scroll", "box[aria-pressed=true]")
    )
    assert seen["x"] <= chosen["x"] and chosen["x"] + chosen["width"] <= seen["x"] + seen["width"], "the selected layer"
    page.get_by_role("button", name="Compare with controls").click()
    page.locator("#hl-trust summary").click()
    expect(page.locator("#hl-trust .hl-plot .hl-line-name"), "each line is labeled").to_have_count(8)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#hl-overlay .hl-share > button").click()
    menu = page.locator("#hl-overlay .hl-share-items").bounding_box()
    assert menu["y"] >= 0 and menu["y"] + menu["height"] < 845, "the open menu is in the window"
    page.keyboard.press("Escape")

    fold, explain = page.locator("#hl-fold button"), page.locator("#hl-explain")
    expect(fold).to_have_text("German shepherd · head · Grad-CAM")
    expect(explain).to_be_hidden()
    fold.click()
    visit.after(explain.click)
    expect(explain).to_be_hidden()
    visit.until("document.querySelector('#hl-status').getBoundingClientRect().top < 300")
    with page.expect_file_chooser() as opened:
        page.locator("#hl-examples .hl-upload").click()
    visit.after(lambda: opened.value.set_files(photo))
    pressed(visit).to_have_count(0)


@pytest.mark.slow
def test_every_view_fits_every_width(visit: Visit) -> None:
    """With a comparison, an edit and a report in it; the panel for saving is in the window too."""
    page = visit.open("?example=cat").page
    visit.after(lambda: page.locator("#hl-status .hl-cover").click(), "erase")
    for width in (390, 768, 2560):
        page.set_viewport_size({"width": width, "height": 900})
        for view in ("Compare", "Channels", "Batch", "Gradient lab", "API", "Erase", "Explain"):
            visit.open_view(view)
            page.wait_for_timeout(500)  # modules of the view
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, view)
            if view in ("Compare", "Erase", "Explain"):
                page.locator(".hl-share > button:visible").last.click()
                box = page.locator(".hl-share-items:visible").bounding_box()
                assert box["x"] >= 0 and box["x"] + box["width"] <= width, (width, view)
                page.keyboard.press("Escape")


@pytest.mark.slow
def test_on_a_space_no_other_host_is_requested(window: Any, tmp_path: Path) -> None:
    with served(tmp_path, SPACE_ID="somebody/saliscope", SYSTEM="spaces") as address:
        window(address=address).open().check()
