"""The gradient lab in Chromium: an expression, a network in training, a picture."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from tests.page.conftest import Visit
from tests.page.test_page import HOSTILE


def opened(visit: Visit, part: str = "One expression") -> Any:
    """The page with the lab's part in front."""
    page = visit.open().page
    page.get_by_role("tab", name="Gradient lab").click()
    page.get_by_role("tab", name=part).click()
    return page


def table(page: Any, column: int) -> dict[str, list[str]]:
    """The numbers of a column, by tensor."""
    rows = page.locator("#hl-expression tbody tr").all()
    return {
        row.locator("th code").inner_text(): row.locator("td").nth(column).locator("span").all_inner_texts()
        for row in rows
    }


def test_an_experiment_is_drawn_and_its_code_does_the_same(visit: Visit) -> None:
    page = opened(visit)
    visit.painted("expression", 0)
    assert table(page, 2) == {"v": ["2", "4", "6"]} and table(page, 3) == {"v": ["1", "2", "3"]}

    visit.after(lambda: page.get_by_role("button", name="(x + y) · xy").click(), "expression")

    assert {name: found[0] for name, found in table(page, 2).items()} == {
        "x": "55", "y": "39", "a": "15", "b": "8", "c": "1",
    }  # fmt: skip
    assert page.locator("#hl-expression .hl-box").count() == 5
    assert page.locator("#hl-expression .hl-edge-label").count() == 7, "six uses, and the beginning"
    scope: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(page.locator("#hl-expression pre code").inner_text(), scope)
    assert scope["x"].grad.item() == 55 and not scope["a"].is_leaf and scope["grads"]["a"].item() == 15


def test_an_own_expression_is_run_by_keyboard_and_a_hook_is_moved(visit: Visit) -> None:
    page = opened(visit)
    visit.painted("expression", 0)
    page.locator("#hl-expression textarea").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("x = (1, 2)\ny = x^2\nsum(y * 3)")
    visit.after(lambda: page.keyboard.press("Control+Enter"), "expression")

    visit.after(lambda: page.locator("#hl-expression select[name=where]").select_option("y"), "expression")
    visit.after(lambda: page.locator("#hl-expression select[name=hook]").select_option("clip_value"), "expression")
    amount = page.locator("#hl-expression input[name=amount]")
    amount.fill("0.5")
    visit.after(amount.blur, "expression")

    assert table(page, 1)["y"] == ["3", "3"] and table(page, 2)["y"] == ["0.5", "0.5"]
    assert table(page, 2)["x"] == ["1", "2"], "0.5 times 2x"
    assert "g.clamp(-0.5, 0.5)" in page.locator("#hl-expression pre").inner_text()
    visit.after(lambda: page.locator("#hl-expression select[name=hook]").select_option("zero"), "expression")
    assert not amount.is_visible(), "no control that does nothing"


def test_what_cannot_be_read_is_said_with_its_place_and_stays_text(visit: Visit) -> None:
    page = opened(visit)
    visit.painted("expression", 0)
    field, line = page.locator("#hl-expression textarea"), page.locator("#hl-expression .hl-line")

    field.fill("x = (1, 2)\ny = x * q")
    visit.after(lambda: page.keyboard.press("Control+Enter"), "expression")
    assert line.inner_text().startswith("Line 2, position 9: there is no “q”")
    assert page.locator("#hl-expression tbody tr").count() == 1, "the former result stays"

    for text in HOSTILE:
        field.fill(f"x = 1\n{text}")
        visit.after(lambda: page.keyboard.press("Control+Enter"), "expression")
        assert line.get_attribute("data-kind") == "error" and page.evaluate("window.__xss") is None, text
