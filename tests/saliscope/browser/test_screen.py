"""The arrangement of the page: its views, the sentence above the map, and everything in one view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.saliscope.browser.conftest import PATIENCE, Visit, expect

EXPERIMENT = "Without the brightest 20% of the map"


def test_the_sentence_says_what_and_how_much_and_offers_a_comparison(first_view: Visit) -> None:
    visit, page = first_view, first_view.page
    expect(page.locator(".hl-headline")).to_have_text(
        f"German shepherd, 94%. {EXPERIMENT}: 78%; without as much at random places: 43% to 96%."
    )
    assert visit.status.startswith("Grad-CAM for German shepherd")

    page.get_by_role("button", name="Compare with malinois").click()

    page.wait_for_function(
        "/German shepherd .94%.[^]*malinois .1[.]4%./.test(document.querySelector('#hl-compare')?.innerText)",
        timeout=PATIENCE,
    )
    assert page.get_by_role("tab", name="Compare").get_attribute("aria-selected") == "true"


def test_a_class_agnostic_map_offers_one_of_the_class(first_view: Visit) -> None:
    visit, page = first_view, first_view.page
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
    for width, height in ((1280, 800), (900, 800), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate("heights.clear()")
        name = {1280: "kelpie", 900: "muzzle", 390: "German shepherd"}[width]
        visit.after(lambda name=name: page.locator("#hl-bars").get_by_role("button", name=name).click())
        expect(sentence).to_contain_text(EXPERIMENT)
        assert headline.get_attribute("data-of") == "done" and page.evaluate("heights.size") == 1
        spoken = page.evaluate("spoken.splice(0)")
        assert sum(EXPERIMENT in text for text in spoken) == 1
        assert EXPERIMENT in spoken[-1] and "Grad-CAM" not in spoken[-1], "the line below is not spoken again"
    visit.unchanged = ""


def test_the_true_class_and_more_classes(visit: Visit) -> None:
    page = visit.open("?true=malinois").page
    side = page.locator("#hl-bars")
    side.get_by_text("malinois has rank 2 of 1,000: 1.4%.").wait_for()
    side.get_by_role("button", name="Show 20").click()
    shares = side.locator(".hl-bars .hl-share").all_inner_texts()
    assert len(shares) == 20 and shares[:2] == ["94%", "1.4%"]
    visit.after(lambda: side.get_by_role("button", name="Explain it").click())
    assert "for malinois" in visit.status
    visit.after(lambda: page.locator("#hl-examples button[data-id=cat]").click())
    assert "not set" in side.get_by_role("combobox", name="True class").input_value(), "another image"


@pytest.mark.slow
def test_another_crop(visit: Visit) -> None:
    page = visit.open("?true=malinois").page
    visit.after(lambda: page.get_by_role("button", name="Whole image").click())
    assert "(crop whole)" in visit.status and "crop%3Dwhole" in page.url and "true=malinois" in page.url
    assert page.evaluate("document.querySelector('#hl-overlay canvas').width") > 0
    visit.after(lambda: page.get_by_role("button", name="Center crop").click())
    visit.after(lambda: page.locator("#hl-image .hl-window i").press("ArrowUp"))
    expect(page.locator("#hl-crop [aria-pressed=true]")).to_have_count(0)
    assert "(crop 0.5,0.4)" in visit.status


def test_a_factorization_is_one_colored_image(visit: Visit) -> None:
    page = visit.open("?method=deep_feature_factorization").page
    colored, planes = page.locator("#hl-overlay .hl-components"), page.locator("#hl-planes")
    colored.wait_for()
    expect(planes.locator(".hl-swatch")).to_have_count(5)
    assert "All components in their colors" in planes.inner_text()
    colors = colored.evaluate(
        "(c) => { const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height); const found = new Set();"
        "for (let p = 0; p < data.length; p += 4) {"
        " const most = Math.max(...data.slice(p, p + 3)), least = Math.min(...data.slice(p, p + 3));"
        " if (most - least > 60) found.add([0, 1, 2].map((k) => data[p + k] === most ? 1 : 0).join('')); }"
        "return found.size; }"
    )
    assert colors >= 2, "several hues"
    visit.after_partial(lambda: planes.get_by_role("option", name="Component 2").click())
    assert not colored.is_visible() and page.locator("#hl-overlay .hl-tools").is_visible()


def test_an_error_removes_the_sentence_of_the_old_answer(first_view: Visit) -> None:
    visit, page = first_view, first_view.page
    assert visit.headline
    page.locator("#hl-image button[aria-label='Remove Image']").first.click()
    page.wait_for_function("document.documentElement.dataset.hlState === 'idle'", timeout=PATIENCE)
    assert not visit.headline and not page.locator("#hl-status .hl-next").is_visible()


@pytest.mark.parametrize("width, height", [(1440, 900), pytest.param(2560, 1440, marks=pytest.mark.slow)])
def test_map_network_and_predictions_are_in_one_view(first_view: Visit, width: int, height: int) -> None:
    visit, size = first_view, first_view.page.viewport_size
    visit.page.set_viewport_size({"width": width, "height": height})
    visit.page.wait_for_timeout(200)  # the layout and its observers
    map_, network, predictions, sentence = (
        visit.page.locator(name).first.bounding_box()
        for name in ("#hl-overlay .hl-frame", "#hl-strip", "#hl-bars", "#hl-status")
    )
    assert sentence["y"] + sentence["height"] <= map_["y"] and map_["height"] <= 0.55 * height + 1
    assert map_["y"] + map_["height"] <= network["y"] and network["y"] + network["height"] <= height
    assert predictions["y"] + predictions["height"] <= network["y"]
    guide, trust = (visit.page.locator(name).bounding_box() for name in ("#hl-guide", "#hl-trust"))
    assert predictions["y"] + predictions["height"] <= trust["y"] and trust["y"] + trust["height"] <= guide["y"]
    assert trust["y"] + trust["height"] <= network["y"], "the verdict is visible without scrolling"
    assert guide["x"] == trust["x"] == predictions["x"], "one column, which scrolls by itself"
    visit.page.set_viewport_size(size)


def test_long_sentences_and_slow_maps_do_not_move_the_network(first_view: Visit) -> None:
    """The sentence keeps one line, and the slider of partial maps has its place before it appears."""
    visit, page, size = first_view, first_view.page, first_view.page.viewport_size
    page.set_viewport_size({"width": 1440, "height": 900})
    page.wait_for_timeout(200)
    network = page.locator("#hl-strip").bounding_box()
    assert network and network["y"] + network["height"] <= 900
    visit.after_partial(lambda: visit.choose("method", "Occlusion"))
    page.evaluate("scrollTo(0, 0)")
    assert (
        page.locator("#hl-overlay .hl-progress-row").is_visible()
        and page.locator("#hl-strip").bounding_box() == network
    )
    assert "score of German shepherd" in page.locator("#hl-guide").inner_text()
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


def test_on_a_phone_an_upload_is_one_tap_away(phone: Visit, tmp_path: Path) -> None:
    visit, page = phone, phone.page
    assert page.get_by_role("button", name="Upload", exact=True).first.is_visible()
    page.locator("#hl-overlay .hl-share > button").click()
    menu = page.locator("#hl-overlay .hl-share-items").bounding_box()
    assert menu["y"] >= 0 and menu["y"] + menu["height"] < 845, "the open menu is in the window"
    page.keyboard.press("Escape")
    page.evaluate("scrollTo(0, 0)")
    more = page.locator("#hl-navigation [aria-haspopup=menu]").bounding_box()
    assert more["x"] + more["width"] <= 390, "all views can be reached"
    assert page.locator("#hl-overlay .hl-frame").bounding_box()["width"] >= 340
    Image.new("RGB", (96, 64), (40, 120, 200)).save(tmp_path / "blue.png")
    with page.expect_file_chooser() as opened:
        page.locator("#hl-examples .hl-upload").click()
    visit.after(lambda: opened.value.set_files(tmp_path / "blue.png"))
    expect(page.locator("#hl-examples button[aria-pressed=true]")).to_have_count(0)
    assert "German shepherd, 94%" not in visit.headline


def test_the_menu_has_the_other_views_and_works_by_keyboard(first_view: Visit) -> None:
    visit, page = first_view, first_view.page
    usual = page.viewport_size
    page.set_viewport_size({"width": 768, "height": 1024})
    following = page.locator("#hl-status .hl-next").bounding_box()
    assert following["x"] + following["width"] <= 768 and following["height"] < 40, "next to the line"
    page.set_viewport_size(usual)
    button = page.locator("#hl-navigation [aria-haspopup=menu]")
    button.focus()
    page.keyboard.press("ArrowDown")
    items = page.get_by_role("menuitem").all_inner_texts()
    assert items[:3] == ["Erase", "Gradient lab", "API"] and len(items) == 5
    page.keyboard.press("Escape")
    assert not page.locator("#hl-menu").is_visible() and button.evaluate("each => each === document.activeElement")

    page.get_by_role("tab", name="Explain").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Compare").get_attribute("aria-selected") == "true"
    visit.open_view("API")
    assert button.inner_text().strip() == "API"
    expect(page.locator("#hl-navigation [aria-selected=true]")).to_have_count(0)


def test_theme_and_presentation_can_be_chosen(first_view: Visit) -> None:
    visit, page = first_view, first_view.page
    dark = page.evaluate("document.body.classList.contains('dark')")
    visit.open_view("Light or dark theme")
    assert page.evaluate("document.body.classList.contains('dark')") is not dark
    assert "__theme=" in page.url

    size = "parseFloat(getComputedStyle(document.querySelector('.hl-headline')).fontSize)"
    before = page.evaluate(size)
    visit.open_view("Presentation mode")
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.evaluate(size) > 1.25 * before and not page.locator("#hl-left").is_visible()
    tools, headline = (page.locator(f"#hl-right {name}").first.bounding_box() for name in (".hl-tools", ".hl-headline"))
    assert tools["height"] < 50 and headline["height"] < 50, "the sentence and the toolbar are one line each"
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("document.documentElement.dataset.hlWidth === 'phone'")
    leave, views = page.locator("#hl-leave").bounding_box(), page.locator("#hl-navigation").bounding_box()
    assert leave["y"] > views["y"] + views["height"], "the views can be chosen"
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_function("document.documentElement.dataset.hlWidth === 'wide'")
    page.keyboard.press("Escape")
    assert page.evaluate(size) == before and page.locator("#hl-left").is_visible()


@pytest.mark.slow
def test_the_first_map_is_shown_before_the_scripts(browser, app: str) -> None:
    """With scripts withheld, the HTML alone shows sentence and picture; the page's own map replaces them in place."""
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    held: list[Any] | None = []

    def hold(route: Any) -> None:
        if held is None:
            route.continue_()
        else:
            held.append(route)

    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.route("**/hl/page-*.js", hold)
    page.goto(app, wait_until="commit")
    page.wait_for_function("document.querySelector('#hl-first img')?.naturalWidth > 0")
    assert "German shepherd, 94%." in page.locator("#hl-first").inner_text()
    picture = page.locator("#hl-first figure").bounding_box()
    waiting, held = held, None
    for route in waiting:
        route.continue_()
    page.wait_for_function("Number(document.getElementById('hl-overlay')?.dataset.id || 0) > 0")
    assert page.locator("#hl-method [role=combobox]").input_value() == "Grad-CAM", (
        "a title, also before the list is loaded"
    )
    sent = [url for url in requests if not url.startswith(("data:", "blob:"))]
    assert len(sent) <= 30 and not any("/assets/" in url for url in sent), "one script has all modules"
    expect(page.locator("#hl-first")).to_have_count(0)
    canvas = page.locator("#hl-overlay canvas").first.bounding_box()
    assert picture and canvas
    assert abs(picture["x"] - canvas["x"]) < 2 and abs(picture["width"] - canvas["width"]) < 2
    page.goto(f"{app}/?example=cat", wait_until="commit")
    page.wait_for_function("document.querySelector('#hl-explain') !== null")
    expect(page.locator("#hl-first"), "another question").to_have_count(0)
    page.context.close()


@pytest.mark.slow
def test_without_the_script_gradio_loads_its_modules_as_usual(browser, app: str) -> None:
    page = browser.new_page()
    page.route("**/hl/page-*.js", lambda route: route.abort())
    page.goto(f"{app}/?example=cat")
    page.wait_for_function("document.documentElement.dataset.hlState === 'done'", timeout=PATIENCE)
    assert "tabby" in page.locator("#hl-bars").inner_text()
    page.close()


def test_lists_find_names_by_words_and_typing_replaces_the_old_name(first_view: Visit) -> None:
    page = first_view.page

    def found(name: str, typed: str) -> list[str]:
        field = page.locator(f"#hl-{name} input").first
        field.click()
        page.keyboard.type(typed)
        rows = page.locator(f"#hl-{name} li[role=option]").all_inner_texts()
        field.press("Escape")
        return rows

    assert found("model", "resnet101")[0].startswith("ResNet-101")
    assert found("model", "vit_b_16")[0].startswith("ViT-B/16")
    heads = page.locator("#hl-model .hl-combobox-head span").all_inner_texts()
    assert heads == ["Model", "Accuracy", "Size", "Weights"]
    assert [row.split() for row in found("class", "")[:3]][1:] == [["German", "shepherd", "94%"], ["malinois", "1.4%"]]
    pandas = found("class", "pan")
    assert pandas.index("giant panda") < 4 and "panpipe" in pandas[:4]
    page.locator("#hl-class input").first.focus()
    page.keyboard.type("panda")
    assert set(page.locator("#hl-class li mark").all_inner_texts()) == {"panda"}


def test_a_link_to_an_unknown_model_shows_the_default_model_with_a_notice(visit: Visit) -> None:
    page = visit.open("?model=resnet5000&example=cat").page
    notice = page.locator("#hl-findings").inner_text()
    assert "The model of this link is not available. Unknown model 'resnet5000'" in notice
    assert "resnet50" in notice.replace("resnet5000", ""), "the nearest name"
    assert (
        "EfficientNet-Lite0" in notice
        and "EfficientNet-Lite0" in visit.status
        and page.locator("#hl-bars button").count()
    )
    page.locator("#hl-findings button", has_text="Use EfficientNet-Lite0").click()
    page.wait_for_function("!document.querySelector('#hl-findings').innerText.includes('resnet5000')")
    assert "resnet5000" not in page.url
    visit.settled()

    page.goto(f"{visit.address}/?model=resnet5000&own=shared")
    page.locator("#hl-findings button", has_text="Use EfficientNet-Lite0").wait_for(timeout=PATIENCE)
    assert "an image of the person who shared it" in page.locator("#hl-status").inner_text()


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
    page.wait_for_function("document.querySelector('#hl-status .hl-headline').innerText.startsWith('Goldfish')")
    page.locator("#hl-bars button", has_text="rock beauty").click()  # waits for the image
    held[0].continue_()
    page.wait_for_function("document.querySelector('#hl-image img').src.endsWith('goldfish.jpg')")
    page.wait_for_function("document.querySelector('#hl-status .hl-headline').innerText.startsWith('Rock beauty')")
    visit.settled()
    assert visit.headline.startswith("Rock beauty, 0.6%")
    assert page.locator("#hl-examples [aria-pressed=true]").get_attribute("data-id") == "goldfish"
    expect(page.locator("#hl-bars canvas[data-drawn]"), "the small maps").to_have_count(3)
