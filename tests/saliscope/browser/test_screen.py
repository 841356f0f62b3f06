"""The page as a whole: its views, the sentence above the map, everything in one window, and the order of answers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.saliscope.browser.conftest import PATIENCE, Visit, expect

EXPERIMENT = "Without the brightest 20% of the map"


def test_the_sentence_says_what_and_how_much_and_offers_a_next_step(first_view: Visit) -> None:
    visit, page = first_view, first_view.page
    expect(page.locator(".hl-headline")).to_have_text(
        f"German shepherd, 94%. {EXPERIMENT}: 78%; without as much at random places: 43% to 96%."
    )
    page.get_by_role("button", name="Compare with malinois").click()
    expect(page.locator("#hl-compare")).to_contain_text(re.compile(r"German shepherd .94%.[\s\S]*malinois .1[.]4%."))
    assert page.get_by_role("tab", name="Compare").get_attribute("aria-selected") == "true"

    visit.open_view("Explain")
    visit.after(lambda: visit.choose("method", "Eigen-CAM"))
    expect(page.locator(".hl-headline")).to_contain_text("Without the most positive 20% of the map: ")
    visit.after(lambda: page.get_by_role("button", name="Explain the class with Grad-CAM").click())
    expect(page.locator(".hl-headline")).to_contain_text(EXPERIMENT)
    assert visit.status.startswith("Grad-CAM for German shepherd")


def test_the_experiment_replaces_the_description_in_place(visit: Visit) -> None:
    """It is spoken once, moves nothing, and a later question dims it."""
    page = visit.open("?target=malinois").page
    sentence, headline = page.locator(".hl-headline > span"), page.locator(".hl-headline")
    page.evaluate(
        """() => {
            const status = document.querySelector("#hl-status [role=status]");
            const headline = document.querySelector(".hl-headline");
            window.spoken = [];
            window.heights = new Set();
            new MutationObserver((records) => {
              spoken.push(records.flatMap(({ addedNodes }) => [...addedNodes]).map((each) => each.textContent).join(""));
              heights.add(headline.offsetHeight);
            }).observe(status, { subtree: true, childList: true, characterData: true });
        }"""
    )
    for width, height in ((1280, 800), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate("heights.clear()")
        name = {1280: "kelpie", 390: "German shepherd"}[width]
        visit.after(lambda name=name: page.locator("#hl-bars").get_by_role("button", name=name).click())
        expect(sentence).to_contain_text(EXPERIMENT)
        assert headline.get_attribute("data-of") == "done" and page.evaluate("heights.size") == 1
        spoken = page.evaluate("spoken.splice(0)")
        assert sum(EXPERIMENT in text for text in spoken) == 1
        assert EXPERIMENT in spoken[-1] and "Grad-CAM" not in spoken[-1], "the line below is not spoken again"


def test_the_true_class_and_more_classes(visit: Visit) -> None:
    page = visit.open("?true=malinois").page
    side = page.locator("#hl-bars")
    side.get_by_text("malinois has rank 2 of 1,000: 1.4%.").wait_for()
    side.get_by_role("button", name="Show 20").click()
    shares = side.locator(".hl-bars .hl-share")
    expect(shares).to_have_count(20)
    assert shares.all_inner_texts()[:2] == ["94%", "1.4%"]
    visit.after(lambda: side.get_by_role("button", name="Explain it").click())
    assert "for malinois" in visit.status
    visit.example("cat")
    assert "not set" in side.get_by_role("combobox", name="True class").input_value(), "another image"


def test_map_network_and_predictions_are_in_one_view_and_nothing_moves(first_view: Visit) -> None:
    """The sentence keeps one line, and the slider of partial maps has its place before it appears."""
    visit, page, size = first_view, first_view.page, first_view.page.viewport_size
    for width, height in ((2560, 1440), (1440, 900)):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(200)  # the layout and its observers
        map_, network, predictions, sentence, guide, trust = (
            page.locator(name).first.bounding_box()
            for name in ("#hl-overlay .hl-frame", "#hl-strip", "#hl-bars", "#hl-status", "#hl-guide", "#hl-trust")
        )
        assert sentence["y"] + sentence["height"] <= map_["y"] and map_["height"] <= 0.55 * height + 1
        assert map_["y"] + map_["height"] <= network["y"] and network["y"] + network["height"] <= height
        assert predictions["y"] + predictions["height"] <= trust["y"] and trust["y"] + trust["height"] <= guide["y"]
        assert trust["y"] + trust["height"] <= network["y"], "the verdict is visible without scrolling"
        assert guide["x"] == trust["x"] == predictions["x"], "one column, which scrolls by itself"

    visit.after_partial(lambda: visit.choose("method", "Occlusion"))
    page.evaluate("scrollTo(0, 0)")
    assert page.locator("#hl-overlay .hl-progress-row").is_visible()
    assert page.locator("#hl-strip").bounding_box() == network
    visit.after(lambda: visit.choose("method", "Saliency"))
    page.evaluate("scrollTo(0, 0)")
    assert len(visit.headline) > 95 and page.locator("#hl-strip").bounding_box() == network
    assert page.locator(".hl-headline").bounding_box()["height"] < 40, "one line"
    quantity, end = (page.locator(f"#hl-overlay .hl-ends > span:nth-child({k})").bounding_box() for k in (2, 3))
    assert quantity["x"] + quantity["width"] <= end["x"], "the texts of the color bar do not overlap"
    layer, class_ = (page.locator(f"#hl-{name} .hl-combobox") for name in ("layer", "class"))
    assert "not used" in layer.inner_text() and "not used" not in class_.inner_text()
    assert "Saliency explains the whole network" in layer.locator("input").get_attribute("title")
    page.set_viewport_size(size)


def test_views_theme_and_presentation_are_chosen_in_the_menu(first_view: Visit) -> None:
    visit, page = first_view, first_view.page
    button = page.locator("#hl-navigation [aria-haspopup=menu]")
    button.focus()
    page.keyboard.press("ArrowDown")
    for number, name in enumerate(("Erase", "Gradient lab", "API")):
        expect(page.get_by_role("menuitem").nth(number)).to_have_text(name)
    page.keyboard.press("Escape")
    assert not page.locator("#hl-menu").is_visible() and button.evaluate("each => each === document.activeElement")
    page.get_by_role("tab", name="Explain").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Compare").get_attribute("aria-selected") == "true"
    visit.open_view("API")
    assert button.inner_text().strip() == "API"
    expect(page.locator("#hl-navigation [aria-selected=true]")).to_have_count(0)
    visit.open_view("Explain")

    is_dark = "document.body.classList.contains('dark')"
    dark = page.evaluate(is_dark)
    visit.open_view("Light or dark theme")
    assert page.evaluate(is_dark) is not dark and "__theme=" in page.url
    size = "parseFloat(getComputedStyle(document.querySelector('.hl-headline')).fontSize)"
    before = page.evaluate(size)
    visit.open_view("Presentation mode")
    assert page.evaluate(size) > 1.25 * before and not page.locator("#hl-left").is_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    visit.until("document.documentElement.dataset.hlWidth === 'phone'")
    leave, views = page.locator("#hl-leave").bounding_box(), page.locator("#hl-navigation").bounding_box()
    assert leave["y"] > views["y"] + views["height"], "the views can be chosen"
    page.set_viewport_size({"width": 1280, "height": 900})
    visit.until("document.documentElement.dataset.hlWidth === 'wide'")
    page.keyboard.press("Escape")
    assert page.evaluate(size) == before and page.locator("#hl-left").is_visible()


OUTSIDE = """(box) => {
  const { left, right } = box.getBoundingClientRect(), found = [];
  const texts = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  for (let text; (text = texts.nextNode());) {
    const range = document.createRange();
    range.selectNodeContents(text);
    const own = range.getBoundingClientRect();
    if (own.width && (own.left < left || own.right > right)) found.push(text.textContent);
  }
  return found;
}"""
"""The texts that stick out of their box."""
LOOK = "(input) => ['color', 'backgroundColor', 'borderColor', 'fontSize'].map((name) => getComputedStyle(input)[name])"


def test_save_panels_are_in_the_window(first_view: Visit) -> None:
    """The panels of a map, of the comparison and of an edited image have one style; no text sticks out."""
    visit, page, usual = first_view, first_view.page, first_view.page.viewport_size
    visit.after(lambda: page.locator("#hl-status .hl-cover").click(), "erase")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        looks: list[list[str]] = []
        for name, view in (("Erase", "#hl-erase"), ("Compare", "#hl-compare"), ("Explain", "#hl-overlay")):
            visit.open_view(name)
            page.locator(f"{view} .hl-share > button:enabled").first.click()
            panel = page.locator(f"{view} .hl-share-items").first
            box = panel.bounding_box()
            looks.append(panel.locator("input[name=dpi]").evaluate(LOOK))
            assert panel.evaluate(OUTSIDE) == [], view
            assert box and box["x"] >= 0 and box["x"] + box["width"] <= width, view
            assert box["y"] >= 0 and box["y"] + box["height"] <= 901, view
            page.keyboard.press("Escape")
        assert looks == [looks[0]] * 3
    page.set_viewport_size(usual)


@pytest.mark.slow
def test_the_first_map_is_shown_before_the_scripts(window: Any) -> None:
    """With scripts withheld, the HTML alone shows sentence and picture; the page's own map replaces them in place."""
    visit, held = window(1440), list[Any]()
    page = visit.page
    page.route("**/hl/page-*.js", held.append)
    page.goto(visit.address, wait_until="commit")
    visit.until("document.querySelector('#hl-first img')?.naturalWidth > 0")
    assert "German shepherd, 94%." in page.locator("#hl-first").inner_text()
    picture = page.locator("#hl-first figure").bounding_box()
    page.unroute_all()
    for route in held:
        route.continue_()
    visit.painted("overlay", 0)
    assert page.locator("#hl-method [role=combobox]").input_value() == "Grad-CAM"
    assert not any("/assets/" in url for url in visit.requests), "one script has all modules"
    expect(page.locator("#hl-first")).to_have_count(0)
    canvas = page.locator("#hl-overlay canvas").first.bounding_box()
    assert abs(picture["x"] - canvas["x"]) < 2 and abs(picture["width"] - canvas["width"]) < 2
    page.goto(f"{visit.address}/?example=cat", wait_until="commit")
    visit.until("document.querySelector('#hl-explain') !== null")
    expect(page.locator("#hl-first"), "another question").to_have_count(0)


@pytest.mark.slow
def test_without_the_script_gradio_loads_its_modules_as_usual(browser, app: str) -> None:
    page = browser.new_page()
    page.route("**/hl/page-*.js", lambda route: route.abort())
    page.goto(f"{app}/?example=cat")
    expect(page.locator("#hl-bars")).to_contain_text("tabby")
    page.close()


def test_predictions_do_not_wait_for_a_slow_map(visit: Visit) -> None:
    page = visit.page
    page.goto(f"{visit.address}/?method=rise&example=cat")
    page.locator("#hl-bars button").first.wait_for(timeout=PATIENCE)
    assert page.evaluate("document.documentElement.dataset.hlState") == "busy"
    assert visit.headline == "Tiger cat, 39%. RISE is being computed."
    assert page.locator("#hl-bars").get_attribute("data-outdated") is None, "these are not old predictions"
    expect(page.locator("#hl-bars button[data-index]")).to_have_count(5)
    assert "tabby" in page.locator("#hl-bars").inner_text()
    page.locator("#hl-stop").click()


def test_the_image_is_that_of_the_last_click(visit: Visit) -> None:
    """Two quick clicks on examples, of which the first is answered last; a class then explains the shown image."""
    page, held = visit.open("?example=dog").page, []

    def hold_first(route) -> None:
        held.append(route)
        if len(held) > 1:
            route.continue_()

    page.route("**/gradio_api/run/*", hold_first)
    before = visit.number("overlay")
    page.locator("#hl-examples [data-id=cat]").click()
    page.wait_for_timeout(100)
    page.locator("#hl-examples [data-id=goldfish]").click()
    visit.painted("overlay", before)
    visit.until("document.querySelector('#hl-status .hl-headline').innerText.startsWith('Goldfish')")
    page.locator("#hl-bars button", has_text="rock beauty").click()  # waits for the image
    held[0].continue_()
    visit.until("document.querySelector('#hl-image img').src.endsWith('goldfish.jpg')")
    visit.until("document.querySelector('#hl-status .hl-headline').innerText.startsWith('Rock beauty')")
    visit.settled()
    assert visit.headline.startswith("Rock beauty, 0.6%")
    assert page.locator("#hl-examples [aria-pressed=true]").get_attribute("data-id") == "goldfish"
    expect(page.locator("#hl-bars canvas[data-drawn]"), "the small maps").to_have_count(3)
