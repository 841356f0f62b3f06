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
    page, bars = one.page, one.page.locator("#hl-bars button[data-index]")
    assert "Enter one under Text" in one.status
    expect(page.locator("#hl-class .hl-choice")).to_be_hidden()
    enter(one, "Text", "a photo of a dog")
    assert one.headline.startswith("“a photo of a dog”, similarity 0.")
    two.open(f"{MODEL}&class=a+cat")
    expect(field(two, "Text")).to_have_value("a cat")
    expect(bars).to_have_count(1)

    enter(one, "Compared with", MARKUP)
    assert f"“a photo of a dog” compared with “{MARKUP}”, similarity" in one.headline
    expect(bars).to_have_count(2)
    assert page.title() == "Saliscope"
    one.after(lambda: page.locator("#hl-examples button").nth(2).click())
    assert MARKUP in one.headline, "another image keeps the sentences"
    assert two.headline.startswith("“a cat”, similarity")

    link = page.url
    one.open_view("Compare")
    panel = page.locator(".hl-compare-panel").nth(1).locator(".hl-line")
    expect(panel).to_contain_text(f"for “{MARKUP}” (similarity")
    one.open_view("Explain")
    enter(one, "Compared with", "")
    assert "compared with" not in one.headline
    one.after(page.go_back)
    expect(field(one, "Compared with")).to_have_value(MARKUP)
    page.wait_for_url(link)
    one.after(lambda: one.choose("model", "EfficientNet-Lite0"))
    expect(field(one, "Text")).to_be_hidden()
    expect(page.locator("#hl-class .hl-choice")).to_be_visible()
    assert "%" in one.headline
