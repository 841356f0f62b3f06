"""The ranking as visitors use it: rows arrive without the page moving, keys sort, a row is one click away."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.page.conftest import PATIENCE, Visit


def table(visit: Visit, place: str = "hl-ranking") -> Any:
    return visit.page.locator(f"#{place}")


def ranked(visit: Visit, place: str = "hl-ranking", kind: str = "done") -> None:
    """Wait for the end of a ranking."""
    visit.page.wait_for_function(
        f"document.querySelector('#{place} .hl-line').dataset.kind === '{kind}'", timeout=PATIENCE
    )


def start(visit: Visit, seconds: str, place: str = "hl-ranking") -> None:
    table(visit, place).get_by_label("Seconds").fill(seconds)
    table(visit, place).get_by_role("button", name="Rank methods").click()


def column(visit: Visit, name: str) -> list[float]:
    cells = table(visit).locator(f"tbody .hl-ranking-{name}").all_inner_texts()
    return [float(cell.removeprefix("≈ ").replace("−", "-")) for cell in cells if cell]


def test_rows_arrive_are_sorted_by_keys_and_are_one_click_away(visit: Visit) -> None:
    visit.open()
    visit.page.get_by_role("tab", name="Ranking").click()
    page, own = visit.page, table(visit)
    start(visit, "1")
    assert "Give a number from 2 to 60" in own.inner_text() and own.locator("[aria-invalid=true]").count() == 1
    own.get_by_label("Layers").select_option("here")
    own.get_by_label("Seconds").fill("12")
    assert own.locator("[aria-invalid=true]").count() == 0
    tall = page.evaluate("document.documentElement.scrollHeight")
    start(visit, "6")
    page.wait_for_function("document.querySelectorAll('#hl-ranking tbody tr').length > 3", timeout=PATIENCE)
    assert own.get_by_role("button", name="Stop").is_enabled()
    assert page.evaluate("document.documentElement.scrollHeight") == tall, "the page moves"
    ranked(visit)

    line = own.locator(".hl-line").inner_text()
    best = own.locator("tbody tr.hl-ranking-best")
    assert " is the best of " in line and "German shepherd" in line and best.count() == 1
    assert (
        own.locator("tbody tr.hl-ranking-control").count() == 3
        and not own.get_by_role("button", name="Stop").is_enabled()
    )
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
        and page.get_by_role("tab", name="Overlay").get_attribute("aria-selected") == "true"
    )
    page.go_back()
    page.get_by_role("tab", name="Ranking").click()
    own.get_by_role("button", name="Compare the best four").click()
    page.wait_for_function(
        "[...document.querySelectorAll('.hl-compare-panel')].filter((p) => p.dataset.state === 'done').length === 4",
        timeout=PATIENCE,
    )
    assert table(visit, "hl-ranking-compare").locator("tbody tr").count() == own.locator("tbody tr").count(), (
        "one table"
    )


@pytest.mark.slow
def test_stop_keeps_the_rows_and_another_picture_marks_them(visit: Visit) -> None:
    visit.open()
    visit.page.get_by_role("tab", name="Compare").click()
    place = "hl-ranking-compare"
    start(visit, "60", place)
    visit.page.wait_for_function(f"document.querySelectorAll('#{place} tbody tr').length > 5", timeout=PATIENCE)
    began = time.monotonic()
    table(visit, place).get_by_role("button", name="Stop").click()
    ranked(visit, place, "stopped")
    assert time.monotonic() - began < 5 and "stopped" in table(visit, place).locator(".hl-line").inner_text()
    assert table(visit, place).locator("tbody tr").count() > 5
    visit.page.locator("#hl-examples button").nth(1).click()
    ranked(visit, place, "old")
    assert table(visit, place).locator("[data-old]").count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 768, 2560])
def test_no_width_scrolls_sideways(browser: Any, app: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="dark")
    visit = Visit(context.new_page(), app).open()
    visit.page.get_by_role("tab", name="Ranking").click()
    start(visit, "3")
    ranked(visit)
    wide = visit.page.evaluate(
        "[document.documentElement.scrollWidth - innerWidth, ...[...document.querySelectorAll('.hl-ranking-box')]"
        ".map((box) => box.scrollWidth - box.clientWidth)]"
    )
    assert all(each <= 0 for each in wide), wide
    visit.check()
    context.close()
