"""Sentences as targets on the page, with a network of two encoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.saliscope.browser.conftest import Visit, expect

MODEL = "?model=tests.support.two_encoders:build"
MARKUP = "<img src=x onerror='document.title=1'>"


@pytest.fixture
def visitor(browser, app: str) -> Iterator[Callable[[], Visit]]:
    with ExitStack() as stack:

        def visit() -> Visit:
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            found = Visit(context.new_page(), app)
            stack.callback(context.close)
            stack.callback(found.check)
            return found

        yield visit


def enter(visit: Visit, label: str, text: str) -> None:
    field = visit.page.get_by_role("textbox", name=label, exact=True)
    field.fill(text)
    visit.after(lambda: field.press("Enter"))


def test_two_users_and_their_sentences(visitor: Callable[[], Visit]) -> None:
    one, two = visitor(), visitor()
    one.open(MODEL)
    hidden = [one.page.locator(name).is_visible() for name in ("#hl-pin", "#hl-class .hl-choice")]
    assert "Enter one under Text" in one.status and not any(hidden)
    enter(one, "Text", "a photo of a dog")
    assert one.headline.startswith("“a photo of a dog”, similarity 0.")
    two.open(f"{MODEL}&class=a+cat")
    assert (
        two.headline.startswith("“a cat”, similarity")
        and two.page.get_by_role("textbox", name="Text", exact=True).input_value() == "a cat"
    )
    own = [each.page.locator("#hl-bars button[data-index]").all_inner_texts() for each in (one, two)]
    assert own[0] != own[1] and len(own[0]) == len(own[1]) == 1

    enter(one, "Compared with", MARKUP)
    assert f"“a photo of a dog” compared with “{MARKUP}”, similarity" in one.headline
    expect(one.page.locator("#hl-bars button[data-index]")).to_have_count(2)
    assert one.page.title() == "Saliscope"
    one.after(lambda: one.page.locator("#hl-examples button").nth(2).click())  # another image keeps the sentences
    assert MARKUP in one.headline and one.page.get_by_role("textbox", name="Compared with").input_value() == MARKUP
    assert two.headline.startswith("“a cat”, similarity")


@pytest.mark.slow
def test_a_comparison_is_a_panel_and_a_step_of_the_history(visitor: Callable[[], Visit]) -> None:
    one = visitor()
    one.open(MODEL)
    enter(one, "Text", "a photo of a dog")
    enter(one, "Compared with", MARKUP)
    link = one.page.url
    one.open_view("Compare")  # the second panel has the second sentence
    line = one.page.locator(".hl-compare-panel").nth(1).locator(".hl-line")
    line.filter(has_text=f"for “{MARKUP}” (similarity").wait_for()
    one.open_view("Explain")
    one.after(lambda: enter_empty(one))
    assert (
        one.page.get_by_role("textbox", name="Compared with").input_value() == ""
        and "compared with" not in one.headline
    )
    one.after(lambda: one.page.go_back())
    assert one.page.get_by_role("textbox", name="Compared with").input_value() == MARKUP
    one.page.wait_for_url(link)

    one.after(lambda: one.choose("model", "EfficientNet-Lite0"))  # the sentence is not one of its classes
    assert (
        not one.page.get_by_role("textbox", name="Text", exact=True).is_visible()
        and one.page.locator("#hl-class .hl-choice").is_visible()
    )
    assert "%" in one.headline


def enter_empty(visit: Visit) -> None:
    field = visit.page.get_by_role("textbox", name="Compared with")
    field.fill("")
    field.press("Enter")
