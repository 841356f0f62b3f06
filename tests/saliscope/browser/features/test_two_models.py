"""The comparison of two models in Chromium: a link, a refusal, and settings that change."""

from __future__ import annotations

import re

from tests.saliscope.browser.conftest import Visit, expect


def test_a_link_compares_two_models(visit: Visit) -> None:
    """The same network with another crop: all predictions are listed, and the inputs differ already."""
    page = visit.open("?model=bands3&example=dog&tab=models&other=bands3%3Fcrop%3Dwhole").page
    visit.painted("models", 0)
    rows, line = (
        page.locator(".hl-models-results tbody").first.locator("tr"),
        page.locator(".hl-models-status .hl-line"),
    )
    expect(line).to_contain_text("The predictions differ for ")
    expect(rows).to_have_count(9)
    expect(rows.first.locator("td").nth(2)).to_have_text(re.compile(r"^(forest|water|field|town), \d+%$"))
    for label in ("map of A network of 3 channels", "map of A network of 3 channels (crop whole)"):
        expect(page.get_by_role("img", name=re.compile(re.escape(label) + "$"))).to_have_count(9)
    drawn = "each => each.width > 1 && new Set(each.getContext('2d').getImageData(0, 0, 50, 50).data).size > 9"
    visit.until(f"[...document.querySelectorAll('.hl-models-map')].every({drawn})")
    matrix = page.locator(".hl-models-matrix tbody tr")
    expect(matrix).to_have_count(2)
    expect(matrix.first.locator("td")).to_have_count(2)
    for text in matrix.locator("td").all_inner_texts():
        assert re.fullmatch(r"[01]\.\d\d \(0\.\d\d–[01]\.\d\d\)|0–[01]\.\d\d", text), "no negative value"
    expect(page.locator(".hl-models-first")).to_contain_text("inputs of the models differ already")

    page.get_by_label("Include the nine examples").click()
    expect(page.get_by_text("Outdated: the settings of the page have changed.")).to_be_visible()
    visit.choose("models", "A network of 3 channels")
    page.get_by_role("button", name="Compare models").click()
    expect(line).to_contain_text("Choose another second model")
    expect(rows, "the last result stays").to_have_count(9)
    expect(page.locator(".hl-models-results")).to_have_attribute("data-old", "true")
