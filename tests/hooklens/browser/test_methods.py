"""The method picker and the text next to the map: keyboard, search, phone, remedies."""

from __future__ import annotations

import pytest

from tests.hooklens.browser.conftest import Visit

BUTTON = "#hl-method button[aria-haspopup]"
SEARCH = "#hl-method [role=combobox]"


def focused(visit: Visit) -> str:
    """Return the id of the focused element, or its role."""
    return visit.page.evaluate("document.activeElement.id || document.activeElement.getAttribute('role') || ''")


def names(visit: Visit) -> list[str]:
    """Return the listed methods in order."""
    return visit.page.locator("#hl-method .hl-methods-name").all_inner_texts()


def marked(visit: Visit) -> str:
    """Return the method that Enter would select, as announced to screen readers."""
    return visit.page.evaluate(
        f"""() => {{
          const field = document.querySelector("{SEARCH}");
          const option = document.getElementById(field.getAttribute("aria-activedescendant"));
          return option ? option.querySelector(".hl-methods-name").textContent : "";
        }}"""
    )


def test_a_method_is_found_and_selected_by_keyboard(first_view: Visit) -> None:
    visit = first_view
    page, panel = visit.page, visit.page.get_by_role("dialog", name="Choose a method")
    page.locator(BUTTON).focus()
    page.keyboard.press("Enter")

    assert panel.is_visible() and focused(visit) == "combobox" and marked(visit) == "Grad-CAM"
    assert page.locator(BUTTON).get_attribute("aria-expanded") == "true"
    questions = [group.get_attribute("aria-labelledby") for group in page.locator("#hl-method [role=group]").all()]
    assert len([each for each in questions if each]) == 5
    everything = names(visit)
    assert len(everything) == len(set(everything)) > 50
    assert page.locator("#hl-method [role=option][aria-selected=true]").count() == 1

    for typed, first in (("rise", "RISE"), ("gradcam", "Grad-CAM"), ("IG", "Integrated gradients"), ("cam", "CAM")):
        page.locator(SEARCH).fill(typed)
        assert names(visit)[0] == marked(visit) == first, typed
    page.locator(SEARCH).fill("rise")
    assert names(visit) == ["RISE", "MC-RISE"]
    page.locator("#hl-method summary").click()
    assert "D-RISE is for object detectors" in page.locator("#hl-method details").inner_text()
    for title in everything:
        page.locator(SEARCH).fill(title)
        assert names(visit)[0] == title

    page.locator(SEARCH).fill("<img src=x onerror='window.__xss=1'>")
    assert "No method matches “<img" in panel.inner_text() and names(visit) == []
    page.keyboard.press("Enter")
    assert panel.is_visible(), "nothing was marked"
    page.keyboard.press("Escape")
    assert not panel.is_visible() and focused(visit) == "hl-method-button"
    assert page.evaluate("window.__xss") is None

    page.keyboard.press("ArrowDown")
    assert panel.is_visible() and marked(visit) == "Grad-CAM" and page.locator(SEARCH).input_value() == ""
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert marked(visit) == "HiResCAM"
    visit.after(lambda: page.keyboard.press("Enter"))
    assert visit.status.startswith("HiResCAM for") and focused(visit) == "hl-method-button"
    assert page.locator(BUTTON).inner_text().split() == ["HiResCAM", "instant"]

    page.keyboard.press("Enter")
    page.locator("#hl-method [role=listbox]").focus()
    page.keyboard.press("End")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert not panel.is_visible() and page.evaluate("document.activeElement !== document.body"), (
        "Tab moves to the next control"
    )


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
    assert visit.status.startswith("SmoothGrad squared for") and page.locator(BUTTON).inner_text().startswith(
        "SmoothGrad squared"
    )
    assert len(beside.inner_text().split()) <= 60

    visit.after(lambda: visit.choose("method", "Edges"))
    alt = page.locator("#hl-overlay canvas").first.get_attribute("aria-label") or ""
    assert "shepherd" not in visit.status + beside.inner_text() + alt and "control" in visit.status


@pytest.mark.slow
def test_on_a_phone_the_list_is_a_sheet_over_the_page(browser, app: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark", has_touch=True)
    visit = Visit(context.new_page(), app).open()
    page, panel = visit.page, visit.page.locator("#hl-method-panel")

    assert not page.locator("#hl-guide p").is_visible(), "folded"
    page.locator("#hl-guide summary").click()
    assert page.locator("#hl-guide p").is_visible()
    page.locator("#hl-fold button").click()
    page.locator(BUTTON).click()
    assert panel.bounding_box() == {"x": 0, "y": 0, "width": 390, "height": 844}
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert panel.evaluate("(box) => getComputedStyle(box).backgroundColor") == "rgb(35, 35, 40)"
    beyond = "(box) => [...box.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > 390).length"
    assert panel.evaluate(beyond) == 0, "cut off at the edge"
    page.get_by_role("button", name="What if parts are occluded?").click()
    assert page.locator("#hl-method [data-method=occlusion]").is_visible() and marked(visit) == "Occlusion"
    page.get_by_role("button", name="Close", exact=True).click()
    assert not panel.is_visible() and focused(visit) == "hl-method-button"
    if not page.locator(BUTTON).is_visible():
        page.locator("#hl-fold button").click()
    visit.after(lambda: visit.choose("method", "Eigen-CAM"))
    assert visit.status.startswith("Eigen-CAM at head")

    visit.check()
    context.close()


@pytest.mark.slow
def test_badges_show_failed_sanity_checks(visit: Visit) -> None:
    """Guided backpropagation ignores randomized weights of the last layer; edge maps are class-agnostic."""
    visit.open()
    visit.page.locator(BUTTON).click()
    for method, badge in (
        ("guided_backprop", "hardly depends on the weights"),
        ("eigen_cam", "class-agnostic"),
    ):
        option = visit.page.locator(f"#hl-method [data-method={method}]").first
        found = option.locator(".hl-methods-badges span").filter(has_text=badge)
        assert found.get_attribute("title") in option.get_attribute("aria-description")
    assert visit.page.locator("#hl-method [data-method=grad_cam] .hl-methods-badges").count() == 0
