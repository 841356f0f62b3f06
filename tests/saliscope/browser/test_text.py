"""Sentences as targets on the page, with a network of two encoders."""

from __future__ import annotations

from typing import Any

from tests.saliscope.browser.conftest import Visit, expect

MODEL = "?model=tests.support.two_encoders:build"
MARKUP = "<img src=x onerror='document.title=1'>"


def field(visit: Visit, label: str) -> Any:
    return visit.page.get_by_role("textbox", name=label, exact=True)


def enter(visit: Visit, label: str, text: str) -> None:
    field(visit, label).fill(text)
    visit.after(lambda: field(visit, label).press("Enter"))


def test_two_visitors_and_their_sentences(window: Any) -> None:
    """A comparison of two sentences is a panel and a step of the history; a classifier brings the classes back."""
    one, two = window().open(MODEL), window()
    hidden = [one.page.locator(name).is_visible() for name in ("#hl-pin", "#hl-class .hl-choice")]
    assert "Enter one under Text" in one.status and not any(hidden)
    enter(one, "Text", "a photo of a dog")
    assert one.headline.startswith("“a photo of a dog”, similarity 0.")
    two.open(f"{MODEL}&class=a+cat")
    assert two.headline.startswith("“a cat”, similarity") and field(two, "Text").input_value() == "a cat"
    bars = [each.page.locator("#hl-bars button[data-index]") for each in (one, two)]
    for bar in bars:
        expect(bar).to_have_count(1)
    assert bars[0].inner_text() != bars[1].inner_text()

    enter(one, "Compared with", MARKUP)
    assert f"“a photo of a dog” compared with “{MARKUP}”, similarity" in one.headline
    expect(one.page.locator("#hl-bars button[data-index]")).to_have_count(2)
    assert one.page.title() == "Saliscope"
    one.after(lambda: one.page.locator("#hl-examples button").nth(2).click())  # another image keeps the sentences
    assert MARKUP in one.headline and field(one, "Compared with").input_value() == MARKUP
    assert two.headline.startswith("“a cat”, similarity")

    link = one.page.url
    one.open_view("Compare")
    panel = one.page.locator(".hl-compare-panel").nth(1).locator(".hl-line")
    panel.filter(has_text=f"for “{MARKUP}” (similarity").wait_for()
    one.open_view("Explain")
    enter(one, "Compared with", "")
    assert field(one, "Compared with").input_value() == "" and "compared with" not in one.headline
    one.after(lambda: one.page.go_back())
    assert field(one, "Compared with").input_value() == MARKUP
    one.page.wait_for_url(link)
    one.after(lambda: one.choose("model", "EfficientNet-Lite0"))
    assert not field(one, "Text").is_visible() and one.page.locator("#hl-class .hl-choice").is_visible()
    assert "%" in one.headline
