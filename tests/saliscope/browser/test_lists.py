"""The lists of models, layers, classes and methods: keyboard, mouse, positions, and small windows."""

from __future__ import annotations

from typing import Any

import pytest

import explainers
from tests.saliscope.browser.conftest import Visit, expect

LEAST = 6
FIELD = "#hl-method [role=combobox]"
ROWS = "#hl-method [role=option][data-value]"
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


def names(visit: Visit) -> list[str]:
    """Return the listed methods in order, without those that cannot be selected."""
    rows = visit.page.locator(f"{ROWS}:not([aria-disabled]) .hl-combobox-cell:first-child")
    return [text for text in rows.all_inner_texts() if text]


def marked(visit: Visit, name: str = "method") -> str:
    """Return the row that Enter would select, as announced to screen readers."""
    return visit.page.evaluate(
        """(name) => {
          const field = document.querySelector(`#hl-${name} [role=combobox]`);
          const option = document.getElementById(field.getAttribute("aria-activedescendant"));
          return option ? option.querySelector(".hl-combobox-cell").textContent : "";
        }""",
        name,
    )


def test_a_method_is_found_and_selected_by_keyboard(first_view: Visit) -> None:
    visit = first_view
    page, field, box = visit.page, visit.page.locator(FIELD), visit.page.locator("#hl-method .hl-combobox-box")
    page.locator("#hl-class [role=combobox]").focus()
    for _ in range(9):  # the checkbox is in between
        if page.evaluate(f"document.activeElement === document.querySelector('{FIELD}')"):
            break
        page.keyboard.press("Tab")
    assert not box.is_visible() and page.evaluate("getSelection().toString()") == "Grad-CAM", "Tab selects the name"
    assert page.locator("#hl-method .hl-combobox-aside").inner_text() == "instant"
    page.keyboard.press("Enter")

    assert box.is_visible() and field.get_attribute("aria-expanded") == "true" and marked(visit) == "Grad-CAM"
    everything = names(visit)
    assert len(everything) == len(set(everything)) > 50
    page.locator("#hl-method .hl-combobox-jumps button", has_text="What if parts").click()
    assert marked(visit) == "Occlusion" and box.is_visible() and field.evaluate("(e) => e === document.activeElement")
    option = page.locator("#hl-method [data-value=guided_backprop]").first
    badge = option.locator(".hl-combobox-badges span").filter(has_text="hardly depends on the weights")
    assert badge.get_attribute("title") in option.get_attribute("aria-description")

    above, own = box.bounding_box(), page.locator("#hl-method .hl-combobox").bounding_box()
    assert above["y"] + above["height"] <= own["y"]
    field.fill("rise")
    few = box.bounding_box()
    assert few["height"] < above["height"], "it stays on its side, next to the field"
    assert own["y"] - 4 <= few["y"] + few["height"] <= own["y"]
    assert names(visit) == ["RISE", "MC-RISE"] and marked(visit) == "RISE"
    assert page.locator("#hl-method [role=status]").inner_text() == "2 matches"
    page.keyboard.press("End")
    assert marked(visit) == "D-RISE" and "D-RISE is for object detectors" in page.locator(ROWS).last.inner_text()
    page.keyboard.press("Enter")
    assert box.is_visible(), "it does not support the model"
    field.fill("<img src=x onerror='window.__xss=1'>")
    assert "No match for “<img" in box.inner_text() and names(visit) == []
    page.keyboard.press("Enter")
    assert box.is_visible(), "nothing was marked"
    page.keyboard.press("Escape")
    assert not box.is_visible() and field.input_value() == "Grad-CAM" and page.evaluate("window.__xss") is None

    page.keyboard.press("ArrowDown")
    for keys, at in (("PageDown", 8), ("PageUp PageUp", 0), ("ArrowUp Home", 0), ("ArrowDown ArrowDown", 2)):
        for key in keys.split():
            page.keyboard.press(key)
        assert marked(visit) == everything[at], keys
    visit.after(lambda: page.keyboard.press("Enter"))
    assert visit.status.startswith(f"{everything[2]} for") and field.input_value() == everything[2] == "HiResCAM"
    sent = len(visit.requests)
    for key in ("ArrowDown", "End", "Tab"):
        page.keyboard.press(key)
    assert not box.is_visible() and page.evaluate("document.activeElement !== document.body")
    assert not [url for url in visit.requests[sent:] if "queue/join" in url], "Tab selects nothing"


def test_typing_replaces_the_old_name_and_finds_a_row(first_view: Visit) -> None:
    page = first_view.page

    def found(name: str, typed: str) -> list[str]:
        field = page.locator(f"#hl-{name} input").first
        field.click()
        page.keyboard.type(typed)
        rows = page.locator(f"#hl-{name} li[role=option]")
        rows.first.wait_for()
        texts = rows.all_inner_texts()
        field.press("Escape")
        return texts

    assert found("model", "resnet101")[0].startswith("ResNet-101")
    heads = page.locator("#hl-model .hl-combobox-head span").all_inner_texts()
    assert heads == ["Model", "Accuracy", "Size", "Weights"]
    assert [row.split() for row in found("class", "")[:3]][1:] == [["German", "shepherd", "94%"], ["malinois", "1.4%"]]
    assert "giant panda" in found("class", "pan")[:4]
    layer = found("layer", "")[0].split()
    assert layer[0] == "head" and " ".join(layer[-5:]) == "whole image default for CAMs"
    page.locator("#hl-class input").first.focus()
    page.keyboard.type("panda")
    page.locator("#hl-class li mark").first.wait_for()
    assert set(page.locator("#hl-class li mark").all_inner_texts()) == {"panda"}
    page.keyboard.press("Escape")


def shows_enough(combobox: Any) -> None:
    """Check that six whole rows can be clicked, also after scrolling, and that the list is in the window."""
    page, field = combobox.page, combobox.locator("[role=combobox]")
    field.click()
    combobox.locator("[role=option][data-value]").nth(LEAST).wait_for()
    assert len(combobox.evaluate(ON_TOP)) >= LEAST
    box, own = combobox.locator(".hl-combobox-box").bounding_box(), field.bounding_box()
    assert box and own and box["y"] >= 0 and box["y"] + box["height"] <= page.viewport_size["height"]
    assert box["x"] >= 0 and box["x"] + box["width"] <= page.viewport_size["width"]
    assert box["y"] >= own["y"] + own["height"] or box["y"] + box["height"] <= own["y"], "it covers its field"
    combobox.locator("[role=listbox]").evaluate("(list) => { list.scrollTop += list.clientHeight; }")
    assert len(combobox.evaluate(ON_TOP)) >= LEAST - 1, "the first or last row may be cut off"
    page.keyboard.press("Escape")


def test_every_list_shows_six_choices_in_every_window(first_view: Visit) -> None:
    """Also at the lower edge of the window, and above an on-screen keyboard; a click selects the row under the mouse."""
    visit, page, usual = first_view, first_view.page, first_view.page.viewport_size
    for width, height in ((1280, 900), (768, 900), (390, 844)):
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
        assert box and own and box["y"] >= 0 and box["y"] + box["height"] <= 420 and own["y"] + own["height"] <= 420
        wide = "(box) => [...box.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > 390).length"
        assert page.locator(f"#hl-{name} .hl-combobox-box").evaluate(wide) == 0, "cut off at the edge"
        page.keyboard.press("Escape")
    page.evaluate("delete visualViewport.height")

    page.set_viewport_size({"width": 1280, "height": 600})
    shows_enough(page.locator("#hl-bars .hl-combobox"))
    page.set_viewport_size(usual)
    visit.open_view("Compare")
    for combobox in page.locator(".hl-compare-panel").first.locator(".hl-combobox").all():
        shows_enough(combobox)
    page.locator(".hl-segments button", has_text="Models").locator("visible=true").click()
    shows_enough(page.locator("#hl-models .hl-combobox"))
    visit.open_view("Explain")

    combobox = page.locator("#hl-class .hl-combobox").first
    combobox.locator("[role=combobox]").click()
    page.keyboard.press("End")
    rows = combobox.locator("[role=option][data-value]")
    expect(rows).to_have_count(1001)
    assert marked(visit, "class") == "toilet tissue", "all classes can be reached"
    assert rows.last.get_attribute("aria-posinset") == rows.last.get_attribute("aria-setsize") == "1001"
    last = combobox.evaluate(ON_TOP)[-2]
    visit.after(lambda: combobox.locator(f"[data-value='{last}']").click())
    assert f"for {combobox.locator('[role=combobox]').input_value()} " in visit.status
    combobox.locator("[role=combobox]").click()
    assert (
        marked(visit, "class")
        == combobox.locator("[role=option][aria-selected=true]").first.inner_text().split("\n")[0].strip()
    )
    page.keyboard.press("Escape")


@pytest.mark.slow
def test_text_and_remedies_next_to_the_map(visit: Visit) -> None:
    """A class by name and a working remedy button; then a class-agnostic method."""
    visit.open("?class=goldfish&method=hires_cam")
    page, beside, findings = visit.page, visit.page.locator("#hl-guide p"), visit.page.locator("#hl-findings")
    assert "goldfish" in beside.inner_text() and "goldfish has rank" in findings.inner_text()
    visit.after(lambda: findings.get_by_role("button", name="Explain German shepherd").click())
    assert "HiResCAM for German shepherd" in visit.status and "German shepherd" in beside.inner_text()
    assert findings.inner_text() == ""
    visit.after(lambda: visit.choose("method", "Saliency"))
    assert explainers.METHODS["saliency"].caution in findings.inner_text()
    visit.after(lambda: findings.get_by_role("button", name="Use SmoothGrad squared").click())
    assert visit.status.startswith("SmoothGrad squared for")
    assert page.locator(FIELD).input_value() == "SmoothGrad squared"
    visit.after(lambda: visit.choose("method", "Edges"))
    alt = page.locator("#hl-overlay canvas").first.get_attribute("aria-label") or ""
    assert "shepherd" not in visit.status + beside.inner_text() + alt and "control" in visit.status
