"""The gradient lab in Chromium: an expression, a network in training, a picture."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

from tests.page.conftest import PATIENCE, Visit
from tests.page.test_page import HOSTILE


def opened(visit: Visit, part: str = "One expression") -> Any:
    """The page with this part of the lab open."""
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


def test_a_custom_expression_is_run_by_keyboard_and_a_hook_is_moved(visit: Visit) -> None:
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


def test_labels_of_the_graph_do_not_overlap(visit: Visit) -> None:
    page = opened(visit)
    visit.painted("expression", 0)
    for program, count in (("x = 2\nx*x*x + x*x", 9), ("x = (1, 2, 3)\ny = (4, 5, 6)\na = x + y\nb = x * y\na * b", 7)):
        page.locator("#hl-expression textarea").fill(program)
        visit.after(lambda: page.keyboard.press("Control+Enter"), "expression")

        boxes = [each.bounding_box() for each in page.locator("#hl-expression .hl-edge-label .hl-paper").all()]

        assert len(boxes) == count
        for k, one in enumerate(boxes):
            for other in boxes[k + 1 :]:
                beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
                below = one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
                assert beside or below, program


def test_errors_in_an_expression_name_their_position_and_stay_text(visit: Visit) -> None:
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


def test_a_run_is_drawn_live_and_diagnosed(visit: Visit) -> None:
    page = opened(visit, "A network in training")

    visit.after(lambda: page.get_by_role("button", name="Learning rate too high").click(), "training")
    page.wait_for_function("document.getElementById('hl-training').dataset.state === 'broken'", timeout=PATIENCE)

    assert "the loss is not finite" in page.locator("#hl-training .hl-line").inner_text()
    assert "grew from" in page.locator("#hl-training .hl-finding").inner_text()
    assert page.locator("#hl-training .hl-plot svg").count() == 4
    plot = page.locator("#hl-training .hl-plot").nth(1)
    plot.focus()
    page.keyboard.press("ArrowRight")
    assert re.match(r"step 0: \d", page.locator("#hl-training output").nth(1).inner_text())


def test_hooks_are_chosen_and_a_run_is_stopped(visit: Visit) -> None:
    page = opened(visit, "A network in training")
    page.locator("#hl-training select[name=task]").select_option("cnn")
    page.locator("#hl-training input[name=steps]").fill("500")
    page.locator("#hl-training select[name=freeze]").select_option("conv1")
    page.locator("#hl-training input[name=clip_norm]").fill("0.1")
    assert not page.locator("#hl-training input[name=depth]").is_visible(), "no control that does nothing"
    visit.after(lambda: page.get_by_role("button", name="Start").click(), "training")
    assert page.get_by_role("button", name="Start").is_disabled()

    page.locator("#hl-training").get_by_role("button", name="Stop").click()

    page.wait_for_function("document.getElementById('hl-training').dataset.state === 'done'", timeout=PATIENCE)
    assert re.match(r"Stopped after \d+ of 500 steps", page.locator("#hl-training .hl-line").inner_text())
    page.locator("#hl-training .hl-plot").nth(1).hover()
    read = page.locator("#hl-training output").nth(1).inner_text()
    assert "conv1 0 " in read and "conv2" in read
    assert page.get_by_role("button", name="Start").is_enabled()


def test_a_number_out_of_range_is_refused_with_a_sentence(visit: Visit) -> None:
    page = opened(visit, "A network in training")
    page.locator("#hl-training input[name=steps]").fill("100000")
    visit.after(lambda: page.get_by_role("button", name="Start").click(), "training")

    assert page.locator("#hl-training .hl-line").inner_text() == "Steps must be a number from 1 to 500."
    assert page.get_by_role("button", name="Start").is_enabled()


def test_gradients_of_an_image_at_every_layer_follow_the_class(visit: Visit) -> None:
    page = opened(visit, "A picture")
    visit.painted("depth", 0)
    line = page.locator("#hl-depth .hl-line")
    assert re.match(r"Score of .+ in .+: \d+ layers\.", line.inner_text())
    assert "reaches every layer" in page.locator("#hl-depth .hl-finding").inner_text()
    assert page.locator("#hl-depth rect[data-layer]").count() == int(line.inner_text().split(": ")[1].split()[0])
    assert page.locator("#hl-depth .hl-bar-stage").count() >= 4
    page.locator("#hl-depth .hl-plot").focus()
    page.keyboard.press("End")
    assert re.search(r"norm \d.+ exact zeros", page.locator("#hl-depth output").inner_text())

    before = visit.number("depth")
    visit.choose("class", "goldfish")
    visit.painted("depth", before)
    page.wait_for_function(
        "document.querySelector('#hl-depth .hl-line').innerText.includes('goldfish')", timeout=PATIENCE
    )


def test_the_lab_on_a_narrow_screen_and_in_dark_mode(browser: Any, app: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    visit = Visit(context.new_page(), app)
    page = opened(visit)
    visit.painted("expression", 0)
    for part, name in (("A network in training", "training"), ("A picture", "depth")):
        page.get_by_role("tab", name=part).click()
        if name == "training":
            page.get_by_role("button", name="Linear regression").click()
        visit.painted(name, 0)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    visit.check()
    context.close()
