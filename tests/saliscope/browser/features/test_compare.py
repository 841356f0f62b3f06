"""Compare tab: requests per panel, drawing without requests, keyboard, and layout."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.saliscope.browser.conftest import Visit, expect
from tests.saliscope.browser.test_scripts import spearman
from tests.support import dense_nets


def states(visit: Visit) -> list[str]:
    return visit.page.locator(".hl-compare-panel").evaluate_all("(all) => all.map((panel) => panel.dataset.state)")


def idents(visit: Visit) -> list[str]:
    """Return the ids of the maps in the panels."""
    return visit.page.locator(".hl-compare-panel").evaluate_all("(all) => all.map((panel) => panel.dataset.id)")


def until(visit: Visit, *wanted: str) -> None:
    """Wait until the panels are in these states and none is outdated."""
    visit.until(
        "(wanted) => JSON.stringify([...document.querySelectorAll('.hl-compare-panel')]"
        ".map((p) => p.dataset.old === 'true' ? 'old' : p.dataset.state)) === JSON.stringify(wanted)",
        arg=list(wanted),
    )


def show(visit: Visit) -> Visit:
    """Open the tab and wait for its first two panels."""
    visit.page.get_by_role("tab", name="Compare").click()
    until(visit, "done", "done")
    return visit


def opened(visit: Visit) -> Visit:
    return show(visit.open())


def panel(visit: Visit, letter: str) -> Any:
    return visit.page.get_by_role("region", name=f"Panel {letter}", exact=True)


def pick(visit: Visit, letter: str, name: str, text: str) -> None:
    """Select in a panel's header using only the keyboard."""
    field = panel(visit, letter).get_by_role("combobox", name=name)
    field.focus()
    visit.page.keyboard.press("ArrowDown")
    visit.page.keyboard.press("Control+a")
    visit.page.keyboard.type(text)
    visit.page.keyboard.press("Enter")


def asked(visit: Visit, before: int) -> int:
    """Return the number of requests and cancellations since."""
    return sum("/queue/join" in url for url in visit.requests[before:])


def status_of(visit: Visit, letter: str) -> str:
    return panel(visit, letter).locator(".hl-line").inner_text()


@pytest.mark.slow
def test_panels_follow_the_page_without_duplicate_requests(visit: Visit) -> None:
    opened(visit)
    page = visit.page
    pick(visit, "B", "Layer", "stages.3")
    until(visit, "done", "done")
    assert "at stages.3 of" in status_of(visit, "B")
    own = idents(visit)
    visit.choose("layer", "stages.4 ")  # on the page: only A changes
    visit.until(f"document.querySelector('.hl-compare-panel').dataset.id !== '{own[0]}'")
    until(visit, "done", "done")
    assert "at stages.4 of" in status_of(visit, "A") and idents(visit)[1] == own[1]

    sent = len(visit.requests)
    page.get_by_role("button", name="Duplicate B").click()
    until(visit, "done", "done", "done")
    assert "at stages.3 of" in status_of(visit, "C") and asked(visit, sent) == 0, "the answer is cached"
    pick(visit, "C", "Layer", "Same as page")
    pick(visit, "C", "Class", "goldfish")
    until(visit, "done", "done", "done")
    page.get_by_role("tab", name="Explain").click()
    visit.example("cat")
    until(visit, "old", "old", "old")
    sent = len(visit.requests)
    page.wait_for_timeout(300)  # nothing must happen
    assert asked(visit, sent) == 0, "no request while another tab is selected"
    page.get_by_role("tab", name="Compare").click()
    until(visit, "done", "done", "done")
    assert asked(visit, sent) == 2, "A and C share one request"
    lines = [status_of(visit, letter) for letter in "ABC"]
    assert all("tiger cat" in lines[k] for k in (0, 2)) and "Egyptian cat" in lines[1], "the classes are reset"


def test_drawing_and_reading_need_no_request(first_view: Visit) -> None:
    visit, page = show(first_view), first_view.page
    sent = len(visit.requests)
    before = panel(visit, "A").locator("canvas").first.screenshot()
    ends = "[...document.querySelectorAll('.hl-compare-panel .hl-ends')].map((e) => e.lastChild.textContent)"
    assert (
        page.get_by_role("radio", name="Shared", include_hidden=True).is_checked()
        and len(set(page.evaluate(ends))) == 1
    )
    page.locator("#hl-compare .hl-popover > button").click()
    page.get_by_role("radio", name="Per panel").check()
    assert len(set(page.evaluate(ends))) == 2
    page.locator("#hl-compare select[name=colors]").select_option("viridis")
    page.locator("#hl-compare input[name=smooth]").uncheck()
    page.locator("#hl-compare input[name=opacity]").fill("40")  # outside the popover, which it closes
    assert panel(visit, "A").locator("canvas").first.screenshot() != before

    panel(visit, "B").locator("canvas").first.hover(position={"x": 60, "y": 90})
    reads = page.locator("#hl-compare .hl-compare-read").all_inner_texts()
    places = {re.sub(r".* at ", "", text) for text in reads}
    assert len(reads) == 3 and len(places) == 1 and re.fullmatch(r"row \d, column \d of 7 × 7", places.pop())
    a, b, difference = (float(text.split()[0].replace("−", "-")) for text in reads)
    assert difference == pytest.approx(a - b, abs=2e-3) and all(" logit at " in text for text in reads)
    panel(visit, "A").locator("canvas").first.focus()
    page.keyboard.press("ArrowDown")
    moved = page.locator("#hl-compare .hl-compare-read").all_inner_texts()
    assert moved != reads and len({re.sub(r".* at ", "", text) for text in moved}) == 1

    page.get_by_role("button", name="Swap: B − A").click()
    page.get_by_role("heading", name="Difference B − A").wait_for()
    page.get_by_role("radio", name=re.compile("A and B")).filter(
        has_text=re.compile(r"ρ = .* over 49 cells")
    ).wait_for()
    assert [url for url in visit.requests[sent:] if not url.startswith("blob:")] == []


@pytest.mark.slow
def test_slow_methods_show_partial_maps_and_one_stop_cancels_them(visit: Visit) -> None:
    page = opened(visit).page
    page.get_by_role("button", name="Add panel").click()
    until(visit, "done", "done", "done")
    assert "Grad-CAM for kelpie" in status_of(visit, "C"), "the next likely class"
    pick(visit, "B", "Method", "RISE")
    page.locator(".hl-compare-panel[data-state=busy][data-old=false] canvas").first.wait_for()
    pick(visit, "A", "Method", "LayerCAM")
    until(visit, "done", "busy", "done")
    assert "LayerCAM for" in status_of(visit, "A"), "a fast request is answered first"
    stop = page.locator("#hl-compare").get_by_role("button", name="Stop")
    assert re.search(r"RISE: \d+%", status_of(visit, "B")) and stop.is_enabled()

    stop.click()
    until(visit, "done", "stopped", "done")
    assert "stopped at" in status_of(visit, "B") and stop.is_disabled()
    ident, sent = idents(visit), len(visit.requests)
    page.wait_for_timeout(700)  # nothing must happen
    assert idents(visit) == ident and asked(visit, sent) == 0

    page.get_by_role("button", name="Remove B").press("Enter")
    until(visit, "done", "done")
    assert page.evaluate("document.activeElement.title") == "Remove"


@pytest.mark.slow
def test_panels_do_not_wait_for_the_page_and_are_in_the_address(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    hostile = "%3Cimg+src%3Dx+onerror%3D%22window.__xss%3D1%22%3E"
    panels = f"panel1=method%3Dlayer_cam%26target%3Dtabby&panel2=page&panel3=method%3D{hostile}"
    page.goto(f"{visit.address}/?example=cat&tab=compare&method=rise&{panels}&drawn=limits%3Dfree%26opacity%3D70")
    until(visit, "done", "old", "refused")
    page.locator(".hl-compare-says", has_text="Waiting for your other run, about").wait_for()
    assert "RISE" in visit.status and "%" in visit.status, "the page's run continues"
    assert "LayerCAM for tabby" in status_of(visit, "A")
    refusal = panel(visit, "C").locator(".hl-compare-says").inner_text()
    assert refusal.startswith("Unknown method “<img src=x") and page.evaluate("window.__xss") is None
    page.locator("#hl-stop").click()
    page.locator(".hl-compare-panel[data-state=busy][data-old=false] canvas").first.wait_for()
    page.locator("#hl-compare").get_by_role("button", name="Stop").click()
    until(visit, "done", "stopped", "refused")

    assert page.locator("#hl-compare input[name=opacity]").input_value() == "70"
    assert page.get_by_role("radio", name="Per panel", include_hidden=True).is_checked()
    page.get_by_role("button", name="Remove C").click()
    pick(visit, "B", "Method", "Grad-CAM")
    until(visit, "done", "done")
    visit.until("location.search.includes('panel2=method%3Dgrad_cam') && !location.search.includes('panel3')")
    with zipfile.ZipFile(visit.saved("Bundle", "#hl-compare")) as found:
        about = json.loads(found.read("bundle.json"))
        rho = json.loads(found.read("correlations.json"))[0]["spearman"]["rho"]
        maps = [np.load(io.BytesIO(found.read(f"{letter}/map.npy"))) for letter in "AB"]
        difference = np.load(io.BytesIO(found.read("difference-A-B.npy")))
    assert [each["question"]["method"] for each in about["maps"]] == ["layer_cam", "grad_cam"]
    assert rho == pytest.approx(spearman(*(each.ravel() for each in maps)), abs=1e-12)
    assert np.allclose(difference, maps[0] - maps[1], atol=1e-6)


@pytest.mark.slow
def test_all_model_types_can_be_compared(visit: Visit, tmp_path: Path) -> None:
    dense_nets.scene().save(tmp_path / "scene.png")
    visit.open()
    visit.after(lambda: visit.upload(tmp_path / "scene.png"))
    page = show(visit).page
    pick(visit, "A", "Model", "Blobs · detection")
    pick(visit, "B", "Model", "Blobs · segmentation")
    until(visit, "done", "done")
    assert "HiResCAM for red blob (" in status_of(visit, "A") and "for green blob (" in status_of(visit, "B")
    pick(visit, "A", "Object", "red blob#2")
    until(visit, "done", "done")
    page.get_by_role("button", name="Duplicate A").press("Enter")
    pick(visit, "C", "Model", "Same as page")
    until(visit, "done", "done", "done")
    assert "EfficientNet" in status_of(visit, "C") and "red blob#2" in status_of(visit, "B")
    facts = page.locator(".hl-compare-facts dl")
    expect(facts).to_contain_text("the part of the image that both models receive")
    expect(facts).to_contain_text("the units differ (score; logit), so each map is divided by its largest")
    notes = page.locator(".hl-compare-panel .hl-compare-range").all_inner_texts()
    assert notes == ["Same color range: A, B"] * 2 + ["Own color range"], "C has another model"
    pick(visit, "C", "Method", "D-RISE")
    panel(visit, "C").get_by_role("combobox", name="Method").press("Escape")
    assert states(visit)[2] == "done", "methods that are not listed do not count"


@pytest.mark.slow
def test_all_maps_and_a_difference_are_in_one_window_and_fit_every_width(window: Any) -> None:
    visit = opened(window(1440, color_scheme="dark"))
    page = visit.page
    for count in (2, 3, 4):
        if count > 2:
            page.get_by_role("button", name="Add panel").click()
        until(visit, *["done"] * count)
        visit.until("!document.querySelector('.hl-compare-pair').hidden")
        page.evaluate("scrollTo(0, 0)")
        last, pair = (page.locator(name).last.bounding_box() for name in (".hl-compare-panel", ".hl-compare-pair"))
        right, below = pair["x"] > last["x"] + last["width"], pair["y"] >= last["y"] + last["height"]
        assert (right if count < 4 else below) and pair["y"] + pair["height"] <= 900
    assert page.get_by_role("button", name="Add panel").is_disabled()
    places = "[...document.querySelectorAll('.hl-compare-frame')].slice(0, 4).map((f) => f.getBoundingClientRect().x)"
    for width, columns in ((390, 1), (768, 2), (2560, 4)):
        page.set_viewport_size({"width": width, "height": 900})
        visit.until(f"new Set({places}.map(Math.round)).size === {columns}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    line, own = panel(visit, "A").locator(".hl-line"), panel(visit, "A")
    above = line.bounding_box()["y"] - own.bounding_box()["y"]
    own.locator("canvas").first.hover(position={"x": 100, "y": 100})
    expect(own.locator(".hl-compare-read")).to_contain_text("of 7 × 7")
    assert line.bounding_box()["y"] - own.bounding_box()["y"] == above, "reading moves nothing"


@pytest.mark.slow
def test_removing_the_image_stops_the_comparison(visit: Visit) -> None:
    page = visit.open("?method=rise").page
    page.get_by_role("tab", name="Compare").click()
    page.locator(".hl-compare-panel[data-state=busy]").first.wait_for()
    page.locator("#hl-image button[aria-label='Remove Image']").first.click()
    visit.until("!document.querySelector('.hl-compare-panel[data-state=busy]')")
    expect(page.locator("#hl-compare").get_by_role("button", name="Stop")).to_be_disabled()
