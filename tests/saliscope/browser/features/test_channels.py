"""Channels tab: tiles, sorting, the open channel, and saved files."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from PIL import Image

import explainers
from saliscope.zoo import catalog
from tests.saliscope.browser.conftest import ROOT, Visit, expect

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


@pytest.mark.slow
def test_all_channels_are_sorted_filtered_and_shown_over_the_image_without_a_request(visit: Visit) -> None:
    """Oracle: the layer's values. Tiles have the layer's resolution; dead channels are counted and can be hidden."""
    page, values = opened(visit, "?example=cat").page, maps("head")
    tools = page.locator(".hl-channels-tools")
    dead = int((values == 0).all((1, 2)).sum())
    requests = len(visit.requests)

    assert len(order(visit)) == 1280 and f"{dead:,} are dead" in page.locator("#hl-grid .hl-quiet").inner_text()
    for name, measured in (("mean", values.mean((1, 2))), ("highest", values.max((1, 2)))):
        tools.locator("select[name=sort]").select_option(name)
        assert (np.diff(measured[order(visit)]) <= 1e-6).all(), name
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
    page.locator(TILES).first.hover()
    over = drawn(visit, first)
    page.mouse.move(5, 5)
    assert over[0] > 60 and drawn(visit, first) == own
    page.locator(TILES).nth(1).focus()
    page.keyboard.press("ArrowLeft")
    assert drawn(visit, first) == over
    page.locator(TILES).nth(1).focus()
    tools.locator("select[name=range]").select_option("shared")
    assert drawn(visit, first) != own
    tools.locator("input[name=smooth]").check()
    assert page.locator(first).first.evaluate("(c) => getComputedStyle(c).imageRendering") == "auto"
    assert [url for url in visit.requests[requests:] if not url.startswith("blob:")] == []


def test_an_open_channel_shows_its_gradient_and_contribution(visit: Visit) -> None:
    page = opened(visit, "?example=cat&layer=stages.2").page
    saves = page.locator(".hl-channels-saves")
    npy = visit.download(saves.get_by_role("button", name=".npy").click)
    assert npy.name == "efficientnet_lite0-stages.2-channels.npy"
    np.testing.assert_allclose(np.load(npy), maps("stages.2"), rtol=1e-4, atol=1e-4)
    png = visit.download(saves.get_by_role("button", name="PNG").click)
    assert png.name.endswith("channels.png") and min(Image.open(png).size) > 600

    number, first = page.locator("#hl-opened input"), order(visit)[0]
    assert number.input_value() == str(first), "the first channel is open"
    expect(page.locator("#hl-channel-facts")).to_contain_text("px")
    facts = page.locator("#hl-channel-facts").inner_text()
    assert f"{maps('stages.2')[first].mean():.4g}" in facts and "Contribution to tiger cat" in facts
    assert re.search(r"set to zero, the logit of tiger cat (falls|rises) by", facts)
    assert "strongest cell" in page.locator("#hl-channel-why").inner_text()

    large = page.locator("#hl-channel canvas").first
    box = large.bounding_box()
    place = {"x": box["width"] * 2.5 / 28, "y": box["height"] * 4.5 / 28}
    large.hover(position=place)
    field = page.locator("#hl-channel .hl-field:not([hidden])").bounding_box()
    network = catalog.load_model("efficientnet_lite0").network
    layers = {each.name: each for each in explainers.list_layers(network, torch.zeros(1, 3, 224, 224))}
    left, top, right, bottom = layers["stages.2"].receptive_field((4, 2))
    found = np.array([field["x"] - box["x"], field["y"] - box["y"], field["width"], field["height"]])
    assert np.abs(found * 224 / box["width"] - [left, top, right - left, bottom - top]).max() < 1.5
    visit.after(lambda: large.click(position=place), "channel-why")
    assert "cell (row 5, column 3), value" in page.locator("#hl-channel-why").inner_text()
    visit.painted("arithmetic", 0)
    value, panel = maps("stages.2")[first, 4, 2], page.locator("#hl-arithmetic")
    assert f"Channel {first} of stages.2 at row 5, column 3: {value:.4g}" in panel.inner_text().replace("−", "-")
    expect(panel.locator(".hl-arithmetic-products tbody tr")).to_have_count(11)
    expect(panel.locator("li")).to_have_count(3)

    visit.after(lambda: page.locator("#hl-opened").get_by_role("button", name="Next").click(), "channel")
    assert number.input_value() == str(order(visit)[1])
    number.fill("17")
    visit.after(lambda: number.press("Enter"), "channel")
    assert page.locator(f"{TILES}[aria-selected=true]").get_attribute("data-channel") == "17"
    assert panel.locator("h2").is_hidden(), "it belongs to the former channel"
    histogram_has_the_axis_of_the_color_bar(visit, maps("stages.2")[17])
    large.focus()
    page.keyboard.press("ArrowRight")
    visit.after(lambda: page.keyboard.press("Enter"), "arithmetic")
    assert "Channel 17 of stages.2 at row" in panel.inner_text() and "Addition" in panel.inner_text()
    page.get_by_role("button", name="Close", exact=True).click()
    expect(page.locator(f"{TILES}[aria-selected=true]")).to_have_count(0)


def histogram_has_the_axis_of_the_color_bar(visit: Visit, values: np.ndarray) -> None:
    """Oracle: NumPy's histogram over the range of the color bar, before and after a change of limits."""
    page, chart = visit.page, visit.page.locator("#hl-channel .hl-chart")
    fields = [page.locator(f"#hl-channel input[name={name}]") for name in ("low", "high")]
    for limits in (None, ("-4", "4")):
        if limits:
            page.locator("#hl-channel .hl-popover > button").click()
            for field, end in zip(fields, limits, strict=True):
                field.fill(end)
                field.blur()
        counts = chart.evaluate("(e) => [...e.children].map((bar) => Number(bar.dataset.count))")
        low, high = (float(field.input_value()) for field in fields)
        expected = np.histogram(np.clip(values, low, high), len(counts), (low, high))[0]
        assert sum(counts) == values.size and np.abs(np.array(counts) - expected).sum() <= 0.02 * values.size
    page.keyboard.press("Escape")
    bar, box = page.locator("#hl-channel .hl-bar").bounding_box(), chart.bounding_box()
    assert abs(bar["x"] - box["x"]) < 1 and abs(bar["width"] - box["width"]) < 1


@pytest.mark.slow
def test_the_open_channel_follows_the_image_or_closes(visit: Visit) -> None:
    """It is never shown for settings that it does not belong to."""
    page = opened(visit, "?example=cat").page
    visit.after(lambda: page.locator(f"{TILES}[data-channel='1100']").click(), "channel-why")
    page.evaluate("""() => {
      window.seen = [];
      const pane = document.getElementById("hl-channels-pane");
      const look = () => window.seen.push([pane.dataset.old, Number(document.getElementById("hl-channel").dataset.id)]);
      new MutationObserver(look).observe(pane, { attributes: true });
    }""")
    before, picture = visit.number("channel"), drawn(visit, "#hl-channel canvas")
    visit.after(lambda: page.locator("#hl-examples button[data-id=goldfish]").click(), "channel")
    expect(page.locator("#hl-channels-pane")).to_have_attribute("data-old", "false")
    assert ["true", before] in page.evaluate("window.seen"), "the previous image's channel is dimmed meanwhile"
    assert drawn(visit, "#hl-channel canvas") != picture and page.locator("#hl-opened input").input_value() == "1100"

    visit.after(lambda: visit.choose("layer", "stages.1 "), "opened")
    expect(page.locator("#hl-opened")).to_contain_text(
        "Channel 1100 was closed because stages.1 only has channels 0 to 23"
    )
    assert len(order(visit)) == 24 and page.locator("#hl-channel .hl-empty").is_visible()
    note = page.locator("#hl-grid .hl-quiet")
    visit.after(lambda: page.locator("select[name=sort]").select_option("effect"), "grid")
    expect(note).to_contain_text("Effect: drop of the logit of goldfish")
    labels = [page.locator(TILES).nth(k).text_content() or "" for k in range(24)]
    found = [float(label.rsplit(" ", 1)[1].replace("−", "-")) for label in labels]
    assert found == sorted(found, reverse=True) and "effect" in labels[0]
    visit.choose("class", "tabby")
    expect(note).to_contain_text("logit of tabby")


@pytest.mark.slow
def test_a_channel_is_used_as_the_target(visit: Visit) -> None:
    page = opened(visit, "?example=cat&layer=stages.2&method=saliency").page
    visit.after(lambda: page.locator(f"{TILES}[data-channel='7']").click(), "channel-facts")
    use = page.locator("#hl-channel-facts button")

    visit.after_partial(use.click)
    assert visit.status.startswith("Saliency for channel 7 of stages.2 of EfficientNet-Lite0")
    assert page.locator("#hl-class input").first.input_value() == "channel 7 of stages.2"
    expect(use).to_be_disabled()
    page.reload()
    visit.painted("opened", 0)
    visit.errors.clear()  # Gradio's, about the event stream of the previous page
    assert visit.status.startswith("Saliency for channel 7 of stages.2"), "the channel is in the address"
    visit.after_partial(lambda: visit.choose("class", "goldfish"))
    assert visit.status.startswith("Saliency for goldfish")
