"""Channels view: tiles, the open channel, and changes of selected channels."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import explainers
from saliscope.zoo import Model, catalog
from tests.saliscope.browser.conftest import ROOT, Visit, expect

TILES = "#hl-grid [role=option]"


def opened(visit: Visit, query: str) -> Visit:
    visit.open(query)
    visit.page.get_by_role("tab", name="Channels").click()
    visit.painted("grid", 0)
    visit.painted("channel-why", 0)  # the first channel is open
    return visit


def numbers(visit: Visit, which: str = "") -> list[int]:
    """Return the channels of the tiles, or those with this attribute, in order."""
    return visit.page.locator(TILES + which).evaluate_all("(all) => all.map((tile) => Number(tile.dataset.channel))")


@pytest.fixture(scope="module")
def cat() -> tuple[Model, Tensor]:
    """The network of the page and the image that it receives."""
    model = catalog.load_model("efficientnet_lite0")
    return model, model.prepare(Image.open(ROOT / "assets/examples/cat.jpg").convert("RGB"))


def maps(cat: tuple[Model, Tensor], layer: str) -> np.ndarray:
    return explainers.feature_maps(cat[0].network, cat[1], layer=layer)[0].numpy()


@pytest.mark.slow
def test_tiles_are_sorted_filtered_and_drawn_over_the_image_without_a_request(visit: Visit, cat) -> None:
    """Oracle: the layer's values. Tiles have the layer's resolution; dead channels are counted and can be hidden."""
    page, values = opened(visit, "?example=cat").page, maps(cat, "head")
    tools, first, requests = page.locator(".hl-channels-tools"), f"{TILES} canvas", len(visit.requests)
    dead = (values == 0).all((1, 2))
    expect(page.locator("#hl-grid .hl-quiet")).to_contain_text(f"{dead.sum():,} are dead")
    for name, measured in (("mean", values.mean((1, 2))), ("highest", values.max((1, 2)))):
        tools.locator("select[name=sort]").select_option(name)
        assert (np.diff(measured[numbers(visit)]) <= 1e-6).all(), name
    tools.locator("select[name=sort]").select_option("sparsity")
    expect(page.locator(TILES).first).to_have_text(re.compile(r"Channel \d+, sparsity 1\.00"))
    tools.locator("select[name=sort]").select_option("number")
    assert numbers(visit) == list(range(1280))
    tools.locator("input[name=dead]").check()
    assert numbers(visit) == (~dead).nonzero()[0].tolist()

    own = visit.pixels(first)
    assert own.shape[:2] == (7, 7)
    page.locator(TILES).first.hover()
    over = visit.pixels(first)
    page.mouse.move(5, 5)
    assert len(over) > 60 and (visit.pixels(first) == own).all()
    page.locator(TILES).nth(1).focus()
    page.keyboard.press("ArrowLeft")
    assert (visit.pixels(first) == over).all()
    page.locator(TILES).nth(1).focus()
    tools.locator("select[name=range]").select_option("shared")
    assert (visit.pixels(first) != own).any() and visit.sent(requests) == []


def test_an_open_channel_shows_its_gradient_and_contribution(visit: Visit, cat) -> None:
    page, values = opened(visit, "?example=cat&layer=stages.2").page, maps(cat, "stages.2")
    npy = visit.download(page.locator(".hl-channels-saves").get_by_role("button", name=".npy").click)
    assert npy.name == "efficientnet_lite0-stages.2-channels.npy"
    png = visit.download(page.locator(".hl-channels-saves").get_by_role("button", name="PNG").click)
    assert png.name.endswith("channels.png") and min(Image.open(png).size) > 600

    number, first = page.locator("#hl-opened input"), numbers(visit)[0]
    expect(number).to_have_value(str(first))
    facts = page.locator("#hl-channel-facts")
    for words in ("px", f"{values[first].mean():.4g}", "Contribution to tiger cat"):
        expect(facts).to_contain_text(words)
    expect(facts).to_contain_text(re.compile(r"set to zero, the logit of tiger cat (falls|rises) by"))

    large = page.locator("#hl-channel canvas").first
    box = large.bounding_box()
    place = {"x": box["width"] * 2.5 / 28, "y": box["height"] * 4.5 / 28}
    large.hover(position=place)
    field = page.locator("#hl-channel .hl-field:not([hidden])").bounding_box()
    layers = {each.name: each for each in explainers.list_layers(cat[0].network, torch.zeros(1, 3, 224, 224))}
    left, top, right, bottom = layers["stages.2"].receptive_field((4, 2))
    found = np.array([field["x"] - box["x"], field["y"] - box["y"], field["width"], field["height"]])
    assert np.abs(found * 224 / box["width"] - [left, top, right - left, bottom - top]).max() < 1.5
    visit.after(lambda: large.click(position=place), "arithmetic")
    expect(page.locator("#hl-channel-why")).to_contain_text("cell (row 5, column 3), value")
    panel = page.locator("#hl-arithmetic")
    value = f"{values[first, 4, 2]:.4g}".replace("-", "−")
    expect(panel).to_contain_text(f"Channel {first} of stages.2 at row 5, column 3: {value}")
    expect(panel.locator(".hl-arithmetic-products tbody tr")).to_have_count(11)

    visit.after(lambda: page.locator("#hl-opened").get_by_role("button", name="Next").click(), "channel")
    expect(number).to_have_value(str(numbers(visit)[1]))
    number.fill("17")
    visit.after(lambda: number.press("Enter"), "channel")
    assert numbers(visit, "[aria-selected=true]") == [17]
    expect(panel.locator("h2"), "it belongs to the former channel").to_be_hidden()
    histogram_has_the_axis_of_the_color_bar(visit, values[17])
    large.focus()
    page.keyboard.press("ArrowRight")
    visit.after(lambda: page.keyboard.press("Enter"), "arithmetic")
    expect(panel).to_contain_text("Channel 17 of stages.2 at row")
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
def test_the_open_channel_becomes_the_target_and_follows_the_image_or_closes(visit: Visit) -> None:
    """It is never shown for settings that it does not belong to."""
    page = opened(visit, "?example=cat&layer=stages.2&method=saliency&channel=7&sort=highest").page
    use, note = page.locator("#hl-channel-facts button"), page.locator("#hl-grid .hl-quiet")
    visit.after_partial(use.click)
    expect(page.locator("#hl-class input").first).to_have_value("channel 7 of stages.2")
    expect(use).to_be_disabled()
    page.reload()
    visit.painted("opened", 0)
    visit.errors.clear()  # Gradio's, about the event stream of the previous page
    assert visit.status.startswith("Saliency for channel 7 of stages.2"), "the channel is in the address"
    expect(page.locator("select[name=sort]")).to_have_value("highest")
    page.locator("select[name=sort]").select_option("number")
    visit.until("location.search.includes('sort=number')")
    visit.after_partial(lambda: visit.choose("class", "goldfish"))
    assert visit.status.startswith("Saliency for goldfish")

    drawn = "document.querySelector('#hl-channel canvas').toDataURL()"
    picture = page.evaluate(drawn)
    visit.after(lambda: page.locator("#hl-examples button[data-id=coffee]").click(), "channel")
    expect(page.locator("#hl-channels-pane")).to_have_attribute("data-old", "false")
    expect(page.locator("#hl-opened input")).to_have_value("7")
    visit.until(f"(former) => {drawn} !== former", picture)
    page.locator("#hl-opened input").fill("30")
    visit.after(lambda: page.locator("#hl-opened input").press("Enter"), "channel")
    visit.choose("layer", "stages.1 ")
    expect(page.locator("#hl-opened")).to_contain_text("closed because stages.1 only has channels 0 to 23")
    expect(page.locator("#hl-channel .hl-empty")).to_be_visible()
    visit.after(lambda: page.locator("select[name=sort]").select_option("effect"), "grid")
    expect(note).to_contain_text("Effect: drop of the logit of espresso")
    labels = page.locator(TILES).all_text_contents()
    found = [float(label.rsplit(" ", 1)[1].replace("−", "-")) for label in labels]
    assert len(found) == 24 and found == sorted(found, reverse=True)
    visit.choose("class", "tabby")
    expect(note).to_contain_text("logit of tabby")


def test_selected_channels_are_changed(visit: Visit, cat) -> None:
    """Oracle: `explainers.intervene`. Wrong input, and a change of the settings, mark the result as old."""
    (model, images), page = cat, opened(visit, "?example=cat&layer=stages.2").page
    page.locator(".hl-channels-tools").get_by_role("button", name="Select").click()
    change, selected = page.locator("#hl-change"), f"{TILES}[aria-checked=true]"
    text, result = change.locator("input[name=channels]"), change.locator(".hl-change-result")
    order, apply = numbers(visit), change.get_by_role("button", name="Apply")
    page.locator(TILES).nth(1).click()
    page.locator(TILES).nth(4).click(modifiers=["Shift"])
    page.locator(TILES).nth(2).focus()
    page.keyboard.press("Space")
    assert sorted(numbers(visit, "[aria-checked=true]")) == sorted(order[k] for k in (1, 3, 4))
    text.fill("3, 17-24")
    text.press("Tab")
    expect(page.locator(selected)).to_have_count(9)
    visit.after(apply.click, "change")

    expected = explainers.intervene(model.network, images, "stages.2", channels=[3, *range(17, 25)])
    before, after = expected.before.softmax(1)[0], expected.after.softmax(1)[0]
    top = int(before.argmax())
    cells = result.locator("tbody tr").first.locator("th, td")
    points = f"{100 * float(after[top] - before[top]):+.1f} pp".replace("-", "−")
    expect(cells.first).to_have_text(model.labels[top])
    expect(cells.nth(3)).to_have_text(points)
    expect(result).to_have_attribute("data-old", "false")
    result.locator("canvas").first.hover()
    expect(result.locator("output")).to_have_text(re.compile(r"−?[\d.]+ → −?[\d.]+ logit"))

    text.fill("3, 99")
    text.press("Enter")
    expect(change).to_contain_text("Layer stages.2 has no channel 99. Choose channels from 0 to 39.")
    expect(result).to_have_attribute("data-old", "true")
    change.get_by_role("button", name="Reset").click()
    expect(result).to_be_hidden()
    change.get_by_role("button", name="Top 10 by effect").click()
    expect(change).to_contain_text("10 of 40")
    effects = explainers.channel_effects(model.network, images, top, layer="stages.2")[0]
    assert sorted(numbers(visit, "[aria-checked=true]")) == sorted(effects.topk(10).indices.tolist())

    change.locator("select[name=kind]").select_option("swap")
    change.locator("[data-id=goldfish]").click()
    change.get_by_role("button", name="All", exact=True).click()
    visit.after(apply.click, "change")
    expect(result).to_contain_text("changes from tiger cat to goldfish")
    visit.choose("class", "goldfish")
    expect(result).to_have_attribute("data-old", "true")
