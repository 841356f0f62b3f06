"""The lists of models, layers, classes and methods, and the text next to the map: keyboard, search, phone, remedies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.saliscope.browser.conftest import Visit, expect

FIELD = "#hl-method [role=combobox]"
ROWS = "#hl-method [role=option][data-value]"


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


SEARCH = """async () => {
  const { search, highlight } = await import(new URL("hl/lists/search.js", document.baseURI));
  const item = ([label, value, more]) => ({ label, value, ...more });
  const items = [
    ["company", "company"], ["giant panda", "giant panda"], ["panpipe", "panpipe"], ["frying pan", "frying pan"],
    ["ResNet-101 · 81.9% top-1", "=resnet101"], ["Wide ResNet-101-2", "=wide_resnet101_2"], ["ViT-B/16", "=vit_b_16"],
    ["café", "café"], ["собака", "собака"], ["C#", "C#"],
    ["Integrated gradients", "integrated_gradients", { words: "ig path", line: "Averages over a path." }],
    ["Big pan", "big_pan", { why: "too big" }],
  ].map(item);
  const labels = (typed) => search(items, typed).map(({ label }) => label);
  const typed = ["pan", "resnet101", "vit_b_16", "vit b/16", "CAFE", "соб", "#", "ig", "panda giant", "averages", "zzz"];
  const marks = (text, typed) => highlight(text, typed).filter(([, on]) => on).map(([piece]) => piece);
  const many = Array.from({ length: 5000 }, (_, k) => item([`name ${k} of a model`, `model_${k}.variant`]));
  return {
    found: Object.fromEntries(typed.map((text) => [text, labels(text)])),
    all: labels(" ").length, last: labels("").at(-1),
    marks: [marks("companion panda", "pan"), marks("ViT-B/16", "vit_b_16"), marks("Grad-CAM++", "gradcam"),
      marks("café au lait", "lait cafe"), marks("ResNet", "zzz"), marks("<b>", "b"), marks("🐕 dog", "dog")],
    thousands: search(many, "4999")[0].value,
  };
}"""


def test_search_in_lists(first_view: Visit) -> None:
    """Names, names of torchvision, keywords, accents and other scripts; matches at the start of a word come first."""
    found: dict[str, Any] = first_view.page.evaluate(SEARCH)

    assert found["found"] == {
        "pan": ["giant panda", "panpipe", "frying pan", "company", "Big pan"],
        "resnet101": ["ResNet-101 · 81.9% top-1", "Wide ResNet-101-2"],
        "vit_b_16": ["ViT-B/16"],
        "vit b/16": ["ViT-B/16"],
        "CAFE": ["café"],
        "соб": ["собака"],
        "#": ["C#"],
        "ig": ["Integrated gradients", "Big pan"],
        "panda giant": ["giant panda"],
        "averages": ["Integrated gradients"],
        "zzz": [],
    }
    assert found["all"] == 12 and found["last"] == "Big pan", "it cannot be selected"
    assert found["marks"] == [["pan"], ["ViT-B/16"], ["Grad-CAM"], ["café", "lait"], [], ["b"], ["dog"]]
    assert found["thousands"] == "model_4999.variant"


def test_a_method_is_found_and_selected_by_keyboard(first_view: Visit) -> None:
    visit = first_view
    page, field, box = visit.page, visit.page.locator(FIELD), visit.page.locator("#hl-method .hl-combobox-box")
    page.locator("#hl-class [role=combobox]").focus()
    for _ in range(9):  # the checkbox is in between
        if page.evaluate(f"document.activeElement === document.querySelector('{FIELD}')"):
            break
        page.keyboard.press("Tab")
    assert not box.is_visible() and page.evaluate("getSelection().toString()") == "Grad-CAM", "Tab selects the name"
    assert page.get_by_role("combobox", name="Method", exact=True).input_value() == "Grad-CAM"
    assert page.locator("#hl-method .hl-combobox-aside").inner_text() == "instant"
    page.keyboard.press("Enter")

    assert box.is_visible() and field.get_attribute("aria-expanded") == "true" and marked(visit) == "Grad-CAM"
    groups = [group.get_attribute("aria-label") for group in page.locator("#hl-method [role=group] ").all()]
    assert [text for text in groups if text and text.endswith("?")] == [
        "Where does the model look?", "Which pixels matter?", "What if parts are occluded?", "Which features are active?"
    ]  # fmt: skip
    everything = names(visit)
    assert len(everything) == len(set(everything)) > 50
    expect(page.locator("#hl-method [role=option][aria-selected=true]")).to_have_count(1)
    page.locator("#hl-method .hl-combobox-jumps button", has_text="What if parts").click()
    assert marked(visit) == "Occlusion" and box.is_visible() and field.evaluate("(e) => e === document.activeElement")

    for typed, first in (("rise", "RISE"), ("gradcam", "Grad-CAM"), ("IG", "Integrated gradients"), ("cam", "CAM")):
        field.fill(typed)
        assert names(visit)[0] == marked(visit) == first, typed
    field.fill("rise")
    assert names(visit) == ["RISE", "MC-RISE"]
    assert page.locator("#hl-method [role=status]").inner_text() == "2 matches"
    page.keyboard.press("End")
    assert marked(visit) == "D-RISE" and "D-RISE is for object detectors" in page.locator(ROWS).last.inner_text()
    page.keyboard.press("Enter")
    assert box.is_visible(), "it does not support the model"
    for title in everything[::7]:
        field.fill(title)
        assert names(visit)[0] == title

    field.fill("<img src=x onerror='window.__xss=1'>")
    assert "No match for “<img" in box.inner_text() and names(visit) == []
    page.keyboard.press("Enter")
    assert box.is_visible(), "nothing was marked"
    page.keyboard.press("Escape")
    assert not box.is_visible() and field.input_value() == "Grad-CAM" and page.evaluate("window.__xss") is None

    page.keyboard.press("ArrowDown")
    assert box.is_visible() and marked(visit) == "Grad-CAM" and len(names(visit)) == len(everything)
    for keys, expected in (
        (["PageDown"], everything[8]),
        (["PageUp", "PageUp"], everything[0]),
        (["ArrowUp", "Home"], everything[0]),
        (["ArrowDown", "ArrowDown"], everything[2]),
    ):
        for key in keys:
            page.keyboard.press(key)
        assert marked(visit) == expected
    visit.after(lambda: page.keyboard.press("Enter"))
    assert visit.status.startswith(f"{everything[2]} for") and field.input_value() == everything[2] == "HiResCAM"
    sent = len(visit.requests)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    page.keyboard.press("Tab")
    assert not box.is_visible() and page.evaluate("document.activeElement !== document.body")
    assert not [url for url in visit.requests[sent:] if "queue/join" in url], "Tab selects nothing"


def test_long_lists_and_small_windows(visit: Visit) -> None:
    """All classes are reachable by scrolling and by End; the list fits above an on-screen keyboard; layers have hints."""
    visit.open("?class=toilet+tissue")
    page, field = visit.page, visit.page.locator("#hl-class [role=combobox]").first
    field.click()
    assert marked(visit, "class") == "toilet tissue", "the last class is drawn because it is selected"
    page.keyboard.press("Home")
    assert marked(visit, "class") == "Top prediction" and page.keyboard.press("End") is None
    rows = page.locator("#hl-class [role=option][data-value]")
    expect(rows).to_have_count(1001)
    assert marked(visit, "class") == "toilet tissue"
    assert rows.last.get_attribute("aria-posinset") == rows.last.get_attribute("aria-setsize") == "1001"
    page.keyboard.press("Escape")

    page.locator("#hl-layer [role=combobox]").click()
    page.locator("#hl-layer [role=option]").get_by_text("whole image").first.wait_for()
    first = page.locator("#hl-layer [role=option]").first.inner_text().split()
    assert first[0] == "head" and " ".join(first[-5:]) == "whole image default for CAMs"
    page.keyboard.press("Escape")

    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate(
        """() => {
          Object.defineProperty(visualViewport, "height", { value: 420, configurable: true });
          document.querySelector("#hl-fold button").click();
        }"""
    )
    for name in ("layer", "method"):
        page.locator(f"#hl-{name} [role=combobox]").click()
        box = page.locator(f"#hl-{name} .hl-combobox-box").bounding_box()
        own = page.locator(f"#hl-{name} [role=combobox]").bounding_box()
        assert box and own and box["y"] >= 0 and box["y"] + box["height"] <= 420 and own["y"] + own["height"] <= 420
        assert box["height"] > 200 and box["x"] >= 0 and box["x"] + box["width"] <= 390
        wide = "(box) => [...box.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > 390).length"
        assert page.locator(f"#hl-{name} .hl-combobox-box").evaluate(wide) == 0, "cut off at the edge"
        page.keyboard.press("Escape")


@pytest.mark.slow
def test_text_and_remedies_next_to_the_map(visit: Visit) -> None:
    """A class by name and a working remedy button; then a class-agnostic method."""
    visit.open("?class=goldfish&method=hires_cam")
    page, beside, findings = visit.page, visit.page.locator("#hl-guide p"), visit.page.locator("#hl-findings")

    positive = "Red: positive contribution of a cell of head to the score of goldfish; blue: "
    assert beside.inner_text().startswith(positive)
    assert "goldfish has rank" in findings.inner_text() and "class 1 " not in findings.inner_text().lower()
    visit.after(lambda: findings.get_by_role("button", name="Explain German shepherd").click())
    assert "HiResCAM for German shepherd" in visit.status and "German shepherd" in beside.inner_text()
    assert findings.inner_text() == ""

    visit.after(lambda: visit.choose("method", "Saliency"))
    visit.after(lambda: findings.get_by_role("button", name="Use SmoothGrad squared").click())
    assert visit.status.startswith("SmoothGrad squared for")
    assert page.locator(FIELD).input_value() == "SmoothGrad squared"
    assert len(beside.inner_text().split()) <= 60

    visit.after(lambda: visit.choose("method", "Edges"))
    alt = page.locator("#hl-overlay canvas").first.get_attribute("aria-label") or ""
    assert "shepherd" not in visit.status + beside.inner_text() + alt and "control" in visit.status


@pytest.mark.slow
def test_badges_show_failed_sanity_checks(visit: Visit) -> None:
    """Guided backpropagation ignores randomized weights of the last layer; edge maps are class-agnostic."""
    visit.open()
    visit.page.locator(FIELD).click()
    for method, badge in (
        ("guided_backprop", "hardly depends on the weights"),
        ("eigen_cam", "class-agnostic"),
    ):
        option = visit.page.locator(f"#hl-method [data-value={method}]").first
        found = option.locator(".hl-combobox-badges span").filter(has_text=badge)
        assert found.get_attribute("title") in option.get_attribute("aria-description")
    expect(visit.page.locator("#hl-method [data-value=grad_cam] .hl-combobox-badges")).to_have_count(0)
