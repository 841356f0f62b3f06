"""Faithfulness checks: the results, the curves, the image at a step, and methods without checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.saliscope.browser.conftest import Visit, expect
from tests.support.two_encoders import STEPS

STRIP = "#hl-trust .hl-trust"
LARGE = "#hl-overlay .hl-trust-large"
PLOTS = "#hl-trust .hl-plot"


def known(visit: Visit) -> None:
    """Wait for the checks of the current map."""
    visit.until(
        f"document.querySelector('{STRIP}')?.dataset.state === 'known' && "
        "document.getElementById('hl-trust').dataset.id === document.getElementById('hl-overlay').dataset.id",
    )


def row(visit: Visit, name: str) -> Any:
    """Return the assertions about a row of the checks."""
    title = visit.page.locator("dt", has_text=name)
    return expect(visit.page.locator(f"{STRIP} dl > div", has=title).locator("dd"))


def test_checks_run_automatically_and_curves_show_the_image_at_each_step(visit: Visit) -> None:
    """tests/saliscope/compute/test_trust.py checks the pixel order; this test checks the drawing."""
    page = visit.open("?method=hires_cam").page
    known(visit)
    expect(page.locator(f"{STRIP} .hl-trust-verdict > span").first).to_contain_text(
        "Better than random maps by insertion, not than edge maps or a centered blob; depends on"
    )
    row(visit, "Class").to_contain_text("Depends on the class: rank corr")
    row(visit, "Class").to_contain_text("malinois")
    row(visit, "Weights").to_contain_text("classifier")
    page.locator("#hl-trust summary").click()
    expect(page.locator(f"{PLOTS} .hl-band"), "the range of the random maps").to_have_count(2)
    expect(page.locator(f"{LARGE}:visible")).to_have_count(0)

    before, rough = len(visit.requests), []
    page.locator(PLOTS).first.focus()
    for key, step in (("End", STEPS), ("Home", 0), ("ArrowRight", 1)):
        page.keyboard.press(key)
        visit.until(f"document.querySelector('{LARGE}')?.dataset.step === '{step}'")
        rough.append(np.abs(np.diff(visit.pixels(LARGE), axis=1)).mean())
    none_left, all_there, part = rough
    assert none_left < part / 3 < all_there / 3, "more pixels are blurred at each step"
    expect(page.locator(".hl-trust-read").first).to_contain_text("25% of the pixels deleted: probability 0.")
    page.keyboard.press("Escape")
    expect(page.locator(f"{LARGE}:visible")).to_have_count(0)
    assert visit.requests[before:] == [], "no request is needed"

    page.locator(PLOTS).last.scroll_into_view_if_needed()
    page.locator(PLOTS).last.hover()
    visit.until(f"document.querySelector('{LARGE}').dataset.metric === 'insertion'")
    page.mouse.move(2, 2)
    expect(page.locator(f"{LARGE}:visible")).to_have_count(0)


@pytest.mark.slow
def test_failed_missing_and_old_checks_are_explained(visit: Visit) -> None:
    """Guided backpropagation is the paper's example of a map that does not change with randomized weights.

    The old verdict is dimmed during a long run, which is checked on request.
    """
    page = visit.open("?method=guided_backprop").page
    known(visit)
    row(visit, "Class").to_contain_text("Hardly depends on the class")
    row(visit, "Weights").to_contain_text("Hardly depends on the weights: rank correlation of magnitudes 1.00")
    visit.after(lambda: visit.choose("method", "Random"))
    expect(page.locator(f"{STRIP} [role=status]")).to_contain_text("one of the controls")
    expect(page.locator(f"{STRIP} button:visible")).to_have_count(0)

    visit.after(lambda: visit.choose("method", "HiResCAM"))
    known(visit)
    visit.after_partial(lambda: visit.choose("method", "SmoothGrad"))
    visit.until("getComputedStyle(document.getElementById('hl-trust')).opacity < 0.5")
    visit.state("done")
    visit.until("getComputedStyle(document.getElementById('hl-trust')).opacity > 0.9")
    page.locator(STRIP).get_by_role("button", name="Compare with controls").click()
    known(visit)
    row(visit, "Class").to_have_text("Not compared with another class.")
    page.locator(STRIP).get_by_role("button", name="Randomize weights").click()
    row(visit, "Weights").to_contain_text("with the map after")
