"""Channels tab: selecting channels, changing them, and the result."""

from __future__ import annotations

import re

from PIL import Image

import explainers
from saliscope.zoo import catalog
from tests.saliscope.browser.conftest import ROOT, Visit, expect

TILES = "#hl-grid [role=option]"


def apply(visit: Visit) -> None:
    visit.after(lambda: visit.page.locator("#hl-change").get_by_role("button", name="Apply").click(), "change")
    expect(visit.page.locator(".hl-change-line button")).to_be_hidden()


def checked(visit: Visit) -> list[int]:
    """Return the selected channels in ascending order."""
    tiles = visit.page.locator(f"{TILES}[aria-checked=true]")
    return sorted(tiles.evaluate_all("(all) => all.map((tile) => Number(tile.dataset.channel))"))


def test_selected_channels_are_changed(visit: Visit) -> None:
    """Oracle: `explainers.intervene`. Wrong input, and a change of the settings, mark the result as old."""
    page = visit.open("?example=cat&layer=stages.2").page
    page.get_by_role("tab", name="Channels").click()
    visit.painted("grid", 0)
    page.locator(".hl-channels-tools").get_by_role("button", name="Select").click()
    change = page.locator("#hl-change")
    text, result = change.locator("input[name=channels]"), change.locator(".hl-change-result")
    numbers = page.locator(TILES).evaluate_all("(all) => all.map((tile) => Number(tile.dataset.channel))")
    opened = page.locator("#hl-opened input").input_value()

    page.locator(TILES).nth(1).click()
    page.locator(TILES).nth(4).click(modifiers=["Shift"])
    page.locator(TILES).nth(2).focus()
    page.keyboard.press("Space")
    assert checked(visit) == sorted(numbers[k] for k in (1, 3, 4))
    assert page.locator("#hl-opened input").input_value() == opened
    text.fill("3, 17-24")
    text.press("Tab")
    expect(page.locator(f"{TILES}[aria-checked=true]")).to_have_count(9)
    assert result.is_hidden()
    apply(visit)

    model = catalog.load_model("efficientnet_lite0")
    images = model.prepare(Image.open(ROOT / "assets/examples/cat.jpg").convert("RGB"))
    expected = explainers.intervene(model.network, images, "stages.2", channels=[3, *range(17, 25)])
    before, after = expected.before.softmax(1)[0], expected.after.softmax(1)[0]
    cells = result.locator("tbody tr").first.locator("th, td").all_inner_texts()
    top = int(before.argmax())
    assert cells[0] == model.labels[top] and cells[3] == f"{100 * float(after[top] - before[top]):+.1f} pp".replace(
        "-", "−"
    )
    assert result.get_attribute("data-old") == "false"
    result.locator("canvas").first.hover()
    assert re.fullmatch(r"−?[\d.]+ → −?[\d.]+ logit", result.locator("output").inner_text())

    text.fill("3, 99")
    text.press("Enter")
    assert "Layer stages.2 has no channel 99. Choose channels from 0 to 39." in change.inner_text()
    assert result.get_attribute("data-old") == "true" and "Result of former settings" in result.inner_text()
    change.get_by_role("button", name="Reset").click()
    expect(page.locator(f"{TILES}[aria-checked=true]")).to_have_count(0)
    assert result.is_hidden()
    change.get_by_role("button", name="Top 10 by effect").click()
    expect(change).to_contain_text("10 of 40")
    effects = explainers.channel_effects(model.network, images, top, layer="stages.2")[0]
    assert checked(visit) == sorted(effects.topk(10).indices.tolist())

    change.locator("select[name=kind]").select_option("swap")
    change.locator("[data-id=goldfish]").click()
    change.get_by_role("button", name="All", exact=True).click()
    apply(visit)
    assert "changes from tiger cat to goldfish" in result.inner_text()
    visit.choose("class", "goldfish")
    expect(result).to_have_attribute("data-old", "true")
