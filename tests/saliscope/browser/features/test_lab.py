"""Gradient lab: an expression, a network in training, an image."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from typing import Any

import pytest
import torch

from tests.saliscope.browser.conftest import Visit, expect
from tests.saliscope.browser.test_page import HOSTILE
from tests.support.color_difference import linear


def show(visit: Visit, part: str) -> Any:
    """Open a part of the lab."""
    visit.open_view("Gradient lab")
    visit.page.get_by_role("tab", name=part).click()
    return visit.page


def trained(visit: Visit, state: str = "done") -> None:
    """Wait until the network is trained."""
    visit.until(f"document.getElementById('hl-training').dataset.state === '{state}'")


def table(page: Any, column: int) -> dict[str, list[str]]:
    """Return the numbers of a column, by tensor."""
    rows = page.locator("#hl-expression tbody tr").all()
    return {
        row.locator("th code").inner_text(): row.locator("td").nth(column).locator("span").all_inner_texts()
        for row in rows
    }


def retype(field: Any, text: str) -> None:
    """Type like a user: `fill` rejects values that are not numbers."""
    field.focus()
    for key in ("Control+a", "Delete"):
        field.press(key)
    field.press_sequentially(text)


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    pairs = ("x", "width"), ("y", "height")
    return all(one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in pairs)


def test_expressions_are_drawn_run_and_refused(small_view: Visit) -> None:
    """An experiment, whose code does the same; an expression by keyboard with a hook; errors name their position."""
    visit, page = small_view, show(small_view, "Expression")
    visit.painted("expression", 0)
    own, line = page.locator("#hl-expression"), page.locator("#hl-expression .hl-line")
    hook, amount = own.locator("select[name=hook]"), own.locator("input[name=amount]")

    def run(program: str) -> None:
        own.locator("textarea").fill(program)
        visit.after(lambda: page.keyboard.press("Control+Enter"), "expression")

    visit.after(lambda: page.get_by_role("button", name="(x + y) · xy").click(), "expression")
    assert table(page, 2) == {"x": ["55"], "y": ["39"], "a": ["15"], "b": ["8"], "c": ["1"]}
    expect(own.locator(".hl-box")).to_have_count(5)
    scope: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(own.locator("pre code").inner_text(), scope)
    assert scope["x"].grad.item() == 55 and not scope["a"].is_leaf and scope["grads"]["a"].item() == 15

    run("x = (1, 2)\ny = x^2\nsum(y * 3)")
    visit.after(lambda: own.locator("select[name=where]").select_option("y"), "expression")
    visit.after(lambda: hook.select_option("clip_value"), "expression")
    amount.fill("0.5")
    visit.after(amount.blur, "expression")
    assert table(page, 1)["y"] == ["3", "3"] and table(page, 2)["y"] == ["0.5", "0.5"]
    assert table(page, 2)["x"] == ["1", "2"], "0.5 times 2x"
    expect(own.locator("pre")).to_contain_text("g.clamp(-0.5, 0.5)")
    retype(amount, "2e12")
    page.get_by_role("button", name="Run").click()
    expect(amount).to_have_accessible_description(re.compile("number from"))
    expect(own.locator(".hl-lab-results.hl-old"), "the last result is marked").to_have_count(1)
    amount.fill("3")
    visit.after(lambda: page.keyboard.press("Enter"), "expression")
    expect(own.locator(".hl-old")).to_have_count(0)
    visit.after(lambda: hook.select_option("zeros"), "expression")
    expect(amount, "no control without an effect").to_be_hidden()

    for program, count in (("x = 2\nx*x*x + x*x", 9), ("x = (1, 2, 3)\ny = (4, 5, 6)\na = x + y\nb = x * y\na * b", 7)):
        run(program)
        boxes = [each.bounding_box() for each in own.locator(".hl-edge-label .hl-paper").all()]
        assert len(boxes) == count, "the labels of all uses"
        assert not any(overlap(*two) for two in itertools.combinations(boxes, 2)), program

    rows = own.locator("tbody tr").count()
    run("x = (1, 2)\ny = x * q")
    expect(line).to_contain_text("Line 2, position 9: unknown name “q”")
    expect(own.locator("tbody tr"), "the previous result stays").to_have_count(rows)
    for text in HOSTILE:
        run(f"x = 1\n{text}")
        assert line.get_attribute("data-kind") == "error" and page.evaluate("window.__xss") is None, text


def test_a_run_is_drawn_live_and_diagnosed(small_view: Visit) -> None:
    page, part = show(small_view, "Training"), small_view.page.locator("#hl-training")
    small_view.after(lambda: page.get_by_role("button", name="Learning rate too high").click(), "training")
    trained(small_view, "broken")
    expect(part.locator(".hl-line")).to_contain_text("the loss is not finite")
    expect(part.locator(".hl-finding")).to_contain_text("grew from")
    expect(part.locator(".hl-plot svg")).to_have_count(4)
    part.locator(".hl-plot").nth(1).focus()
    page.keyboard.press("ArrowRight")
    expect(part.locator("output").nth(1)).to_contain_text(re.compile(r"step 0: \d"))


@pytest.mark.slow
def test_a_run_is_stopped_a_frozen_layer_is_reported_and_wrong_numbers_keep_the_last_run(visit: Visit) -> None:
    page, part = show(visit.open(), "Training"), visit.page.locator("#hl-training")
    line, start = part.locator(".hl-line"), page.get_by_role("button", name="Start")
    part.locator("select[name=task]").select_option("cnn")
    part.locator("input[name=steps]").fill("500")
    part.locator("select[name=freeze]").select_option("conv1")
    expect(part.locator("input[name=depth]"), "no control without an effect").to_be_hidden()
    before = visit.number("training")
    page.evaluate("""() => {
      const [start, stop] = document.querySelectorAll("#hl-training .hl-lab-actions button");
      start.click();
      if (start.disabled && !stop.disabled) stop.click();  // before the server has begun
    }""")
    visit.painted("training", before)
    trained(visit)
    expect(line).to_contain_text(re.compile(r"Stopped after \d+ of 500 steps"))
    part.locator("input[name=steps]").fill("10")
    visit.after(start.click, "training")
    trained(visit)
    part.locator(".hl-plot").nth(1).hover()
    expect(part.locator("output").nth(1)).to_contain_text(re.compile("conv1 0 .*conv2"))

    page.get_by_role("button", name="First layer frozen, noise on the others").focus()
    visit.after(lambda: page.keyboard.press("Enter"), "training")
    trained(visit)
    assert page.evaluate("document.activeElement.dataset.id") == "frozen", "the focus returns"
    (finding,) = part.locator(".hl-finding").all_inner_texts()
    assert "Gradient hooks set the gradient of 'hidden1.weight'" in finding and "ReLU" not in finding
    expect(part.locator(".hl-chart-box .hl-title").first).to_have_text("Loss (log scale)")

    shown, ran = visit.number("training"), line.inner_text()
    for name, typed, words in (
        ("steps", "10.5", "integer from 1 to 500"),
        ("rate", "1e999", "number from 1e-6 to 100"),
        ("clip_norm", "1e", "or empty to disable the hook"),
    ):
        field = part.locator(f"input[name={name}]")
        before = field.input_value()
        retype(field, typed)
        start.click()
        expect(field).to_have_accessible_description(re.compile(words))
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_be_focused()
        expect(line).to_contain_text("Correct the marked field")
        expect(part.locator(".hl-old .hl-plot"), "the last result stays and is marked as outdated").to_have_count(4)
        field.fill(before)
        expect(line).to_have_text(ran)
    assert visit.number("training") == shown
    part.locator("input[name=steps]").fill("20")
    expect(part.locator(".hl-old")).to_have_count(1)
    visit.after(start.click, "training")
    trained(visit)
    expect(line).to_contain_text("Trained for 20 steps")
    expect(part.locator(".hl-old")).to_have_count(0)


COLORS = """(marks) => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const behind = (node) => {
    const color = rgba(getComputedStyle(node).backgroundColor);
    return color[3] === 255 ? color : behind(node.parentElement);
  };
  return marks.map((mark) => {
    const { stroke, backgroundColor, opacity } = getComputedStyle(mark);
    return [rgba(mark.matches(".hl-curve") ? stroke : backgroundColor), Number(opacity), behind(mark.parentElement)];
  });
}"""
"""Color, opacity and the color behind each mark."""


def contrast(color: list[float], opacity: float, behind: list[float]) -> float:
    """The contrast of WCAG 2."""
    front, back = torch.tensor(color[:3]), torch.tensor(behind[:3])
    luma = torch.tensor([0.2126, 0.7152, 0.0722], dtype=torch.float64)
    low, high = sorted(float(linear(each) @ luma) for each in (opacity * front + (1 - opacity) * back, back))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.slow
def test_the_link_has_the_tab_and_the_experiment(visit: Visit) -> None:
    page = visit.open("?tab=lab&experiment=square").page
    expect(page.get_by_role("button", name="y = 2v²")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("tab", name="Training").click()
    page.locator("#hl-link").click()
    expect(page.locator("#hl-linked input")).to_have_value(re.compile("experiment=square.*&lab=training"))
    page.get_by_role("tab", name="Expression").click()
    page.locator("#hl-expression textarea").fill("y = x")
    visit.until("!/experiment|lab=training/.test(location.search)")


@pytest.mark.slow
def test_the_lab_grays_out_the_image_does_not_shift_and_its_colors_have_contrast(window: Any) -> None:
    for width, scheme in ((390, "dark"), (768, "light")):
        visit = window(width, color_scheme=scheme).open()
        page = show(visit, "Expression")
        gray = "(image) => image.closest('[inert]') !== null && getComputedStyle(image).opacity < 0.5"
        image, note = page.locator("#hl-image"), page.get_by_text("does not use the image")
        visit.painted("expression", 0)
        expect(note).to_be_visible()
        assert image.evaluate(gray) and page.locator("#hl-lab-tabs [role=tab]").first.bounding_box()["y"] < 200
        page.get_by_role("tab", name="Training").click()
        page.get_by_role("button", name="Eight sigmoid layers").click()
        visit.until("document.querySelectorAll('#hl-training .hl-curve').length === 19")
        place = "[...document.querySelectorAll('#hl-training .hl-plot')].map((plot) => plot.offsetTop)"
        first = page.evaluate(place)
        trained(visit)
        assert page.evaluate(place) == first, "the layout does not shift during a run"
        marks = page.locator("#hl-training .hl-curve, #hl-training .hl-legend i").evaluate_all(COLORS)
        assert len(marks) > 19 and [each for each in marks if contrast(*each) < 3] == [], (width, scheme)
        page.get_by_role("tab", name="Image").click()
        expect(note).to_be_hidden()
        assert not image.evaluate(gray) and page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_gradients_of_an_image_at_every_layer_follow_the_class(visit: Visit) -> None:
    page, part = show(visit.open(), "Image"), visit.page.locator("#hl-depth")
    visit.painted("depth", 0)
    expect(part.locator(".hl-line")).to_contain_text(re.compile(r"Score of .+ in .+: \d+ layers\."))
    expect(part.locator(".hl-finding")).to_contain_text("reaches every layer")
    count = int(part.locator(".hl-line").inner_text().split(": ")[1].split()[0])
    expect(part.locator("rect[data-layer]")).to_have_count(count)
    part.locator(".hl-plot").focus()
    page.keyboard.press("End")
    expect(part.locator("output")).to_contain_text(re.compile(r"norm \d.+ exact zeros"))
    visit.after(lambda: visit.choose("class", "goldfish"), "depth")
    expect(part.locator(".hl-line")).to_contain_text("goldfish")
