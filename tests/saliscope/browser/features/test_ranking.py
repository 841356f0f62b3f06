"""Ranking of methods: rows arrive without layout shifts, sorting by keyboard, opening a row by click."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.saliscope.browser.conftest import PATIENCE, Visit, expect


def table(visit: Visit, elem_id: str = "hl-ranking") -> Any:
    return visit.page.locator(f"#{elem_id}")


def open_ranking(visit: Visit) -> None:
    """Open the second part of Compare."""
    visit.open_view("Compare")
    visit.page.get_by_role("button", name="Ranking", exact=True).click()


def ranked(visit: Visit, elem_id: str = "hl-ranking", kind: str = "done") -> None:
    """Wait until a ranking has finished."""
    visit.page.wait_for_function(
        f"document.querySelector('#{elem_id} .hl-line').dataset.kind === '{kind}'", timeout=PATIENCE
    )


def start(visit: Visit, seconds: str, elem_id: str = "hl-ranking") -> None:
    table(visit, elem_id).get_by_label("Seconds").fill(seconds)
    table(visit, elem_id).get_by_role("button", name="Rank methods").click()


def column(visit: Visit, name: str) -> list[float]:
    cells = table(visit).locator(f"tbody .hl-ranking-{name}").all_inner_texts()
    return [float(cell.removeprefix("≈ ").replace("−", "-")) for cell in cells if cell]


@pytest.mark.slow
def test_rows_arrive_and_can_be_sorted_and_opened(visit: Visit) -> None:
    visit.open()
    open_ranking(visit)
    page, own = visit.page, table(visit)
    start(visit, "1")
    expect(own.locator("[aria-invalid=true]")).to_have_count(1)
    assert "Enter a number from 2 to 60" in own.inner_text()
    own.get_by_label("Layers").select_option("here")
    own.get_by_label("Seconds").fill("12")
    expect(own.locator("[aria-invalid=true]")).to_have_count(0)
    tall = page.evaluate("document.documentElement.scrollHeight")
    start(visit, "12")  # on a busy machine, 6 s are not enough for the first rows
    page.wait_for_function("document.querySelectorAll('#hl-ranking tbody tr').length > 3", timeout=PATIENCE)
    assert own.get_by_role("button", name="Stop").is_enabled()
    assert page.evaluate("document.documentElement.scrollHeight") == tall, "the layout shifts"
    ranked(visit)

    line = own.locator(".hl-line").inner_text()
    best = own.locator("tbody tr.hl-ranking-best")
    assert "German shepherd" in line and best.count() == (" is the best of " in line)
    expect(own.locator("tbody tr.hl-ranking-control")).to_have_count(3)
    assert not own.get_by_role("button", name="Stop").is_enabled()
    with page.expect_download() as download:
        own.get_by_role("button", name="Save CSV").click()
    lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == own.locator("tbody .hl-ranking-place").all_inner_texts()
    page.wait_for_function(
        "[...document.querySelectorAll('#hl-ranking tbody tr:not(.hl-ranking-control) canvas')]"
        ".every((canvas) => canvas.width > 9)"
    )
    for name, keys, direction in (
        ("insertion", 1, "descending"),
        ("deletion", 1, "ascending"),
        ("deletion", 0, "descending"),
    ):
        if keys:
            own.get_by_role("columnheader", name=name.capitalize()).get_by_role("button").focus()
        page.keyboard.press("Enter")
        assert [head.inner_text().strip() for head in own.locator("[aria-sort]").all()] == [name.capitalize()]
        assert own.locator("[aria-sort]").get_attribute("aria-sort") == direction
        found = column(visit, name)
        assert len(found) > 3 and found == sorted(found, reverse=direction == "descending")

    row = own.locator("tbody tr:not(.hl-ranking-control):not([data-here])").first
    title = row.locator("button").inner_text()
    visit.after(lambda: row.click())
    assert (
        visit.status.split(" for ")[0] in title
        and page.get_by_role("tab", name="Explain").get_attribute("aria-selected") == "true"
    )
    page.go_back()
    open_ranking(visit)
    own.get_by_role("button", name="Compare top four").click()
    page.wait_for_function(
        "[...document.querySelectorAll('.hl-compare-panel')].filter((p) => p.dataset.state === 'done').length === 4",
        timeout=PATIENCE,
    )


@pytest.mark.slow
def test_stop_keeps_the_rows_and_another_image_marks_them(visit: Visit) -> None:
    visit.open()
    open_ranking(visit)
    elem_id = "hl-ranking"
    start(visit, "60", elem_id)
    visit.page.wait_for_function(f"document.querySelectorAll('#{elem_id} tbody tr').length > 5", timeout=PATIENCE)
    began = time.monotonic()
    table(visit, elem_id).get_by_role("button", name="Stop").click()
    ranked(visit, elem_id, "stopped")
    assert time.monotonic() - began < 5 and "stopped" in table(visit, elem_id).locator(".hl-line").inner_text()
    assert table(visit, elem_id).locator("tbody tr").count() > 5
    visit.page.locator("#hl-examples button").nth(2).click()  # the first one uploads
    ranked(visit, elem_id, "old")
    expect(table(visit, elem_id).locator("[data-old]")).to_have_count(1)
    visit.after(visit.page.go_back)
    visit.page.wait_for_function("!document.querySelector('.hl-ranking-box[data-old]')")
    visit.page.locator("#hl-image button[aria-label='Remove Image']").first.click()
    visit.page.locator(".hl-ranking-box[data-old]").wait_for()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 768, 2560])
def test_no_width_scrolls_sideways(browser: Any, app: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="dark")
    visit = Visit(context.new_page(), app).open()
    open_ranking(visit)
    start(visit, "12")  # as above
    ranked(visit)
    wide = visit.page.evaluate(
        "[document.documentElement.scrollWidth - innerWidth, ...[...document.querySelectorAll('.hl-ranking-box')]"
        ".map((box) => box.scrollWidth - box.clientWidth)]"
    )
    assert all(each <= 0 for each in wide), wide
    visit.check()
    context.close()
