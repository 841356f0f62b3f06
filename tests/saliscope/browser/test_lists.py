"""The lists of models, layers, classes and methods: keyboard, mouse, positions, and small windows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.saliscope.browser.conftest import Visit, expect

LEAST = 6
ON_TOP = """(combobox) => {
  const list = combobox.querySelector("[role=listbox]").getBoundingClientRect();
  const head = combobox.querySelector(".hl-combobox-head")?.getBoundingClientRect().bottom ?? list.top;
  return [...combobox.querySelectorAll("[role=option][data-value]")].filter((row) => {
    const box = row.getBoundingClientRect(),
      [x, top, bottom] = [(box.left + box.right) / 2, box.top + 3, box.bottom - 3];
    const isWhole = box.top > head - 2 && box.bottom < list.bottom + 2;
    return isWhole && [top, bottom].every((y) => document.elementFromPoint(x, y)?.closest("[role=option]") === row);
  }).map((row) => row.dataset.value);
}"""
"""The values of the rows that are completely visible, with nothing above them."""
MARKED = """(field) => {
  const option = document.getElementById(field.getAttribute("aria-activedescendant"));
  return option ? option.querySelector(".hl-combobox-cell").textContent : "";
}"""
"""The row that Enter would select, as announced to screen readers."""


def test_a_method_is_found_and_selected_by_keyboard(visit: Visit) -> None:
    page, own = visit.open("?model=bands3").page, visit.page.locator("#hl-method")
    field, box = own.locator("[role=combobox]"), own.locator(".hl-combobox-box")
    rows = own.locator("[role=option][data-value]:not([aria-disabled]) .hl-combobox-cell:first-child")
    page.locator("#hl-class [role=combobox]").focus()
    for _ in range(9):  # the checkbox is in between
        if field.evaluate("(e) => e === document.activeElement"):
            break
        page.keyboard.press("Tab")
    expect(box).to_be_hidden()
    assert page.evaluate("getSelection().toString()") == "Grad-CAM", "Tab selects the name"
    page.keyboard.press("Enter")
    expect(box).to_be_visible()
    names = [text for text in rows.all_inner_texts() if text]
    assert field.evaluate(MARKED) == "Grad-CAM" and len(names) == len(set(names)) > 50
    own.locator(".hl-combobox-jumps button", has_text="What if parts").click()
    assert field.evaluate(MARKED) == "Occlusion"
    expect(field).to_be_focused()
    option = own.locator("[data-value=guided_backprop]").first
    badge = option.locator(".hl-combobox-badges span").filter(has_text="hardly depends on the weights")
    assert badge.get_attribute("title") in option.get_attribute("aria-description")

    field.fill("rise")
    expect(own.locator("[role=status]")).to_have_text("2 matches")
    assert rows.all_inner_texts()[:2] == ["RISE", "MC-RISE"] and field.evaluate(MARKED) == "RISE"
    page.keyboard.press("End")
    expect(own.locator("[role=option][data-value]").last).to_contain_text("D-RISE is for object detectors")
    page.keyboard.press("Enter")
    expect(box, "it does not support the model").to_be_visible()
    field.fill("<img src=x onerror='window.__xss=1'>")
    expect(box).to_contain_text("No match for “<img")
    page.keyboard.press("Enter")
    expect(box, "nothing was marked").to_be_visible()
    page.keyboard.press("Escape")
    expect(box).to_be_hidden()
    expect(field).to_have_value("Grad-CAM")
    assert page.evaluate("window.__xss") is None

    page.keyboard.press("ArrowDown")
    for keys, at in (("PageDown", 8), ("PageUp PageUp", 0), ("ArrowUp Home", 0), ("ArrowDown ArrowDown", 2)):
        for key in keys.split():
            page.keyboard.press(key)
        assert field.evaluate(MARKED) == names[at], keys
    visit.after(lambda: page.keyboard.press("Enter"))
    expect(field).to_have_value("HiResCAM")
    assert visit.status.startswith("HiResCAM for")
    sent = len(visit.requests)
    for key in ("ArrowDown", "End", "Tab"):
        page.keyboard.press(key)
    expect(box).to_be_hidden()
    assert not visit.sent(sent, "queue/join"), "Tab selects nothing"


@pytest.mark.slow
def test_typing_replaces_the_old_name_and_finds_a_row(first_view: Visit) -> None:
    page = first_view.page

    def found(name: str, typed: str) -> list[str]:
        page.locator(f"#hl-{name} input").first.click()
        page.keyboard.type(typed)
        rows = page.locator(f"#hl-{name} li[role=option]")
        rows.first.wait_for()
        texts = [" ".join(text.split()) for text in rows.all_inner_texts()]
        page.keyboard.press("Escape")
        return texts

    assert found("model", "resnet101")[0].startswith("ResNet-101")
    assert found("class", "")[1:3] == ["German shepherd 94%", "malinois 1.4%"]
    assert "giant panda" in found("class", "pan")[:4]
    layer = found("layer", "")[0]
    assert layer.startswith("head ") and layer.endswith("whole image default for CAMs")


def shows_enough(combobox: Any) -> None:
    """Check that six whole rows can be clicked, also after scrolling, and that the list is in the window."""
    page, field = combobox.page, combobox.locator("[role=combobox]")
    field.click()
    combobox.locator("[role=option][data-value]").nth(LEAST).wait_for()
    assert len(combobox.evaluate(ON_TOP)) >= LEAST
    box, own = combobox.locator(".hl-combobox-box").bounding_box(), field.bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= page.viewport_size["height"]
    assert box["x"] >= 0 and box["x"] + box["width"] <= page.viewport_size["width"]
    assert box["y"] >= own["y"] + own["height"] or box["y"] + box["height"] <= own["y"], "it covers its field"
    combobox.locator("[role=listbox]").evaluate("(list) => { list.scrollTop += list.clientHeight; }")
    assert len(combobox.evaluate(ON_TOP)) >= LEAST - 1, "the first or last row may be cut off"
    page.keyboard.press("Escape")


@pytest.mark.slow
def test_every_list_shows_six_choices_in_every_window(first_view: Visit) -> None:
    """Also at the lower edge of the window, and above an on-screen keyboard; a click selects the row under the mouse."""
    visit, page, usual = first_view, first_view.page, first_view.page.viewport_size
    for width, height in ((1280, 900), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        if width < 768:
            page.locator("#hl-fold button").click()
        for name in ("model", "layer", "class", "method"):
            shows_enough(page.locator(f"#hl-{name} .hl-combobox"))
    page.evaluate("Object.defineProperty(visualViewport, 'height', { value: 420, configurable: true })")
    for name in ("layer", "method"):
        field = page.locator(f"#hl-{name} [role=combobox]")
        field.click()
        box, own = page.locator(f"#hl-{name} .hl-combobox-box").bounding_box(), field.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 420 and own["y"] + own["height"] <= 420
        page.keyboard.press("Escape")
    page.evaluate("delete visualViewport.height")
    page.set_viewport_size({"width": 1280, "height": 600})
    shows_enough(page.locator("#hl-bars .hl-combobox"))
    page.set_viewport_size(usual)
    visit.open_view("Compare")
    for combobox in page.locator(".hl-compare-panel").first.locator(".hl-combobox").all():
        shows_enough(combobox)
    visit.open_view("Explain")

    combobox = page.locator("#hl-class .hl-combobox").first
    field, rows = combobox.locator("[role=combobox]"), combobox.locator("[role=option][data-value]")
    field.click()
    page.keyboard.press("End")
    expect(rows).to_have_count(1001)
    assert field.evaluate(MARKED) == "toilet tissue", "all classes can be reached"
    last = combobox.evaluate(ON_TOP)[-2]
    visit.after(lambda: combobox.locator(f"[data-value='{last}']").click())
    assert f"for {field.input_value()} " in visit.status
    field.click()
    assert field.evaluate(MARKED) == field.input_value()
    page.keyboard.press("Escape")
