"""Faithfulness checks: the results, the curves, the image at a step, and methods without checks."""

from __future__ import annotations

import pytest

from tests.saliscope.browser.conftest import Visit, expect
from tests.support.two_encoders import STEPS

STRIP = "#hl-trust .hl-trust"
LARGE = "#hl-overlay .hl-trust-large"
PLOTS = "#hl-trust .hl-plot"


def known(visit: Visit, method: str = "") -> dict[str, str]:
    """Wait for the checks of the current map and return the rows by name."""
    visit.until(
        f"document.querySelector('{STRIP}')?.dataset.state === 'known' && "
        f"document.getElementById('hl-trust').dataset.id === document.getElementById('hl-overlay').dataset.id",
    )
    rows = visit.page.locator(f"{STRIP} dl > div")
    return {each.locator("dt").text_content().strip("✓≈✗· "): each.locator("dd").text_content() for each in rows.all()}


def test_checks_run_automatically_and_curves_show_the_image_at_each_step(first_view: Visit) -> None:
    """tests/saliscope/session/test_trust.py checks the pixel order; this test checks the drawing."""
    visit, page = first_view, first_view.page
    rows = known(visit)
    verdict = page.locator(f"{STRIP} .hl-trust-verdict > span").inner_text()
    assert verdict.startswith("Better than random maps by insertion, not than edge maps or a centered blob; depends on")
    assert rows["Class"].startswith("Depends on the class: rank corr")
    assert "malinois" in rows["Class"] and "classifier" in rows["Weights"]
    page.locator("#hl-trust summary").click()
    expect(page.locator(f"{PLOTS} .hl-band"), "the range of the random maps").to_have_count(2)
    expect(page.locator(f"{LARGE}:visible")).to_have_count(0)
    before = len(visit.requests)
    page.locator(PLOTS).first.focus()
    for _ in range(STEPS // 4 + 1):
        page.keyboard.press("ArrowRight")
    visit.until(f"document.querySelector('{LARGE}')?.dataset.step === '{STEPS // 4}'")
    assert "25% of the pixels deleted: probability 0." in page.locator(".hl-trust-read").first.inner_text()
    grey = f"""() => {{
      const canvas = document.querySelector('{LARGE}'), context = canvas.getContext('2d');
      const d = context.getImageData(0, 0, canvas.width, canvas.height).data;
      let rough = 0;
      for (let p = 4; p < d.length; p += 4) rough += Math.abs(d[p] - d[p - 4]);
      return rough / d.length;
    }}"""
    part = page.evaluate(grey)
    page.keyboard.press("End")
    visit.until(f"document.querySelector('{LARGE}').dataset.step === '{STEPS}'")
    none_left = page.evaluate(grey)
    page.keyboard.press("Home")
    visit.until(f"document.querySelector('{LARGE}').dataset.step === '0'")
    all_there = page.evaluate(grey)
    assert none_left < part / 3 < all_there / 3, "more pixels are blurred at each step"
    page.keyboard.press("Escape")
    expect(page.locator(f"{LARGE}:visible")).to_have_count(0)
    assert visit.requests[before:] == [], "no request is needed"

    page.locator(PLOTS).last.scroll_into_view_if_needed()
    box = page.locator(PLOTS).last.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    visit.until(f"document.querySelector('{LARGE}').dataset.metric === 'insertion'")
    page.mouse.move(2, 2)
    expect(page.locator(f"{LARGE}:visible")).to_have_count(0)


@pytest.mark.slow
def test_a_failed_check_and_a_missing_map_are_explained(visit: Visit) -> None:
    """Guided backpropagation is the paper's example of a map that does not change with randomized weights."""
    page = visit.open("?method=guided_backprop").page
    rows = known(visit)
    assert rows["Class"].startswith("Hardly depends on the class")
    assert rows["Weights"].startswith("Hardly depends on the weights: rank correlation of magnitudes 1.00")
    visit.after(lambda: visit.choose("method", "Random"))
    expect(page.locator(f"{STRIP} [role=status]")).to_contain_text("one of the controls")
    expect(page.locator(f"{STRIP} button:visible")).to_have_count(0)


@pytest.mark.slow
def test_the_old_verdict_is_dimmed_during_a_long_run_which_is_checked_on_request(visit: Visit) -> None:
    page = visit.open().page
    known(visit)
    trust = page.locator("#hl-trust")
    visit.after_partial(lambda: visit.choose("method", "SmoothGrad"))
    expect(trust).to_have_attribute("data-outdated", "dim")
    visit.until("getComputedStyle(document.getElementById('hl-trust')).opacity < 0.5")
    visit.state("done")
    assert trust.get_attribute("data-outdated") in (None, "")

    page.locator(STRIP).get_by_role("button", name="Compare with controls").click()
    rows = known(visit)
    assert rows["Class"] == "Not compared with another class." and "with the map after" not in rows["Weights"]
    page.locator(STRIP).get_by_role("button", name="Randomize weights").click()
    expect(page.locator(f"{STRIP} dl > div:last-child dd")).to_contain_text("with the map after")
    assert "depends on the weights" in known(visit)["Weights"].lower()
