"""Compare view: requests per panel, drawing without requests, keyboard, and layout."""

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

BUSY = ".hl-compare-panel[data-state=busy][data-old=false] canvas"


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


def show(visit: Visit) -> Any:
    """Open the view and wait for its first two panels."""
    visit.page.get_by_role("tab", name="Compare").click()
    until(visit, "done", "done")
    return visit.page


def panel(visit: Visit, letter: str) -> Any:
    return visit.page.get_by_role("region", name=f"Panel {letter}", exact=True)


def line(visit: Visit, letter: str) -> Any:
    """Return the assertions about the status of a panel."""
    return expect(panel(visit, letter).locator(".hl-line"))


def pick(visit: Visit, letter: str, name: str, text: str) -> None:
    """Select in a panel's header using only the keyboard."""
    panel(visit, letter).get_by_role("combobox", name=name).focus()
    for key in ("ArrowDown", "Control+a"):
        visit.page.keyboard.press(key)
    visit.page.keyboard.type(text)
    visit.page.keyboard.press("Enter")


@pytest.mark.slow
def test_panels_follow_the_page_without_duplicate_requests(visit: Visit) -> None:
    page = show(visit.open())
    pick(visit, "B", "Layer", "stages.3")
    line(visit, "B").to_contain_text("at stages.3 of")
    until(visit, "done", "done")
    own = idents(visit)
    visit.choose("layer", "stages.4 ")  # on the page: only A changes
    line(visit, "A").to_contain_text("at stages.4 of")
    until(visit, "done", "done")
    assert idents(visit)[1] == own[1] and idents(visit)[0] != own[0]

    sent = len(visit.requests)
    page.get_by_role("button", name="Duplicate B").click()
    until(visit, "done", "done", "done")
    line(visit, "C").to_contain_text("at stages.3 of")
    assert visit.sent(sent, "/queue/join") == [], "the answer is cached"
    pick(visit, "C", "Layer", "Same as page")
    pick(visit, "C", "Class", "goldfish")
    until(visit, "done", "done", "done")
    page.get_by_role("tab", name="Explain").click()
    visit.example("cat")
    until(visit, "old", "old", "old")
    sent = len(visit.requests)
    page.wait_for_timeout(300)  # nothing must happen
    assert visit.sent(sent, "/queue/join") == [], "no request while another tab is selected"
    page.get_by_role("tab", name="Compare").click()
    until(visit, "done", "done", "done")
    for letter, name in zip("ABC", ("tiger cat", "Egyptian cat", "tiger cat"), strict=True):
        line(visit, letter).to_contain_text(name)  # the classes are reset
    assert len(visit.sent(sent, "/queue/join")) == 2, "A and C share one request"


@pytest.mark.slow
def test_a_class_is_compared_with_the_runner_up_of_the_next_image(visit: Visit) -> None:
    page = visit.open().page
    page.locator(".hl-next").click()
    until(visit, "done", "done")
    visit.example("coffee")
    until(visit, "done", "done")
    line(visit, "A").to_contain_text("for espresso")
    line(visit, "B").to_contain_text("for cup")


def test_drawing_and_reading_need_no_request(visit: Visit) -> None:
    page = show(visit.open("?model=bands3"))
    sent, before = len(visit.requests), panel(visit, "A").locator("canvas").first.screenshot()
    ends = "[...document.querySelectorAll('.hl-compare-panel .hl-ends')].map((e) => e.lastChild.textContent)"
    assert len(set(page.evaluate(ends))) == 1
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
    assert len(reads) == 3 and len(places) == 1 and re.fullmatch(r"row \d+, column \d+ of 16 × 16", places.pop())
    a, b, difference = (float(text.split()[0].replace("−", "-")) for text in reads)
    assert difference == pytest.approx(a - b, abs=2e-3) and all(" logit at " in text for text in reads)
    panel(visit, "A").locator("canvas").first.focus()
    page.keyboard.press("ArrowDown")
    moved = page.locator("#hl-compare .hl-compare-read").all_inner_texts()
    assert moved != reads and len({re.sub(r".* at ", "", text) for text in moved}) == 1
    page.get_by_role("button", name="Swap: B − A").click()
    page.get_by_role("heading", name="Difference B − A").wait_for()
    page.get_by_role("radio", name=re.compile("A and B")).filter(has_text=re.compile("ρ = .* over 256")).wait_for()
    assert visit.sent(sent) == []


@pytest.mark.slow
def test_slow_methods_show_partial_maps_and_one_stop_cancels_them(visit: Visit) -> None:
    """So does the removal of the image."""
    page = show(visit.open())
    page.get_by_role("button", name="Add panel").click()
    until(visit, "done", "done", "done")
    line(visit, "C").to_contain_text("Grad-CAM for kelpie")  # the next likely class
    pick(visit, "B", "Method", "RISE")
    page.locator(BUSY).first.wait_for()
    pick(visit, "A", "Method", "LayerCAM")
    until(visit, "done", "busy", "done")  # a fast request is answered first
    line(visit, "A").to_contain_text("LayerCAM for")
    line(visit, "B").to_contain_text(re.compile(r"RISE: \d+%"))
    stop = page.locator("#hl-compare").get_by_role("button", name="Stop")
    stop.click()
    until(visit, "done", "stopped", "done")
    line(visit, "B").to_contain_text("stopped at")
    expect(stop).to_be_disabled()
    ident, sent = idents(visit), len(visit.requests)
    page.wait_for_timeout(700)  # nothing must happen
    assert idents(visit) == ident and visit.sent(sent, "/queue/join") == []

    page.get_by_role("button", name="Remove B").press("Enter")
    until(visit, "done", "done")
    assert page.evaluate("document.activeElement.title") == "Remove"
    pick(visit, "B", "Method", "RISE")
    page.locator(BUSY).first.wait_for()
    page.locator("#hl-image .hl-image-remove").first.click()
    expect(page.locator(".hl-compare-panel[data-state=busy]")).to_have_count(0)
    expect(stop).to_be_disabled()


@pytest.mark.slow
def test_panels_do_not_wait_for_the_page_and_are_in_the_address(visit: Visit) -> None:
    page = visit.page
    hostile = "%3Cimg+src%3Dx+onerror%3D%22window.__xss%3D1%22%3E"
    panels = f"panel1=method%3Dlayer_cam%26target%3Dtabby&panel2=page&panel3=method%3D{hostile}&pair=C-B"
    page.goto(f"{visit.address}/?example=cat&tab=compare&method=rise&{panels}&drawn=limits%3Dfree%26opacity%3D70")
    until(visit, "done", "old", "refused")
    page.locator(".hl-compare-says", has_text="Waiting for your other run, about").wait_for()
    assert "RISE" in visit.status and "%" in visit.status, "the page's run continues"
    line(visit, "A").to_contain_text("LayerCAM for tabby")
    expect(panel(visit, "C").locator(".hl-compare-says")).to_contain_text("Unknown method “<img src=x")
    assert page.evaluate("window.__xss") is None
    difference = page.locator(".hl-compare-pair").get_by_role("heading").first
    expect(difference).to_have_text("Difference C − B")
    page.get_by_role("button", name="Swap").click()
    visit.until("location.search.includes('pair=B-C')")
    page.locator("#hl-stop").click()
    page.locator(BUSY).first.wait_for()
    page.locator("#hl-compare").get_by_role("button", name="Stop").click()
    until(visit, "done", "stopped", "refused")

    expect(page.locator("#hl-compare input[name=opacity]")).to_have_value("70")
    expect(page.get_by_role("radio", name="Per panel", include_hidden=True)).to_be_checked()
    page.get_by_role("button", name="Remove C").click()
    pick(visit, "B", "Method", "Grad-CAM")
    until(visit, "done", "done")
    expect(difference).to_have_text("Difference A − B")
    visit.until("!location.search.includes('pair=')")
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
    page = show(visit)
    pick(visit, "A", "Model", "Blobs · detection")
    pick(visit, "B", "Model", "Blobs · segmentation")
    line(visit, "A").to_contain_text("HiResCAM for red blob (")
    line(visit, "B").to_contain_text("for green blob (")
    pick(visit, "A", "Object", "red blob#2")
    until(visit, "done", "done")
    page.get_by_role("button", name="Duplicate A").press("Enter")
    pick(visit, "C", "Model", "Same as page")
    until(visit, "done", "done", "done")
    line(visit, "C").to_contain_text("EfficientNet")
    line(visit, "B").to_contain_text("red blob#2")
    facts = page.locator(".hl-compare-facts dl")
    expect(facts).to_contain_text("the part of the image that both models receive")
    expect(facts).to_contain_text("the units differ (score; logit), so each map is divided by its largest")
    notes = page.locator(".hl-compare-panel .hl-compare-range")
    expect(notes).to_have_text(["Same color range: A, B"] * 2 + ["Own color range"])  # C has another model
