"""Words of the glossary in Chromium: hover, focus, tap and Escape show and hide their meaning."""

from __future__ import annotations

from typing import Any

import pytest

from saliscope.page.shared.glossary import GLOSSARY
from tests.saliscope.browser.conftest import Visit, expect
from tests.saliscope.browser.test_accessibility import FOUND, axe_script


def term(page: Any, host: str, word: str) -> Any:
    return page.locator(f"{host} .hl-term[data-term='{word}']")


def test_words_explain_themselves(visit: Visit) -> None:
    page = visit.open().page
    tip, share = page.locator(".hl-tip"), term(page, "#hl-status", "% of the map")
    expect(share).to_have_count(1)
    assert share.inner_text().endswith("% of the map") and share.inner_text()[0].isdigit()
    before = page.locator("#hl-overlay canvas").first.bounding_box()

    share.hover()
    expect(tip).to_have_text(GLOSSARY["% of the map"])
    tip.hover()  # the tip itself can be read and selected
    page.wait_for_timeout(300)
    expect(tip).to_be_visible()
    assert page.locator("#hl-overlay canvas").first.bounding_box() == before, "nothing moves"
    page.mouse.move(2, 700)
    expect(tip).to_be_hidden()

    layer = term(page, "#hl-layer", "layer")
    layer.focus()
    expect(tip).to_have_text(GLOSSARY["layer"])
    described = layer.evaluate("each => document.getElementById(each.getAttribute('aria-describedby')).textContent")
    assert described == GLOSSARY["layer"]
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    assert layer.evaluate("each => each === document.activeElement"), "Escape does not move the focus"
    page.keyboard.press("Enter")
    expect(tip).to_be_visible()
    page.keyboard.press("Tab")
    expect(tip).to_be_hidden()
    inside = ", ".join(f"{tag} .hl-term" for tag in ("button", "a", "label", "summary", "strong", "td"))
    assert page.locator(inside).count() == 0
    assert not visit.errors


def test_a_button_with_a_word_keeps_its_click(visit: Visit) -> None:
    page = visit.open().page
    whole, center = (page.locator("#hl-crop button").filter(has_text=text) for text in ("Whole image", "Center crop"))
    visit.after(whole.click)
    center.hover()
    expect(page.locator(".hl-tip")).to_have_text(GLOSSARY["crop"])
    visit.after(center.click)
    expect(center).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_open_tip_is_accessible_and_inside_a_phone(visit: Visit, theme: str) -> None:
    page = visit.open().page
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("(dark) => document.body.classList.toggle('dark', dark)", theme == "dark")
    page.evaluate(axe_script())
    share, tip = term(page, "#hl-status", "% of the map"), page.locator(".hl-tip")
    share.evaluate("each => each.scrollIntoView({ block: 'center' })")
    share.dispatch_event("pointerdown", {"pointerType": "touch", "bubbles": True})
    share.evaluate("each => { each.focus(); each.click(); }")
    expect(tip).to_be_visible()
    box = tip.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(FOUND, None) == []
    share.dispatch_event("pointerdown", {"pointerType": "touch", "bubbles": True})
    share.evaluate("each => each.click()")
    expect(tip).to_be_hidden()
    share.evaluate("each => each.click()")
    page.locator("#hl-overlay canvas").first.dispatch_event("pointerdown", {"pointerType": "touch", "bubbles": True})
    expect(tip).to_be_hidden()
