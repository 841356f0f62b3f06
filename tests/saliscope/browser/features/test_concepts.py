"""The view "Concepts" in Chromium: find them, remove one, and settings that change."""

from __future__ import annotations

from tests.saliscope.browser.conftest import Visit, expect


def test_a_removed_concept_changes_the_prediction(visit: Visit) -> None:
    page = visit.open("?example=dog").page
    visit.open_view("Concepts")
    own = page.locator("#hl-concepts")
    visit.after(lambda: own.get_by_role("button", name="Find concepts").click(), "concepts")
    tiles = own.locator(".hl-concepts-tiles button")
    expect(tiles).to_have_count(8)
    expect(own.locator(".hl-line")).to_contain_text("of the variance of its features in 9 images")
    effects = [float(text.replace("−", "-")) for text in tiles.locator("strong").all_inner_texts()]
    assert effects == sorted(effects, reverse=True) and effects[0] > 1

    visit.after(lambda: tiles.first.press("Enter"), "concepts")
    expect(tiles.first).to_have_attribute("aria-pressed", "true")
    expect(own.locator(".hl-concepts-cuts img")).to_have_count(4)
    row = own.locator(".hl-change-classes tbody tr").first
    expect(row.locator("th")).to_have_text("German shepherd")
    before, after, change = row.locator("td").all_inner_texts()
    assert before == "94%" and before != after and change.startswith("−")
    visit.until("new URL(location.href).searchParams.get('concept') !== null")

    slider = own.get_by_role("slider", name="Strength")
    visit.after(lambda: slider.fill("1"), "concepts")
    expect(own.locator(".hl-change-title")).to_contain_text("unchanged")
    assert row.locator("td").nth(0).inner_text() == row.locator("td").nth(1).inner_text()

    page.locator("#hl-examples button[data-id=cat]").click()
    expect(own.locator(".hl-concepts-tiles"), "outdated").to_have_attribute("data-old", "true")
    expect(own.locator(".hl-line")).to_contain_text("Outdated")
    expect(slider).to_be_disabled()
    visit.state("done")
    page.go_back()
    expect(own.locator(".hl-concepts-tiles"), "those of the dog again").to_have_attribute("data-old", "false")
    expect(own.locator(".hl-line")).to_contain_text("German shepherd falls")
    assert visit.errors == []


def test_a_link_opens_a_concept(visit: Visit) -> None:
    page = visit.open("?model=bands3&example=dog&tab=concepts&concepts=4&concept=1").page
    own = page.locator("#hl-concepts")
    expect(own.locator(".hl-concepts-tiles button")).to_have_count(4)
    expect(own.locator("[aria-pressed=true] span")).to_have_text("1")
    expect(own.locator(".hl-change-title")).to_contain_text("Concept 1 removed")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
