"""For a class: the presentation mode, the tour, and the words for a touch screen."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.saliscope.browser.conftest import Visit, expect


def test_a_class_that_the_next_model_lacks_is_no_longer_kept(visit: Visit) -> None:
    page = visit.open("?example=dog").page
    keep = page.get_by_label("Keep this class for other images")
    keep.check()
    visit.until("location.search.includes('pin=1')")
    visit.choose("model", "3 channels")
    expect(page.locator("#hl-pin")).to_contain_text("This model has no class German shepherd")
    expect(keep).not_to_be_checked()
    visit.until("!/pin|class/.test(location.search)")


def test_a_presentation_has_a_larger_map_the_examples_and_arrow_keys(visit: Visit) -> None:
    page, size = visit.open("?model=bands3&example=dog").page, visit.page.viewport_size
    page.set_viewport_size({"width": 1440, "height": 900})
    frame, image = page.locator("#hl-overlay .hl-frame"), page.locator("#hl-examples [aria-pressed=true]")
    page.wait_for_timeout(200)
    before = frame.bounding_box()
    visit.open_view("Presentation mode")
    page.wait_for_timeout(200)
    shown = frame.bounding_box()
    assert shown["height"] > 1.3 * before["height"] and shown["y"] + shown["height"] < 900
    expect(page.locator("#hl-settings")).to_be_hidden()
    visit.after(lambda: page.keyboard.press("ArrowRight"))
    expect(image).to_have_attribute("data-id", "coffee")
    visit.after(lambda: page.keyboard.press("ArrowLeft"))
    expect(image).to_have_attribute("data-id", "dog")
    page.locator("#hl-overlay canvas").first.focus()
    page.keyboard.press("ArrowRight")  # reads the map
    expect(image).to_have_attribute("data-id", "dog")
    page.keyboard.press("Escape")
    expect(page.locator("#hl-settings")).to_be_visible()
    page.set_viewport_size(size)


@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.slow)])
def test_the_tour_has_five_steps_and_can_be_left(window: Any, width: int) -> None:
    """With the keyboard only. The card covers nothing that it is about."""
    visit = window(width, 844).open("?model=bands3")
    page, card = visit.page, visit.page.get_by_role("dialog")
    visit.open_view("Tour in one minute")
    for number, (title, part) in enumerate(
        {
            "Image": "#hl-examples",
            "Class": "#hl-bars",
            "Layer": "#hl-strip",
            "Cover": ".hl-cover",
            "Compare": ".hl-next",
        }.items()
    ):
        expect(card.locator("h2")).to_have_text(f"{number + 1} of 5 · {title}")
        expect(page.locator("[data-tour]")).to_have_count(1)
        about, box = page.locator(f"{part}[data-tour]").bounding_box(), card.bounding_box()
        assert box["y"] >= about["y"] + about["height"] or box["y"] + box["height"] <= about["y"], title
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
        page.keyboard.press("Enter")
    expect(card).to_be_hidden()
    expect(page.locator("#hl-navigation [aria-haspopup=menu]"), "where it was started").to_be_focused()
    visit.open_view("Tour in one minute")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()
    expect(page.locator("[data-tour]")).to_have_count(0)
    visit.open_view("Tour in one minute")
    expect(card.locator("h2")).to_contain_text("1 of 5")
    card.get_by_role("button", name="Leave the tour").click()
    expect(card).to_be_hidden()


@pytest.mark.slow
def test_texts_are_about_tapping_on_a_touch_screen_and_buttons_do_not_touch(window: Any) -> None:
    visit = window(390, 844, has_touch=True, is_mobile=True, device_scale_factor=2).open("?example=hopper")
    page = visit.page
    expect(page.locator("#hl-overlay .hl-read")).to_have_text("Tap to read values.")
    text = page.locator("#hl-page").evaluate("(page) => page.innerText + page.querySelector('.hl-empty').textContent")
    assert not re.search(r"\b([Hh]over|[Cc]lick)\b", text)
    line, cover, compare = (
        page.locator(f"#hl-status {name}").bounding_box() for name in (".hl-line", ".hl-cover", ".hl-next")
    )
    assert cover["y"] - line["y"] - line["height"] >= 8
    beside = compare["x"] - cover["x"] - cover["width"] >= 8
    assert beside or compare["y"] - cover["y"] - cover["height"] >= 8
