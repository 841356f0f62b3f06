"""Channels tab: tiles, sorting, the open channel, and saved files."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import explainers
from saliscope.zoo import catalog
from tests.saliscope.browser.conftest import PATIENCE, ROOT, Visit, expect

TILES = "#hl-grid [role=option]"


def opened(visit: Visit, query: str = "") -> Visit:
    visit.open(query)
    visit.page.get_by_role("tab", name="Channels").click()
    visit.painted("grid", 0)
    visit.painted("channel-why", 0)  # the first channel is open
    return visit


def order(visit: Visit) -> list[int]:
    return visit.page.evaluate(f"[...document.querySelectorAll('{TILES}')].map((e) => Number(e.dataset.channel))")


def maps(layer: str, example: str = "cat") -> np.ndarray:
    model = catalog.load_model("efficientnet_lite0")
    picture = model.prepare(Image.open(ROOT / f"assets/examples/{example}.jpg").convert("RGB"))
    return explainers.feature_maps(model.network, picture, layer=layer)[0].numpy()


def drawn(visit: Visit, selector: str) -> list[int]:
    script = "(c) => [c.width, c.height, ...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    return visit.page.locator(selector).first.evaluate(script)


def is_old(visit: Visit) -> list[str | None]:
    page = visit.page
    return [page.locator(each).get_attribute("data-old") for each in (".hl-channels-grid", "#hl-channels-pane")]


@pytest.mark.slow
def test_all_channels_are_sorted_and_filtered_without_a_request(visit: Visit) -> None:
    """Oracle: the layer's values. Tiles have the layer's resolution; dead channels are counted and can be hidden."""
    page, values = opened(visit, "?example=cat").page, maps("head")
    tools = page.locator(".hl-channels-tools")
    dead = int((values == 0).all((1, 2)).sum())
    requests = len(visit.requests)

    assert len(order(visit)) == 1280 and f"{dead:,} are dead" in page.locator("#hl-grid .hl-quiet").inner_text()
    figures = {"mean": values.mean((1, 2)), "highest": values.max((1, 2))}
    for name, figure in figures.items():
        tools.locator("select[name=sort]").select_option(name)
        found = figure[order(visit)]
        assert (np.diff(found) <= 1e-6).all(), name
    tools.locator("select[name=sort]").select_option("sparsity")
    label = page.locator(TILES).first.text_content() or ""
    assert re.fullmatch(r"Channel \d+, sparsity 1\.00", label), label
    tools.locator("select[name=sort]").select_option("number")
    assert order(visit) == list(range(1280))
    tools.locator("input[name=dead]").check()
    assert order(visit) == (values != 0).any((1, 2)).nonzero()[0].tolist()

    first = f"{TILES} canvas"
    own = drawn(visit, first)
    assert own[:2] == [7, 7]
    tools.locator("select[name=range]").select_option("shared")
    assert drawn(visit, first) != own
    tools.locator("input[name=smooth]").check()
    assert page.locator(first).first.evaluate("(c) => getComputedStyle(c).imageRendering") == "auto"
    width = page.locator(first).first.evaluate("(c) => c.getBoundingClientRect().width")
    assert 94 <= width <= 130
    assert [url for url in visit.requests[requests:] if not url.startswith("blob:")] == []


@pytest.mark.slow
def test_hover_and_focus_show_the_image_under_a_tile(visit: Visit) -> None:
    page = opened(visit, "?example=cat").page
    tile = f"{TILES} canvas"
    plain = drawn(visit, tile)

    page.locator(TILES).first.hover()
    over = drawn(visit, tile)
    page.mouse.move(5, 5)
    assert over[0] > 60 and drawn(visit, tile) == plain
    page.locator(TILES).nth(1).focus()
    page.keyboard.press("ArrowLeft")
    assert drawn(visit, tile) == over


def test_an_open_channel_shows_its_gradient_and_contribution(visit: Visit) -> None:
    page = opened(visit, "?example=cat&layer=stages.2").page
    first = order(visit)[0]
    assert page.locator("#hl-opened input").input_value() == str(first), "the first channel is open"
    page.wait_for_function("document.querySelector('#hl-channel-facts').innerText.includes('px')", timeout=PATIENCE)

    facts = page.locator("#hl-channel-facts").inner_text()
    assert f"{maps('stages.2')[first].mean():.4g}" in facts and "Contribution to tiger cat" in facts
    assert re.search(r"Gradient × activation: [+−][\d.]+ logits.*, rank \d+ of 40 channels", facts)
    assert re.search(r"set to zero, the logit of tiger cat (falls|rises) by", facts)
    why = page.locator("#hl-channel-why").inner_text()
    assert "strongest cell" in why and "Enlarged" in why

    large = page.locator("#hl-channel canvas").first
    box = large.bounding_box()
    place = {"x": box["width"] * 2.5 / 28, "y": box["height"] * 4.5 / 28}
    large.hover(position=place)
    field = page.locator("#hl-channel .hl-field:not([hidden])").bounding_box()
    network = catalog.load_model("efficientnet_lite0").network
    (layer,) = [
        each for each in explainers.list_layers(network, torch.zeros(1, 3, 224, 224)) if each.name == "stages.2"
    ]
    left, top, right, bottom = layer.receptive_field((4, 2))
    scale = box["width"] / 224
    found = [field["x"] - box["x"], field["y"] - box["y"], field["width"], field["height"]]
    assert np.abs(np.array(found) - np.array([left, top, right - left, bottom - top]) * scale).max() < 3
    visit.after(lambda: large.click(position=place), "channel-why")
    assert "cell (row 5, column 3), value" in page.locator("#hl-channel-why").inner_text()
    visit.painted("arithmetic", 0)
    value, panel = maps("stages.2")[first, 4, 2], page.locator("#hl-arithmetic")
    assert f"Channel {first} of stages.2 at row 5, column 3: {value:.4g}" in panel.inner_text().replace("−", "-")
    expect(panel.locator(".hl-arithmetic-products tbody tr")).to_have_count(11)
    expect(panel.locator("li")).to_have_count(3)

    visit.after(lambda: page.locator("#hl-opened").get_by_role("button", name="Next").click(), "channel")
    assert page.locator("#hl-opened input").input_value() == str(order(visit)[1])
    number = page.locator("#hl-opened input")
    number.fill("17")
    visit.after(lambda: number.press("Enter"), "channel")
    assert page.locator(f"{TILES}[aria-selected=true]").get_attribute("data-channel") == "17"
    assert panel.locator("h2").is_hidden(), "it belongs to the former channel"
    large.focus()
    page.keyboard.press("ArrowRight")
    visit.after(lambda: page.keyboard.press("Enter"), "arithmetic")
    assert "Channel 17 of stages.2 at row" in panel.inner_text() and "Addition" in panel.inner_text()
    page.get_by_role("button", name="Close", exact=True).click()
    expect(page.locator(f"{TILES}[aria-selected=true]")).to_have_count(0)


@pytest.mark.slow
def test_the_open_channel_follows_the_image_or_closes(visit: Visit) -> None:
    """It is never shown for settings that it does not belong to."""
    page = opened(visit, "?example=cat").page
    visit.after(lambda: page.locator(f"{TILES}[data-channel='1100']").click(), "channel-why")
    page.evaluate("""() => {
      window.seen = [];
      const state = document.documentElement, pane = document.getElementById("hl-channels-pane");
      const look = () => window.seen.push([pane.dataset.old, Number(document.getElementById("hl-channel").dataset.id)]);
      new MutationObserver(look).observe(pane, { attributes: true });
    }""")
    before, picture = visit.number("channel"), drawn(visit, "#hl-channel canvas")

    page.locator("#hl-examples button[data-id=goldfish]").click()
    visit.painted("channel", before)
    page.wait_for_function("document.getElementById('hl-channels-pane').dataset.old === 'false'", timeout=PATIENCE)

    seen = page.evaluate("window.seen")
    assert ["true", before] in seen, "the previous image's channel is dimmed until the new one arrives"
    assert drawn(visit, "#hl-channel canvas") != picture and is_old(visit) == ["false", "false"]
    assert page.locator("#hl-opened input").input_value() == "1100"

    visit.after(lambda: visit.choose("layer", "stages.1 "), "opened")
    closed = "Channel 1100 was closed because stages.1 only has channels 0 to 23."
    assert closed in page.locator("#hl-opened").inner_text()
    assert len(order(visit)) == 24 and page.locator("#hl-channel .hl-empty").is_visible()


@pytest.mark.slow
def test_a_measure_is_requested_again_for_another_class(visit: Visit) -> None:
    page = opened(visit, "?example=cat&layer=stages.1").page
    note = page.locator("#hl-grid .hl-quiet")

    for name, word in (("gradient", "Gradient × activation for"), ("effect", "Effect: drop of the logit of")):
        visit.after(lambda name=name: page.locator("select[name=sort]").select_option(name), "grid")
        page.wait_for_function(f"document.querySelector('#hl-grid .hl-quiet').innerText.includes('{word} tiger cat')")
    labels = [page.locator(TILES).nth(k).text_content() or "" for k in range(24)]
    found = [float(label.rsplit(" ", 1)[1].replace("−", "-")) for label in labels]
    assert found == sorted(found, reverse=True) and "effect" in labels[0]
    visit.choose("class", "goldfish")
    page.wait_for_function("document.querySelector('#hl-grid .hl-quiet').innerText.includes('logit of goldfish')")
    assert note.inner_text().startswith("stages.1: 24 channels of 56 × 56.")


@pytest.mark.slow
def test_all_channels_are_saved(visit: Visit) -> None:
    """Oracle: the layer's values. The sheet of tiles is a PNG."""
    page = opened(visit, "?example=cat&layer=stages.2").page
    saves = page.locator(".hl-channels-saves")

    with visit.page.expect_download() as npy:
        saves.get_by_role("button", name=".npy").click()
    with visit.page.expect_download() as png:
        saves.get_by_role("button", name="PNG").click()

    assert npy.value.suggested_filename == "efficientnet_lite0-stages.2-channels.npy"
    values = np.load(io.BytesIO(Path(npy.value.path()).read_bytes()))
    np.testing.assert_allclose(values, maps("stages.2"), rtol=1e-4, atol=1e-4)
    sheet = Image.open(io.BytesIO(Path(png.value.path()).read_bytes()))
    assert png.value.suggested_filename.endswith("channels.png") and min(sheet.size) > 600


@pytest.mark.slow
def test_planes_have_thumbnails(visit: Visit) -> None:
    """Token PCA and factorizations have a pager for their planes: buttons, a number, thumbnails."""
    page = visit.open("?method=token_pca&example=cat").page
    tiles = page.locator("#hl-planes [role=option]")
    expect(tiles).to_have_count(3)
    assert tiles.first.get_attribute("aria-selected") == "true"
    plain = drawn(visit, "#hl-planes [role=option]:nth-child(2) canvas")

    tiles.nth(1).hover()
    assert drawn(visit, "#hl-planes [role=option]:nth-child(2) canvas") != plain
    before = visit.number("planes")
    tiles.nth(1).click()
    visit.painted("planes", before)

    assert "component 2 of 3" in visit.status and tiles.nth(1).get_attribute("aria-selected") == "true"


@pytest.mark.slow
def test_the_histogram_uses_the_axis_of_the_color_bar(visit: Visit) -> None:
    """Oracle: NumPy's histogram over the range of the color bar, before and after a change of limits."""
    page = opened(visit, "?example=cat&layer=stages.2").page
    visit.after(lambda: page.locator(f"{TILES}[data-channel='3']").click(), "channel")
    values, chart = maps("stages.2")[3], page.locator("#hl-channel .hl-chart")

    def found() -> tuple[list[int], list[float]]:
        bars = chart.evaluate("(e) => [...e.children].map((bar) => Number(bar.dataset.count))")
        ends = [page.locator(f"#hl-channel input[name={name}]").input_value() for name in ("low", "high")]
        return bars, [float(end) for end in ends]

    for limits in (None, ("-4", "4")):
        if limits:
            page.locator("#hl-channel .hl-popover > button").click()
            for name, end in zip(("low", "high"), limits, strict=True):
                page.locator(f"#hl-channel input[name={name}]").fill(end)
                page.locator(f"#hl-channel input[name={name}]").blur()
        bars, (low, high) = found()
        expected = np.histogram(np.clip(values, low, high), len(bars), (low, high))[0]
        assert sum(bars) == values.size and np.abs(np.array(bars) - expected).sum() <= 0.02 * values.size
    bar = page.locator("#hl-channel .hl-bar").bounding_box()
    box = chart.bounding_box()
    assert abs(bar["x"] - box["x"]) < 1 and abs(bar["width"] - box["width"]) < 1


@pytest.mark.slow
def test_a_channel_is_used_as_the_target(visit: Visit) -> None:
    page = opened(visit, "?example=cat&layer=stages.2&method=saliency").page
    visit.after(lambda: page.locator(f"{TILES}[data-channel='7']").click(), "channel-facts")
    use = page.locator("#hl-channel-facts button")

    before = visit.number("overlay")
    use.click()
    visit.painted("overlay", before)

    assert visit.status.startswith("Saliency for channel 7 of stages.2 of EfficientNet-Lite0")
    assert page.locator("#hl-class input").first.input_value() == "channel 7 of stages.2"
    page.wait_for_function("document.querySelector('#hl-channel-facts button').disabled", timeout=PATIENCE)
    page.reload()
    visit.painted("opened", 0)
    visit.errors.clear()  # Gradio's, about the event stream of the previous page
    assert visit.status.startswith("Saliency for channel 7 of stages.2"), "the channel is in the address"
    before = visit.number("overlay")
    visit.choose("class", "goldfish")
    visit.painted("overlay", before)
    assert visit.status.startswith("Saliency for goldfish")
