"""Faithfulness checks: the results, the curves, the image at a step, and methods without checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.saliscope.browser.conftest import PATIENCE, Visit, expect
from tests.support.two_encoders import STEPS

STRIP = "#hl-trust .hl-trust"
LARGE = "#hl-overlay .hl-trust-large"
PLOTS = "#hl-trust .hl-plot"


def known(visit: Visit, method: str = "") -> dict[str, str]:
    """Wait for the checks of the current map and return the rows by name."""
    visit.page.wait_for_function(
        f"document.querySelector('{STRIP}')?.dataset.state === 'known' && "
        f"document.getElementById('hl-trust').dataset.id === document.getElementById('hl-overlay').dataset.id",
        timeout=PATIENCE,
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
    assert rows["Controls"].startswith("Deletion 0.2") and "better than" in rows["Controls"]
    assert "malinois" in rows["Class"] and "classifier" in rows["Weights"]
    page.locator("#hl-trust summary").click()
    expect(page.locator(f"{PLOTS} .hl-band"), "the range of the random maps").to_have_count(2)
    expect(page.locator(PLOTS)).to_have_count(2)
    expect(page.locator(f"{LARGE}:visible")).to_have_count(0)
    before = len(visit.requests)
    page.locator(PLOTS).first.focus()
    for _ in range(STEPS // 4 + 1):
        page.keyboard.press("ArrowRight")
    page.wait_for_function(f"document.querySelector('{LARGE}')?.dataset.step === '{STEPS // 4}'")
    assert "25% of the pixels deleted: probability 0." in page.locator(".hl-trust-read").first.inner_text()
    assert page.locator(".hl-trust-chip").inner_text() == "25% of the pixels deleted"
    agree = page.evaluate(
        """async () => {
          const { blurredPixels } = await import(new URL('hl/trust/steps.js', document.baseURI));
          const order = Uint8Array.from([1, 2, 2, 3, 20]);
          return [blurredPixels(order, 'deletion', 2), blurredPixels(order, 'insertion', 2),
            blurredPixels(order, 'deletion', 20),
            blurredPixels(order, 'insertion', 20)].map((each) => [...each]);
        }"""
    )
    assert agree == [[1, 1, 1, 0, 0], [0, 0, 0, 1, 1], [1] * 5, [0] * 5]
    grey = f"""() => {{
      const canvas = document.querySelector('{LARGE}'), context = canvas.getContext('2d');
      const d = context.getImageData(0, 0, canvas.width, canvas.height).data;
      let rough = 0;
      for (let p = 4; p < d.length; p += 4) rough += Math.abs(d[p] - d[p - 4]);
      return rough / d.length;
    }}"""
    part = page.evaluate(grey)
    page.keyboard.press("End")
    page.wait_for_function(f"document.querySelector('{LARGE}').dataset.step === '{STEPS}'")
    none_left = page.evaluate(grey)
    page.keyboard.press("Home")
    page.wait_for_function(f"document.querySelector('{LARGE}').dataset.step === '0'")
    all_there = page.evaluate(grey)
    assert none_left < part / 3 < all_there / 3, "more pixels are blurred at each step"
    page.keyboard.press("Escape")
    expect(page.locator(f"{LARGE}:visible")).to_have_count(0)
    assert visit.requests[before:] == [], "no request is needed"

    page.locator(PLOTS).last.scroll_into_view_if_needed()
    box = page.locator(PLOTS).last.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    page.wait_for_function(f"document.querySelector('{LARGE}').dataset.metric === 'insertion'")
    page.mouse.move(2, 2)
    expect(page.locator(f"{LARGE}:visible")).to_have_count(0)


@pytest.mark.slow
def test_a_failed_check_and_a_missing_map_are_explained(visit: Visit) -> None:
    """Guided backpropagation is the paper's example of a map that does not change with randomized weights."""
    page = visit.open("?method=guided_backprop").page
    rows = known(visit)
    assert rows["Class"].startswith("Hardly depends on the class")
    assert rows["Weights"].startswith("Hardly depends on the weights: rank correlation of magnitudes 1.00")
    page.locator(f"{STRIP} summary").click()

    visit.after(lambda: visit.choose("method", "Random"))
    page.wait_for_function(f"document.querySelector('{STRIP}').dataset.state === 'none'")
    assert "one of the controls" in page.locator(f"{STRIP} [role=status]").inner_text()
    expect(page.locator(f"{STRIP} button:visible")).to_have_count(0)
    assert page.locator("#hl-trust").bounding_box()["height"] < 150, "the open curves leave no hole"


@pytest.mark.slow
def test_a_slow_method_is_checked_and_randomized_on_request(visit: Visit) -> None:
    page = visit.open("?method=smooth_grad&options=" + '{"samples":3}').page
    page.locator(STRIP).get_by_role("button", name="Compare with controls").click()
    rows = known(visit)
    assert rows["Class"] == "Not compared with another class." and "with the map after" not in rows["Weights"]

    page.locator(STRIP).get_by_role("button", name="Randomize weights").click()
    page.wait_for_function(
        f"document.querySelector('{STRIP} dl > div:last-child dd').textContent.includes('with the map after')"
    )
    assert "depends on the weights" in known(visit)["Weights"].lower()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 768, 2560])
def test_it_fits_and_does_not_shift_the_layout(browser, app: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="dark")
    visit = Visit(context.new_page(), app)
    page = visit.page
    page.add_init_script(
        "window.moved = 0; new PerformanceObserver((list) => { for (const each of list.getEntries()) "
        "for (const source of each.sources) if (source.node?.closest?.('#hl-strip')) window.moved += each.value; })"
        ".observe({type: 'layout-shift', buffered: true});"
    )
    visit.open("?method=saliency")
    page.evaluate("window.moved = 0")
    known(visit)

    assert page.evaluate("window.moved") < 0.01
    page.locator("#hl-trust summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    names = page.locator(f"{PLOTS} .hl-line-name")
    names.first.wait_for()
    expect(names, "each line is labeled").to_have_count(8)
    visit.check()
    context.close()


@pytest.mark.slow
def test_what_the_page_says_about_the_last_map_is_dimmed_or_hidden(visit: Visit, tmp_path: Path) -> None:
    """During a long run the old verdict is dimmed; next to an image that was refused, nothing of the last one stays."""
    page = visit.open().page
    known(visit)
    marks = "['hl-bars', 'hl-guide', 'hl-trust'].map((id) => document.getElementById(id).dataset.outdated || '')"
    assert page.evaluate(marks) == ["", "", ""]

    page.goto(page.url)
    known(visit)
    visit.after_partial(lambda: visit.choose("method", "RISE"))
    assert page.evaluate("document.getElementById('hl-trust').dataset.outdated") == "dim"
    page.wait_for_function("getComputedStyle(document.getElementById('hl-trust')).opacity < 0.5")
    page.locator("#hl-stop").click()
    page.wait_for_function("document.documentElement.dataset.hlState === 'stopped'")
    assert page.evaluate(marks) == ["", "", ""]

    (tmp_path / "drawing.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>", encoding="utf-8")
    page.locator("#hl-image input[type=file]").first.set_input_files(tmp_path / "drawing.svg")
    page.wait_for_function("document.documentElement.dataset.hlState === 'error'")
    assert page.evaluate(marks) == ["gone"] * 3 and not page.locator("#hl-bars").is_visible()
    visit.after(lambda: page.locator("#hl-examples button").nth(2).click())
    assert page.evaluate(marks) == ["", "", ""]


@pytest.mark.slow
def test_removing_the_image_stops_the_comparison(visit: Visit) -> None:
    page = visit.open("?method=rise").page
    page.get_by_role("tab", name="Compare").click()
    page.locator(".hl-compare-panel[data-state=busy]").first.wait_for()
    page.locator("#hl-image button[aria-label='Remove Image']").first.click()
    page.wait_for_function("!document.querySelector('.hl-compare-panel[data-state=busy]')")
    assert page.locator("#hl-compare").get_by_role("button", name="Stop").is_disabled()
