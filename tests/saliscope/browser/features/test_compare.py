"""Compare tab: requests per panel, drawing without requests, keyboard, and statistics.

The app is served with the two blob networks of tests/support/dense_nets.py.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.saliscope.browser.conftest import PATIENCE, Visit, served
from tests.support import dense_nets


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("compare"), "-m", "tests.support.dense_nets") as found:
        yield found


def states(visit: Visit) -> list[str]:
    return visit.page.evaluate("[...document.querySelectorAll('.hl-compare-panel')].map((p) => p.dataset.state)")


def idents(visit: Visit) -> list[str]:
    """Return the ids of the maps in the panels."""
    return visit.page.evaluate("[...document.querySelectorAll('.hl-compare-panel')].map((p) => p.dataset.id)")


def until(visit: Visit, *wanted: str) -> None:
    """Wait until the panels are in these states and none is outdated."""
    visit.page.wait_for_function(
        "(wanted) => JSON.stringify([...document.querySelectorAll('.hl-compare-panel')]"
        ".map((p) => p.dataset.old === 'true' ? 'old' : p.dataset.state)) === JSON.stringify(wanted)",
        arg=list(wanted),
        timeout=PATIENCE,
    )


def opened(visit: Visit, query: str = "") -> Visit:
    """Open the tab and wait for its first two panels."""
    visit.open(query)
    visit.page.get_by_role("tab", name="Compare").click()
    until(visit, "done", "done")
    return visit


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
    assert "for German shepherd" in status_of(visit, "A") and "for malinois" in status_of(visit, "B")
    first = idents(visit)
    pick(visit, "B", "Layer", "stages.3")
    until(visit, "done", "done")
    assert "at stages.3 of" in status_of(visit, "B") and idents(visit)[0] == first[0] != idents(visit)[1]

    own = idents(visit)
    visit.choose("layer", "stages.4 ")  # on the page: only A changes
    page.wait_for_function(f"document.querySelector('.hl-compare-panel').dataset.id !== '{own[0]}'", timeout=PATIENCE)
    until(visit, "done", "done")
    assert "at stages.4 of" in status_of(visit, "A") and idents(visit)[1] == own[1]

    sent = len(visit.requests)
    page.get_by_role("button", name="Duplicate B").click()
    until(visit, "done", "done", "done")
    assert "at stages.3 of" in status_of(visit, "C") and asked(visit, sent) == 0, "the answer is cached"
    pick(visit, "C", "Layer", "Same as page")
    pick(visit, "C", "Class", "Top prediction")
    until(visit, "done", "done", "done")
    assert status_of(visit, "C").split(" · ")[0] == status_of(visit, "A").split(" · ")[0]

    pick(visit, "C", "Class", "goldfish")
    until(visit, "done", "done", "done")
    page.get_by_role("tab", name="Explain").click()
    visit.after(lambda: page.locator("#hl-examples button[data-id=cat]").click())
    until(visit, "old", "old", "old")
    sent = len(visit.requests)
    page.wait_for_timeout(300)
    assert asked(visit, sent) == 0, "no request while another tab is selected"
    page.get_by_role("tab", name="Compare").click()
    until(visit, "done", "done", "done")
    assert asked(visit, sent) == 2, "A and C share one request"
    lines = [status_of(visit, letter) for letter in "ABC"]
    assert all("tiger cat" in lines[k] for k in (0, 2)) and "Egyptian cat" in lines[1], "the classes are reset"


@pytest.mark.slow
def test_drawing_and_reading_need_no_request(visit: Visit) -> None:
    opened(visit)
    page = visit.page
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
    opened(visit)
    page = visit.page
    page.get_by_role("button", name="Add panel").click()
    until(visit, "done", "done", "done")
    assert "Grad-CAM for kelpie" in status_of(visit, "C"), "the next likely class"
    pick(visit, "B", "Method", "RISE")
    page.locator(".hl-compare-panel[data-state=busy][data-old=false] canvas").first.wait_for()
    pick(visit, "A", "Method", "LayerCAM")
    until(visit, "done", "busy", "done")
    assert "LayerCAM for" in status_of(visit, "A"), "a fast request is answered first"
    own = page.locator("#hl-compare").get_by_role("button", name="Stop")
    assert re.search(r"RISE: \d+%", status_of(visit, "B")) and own.is_enabled()

    page.locator("#hl-compare").get_by_role("button", name="Stop").click()
    until(visit, "done", "stopped", "done")
    assert "stopped at" in status_of(visit, "B")
    ident, sent = idents(visit), len(visit.requests)
    page.wait_for_timeout(700)
    assert states(visit) == ["done", "stopped", "done"] and idents(visit) == ident and asked(visit, sent) == 0
    assert page.locator("#hl-compare").get_by_role("button", name="Stop").is_disabled()
    assert "different units" not in page.locator("#hl-compare .hl-compare-note").inner_text()

    page.get_by_role("button", name="Remove B").press("Enter")
    assert states(visit) == ["done", "done"] and page.evaluate("document.activeElement.title") == "Remove"
    page.get_by_role("button", name="Compare top two classes").press("Enter")
    until(visit, "done", "done")
    assert "for German shepherd" in status_of(visit, "A") and "for malinois" in status_of(visit, "B")


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
    page.wait_for_function(
        "location.search.includes('panel2=method%3Dgrad_cam') && !location.search.includes('panel3')"
    )
    page.locator("#hl-compare").get_by_role("button", name="Save", exact=True).click()
    with page.expect_download() as kept:
        page.get_by_role("button", name="Bundle").click()
    with zipfile.ZipFile(kept.value.path()) as found:
        about = json.loads(found.read("bundle.json"))
        rho = json.loads(found.read("correlations.json"))[0]["spearman"]["rho"]
        maps = [np.load(io.BytesIO(found.read(f"{letter}/map.npy"))) for letter in "AB"]
        difference = np.load(io.BytesIO(found.read("difference-A-B.npy")))
    assert [each["question"]["method"] for each in about["maps"]] == ["layer_cam", "grad_cam"]
    assert rho == pytest.approx(reference(*(each.ravel() for each in maps)), abs=1e-12)
    assert np.allclose(difference, maps[0] - maps[1], atol=1e-6)


@pytest.mark.slow
def test_all_model_types_can_be_compared(visit: Visit, tmp_path: Path) -> None:
    dense_nets.scene().save(tmp_path / "scene.png")
    visit.open()
    visit.after(lambda: visit.upload(tmp_path / "scene.png"))
    page = visit.page
    page.get_by_role("tab", name="Compare").click()
    until(visit, "done", "done")
    pick(visit, "A", "Model", "Blobs · detection")
    pick(visit, "B", "Model", "Blobs · segmentation")
    until(visit, "done", "done")
    assert "HiResCAM for red blob (" in status_of(visit, "A") and "for green blob (" in status_of(visit, "B")
    pick(visit, "A", "Object", "red blob#2")
    until(visit, "done", "done")
    assert "for red blob#2 (" in status_of(visit, "A")
    page.get_by_role("button", name="Duplicate A").press("Enter")
    pick(visit, "C", "Model", "Same as page")
    until(visit, "done", "done", "done")
    assert "EfficientNet" in status_of(visit, "C") and "red blob#2" in status_of(visit, "B")
    facts = page.locator(".hl-compare-facts dl")
    facts.filter(has_text="the part of the image that both models receive").wait_for()
    assert "the units differ (score; logit), so each map is divided by its largest" in facts.inner_text()
    notes = page.locator(".hl-compare-panel .hl-compare-range").all_inner_texts()
    assert notes == ["Same color range: A, B"] * 2 + ["Own color range"], "C has another model"

    pick(visit, "C", "Method", "D-RISE")
    panel(visit, "C").get_by_role("combobox", name="Method").press("Escape")
    assert states(visit)[2] == "done", "methods that are not listed do not count"
    sizes = page.evaluate(
        "[...document.querySelectorAll('.hl-compare-frame')].map((f) => f.clientWidth === f.clientHeight)"
    )
    assert all(sizes)


def reference(a: np.ndarray, b: np.ndarray) -> float | None:
    """Compute Spearman's correlation in float64: Pearson's correlation of ranks by counting, with ties averaged."""
    both = np.isfinite(a) & np.isfinite(b)
    a, b = a[both].astype(np.float64), b[both].astype(np.float64)
    ranks = [np.array([((v < x).sum() + (v <= x).sum() + 1) / 2 for x in v]) for v in (a, b)]
    p, q = (each - each.mean() for each in ranks)
    size = np.sqrt((p @ p) * (q @ q)) if len(a) > 1 else 0
    return float(p @ q / size) if size else None


@pytest.mark.slow
def test_statistics_match_a_slow_reference(visit: Visit) -> None:
    """Oracles: ranks by counting in float64, and differences computed by hand."""
    visit.open()
    generator = np.random.default_rng(3)
    normal, ties = generator.normal(size=(40, 2)), generator.integers(0, 4, size=(60, 2)).astype(float)
    holes = generator.normal(size=(30, 2))
    holes[[3, 9], [0, 1]] = np.nan, np.inf
    constant = np.stack([np.full(9, 2.5), np.arange(9.0)], 1)
    cases = [normal, ties, holes, constant, np.ones((5, 2)), np.zeros((1, 2)), normal[:, [0, 0]] * [1, -3]]
    found = visit.page.evaluate(
        "async (cases) => { const { spearman } = await import(new URL('hl/compare/statistics.js', document.baseURI));"
        "const read = (v) => v.map((x) => x === null ? NaN : x === 'inf' ? Infinity : x);"
        "return cases.map(([a, b]) => spearman({ a: Float64Array.from(read(a)), b: Float64Array.from(read(b)) })); }",
        [[[None if np.isnan(v) else "inf" if np.isinf(v) else v for v in side] for side in case.T] for case in cases],
    )
    for case, result in zip(cases, found, strict=True):
        wanted = reference(case[:, 0], case[:, 1])
        assert result["rho"] == (wanted if wanted is None else pytest.approx(wanted, abs=1e-12)), result
    assert [each["constant"] for each in found] == [0, 0, 0, 1, 2, 0, 0] and found[2]["cells"] == 28

    grids = visit.page.evaluate(
        "async () => {"
        "const { align, difference } = await import(new URL('hl/compare/statistics.js', document.baseURI));"
        "const map = (h, w, values, box) => ({ h, w, values: Float32Array.from(values), box });"
        "const small = map(1, 2, [0, 4]), large = map(2, 4, [1, 2, 3, 4, 5, 6, 7, -8]);"
        "const left = map(2, 2, [1, 2, 3, 4], [0, 0, .5, 1]), right = map(2, 2, [1, 2, 3, 4], [.5, 0, 1, 1]);"
        "const ramp = map(1, 4, [0, 1, 2, 3]), half = map(1, 2, [10, 20], [.25, 0, .75, 1]);"
        "const one = align(small, large), cut = align(ramp, half);"
        "return [[one.h, one.w], [...one.b], [...one.a], [...difference(one, false)], [...difference(one, true)],"
        "align(left, right), [cut.h, cut.w, ...cut.box], [...cut.a], [...cut.b]]; }"
    )
    size, exact, grown, plain, scaled, apart, cut, ramp, half = grids
    assert size == [2, 4] and exact == [1, 2, 3, 4, 5, 6, 7, -8], "the finer map is not resampled"
    assert grown[:4] == grown[4:] and grown[0] == 0 and grown[3] == 4 and grown[0] < grown[1] < grown[2] < grown[3]
    assert plain == pytest.approx([a - b for a, b in zip(grown, exact, strict=True)], abs=1e-6)
    assert scaled == pytest.approx([a / 4 - b / 8 for a, b in zip(grown, exact, strict=True)], abs=1e-6)
    assert apart is None and cut == [1, 2, 0.25, 0, 0.75, 1] and ramp == [1, 2] and half == [10, 20]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "columns"), [(390, 1), (768, 2), (2560, 4)])
def test_the_panels_fit_every_width(browser, app: str, width: int, columns: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="dark")
    visit = opened(Visit(context.new_page(), app))
    page = visit.page
    frames = (
        "[...document.querySelectorAll('.hl-compare-panel .hl-compare-frame')].map((f) => f.getBoundingClientRect())"
    )
    before = page.evaluate(f"{frames}.map((r) => [r.x, r.y])")
    until(visit, *["done"] * 2)
    assert page.evaluate(f"{frames}.map((r) => [r.x, r.y])") == before, "results do not shift the layout"
    for _ in range(2):
        page.get_by_role("button", name="Add panel").click()
    until(visit, *["done"] * 4)
    places = page.evaluate(f"{frames}.map((r) => [r.x, r.y + scrollY])")
    assert len({x for x, _ in places}) == columns and len({y for _, y in places}) == 4 // columns
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.get_by_role("button", name="Add panel").is_disabled()
    pick(visit, "A", "Method", "Saliency")
    until(visit, *["done"] * 4)
    line = panel(visit, "A").locator(".hl-line")
    above = line.bounding_box()["y"] - panel(visit, "A").bounding_box()["y"]
    panel(visit, "A").locator("canvas").first.hover(position={"x": 100, "y": 100})
    assert "of 224 × 224" in panel(visit, "A").locator(".hl-compare-read").inner_text()
    assert line.bounding_box()["y"] - panel(visit, "A").bounding_box()["y"] == above, "nor does reading values"
    visit.check()
    context.close()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1440, 900), (2560, 1440)])
def test_all_maps_and_a_difference_are_in_one_window(browser, app: str, width: int, height: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": height})
    visit = opened(Visit(context.new_page(), app))
    page = visit.page
    for count in (2, 3):
        if count == 3:
            page.get_by_role("button", name="Add panel").click()
        until(visit, *["done"] * count)
        page.wait_for_function("!document.querySelector('.hl-compare-pair').hidden")
        page.evaluate("scrollTo(0, 0)")
        last, pair = (page.locator(name).last.bounding_box() for name in (".hl-compare-panel", ".hl-compare-pair"))
        assert last and pair and pair["x"] > last["x"] + last["width"] and pair["y"] + pair["height"] <= height
        heading, map_ = (pair_part(page, name) for name in ("h2", "canvas"))
        assert heading["y"] < map_["y"] and map_["width"] > 240
    page.get_by_role("button", name="Add panel").click()
    until(visit, *["done"] * 4)
    page.evaluate("scrollTo(0, 0)")
    last, pair = (page.locator(name).last.bounding_box() for name in (".hl-compare-panel", ".hl-compare-pair"))
    assert last and pair and last["y"] + last["height"] <= pair["y"] and pair["y"] + pair["height"] <= height
    assert pair_part(page, "canvas")["width"] >= 190 and pair_part(page, "h2")["x"] > pair_part(page, "canvas")["x"]
    visit.check()
    context.close()


def pair_part(page, name: str) -> dict[str, float]:
    """Return the position of a part of the difference."""
    return page.locator(f".hl-compare-pair {name}").first.bounding_box()
