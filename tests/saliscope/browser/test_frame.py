"""Page layout: the size of the image, drop and paste, and invalid fields."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from tests.saliscope.browser.conftest import PATIENCE, Visit, expect

STATE = "document.documentElement.dataset.hlState"
GIVE = """([name, kind, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)), given = new DataTransfer();
  given.items.add(new File([bytes], "given.png", { type: "image/png" }));
  const shared = { bubbles: true, cancelable: true };
  const event = kind === "paste" ? new ClipboardEvent("paste", { clipboardData: given, ...shared })
    : new DragEvent(kind, { dataTransfer: given, ...shared });
  document.querySelector(name).dispatchEvent(event);
}"""


def photograph(color: tuple[int, int, int]) -> str:
    file = io.BytesIO()
    Image.new("RGB", (90, 70), color).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_the_image_is_as_large_as_a_phone_allows(phone: Visit) -> None:
    is_large(phone, 390, 844)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(768, 1024), (1440, 900), (2560, 1440)])
def test_the_image_is_as_large_as_the_window_allows(browser, app: str, width: int, height: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": height})
    visit = Visit(context.new_page(), app).open()
    is_large(visit, width, height)
    visit.check()
    context.close()


def is_large(visit: Visit, width: int, height: int) -> None:
    page = visit.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    picture = page.locator("#hl-overlay .hl-frame").bounding_box()
    column = page.locator("#hl-view").bounding_box()
    assert picture["width"] == pytest.approx(picture["height"], abs=1)
    side = page.locator("#hl-bars").bounding_box()
    beside = side["x"] > picture["x"] + picture["width"]
    room = column["width"] - (side["width"] + 24 if beside else 0)
    assert picture["width"] == pytest.approx(min(room, height - 484, 0.55 * height), abs=3) or width < 768
    assert beside == (width >= 1100) and picture["y"] + picture["height"] <= height
    network = page.locator("#hl-strip").bounding_box()
    assert width < 1100 or network["y"] + 80 <= height, "the network is visible without scrolling"
    assert page.locator("#hl-overlay canvas").first.evaluate("each => each.width") >= picture["width"] - 1
    for tab in page.get_by_role("tab").all():
        assert tab.is_visible() and tab.bounding_box()["x"] + tab.bounding_box()["width"] <= width


@pytest.mark.slow
def test_an_image_can_be_dropped_or_pasted_anywhere(visit: Visit) -> None:
    visit.open("?class=goldfish")
    page = visit.page

    page.evaluate(GIVE, ["#hl-head", "dragenter", photograph((200, 30, 30))])
    assert page.locator(".hl-veil").is_visible()
    visit.after(lambda: page.evaluate(GIVE, ["#hl-head", "drop", photograph((200, 30, 30))]))
    assert page.locator(".hl-veil").is_hidden() and "for goldfish" not in visit.status
    expect(page.locator("#hl-examples button[aria-pressed=true]")).to_have_count(0)
    first = page.locator("#hl-image img").first.get_attribute("src")
    visit.after(lambda: page.evaluate(GIVE, ["#hl-status", "paste", photograph((30, 30, 200))]))
    assert page.locator("#hl-image img").first.get_attribute("src") != first


@pytest.mark.slow
def test_dropdowns_keep_the_focus_and_report_no_match(visit: Visit) -> None:
    visit.open()
    page = visit.page
    layer = page.locator("#hl-layer input")
    layer.click()
    page.keyboard.press("Tab")
    page.wait_for_function("document.activeElement.closest('#hl-class')")
    page.keyboard.press("Shift+Tab")
    page.wait_for_function("document.activeElement.closest('#hl-layer')")
    field = page.locator("#hl-class input").first
    field.click()
    field.press("Control+a")
    field.press_sequentially("zzzz")
    page.locator("#hl-class [role=option]").get_by_text("No match for “zzzz”.").wait_for()
    field.press("Escape")
    assert field.input_value() == "Top prediction" and not page.locator("#hl-class [role=option]").first.is_visible()


@pytest.mark.slow
def test_an_invalid_number_is_reported_at_its_field(visit: Visit) -> None:
    """The last answer stays, marked as outdated until the number is valid again."""
    visit.open("?method=smooth_grad&options=%7B%22samples%22%3A3%7D")
    page = visit.page
    page.locator("#hl-more > button, #hl-more button.label-wrap").first.click()
    field = page.locator("#hl-option-samples")

    field.fill("-5")
    page.wait_for_function(f"{STATE} === 'error'", timeout=PATIENCE)
    assert "Invalid options: samples “-5”" in visit.status and field.get_attribute("aria-invalid") == "true"
    assert page.locator("#hl-option-samples-note").inner_text() == "Must be a whole number from 1 to 1000, not -5."
    page.wait_for_function("getComputedStyle(document.querySelector('#hl-overlay canvas')).opacity < 0.7")
    page.locator("#hl-explain").click()
    page.wait_for_timeout(500)
    assert page.evaluate(STATE) == "error"
    visit.after(lambda: field.fill("4"))
    assert page.evaluate(STATE) == "done" and field.get_attribute("aria-invalid") == "false"
