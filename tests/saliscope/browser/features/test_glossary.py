"""Words of the glossary in Chromium: hover, focus, tap and Escape show and hide their meaning."""

from __future__ import annotations

import pytest

from saliscope.page.shared.glossary import GLOSSARY
from tests.saliscope.browser.conftest import Visit, expect
from tests.saliscope.browser.test_accessibility import FOUND, axe_script


def test_words_explain_themselves_by_pointer_and_keyboard(visit: Visit) -> None:
    page = visit.open("?model=bands3").page
    tip, share, canvas = (
        page.locator(".hl-tip"),
        page.locator("#hl-status .hl-term"),
        page.locator("#hl-overlay canvas"),
    )
    expect(share).to_have_text("brightest 20% of the map")
    before = canvas.first.bounding_box()
    share.hover()
    expect(tip).to_have_text(GLOSSARY["brightest % of the map"])
    tip.hover()  # the tip itself can be read and selected
    page.wait_for_timeout(300)
    expect(tip).to_be_visible()
    assert canvas.first.bounding_box() == before, "nothing moves"
    page.mouse.move(2, 700)
    expect(tip).to_be_hidden()

    layer = page.locator("#hl-layer .hl-term[data-term=layer]")
    layer.focus()
    expect(layer).to_have_accessible_description(GLOSSARY["layer"])
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    expect(layer, "Escape does not move the focus").to_be_focused()
    page.keyboard.press("Enter")
    expect(tip).to_be_visible()
    page.keyboard.press("Tab")
    expect(tip).to_be_hidden()

    inside = ", ".join(f"{tag} .hl-term" for tag in ("button", "a", "label", "summary", "strong", "td"))
    expect(page.locator(inside)).to_have_count(0)
    whole, center = (page.locator("#hl-crop button").filter(has_text=text) for text in ("Whole image", "Center crop"))
    visit.after(whole.click)
    center.hover()
    expect(tip).to_have_text(GLOSSARY["crop"])
    visit.after(center.click)  # a button with a word keeps its click
    expect(center).to_have_attribute("aria-pressed", "true")


@pytest.mark.slow
def test_an_open_tip_is_accessible_and_inside_a_phone(phone: Visit) -> None:
    page = phone.page
    page.evaluate(axe_script())
    share, tip = page.locator("#hl-status .hl-term"), page.locator(".hl-tip")
    touch = ("pointerdown", {"pointerType": "touch", "bubbles": True})
    share.evaluate("each => each.scrollIntoView({ block: 'center' })")
    share.dispatch_event(*touch)
    share.evaluate("each => { each.focus(); each.click(); }")
    expect(tip).to_be_visible()
    box = tip.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390 and page.evaluate(FOUND, None) == []
    share.dispatch_event(*touch)
    share.evaluate("each => each.click()")
    expect(tip).to_be_hidden()
    share.evaluate("each => each.click()")
    page.locator("#hl-overlay canvas").first.dispatch_event(*touch)
    expect(tip).to_be_hidden()
