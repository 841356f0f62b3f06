"""The page as a whole: its views, the sentence above the map, everything in one window, and the order of answers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.saliscope.browser.conftest import ROOT, Visit, expect

LOOK = """() => {
  const opacity = (node) => node ? Number(getComputedStyle(node).opacity) * opacity(node.parentElement) : 1;
  const at = (selector) => document.querySelector(selector), text = (selector) => at(selector)?.textContent || "";
  const seen = (selector) => at(selector) ? opacity(at(selector)) : 0;
  const clear = {
    headline: [".hl-headline strong", text(".hl-headline strong")],
    map: ["#hl-overlay canvas", at("#hl-overlay").dataset.id],
    bars: ["#hl-bars .hl-name", text("#hl-bars .hl-name")],
    guide: ["#hl-guide", at("#hl-guide").dataset.id],
    findings: ["#hl-findings", at("#hl-findings").dataset.id],
    trust: [".hl-trust-verdict", at("#hl-trust").dataset.id],
    rail: [".hl-rail-map canvas", text(".hl-rail-score")],
  };
  return Object.fromEntries(Object.entries(clear).filter(([, [selector]]) => seen(selector) > 0.99)
    .map(([name, [, value]]) => [name, value]));
}"""
"""The undimmed parts of the page, with what tells whether they are new."""
WATCH = f"""() => {{
  window.look = {LOOK};
  window.looks = [];
  const watch = () => {{ looks.push(look()); requestAnimationFrame(watch); }};
  watch();
}}"""
RESULTS = {
    "features": (
        "?example=dog",
        ("#hl-grid canvas", "#hl-channel canvas", "#hl-channel-why canvas"),
        ("#hl-grid .hl-channels-head .hl-quiet", ".hl-channel_facts .hl-title", ".hl-cell_gradient .hl-quiet"),
    ),
    "compare": (
        "?example=dog",
        (".hl-compare-panel canvas", ".hl-compare-panel + * canvas", ".hl-compare-pair canvas"),
        (".hl-compare-line .hl-line", ".hl-compare-pair .hl-facts", ".hl-compare-pairs button"),
    ),
    "models": (
        "?model=bands3&example=dog&other=bands3%3Fcrop%3Dwhole",
        (),
        (".hl-models-status .hl-line", ".hl-models-results tbody"),
    ),
    "ranking": ("?model=bands3&example=dog", (), ("#hl-ranking tbody", ".hl-ranking-notes")),
}
"""Where the views show maps, of which only the final one follows, and texts about the image."""
FRAMES = """([tab, maps, texts]) => {
  const opacity = (node) => node ? Number(getComputedStyle(node).opacity) * opacity(node.parentElement) : 1;
  const see = (at) => (at?.checkVisibility() && opacity(at) > 0.9 && (at.toDataURL?.() ?? at.textContent)) || null;
  const parts = [...maps, ...texts].map((each) => (each.startsWith("#") ? "" : `#hl-tab-${tab} `) + each);
  window.see = () => Object.fromEntries(["#hl-status .hl-line", ".hl-next", ".hl-cover", ...parts]
    .map((each) => [each.replace(/^#hl-tab-\\w+ /, ""), see(document.querySelector(each))]).filter(([, what]) => what));
  window.frames = [];
  const watch = () => { window.frames.push(window.see()); requestAnimationFrame(watch); };
  watch();
  return window.see();
}"""
PARTS = ("strip", "bars", "status", "guide", "trust")
BOX = "(name) => document.querySelector(name).getBoundingClientRect().toJSON()"
EXPERIMENT = "Without the brightest 20% of the map"
SPEAK = """() => {
  const status = document.querySelector("#hl-status [role=status]"), headline = document.querySelector(".hl-headline");
  [window.spoken, window.heights] = [[], new Set()];
  new MutationObserver((records) => {
    spoken.push(records.flatMap(({ addedNodes }) => [...addedNodes]).map((each) => each.textContent).join(""));
    heights.add(headline.offsetHeight);
  }).observe(status, { subtree: true, childList: true, characterData: true });
}"""


def test_the_sentence_says_what_and_how_much_and_offers_a_next_step(first_view: Visit) -> None:
    """The experiment replaces the description in place: it is spoken once, and moves nothing."""
    visit, page, headline = first_view, first_view.page, first_view.page.locator(".hl-headline")
    expect(headline).to_have_text(
        f"German shepherd, 94%. {EXPERIMENT}: 78%; without as much at random places: 75% to 90%."
    )
    page.evaluate(SPEAK)
    visit.after(lambda: page.locator("#hl-bars").get_by_role("button", name="kelpie").click())
    expect(headline).to_contain_text(EXPERIMENT)
    spoken = page.evaluate("spoken")
    assert page.evaluate("heights.size") == 1 and sum(EXPERIMENT in text for text in spoken) == 1
    assert EXPERIMENT in spoken[-1] and "Grad-CAM" not in spoken[-1], "the line below is not spoken again"

    page.get_by_role("button", name="Compare with German shepherd").click()
    expect(page.locator("#hl-compare")).to_contain_text(re.compile(r"kelpie .[\d.]+%.[\s\S]*German shepherd .94%."))
    visit.open_view("Explain")
    visit.after(lambda: visit.choose("method", "Eigen-CAM"))
    expect(headline).to_contain_text("Without the most positive 20% of the map: ")
    visit.after(lambda: page.get_by_role("button", name="Explain the class with Grad-CAM").click())
    expect(headline).to_contain_text(EXPERIMENT)


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
    expect(side.get_by_role("combobox", name="True class"), "another image").to_have_value(re.compile("not set"))


@pytest.mark.slow
def test_map_network_and_predictions_are_in_one_view_and_nothing_moves(first_view: Visit) -> None:
    """The sentence keeps one line, and the slider of partial maps has its place before it appears."""
    visit, page, size = first_view, first_view.page, first_view.page.viewport_size
    for width, height in ((2560, 1440), (1440, 900)):
        page.set_viewport_size({"width": width, "height": height})
        names, former, boxes = ["#hl-overlay .hl-frame", *map("#hl-{}".format, PARTS)], None, list[Any]()
        while boxes != former or not boxes:  # until the layout is at rest
            page.wait_for_timeout(200)
            former, boxes = boxes, page.evaluate(f"(names) => names.map({BOX})", names)
        map_, network, predictions, sentence, guide, trust = boxes
        for one, below in ((sentence, map_), (map_, network), (predictions, guide), (guide, trust), (trust, network)):
            assert one["y"] + one["height"] <= below["y"]
        assert map_["height"] <= 0.55 * height + 1 and network["y"] + network["height"] <= height
        assert guide["x"] == trust["x"] == predictions["x"], "one column, which scrolls by itself"

    visit.after_partial(lambda: visit.choose("method", "Occlusion"))
    for method in ("", "Saliency"):
        if method:
            visit.after(lambda: visit.choose("method", "Saliency"))
        page.evaluate("scrollTo(0, 0)")
        assert page.evaluate(BOX, "#hl-strip") == network
    assert len(visit.headline) > 95 and page.locator(".hl-headline").bounding_box()["height"] < 40, "one line"
    quantity, end = (page.locator(f"#hl-overlay .hl-ends > span:nth-child({k})").bounding_box() for k in (2, 3))
    assert quantity["x"] + quantity["width"] <= end["x"], "the texts of the color bar do not overlap"
    layer = page.locator("#hl-layer .hl-combobox")
    expect(layer).to_contain_text("not used")
    expect(layer.locator("input")).to_have_attribute("title", re.compile("Saliency explains the whole network"))
    page.set_viewport_size(size)


def test_views_theme_and_presentation_are_chosen_in_the_menu(visit: Visit) -> None:
    page = visit.open("?model=bands3").page
    button = page.locator("#hl-navigation [aria-haspopup=menu]")
    button.focus()
    page.keyboard.press("ArrowDown")
    for number, name in enumerate(("Concepts", "Erase", "Gradient lab", "API")):
        expect(page.get_by_role("menuitem").nth(number)).to_have_text(name)
    page.keyboard.press("Escape")
    expect(page.locator("#hl-menu")).to_be_hidden()
    expect(button).to_be_focused()
    page.get_by_role("tab", name="Explain").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Compare")).to_have_attribute("aria-selected", "true")
    visit.open_view("API")
    expect(button).to_have_text(re.compile("API"))
    expect(page.locator("#hl-navigation [aria-selected=true]")).to_have_count(0)
    visit.open_view("Explain")

    is_dark = "document.body.classList.contains('dark')"
    dark = page.evaluate(is_dark)
    visit.open_view("Light or dark theme")
    assert page.evaluate(is_dark) is not dark and "__theme=" in page.url
    size = "parseFloat(getComputedStyle(document.querySelector('.hl-headline')).fontSize)"
    before = page.evaluate(size)
    visit.open_view("Presentation mode")
    expect(page.locator("#hl-settings")).to_be_hidden()
    assert page.evaluate(size) > 1.25 * before
    page.keyboard.press("Escape")
    expect(page.locator("#hl-settings")).to_be_visible()
    assert page.evaluate(size) == before


@pytest.mark.slow
def test_the_first_map_is_shown_before_the_scripts(window: Any) -> None:
    """With scripts withheld, the HTML alone shows sentence and picture; the page's own map replaces them in place."""
    visit, held = window(1440), list[Any]()
    page, first = visit.page, visit.page.locator("#hl-first")
    page.route("**/hl/page-*.js", lambda route: held.append(route))
    page.goto(visit.address, wait_until="commit")
    visit.until("document.querySelector('#hl-first img')?.naturalWidth > 0")
    expect(first).to_contain_text("German shepherd, 94%.")
    picture = first.locator("figure").bounding_box()
    for route in held:
        route.continue_()
    page.unroute_all()
    visit.painted("overlay", 0)
    expect(first).to_have_count(0)
    canvas = page.locator("#hl-overlay canvas").first.bounding_box()
    assert abs(picture["x"] - canvas["x"]) < 2 and abs(picture["width"] - canvas["width"]) < 2
    page.goto(f"{visit.address}/?example=cat", wait_until="commit")
    visit.until("document.querySelector('#hl-explain') !== null")
    expect(first, "another question").to_have_count(0)


def test_predictions_do_not_wait_for_a_slow_map(visit: Visit) -> None:
    page, bars = visit.page, visit.page.locator("#hl-bars")
    page.goto(f"{visit.address}/?method=rise&example=cat")
    expect(bars.locator("button[data-index]")).to_have_count(5)
    expect(page.locator("#hl-status .hl-headline")).to_have_text("Tiger cat, 39%. RISE is being computed.")
    assert page.evaluate("document.documentElement.dataset.hlState") == "busy"
    assert bars.get_attribute("data-outdated") is None, "these are not old predictions"
    page.locator("#hl-stop").click()


def test_the_image_is_that_of_the_last_click(visit: Visit) -> None:
    """Two quick clicks, where the request of the first arrives last; a class then explains the shown image."""
    page, held = visit.open("?example=dog").page, list[Any]()
    headline = expect(page.locator("#hl-status .hl-headline"))

    def hold_first(route: Any) -> None:
        held.append(route)
        if len(held) > 1:
            route.continue_()

    page.route("**/gradio_api/queue/join*", hold_first)
    page.locator("#hl-examples [data-id=cat]").click()
    page.wait_for_timeout(100)
    page.locator("#hl-examples [data-id=goldfish]").click()
    headline.to_contain_text("Goldfish, ")
    page.locator("#hl-bars button", has_text="rock beauty").click()
    held[0].continue_()
    expect(page.locator("#hl-image img").first).to_have_attribute("src", re.compile("goldfish.jpg$"))
    headline.to_contain_text("Rock beauty, 0.6%")
    expect(page.locator("#hl-examples [aria-pressed=true]")).to_have_attribute("data-id", "goldfish")
    expect(page.locator("#hl-bars canvas[data-drawn]"), "the small maps").to_have_count(3)


@pytest.mark.slow
def test_what_belongs_to_the_former_question_dims_at_the_click(window: Any) -> None:
    """Five fast clicks, then a slow method: at the click and in every frame after it, only new values are undimmed."""
    visit = window(1440, reduced_motion="no-preference").open("?method=hires_cam")
    page = visit.page
    expect(page.locator(".hl-headline")).to_contain_text(EXPERIMENT)
    page.evaluate(WATCH)
    before = page.evaluate("look()")
    assert {*before} == {"headline", "map", "bars", "guide", "findings", "trust", "rail"}
    examples = ["cat", "goldfish", "coffee", "macaw", "alp"]
    click = "(name) => { document.querySelector(`#hl-examples [data-id=${name}]`).click(); return look(); }"
    assert page.evaluate(f"(names) => {{ looks.length = 0; return names.map({click}); }}", examples) == [{}] * 5
    visit.until("look().rail?.includes('alp')")
    old = {(name, value) for name, value in before.items()}
    shown = {(name, value) for frame in page.evaluate("looks.splice(0)") for name, value in frame.items()}
    assert not old & shown and ("headline", "Alp, 76%.") in shown and ("bars", "alp") in shown
    assert {value for name, value in shown if name == "headline"} == {"Alp, 76%."}, "no answer in between"

    before = page.evaluate("look()")
    visit.after_partial(lambda: visit.choose("method", "Occlusion"))
    frame = page.evaluate("look()")
    assert {"headline", "map", "guide"} <= {*frame}, "at once with the first partial map"
    assert not {"trust", "findings", "rail"} & {*frame} and frame["map"] != before["map"]
    page.locator("#hl-examples [data-id=cat]").click()
    visit.until("look().map !== undefined")
    page.locator("#hl-stop").click()
    visit.state("stopped")
    visit.until("look().rail !== undefined")
    assert "tiger cat" in page.evaluate("look().rail"), "the diagram is back, with the new image"
    assert {*page.evaluate("look()")} == {*before}


@pytest.mark.slow
@pytest.mark.parametrize("tab", RESULTS)
def test_results_of_all_views_dim_at_the_click(window: Any, tab: str) -> None:
    """No frame after the click shows a former map or text, or a map of both questions. Former buttons do nothing."""
    query, maps, texts = RESULTS[tab]
    visit = window(1440, reduced_motion="no-preference").open(f"{query}&tab={tab}")
    page, done = visit.page, ".hl-compare-panel[data-state=done][data-old=false]"
    own = page.locator(f"#hl-tab-{tab}")
    if tab == "ranking":
        own.get_by_role("button", name="Rank methods").click()
        expect(own.locator(".hl-line")).to_have_attribute("data-kind", "done")
    ends = {"features": "channel-why", "models": "models"}
    if tab in ends:
        visit.painted(ends[tab], 0)
    elif tab == "compare":
        expect(own.locator(".hl-compare-pairs")).to_contain_text("ρ =")
    expect(page.locator(".hl-cover")).to_be_visible()
    visit.until("document.documentElement.dataset.hlState === 'done'")
    page.wait_for_timeout(500)
    before = page.evaluate(FRAMES, [tab, maps, texts])
    assert {*maps, *texts, ".hl-cover"} <= {*before}

    last = visit.number("channel-why") if tab == "features" else 0
    click = "document.querySelector('#hl-examples [data-id=coffee]').click(); window.frames.length = 0"
    assert page.evaluate(f"() => {{ {click}; return window.see(); }}") == {}
    assert page.evaluate("[...document.querySelectorAll('.hl-next, .hl-cover')].every((each) => each.disabled)")
    visit.state("done")
    if tab == "features":
        visit.painted("channel-why", last)
    elif tab == "compare":
        expect(page.locator(done)).to_have_count(2)
        expect(own.locator(".hl-compare-pairs")).to_contain_text("ρ =")
    page.wait_for_timeout(500)
    after, frames = page.evaluate("[window.see(), window.frames]")
    former = before.items() - after.items()  # a button may have the same text
    assert not [part for frame in frames for part, what in frame.items() if (part, what) in former]
    for part in maps:
        assert {frame[part] for frame in frames if part in frame} == {after[part]}


def test_a_model_that_cannot_be_loaded_leaves_the_former_answer(first_view: Visit) -> None:
    visit, page = first_view, first_view.page
    address = "Object.fromEntries(new URLSearchParams(location.search))"
    shown, asked, before = visit.shot(), page.evaluate(address), visit.headline
    page.evaluate(WATCH)
    visit.choose("model", "ResNet-18")
    expect(page.locator("#hl-status .hl-line")).to_contain_text(
        re.compile("ResNet-18.*Choose a model|ResNet-18.*Available without a download")
    )
    expect(page.locator("#hl-status .hl-line")).to_contain_text("EfficientNet-Lite0 is still selected.")
    visit.state("done")
    assert "map" in page.evaluate("look()") and visit.shot() == shown and visit.headline == before
    expect(page.locator("#hl-model input").first).to_have_value(re.compile("^EfficientNet-Lite0"))
    assert page.evaluate(address) == asked
    assert visit.saved("Values, .npy").stat().st_size > 100
    sent = len(visit.requests)
    with page.expect_request("**/queue/join*"):
        visit.choose("model", "ResNet-18")
    visit.state("done")
    assert visit.sent(sent, "queue/join"), "it is tried again"


def test_a_model_that_is_typed_before_the_list_arrives_is_selected(visit: Visit) -> None:
    """The first question is withheld, as if torch were still being imported."""
    page, held = visit.page, list[Any]()
    page.route("**/gradio_api/queue/join*", lambda route: held.append(route))
    page.goto(visit.address)
    field = page.locator("#hl-model [role=combobox]").first
    field.click()
    field.press("Control+a")
    field.press_sequentially("resnet18")
    expect(page.locator("#hl-model .hl-combobox-list")).to_contain_text("after the model is loaded")
    field.press("Enter")
    page.locator("#hl-status").click()
    expect(field).to_have_value("resnet18")
    held[0].continue_()
    page.unroute_all()
    expect(page.locator("#hl-status .hl-line")).to_contain_text(re.compile("ResNet-18.*is still selected"))


@pytest.mark.slow
def test_the_reason_stays_if_the_former_model_has_not_answered_yet(visit: Visit) -> None:
    """A model that cannot be loaded is chosen while the answer for a new image is missing."""
    page, held = visit.open().page, list[Any]()
    page.route("**/gradio_api/queue/join*", lambda route: route.continue_() if held else held.append(route))
    page.locator("#hl-examples [data-id=cat]").click()
    visit.state("busy")
    visit.choose("model", "ResNet-18")
    visit.state("done")
    expect(page.locator("#hl-status .hl-line")).to_contain_text(re.compile("ResNet-18.*is still selected"))
    expect(page.locator("#hl-status .hl-headline")).to_contain_text("cat")


def test_the_top_prediction_is_kept_for_other_images_and_the_link_follows(visit: Visit) -> None:
    page = visit.open().page
    page.locator("#hl-pin input").check()
    expect(page.locator("#hl-class input").first).to_have_value("German shepherd")
    copied = page.evaluate(
        """async () => {
          document.querySelector("#hl-examples [data-id=cat]").click();
          document.querySelector("#hl-link").click();
          await new Promise((resolve) => setTimeout(resolve, 100));
          return navigator.clipboard.readText();
        }"""
    )
    assert all(part in copied for part in ("example=cat", "class=German+shepherd", "pin=1", "method=grad_cam"))
    expect(page.locator("#hl-status .hl-line")).to_contain_text("for German shepherd")
    field = page.locator("#hl-linked input")
    expect(field).to_have_value(copied)
    page.locator("#hl-overlay input[name=opacity]").fill("40")
    expect(field, "the shown link follows").to_have_value(re.compile("opacity=40"))


def test_a_shared_link_has_our_preview_and_the_menu_leads_to_help(small_view: Visit) -> None:
    page, address = small_view.page, small_view.address
    text = page.request.get(f"{address}/?example=cat").text()
    metas = dict(re.findall(r'<meta (?:name|property)="((?:og|twitter):\w+|description)" content="([^"]*)">', text))
    assert text.count('"og:title"') == text.count('"og:image"') == text.count('"twitter:title"') == 1
    assert metas["og:title"] == "Saliscope" and metas["twitter:card"] == "summary_large_image"
    assert metas["og:description"] == metas["description"] and "image model" in metas["description"]
    image = page.request.get(metas["og:image"])
    assert metas["og:image"].startswith(address) and image.headers["content-type"] == "image/jpeg"
    assert text.index("<title>Saliscope</title>") < 100 + text.index("<head>")
    page.locator("#hl-navigation [aria-haspopup=menu]").click()
    for name in ("Documentation", "Source code"):
        link = page.get_by_role("menuitem", name=name)
        expect(link).to_have_attribute("rel", "noopener")
        expect(link).to_have_attribute("href", re.compile("^https://"))
    page.keyboard.press("Escape")
    assert page.evaluate("document.title") == "Saliscope"


def test_the_page_fits_a_window_and_labels_are_cut_at_dots(visit: Visit) -> None:
    page, size = visit.open("?method=hires_cam").page, visit.page.viewport_size
    page.set_viewport_size({"width": 1440, "height": 900})
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollHeight") <= 900
    names = page.locator(".hl-rail-name").all_inner_texts()
    assert names[1] == "stem" and all(re.fullmatch(r"…?\w+(\.\w+)*", name) for name in names), names
    side = "(side) => [side.scrollHeight - side.clientHeight, getComputedStyle(side).maskImage]"
    assert page.locator("#hl-side").evaluate(side) == [0, "none"], "no text is cut off or faded"
    visit.after(lambda: visit.choose("method", "Grad-CAM"))  # which is checked on request
    page.locator("#hl-trust .hl-trust:is([data-state=offer], [data-state=known])").wait_for()
    assert page.locator("#hl-side").evaluate(side) == [0, "none"]
    page.set_viewport_size(size)


SHIFTS = """window.shifts = [];
new PerformanceObserver((list) => list.getEntries().forEach(({ value, sources }) => window.shifts.push([
  value, ...sources.map(({ node }) => (node?.closest ? node : node?.parentElement)?.closest("[id]")?.id)])))
  .observe({ type: "layout-shift", buffered: true });"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_nothing_moves_from_the_first_paint_through_all_views(window: Any, width: int, height: int) -> None:
    visit = window(width, height)
    page = visit.page
    page.add_init_script(SHIFTS)
    visit.open()
    for selector in (
        "#hl-examples button[data-id=cat]",
        "#hl-bars button >> nth=1",
        "#hl-strip .hl-rail-box:not([aria-disabled]) >> nth=4",
    ):
        visit.after(lambda selector=selector: page.locator(selector).click())
    if width > 1000:  # on a phone, opening the settings moves the map below them
        page.locator("#hl-method [role=combobox]").click()
        visit.after(lambda: page.locator("#hl-method [role=option][data-value]").nth(1).click())
    visit.after(lambda: visit.upload(ROOT / "assets/examples/cat.jpg"))
    page.evaluate("scrollTo(0, 0)")
    for name in ("Compare", "Channels", "Batch", "Erase", "Gradient lab", "API", "Explain"):
        visit.open_view(name)
        page.wait_for_timeout(2000)  # for the answers of the view
    moved = page.evaluate("window.shifts")
    assert sum(value for value, *_ in moved) < 0.001, moved
