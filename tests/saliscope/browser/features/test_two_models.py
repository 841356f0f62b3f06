"""The comparison of two models in Chromium: a link, a refusal, and settings that change."""

from __future__ import annotations

import re

from tests.saliscope.browser.conftest import Visit, expect


def test_a_link_compares_two_models(visit: Visit) -> None:
    """The same network with another crop: all predictions are listed, and the inputs differ already."""
    visit.open("?example=dog&tab=models&other=efficientnet_lite0%3Fcrop%3Dwhole")
    visit.painted("models", 0)
    page, rows = visit.page, visit.page.locator(".hl-models-results tbody").first.locator("tr")

    assert page.locator(".hl-models-status .hl-line").inner_text().startswith("The predictions differ for ")
    expect(rows).to_have_count(9)
    assert rows.first.locator("td").nth(2).inner_text() == "German shepherd, 94%"
    for label in ("map of EfficientNet-Lite0", "map of EfficientNet-Lite0 (crop whole)"):
        shown = page.get_by_role("img", name=re.compile(re.escape(label) + "$"))
        expect(shown).to_have_count(9)
        drawn = "each => each.width > 1 && new Set(each.getContext('2d').getImageData(0, 0, 50, 50).data).size > 9"
        page.wait_for_function(f"[...document.querySelectorAll('.hl-models-map')].every({drawn})")
    matrix = page.locator(".hl-models-matrix tbody tr")
    expect(matrix).to_have_count(5)
    expect(matrix.first.locator("td")).to_have_count(5)
    for text in matrix.locator("td").all_inner_texts():
        assert re.fullmatch(r"[01]\.\d\d \(0\.\d\d–[01]\.\d\d\)|0–[01]\.\d\d", text), "no negative value"
    assert "inputs of the models differ already" in page.locator(".hl-models-first").inner_text()

    page.get_by_label("Include the nine examples").click()
    assert page.get_by_text("Outdated: the settings of the page have changed.").is_visible()
    visit.choose("models", "EfficientNet-Lite0")
    page.get_by_role("button", name="Compare models").click()
    page.locator(".hl-models-status .hl-line[data-kind=error]").wait_for()
    assert "Choose another second model" in page.locator(".hl-models-status .hl-line").inner_text()
    expect(rows, "the last result stays").to_have_count(9)
    assert page.locator(".hl-models-results").get_attribute("data-old") == "true"
