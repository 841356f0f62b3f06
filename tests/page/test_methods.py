"""The choice of a method and what stands beside its map, as visitors use them: keyboard, search, phone, remedies."""

from __future__ import annotations

import pytest

from tests.page.conftest import Visit

BUTTON = "#hl-method button[aria-haspopup]"
SEARCH = "#hl-method [role=combobox]"


def focused(visit: Visit) -> str:
    """The id of the focused element, or its role."""
    return visit.page.evaluate("document.activeElement.id || document.activeElement.getAttribute('role') || ''")


def names(visit: Visit) -> list[str]:
    """The methods that the panel lists, in order."""
    return visit.page.locator("#hl-method .hl-methods-name").all_inner_texts()


def marked(visit: Visit) -> str:
    """The method that Enter would take, as a screen reader is told."""
    return visit.page.evaluate(
        f"""() => {{
          const field = document.querySelector("{SEARCH}");
          const option = document.getElementById(field.getAttribute("aria-activedescendant"));
          return option ? option.querySelector(".hl-methods-name").textContent : "";
        }}"""
    )


def test_a_method_is_found_and_chosen_by_keyboard(visit: Visit) -> None:
    visit.open()
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
    assert not panel.is_visible() and page.evaluate("document.activeElement !== document.body"), "Tab goes on"


@pytest.mark.slow
def test_words_and_remedies_beside_the_map(visit: Visit) -> None:
    """A class by name, and a button that does what it says; then a method in which no class plays a part."""
    visit.open("?class=goldfish&method=hires_cam")
    page, beside, said = visit.page, visit.page.locator("#hl-guide p"), visit.page.locator("#hl-findings")

    assert beside.inner_text().startswith("Red: what each cell of head adds to the score of goldfish; blue: ")
    assert "goldfish comes as number" in said.inner_text() and "class 1 " not in said.inner_text().lower()
    visit.after(lambda: said.get_by_role("button", name="Explain German shepherd").click())
    assert "HiResCAM for German shepherd" in visit.status and "German shepherd" in beside.inner_text()
    assert said.inner_text() == ""

    visit.after(lambda: visit.choose("method", "Saliency"))
    visit.after(lambda: said.get_by_role("button", name="Use SmoothGrad squared").click())
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
    assert panel.evaluate(beyond) == 0, "cut at the edge"
    page.get_by_role("button", name="What if it were covered?").click()
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
def test_badges_say_what_a_method_was_measured_not_to_do(visit: Visit) -> None:
    """Guided backpropagation keeps its map when the last layer's weights are drawn anew; edges know no class."""
    visit.open()
    visit.page.locator(BUTTON).click()
    for method, badge in (
        ("guided_backprop", "hardly depends on the weights"),
        ("eigen_cam", "does not depend on the class"),
    ):
        option = visit.page.locator(f"#hl-method [data-method={method}]").first
        found = option.locator(".hl-methods-badges span").filter(has_text=badge)
        assert found.get_attribute("title") in option.get_attribute("aria-description")
    assert visit.page.locator("#hl-method [data-method=grad_cam] .hl-methods-badges").count() == 0
