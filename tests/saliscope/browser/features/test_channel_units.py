"""Channels with an index of units: names, images, crops and similar channels; the search, and the order by a cell."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageColor

import explainers
from saliscope.zoo import catalog
from tests.saliscope.browser.conftest import ROOT, Visit, expect
from tests.saliscope.browser.features.test_channels import TILES, numbers, opened
from tests.saliscope.browser.test_accessibility import FOUND, axe_script
from tests.support import unit_indices
from tests.support.unit_indices import CHANNELS, LAYER

TEST = "AUC 0.97"
PANE = "#hl-channels-pane"


@pytest.fixture
def view(visit: Visit) -> Visit:
    return opened(visit, f"?example=cat&layer={LAYER}&channel=3")


def tile(visit: Visit, channel: int) -> Any:
    return visit.page.locator(f"{TILES}[data-channel='{channel}']")


def color(visit: Visit, channel: int) -> list[int]:
    """Return the mean color of a tile."""
    found: list[int] = visit.pixels(f"{TILES}[data-channel='{channel}'] canvas")[..., :3].mean((0, 1)).tolist()
    return found


def is_near(found: list[int], channel: int) -> bool:
    """Return whether this is the color of the image that the index has for a channel."""
    wanted = ImageColor.getrgb(unit_indices.COLORS[channel % len(unit_indices.COLORS)])
    return bool(np.abs(np.subtract(found, wanted)).max() < 25)


def test_names_have_their_test_and_channels_are_found_by_word_or_number(view: Visit) -> None:
    """A name is never without its number: on a tile, it is in the tooltip and read by screen readers."""
    page, unit = view.page, view.page.locator("#hl-unit")
    expect(tile(view, 3)).to_contain_text(re.compile(f"tabby.*{TEST}"))
    expect(tile(view, 3)).to_have_attribute("title", re.compile(f"tabby.*{TEST}"))
    expect(tile(view, 4)).not_to_contain_text("AUC")
    long = tile(view, 17).locator("em")
    assert long.evaluate("(node) => node.scrollWidth > node.clientWidth && node.clientHeight < 30")
    expect(page.locator("#hl-opened")).to_contain_text(re.compile(f"tabby.*{TEST}"))
    expect(unit).to_contain_text(re.compile("tabby.*97 of 100 pairs.*25 photos"))
    expect(unit).to_contain_text("12% of the 5,000 images")

    field, note, requests = page.get_by_label("Find"), page.locator("#hl-grid .hl-quiet"), len(view.requests)
    for text, found in (("T", {3, 7, 17}), ("tabby", {3}), ("1", {1, *range(10, 20)}), ("zebra", set())):
        field.fill(text)
        assert set(numbers(view)) == found, text
        expect(note).to_contain_text(f"{len(found)} of 40" if found else "“zebra”")
    field.fill("")
    assert len(numbers(view)) == CHANNELS and view.sent(requests) == []

    tile(view, 4).click()
    expect(unit).to_contain_text("No name")
    expect(page.locator("#hl-opened")).not_to_contain_text("AUC")
    tile(view, 3).click()
    expect(unit).to_contain_text("tabby")


@pytest.mark.slow
def test_names_go_with_a_layer_or_a_model_without_an_index(view: Visit) -> None:
    page, unit = view.page, view.page.locator("#hl-unit")
    expect(unit).to_contain_text("tabby")
    for choice, name in (("layer", "stages.1 "), ("model", "A network of 3 channels")):
        view.after(partial(view.choose, choice, name), "opened")
        expect(page.locator(PANE)).to_have_attribute("data-old", "false")
        expect(page.locator("select[name=show]")).to_be_hidden()
        expect(unit).not_to_contain_text("AUC")
        expect(unit.locator("h2")).to_be_hidden()
        expect(page.locator(f"{TILES} em")).to_have_count(0)
        expect(page.locator("#hl-opened")).not_to_contain_text("AUC")


def test_images_of_the_index_similar_channels_and_the_order_by_a_cell(view: Visit) -> None:
    """Oracle of the order: the layer's values. Hovering shows the response; another layer offers what its index has."""
    page, show, sort = view.page, view.page.locator("select[name=show]"), view.page.locator("select[name=sort]")
    model = catalog.load_model("efficientnet_lite0")
    image = model.prepare(Image.open(ROOT / "assets/examples/cat.jpg").convert("RGB"))
    values = explainers.feature_maps(model.network, image, layer=LAYER)[0].numpy()
    assert sort.locator("option[value=here]").is_disabled()
    canvas = page.locator("#hl-channel canvas").first
    for place in (0.1, 0.6):
        box = canvas.bounding_box()
        click = {"x": place * box["width"], "y": place * box["height"]}
        view.after(lambda click=click: canvas.click(position=click), "channel-why")
        if sort.input_value() != "here":
            page.get_by_role("button", name="Sort by this cell").click()
        cell = int(place * values.shape[1])
        expect(page.locator("#hl-grid .hl-quiet")).to_contain_text(f"row {cell + 1}, column {cell + 1}")
        found = values[numbers(view), cell, cell]
        assert len(found) == CHANNELS and (np.diff(found) <= 1e-6).all()

    response, requests = color(view, 5), len(view.requests)
    for kind, shift in (("synthetic", 0), ("top", 1)):
        with page.expect_response(re.compile(f"/hl/units/{kind}-")) as answered:
            show.select_option(kind)
        headers = answered.value.headers
        assert headers["content-type"] == "image/webp" and "immutable" in headers["cache-control"]
        view.until(f"document.querySelector(\"{TILES}[data-channel='5'] canvas\").width === 64")
        page.wait_for_timeout(300)
        assert is_near(color(view, 5), 5 + shift) and is_near(color(view, 39), 39 + shift), kind
    assert len(view.sent(requests)) == 2
    assert page.request.get(f"{view.address}/hl/units/synthetic-0123456789abcdef.webp").status == 404
    tile(view, 5).hover()
    assert not is_near(color(view, 5), 6)
    page.mouse.move(5, 5)
    assert is_near(color(view, 5), 6)
    show.select_option("response")
    assert color(view, 5) == response

    unit = page.locator("#hl-unit")
    unit.get_by_role("button", name=re.compile("^0")).click()
    expect(page.locator("#hl-opened input")).to_have_value("0")
    expect(unit.locator(".hl-unit-nearest button")).to_have_text(["1", "2"])
    crops = unit.get_by_role("img", name="tabby")
    expect(crops).to_have_count(2)
    expect(crops.first).to_have_attribute("alt", re.compile("5.5"))
    photo, part = (unit.locator(f".hl-unit-photo {name}").bounding_box() for name in ("img", "i"))
    assert part["width"] == pytest.approx(photo["width"] / 2) and part["height"] == pytest.approx(photo["height"])
    crops.nth(1).hover()
    expect(unit.get_by_role("img", name="whole photo")).to_have_attribute("alt", re.compile("photo 2$"))
    unit.get_by_role("button", name="By effect").click()
    expect(unit.get_by_role("img", name="whole photo")).to_have_attribute("alt", re.compile("photo 1$"))
    view.until("new URL(location.href).searchParams.get('channel') === '0'")

    show.select_option("top")
    view.after(lambda: view.choose("layer", "head"), "grid")
    expect(show).to_have_value("response")
    assert show.locator("option").evaluate_all("(all) => all.map((each) => each.hidden)") == [False, False, True]


@pytest.mark.slow
def test_nothing_moves_and_axe_finds_nothing_on_a_phone(window: Any) -> None:
    visit = opened(window(390, 844, color_scheme="dark"), f"?example=cat&layer={LAYER}&channel=3")
    page = visit.page
    expect(page.locator("#hl-unit")).to_contain_text("tabby")
    top = "(node) => node.getBoundingClientRect().top + scrollY"
    places = ".hl-channels-grid, #hl-opened, #hl-channel, #hl-unit"
    tops = partial(page.locator(places).evaluate_all, f"(all) => all.map({top})")
    before = tops()
    with page.expect_response(re.compile("/hl/units/")):
        page.locator("select[name=show]").select_option("synthetic")
    page.wait_for_timeout(300)
    assert tops() == before and page.evaluate("document.documentElement.scrollWidth") == 390
    page.evaluate(axe_script())
    assert page.evaluate(FOUND, None) == []
