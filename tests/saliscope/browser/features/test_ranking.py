"""Ranking of methods: rows arrive without layout shifts, sorting by keyboard, opening a row by click."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.saliscope.browser.conftest import Visit, expect


def open_ranking(visit: Visit) -> Any:
    """Open the second part of Compare."""
    visit.open_view("Compare")
    visit.page.get_by_role("button", name="Ranking", exact=True).click()
    return visit.page.locator("#hl-ranking")


def ranked(visit: Visit, kind: str = "done") -> None:
    """Wait until a ranking has finished."""
    visit.until(f"document.querySelector('#hl-ranking .hl-line').dataset.kind === '{kind}'")


def start(own: Any, seconds: str) -> None:
    own.get_by_label("Seconds").fill(seconds)
    own.get_by_role("button", name="Rank methods").click()


@pytest.mark.slow
def test_rows_arrive_and_can_be_sorted_opened_and_compared(visit: Visit) -> None:
    page = visit.open().page
    own = open_ranking(visit)
    start(own, "1")
    expect(own.locator("[aria-invalid=true]")).to_have_count(1)
    expect(own).to_contain_text("Enter a number from 2 to 60")
    own.get_by_label("Layers").select_option("here")
    own.get_by_label("Seconds").fill("12")
    expect(own.locator("[aria-invalid=true]")).to_have_count(0)
    tall = page.evaluate("document.documentElement.scrollHeight")
    start(own, "12")  # on a busy machine, 6 s are not enough for the first rows
    visit.until("document.querySelectorAll('#hl-ranking tbody tr').length > 3")
    assert page.evaluate("document.documentElement.scrollHeight") == tall, "the layout shifts"
    ranked(visit)
    expect(own.locator(".hl-line")).to_contain_text("German shepherd")
    expect(own.locator("tbody tr.hl-ranking-control")).to_have_count(3)
    lines = visit.download(own.get_by_role("button", name="Save CSV").click).read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == own.locator("tbody .hl-ranking-place").all_inner_texts()
    maps = "[...document.querySelectorAll('#hl-ranking tbody tr:not(.hl-ranking-control) canvas')]"
    visit.until(f"{maps}.every((canvas) => canvas.width > 9)")
    for name, direction in (("insertion", "descending"), ("deletion", "ascending"), ("deletion", "descending")):
        own.get_by_role("columnheader", name=name.capitalize()).get_by_role("button").focus()
        page.keyboard.press("Enter")
        expect(own.locator("[aria-sort]")).to_have_attribute("aria-sort", direction)
        cells = own.locator(f"tbody .hl-ranking-{name}").all_inner_texts()
        found = [float(cell.removeprefix("≈ ").replace("−", "-")) for cell in cells if cell]
        assert len(found) > 3 and found == sorted(found, reverse=direction == "descending")
    rows = own.locator("tbody tr:not(.hl-ranking-control)")
    row = own.locator("tbody tr:not(.hl-ranking-control):not([data-here])").first
    title = row.locator("button").inner_text()
    visit.after(row.click)
    assert visit.status.split(" for ")[0] in title
    page.go_back()
    open_ranking(visit).get_by_role("button", name="Compare top four").click()
    expect(page.locator(".hl-compare-panel[data-state=done]")).to_have_count(min(4, rows.count()))


@pytest.mark.slow
def test_stop_keeps_the_rows_and_another_image_marks_them(visit: Visit) -> None:
    page = visit.open().page
    own = open_ranking(visit)
    start(own, "60")
    visit.until("document.querySelectorAll('#hl-ranking tbody tr').length > 5")
    began = time.monotonic()
    own.get_by_role("button", name="Stop").click()
    ranked(visit, "stopped")
    assert time.monotonic() - began < 5 and own.locator("tbody tr").count() > 5
    page.locator("#hl-examples button").nth(2).click()  # the first one uploads
    ranked(visit, "old")
    visit.after(page.go_back)
    expect(page.locator(".hl-ranking[data-old=true]")).to_have_count(0)
    page.locator("#hl-image .hl-image-remove").first.click()
    page.locator(".hl-ranking[data-old=true]").wait_for()
