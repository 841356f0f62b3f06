"""Gradient lab: an expression, a network in training, an image."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from typing import Any

import pytest

from tests.saliscope.browser.conftest import Visit, expect
from tests.saliscope.browser.test_page import HOSTILE


def opened(visit: Visit, part: str = "Expression") -> Any:
    """Open the page, and this part of the lab."""
    return show(visit.open(), part)


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


def test_expressions_are_drawn_run_and_refused(first_view: Visit) -> None:
    """An experiment, whose code does the same; an expression by keyboard with a hook; errors name their position."""
    visit, page = first_view, show(first_view, "Expression")
    visit.painted("expression", 0)
    field, own = page.locator("#hl-expression textarea"), page.locator("#hl-expression")

    def run(program: str) -> None:
        field.fill(program)
        visit.after(lambda: page.keyboard.press("Control+Enter"), "expression")

    visit.after(lambda: page.get_by_role("button", name="(x + y) · xy").click(), "expression")
    gradients = {name: found[0] for name, found in table(page, 2).items()}
    assert gradients == {"x": "55", "y": "39", "a": "15", "b": "8", "c": "1"}
    expect(own.locator(".hl-box")).to_have_count(5)
    scope: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(own.locator("pre code").inner_text(), scope)
    assert scope["x"].grad.item() == 55 and not scope["a"].is_leaf and scope["grads"]["a"].item() == 15

    run("x = (1, 2)\ny = x^2\nsum(y * 3)")
    visit.after(lambda: own.locator("select[name=where]").select_option("y"), "expression")
    visit.after(lambda: own.locator("select[name=hook]").select_option("clip_value"), "expression")
    amount = own.locator("input[name=amount]")
    amount.fill("0.5")
    visit.after(amount.blur, "expression")
    assert table(page, 1)["y"] == ["3", "3"] and table(page, 2)["y"] == ["0.5", "0.5"]
    assert table(page, 2)["x"] == ["1", "2"], "0.5 times 2x"
    assert "g.clamp(-0.5, 0.5)" in own.locator("pre").inner_text()
    visit.after(lambda: own.locator("select[name=hook]").select_option("zeros"), "expression")
    assert not amount.is_visible(), "no control without an effect"

    for program, count in (("x = 2\nx*x*x + x*x", 9), ("x = (1, 2, 3)\ny = (4, 5, 6)\na = x + y\nb = x * y\na * b", 7)):
        run(program)
        boxes = [each.bounding_box() for each in own.locator(".hl-edge-label .hl-paper").all()]
        assert len(boxes) == count, "the labels of all uses"
        for one, other in itertools.combinations(boxes, 2):
            beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            below = one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
            assert beside or below, program

    rows, line, where = own.locator("tbody tr").count(), own.locator(".hl-line"), own.locator("select[name=hook]")
    visit.after(lambda: where.select_option("clip_value"), "expression")
    retype(amount, "2e12")
    page.get_by_role("button", name="Run").click()
    assert "number from" in page.locator(f"#{amount.get_attribute('aria-describedby')}").inner_text()
    expect(own.locator(".hl-lab-results.hl-old"), "the last result is marked").to_have_count(1)
    amount.fill("3")
    visit.after(lambda: page.keyboard.press("Enter"), "expression")
    expect(own.locator(".hl-old")).to_have_count(0)

    run("x = (1, 2)\ny = x * q")
    assert line.inner_text().startswith("Line 2, position 9: unknown name “q”")
    expect(own.locator("tbody tr"), "the previous result stays").to_have_count(rows)
    for text in HOSTILE:
        run(f"x = 1\n{text}")
        assert line.get_attribute("data-kind") == "error" and page.evaluate("window.__xss") is None, text


def test_a_run_is_drawn_live_and_diagnosed(first_view: Visit) -> None:
    visit, page = first_view, show(first_view, "Training")

    visit.after(lambda: page.get_by_role("button", name="Learning rate too high").click(), "training")
    trained(visit, "broken")

    assert "the loss is not finite" in page.locator("#hl-training .hl-line").inner_text()
    assert "grew from" in page.locator("#hl-training .hl-finding").inner_text()
    expect(page.locator("#hl-training .hl-plot svg")).to_have_count(4)
    plot = page.locator("#hl-training .hl-plot").nth(1)
    plot.focus()
    page.keyboard.press("ArrowRight")
    assert re.match(r"step 0: \d", page.locator("#hl-training output").nth(1).inner_text())


@pytest.mark.slow
def test_hooks_are_chosen_a_run_is_stopped_and_a_frozen_layer_is_reported(visit: Visit) -> None:
    page = opened(visit, "Training")
    part = page.locator("#hl-training")
    page.locator("#hl-training select[name=task]").select_option("cnn")
    page.locator("#hl-training input[name=steps]").fill("500")
    page.locator("#hl-training select[name=freeze]").select_option("conv1")
    page.locator("#hl-training input[name=clip_norm]").fill("0.1")
    assert not page.locator("#hl-training input[name=depth]").is_visible(), "no control without an effect"
    before = visit.number("training")
    page.evaluate("""() => {
      const [start, stop] = document.querySelectorAll("#hl-training .hl-lab-actions button");
      start.click();
      if (start.disabled && !stop.disabled) stop.click();  // before the server has begun
    }""")
    visit.painted("training", before)
    trained(visit)
    assert re.match(r"Stopped after \d+ of 500 steps", page.locator("#hl-training .hl-line").inner_text())
    page.locator("#hl-training .hl-plot").nth(1).hover()
    read = page.locator("#hl-training output").nth(1).inner_text()
    assert "conv1 0 " in read and "conv2" in read
    assert page.get_by_role("button", name="Start").is_enabled()

    page.get_by_role("button", name="First layer frozen, noise on the others").focus()
    visit.after(lambda: page.keyboard.press("Enter"), "training")
    trained(visit)
    assert page.evaluate("document.activeElement.dataset.id") == "frozen", "the focus returns"
    (finding,) = part.locator(".hl-finding").all_inner_texts()
    assert "Gradient hooks set the gradient of 'hidden1.weight'" in finding and "ReLU" not in finding
    title = part.locator(".hl-chart-box .hl-title").first
    assert title.inner_text() == "Loss (log scale)"
    visit.after(lambda: page.get_by_role("button", name="Eight sigmoid layers").click(), "training")
    trained(visit)
    assert title.inner_text() == "Loss", "from 0.75 to 0.69"


@pytest.mark.slow
def test_an_invalid_number_is_reported_at_its_field_and_the_last_run_is_marked(visit: Visit) -> None:
    page = opened(visit, "Training")
    part, line, start = page.locator("#hl-training"), page.locator("#hl-training .hl-line"), "Start"
    visit.after(lambda: page.get_by_role("button", name="MLP on a spiral").click(), "training")
    trained(visit)
    shown, ran = visit.number("training"), line.inner_text()
    for name, typed, words in (
        ("steps", "10.5", "integer from 1 to 500"),
        ("rate", "1e999", "number from 1e-6 to 100"),
        ("clip_norm", "1e", "or empty to disable the hook"),
    ):
        field = part.locator(f"input[name={name}]")
        before = field.input_value()
        retype(field, typed)
        page.get_by_role("button", name=start).click()
        wrong = page.locator(f"#{field.get_attribute('aria-describedby')}")
        assert words in wrong.inner_text() and field.get_attribute("aria-invalid") == "true"
        assert field.evaluate("field => document.activeElement === field")
        assert line.get_attribute("data-kind") == "error" and "Correct the marked field" in line.inner_text()
        expect(part.locator(".hl-old .hl-plot"), "the last result stays and is marked as outdated").to_have_count(4)
        field.fill(before)
        assert wrong.is_hidden() and field.get_attribute("aria-invalid") is None and line.inner_text() == ran
    assert visit.number("training") == shown
    part.locator("input[name=steps]").fill("20")
    expect(part.locator(".hl-old")).to_have_count(1)
    visit.after(lambda: page.get_by_role("button", name=start).click(), "training")
    trained(visit)
    expect(part.locator(".hl-old")).to_have_count(0)
    assert line.inner_text().startswith("Trained for 20 steps")


def retype(field: Any, text: str) -> None:
    """Type like a user: `fill` rejects values that are not numbers."""
    field.focus()
    field.press("Control+a")
    field.press("Delete")
    field.press_sequentially(text)


CONTRASTS = """async () => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
  };
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (color) => color.slice(0, 3).map((v) => linear(v / 255))
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const contrast = (color, opacity, node) => {
    const back = behind(node), front = rgba(color).map((v, k) => (k < 3 ? v * opacity + back[k] * (1 - opacity) : v));
    const [low, high] = [light(front), light(back)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const found = {};
  for (const path of document.querySelectorAll("#hl-training .hl-curve")) {
    const style = getComputedStyle(path);
    found[`curve ${Object.keys(found).length}`] = contrast(style.stroke, Number(style.opacity), path);
  }
  for (const dot of document.querySelectorAll("#hl-training .hl-legend i")) {
    found[`dot ${Object.keys(found).length}`] = contrast(getComputedStyle(dot).backgroundColor, 1, dot.parentElement);
  }
  return found;
}"""


@pytest.mark.slow
def test_the_lab_grays_out_the_image_does_not_shift_and_its_colors_have_contrast(window: Any) -> None:
    for width, scheme in ((390, "dark"), (768, "light")):
        visit = window(width, color_scheme=scheme)
        page = opened(visit)
        gray = "(image) => image.closest('[inert]') !== null && getComputedStyle(image).opacity < 0.5"
        image, first_tab = page.locator("#hl-image"), page.locator("#hl-lab [role=tab]").first
        visit.painted("expression", 0)
        assert page.get_by_text("does not use the image").is_visible() and image.evaluate(gray)
        place_of_tabs = first_tab.bounding_box()
        assert place_of_tabs["y"] < 200, "no hole above the tabs"
        page.get_by_role("tab", name="Training").click()
        page.get_by_role("button", name="Eight sigmoid layers").click()
        visit.until("document.querySelectorAll('#hl-training .hl-curve').length === 19")
        place = "[...document.querySelectorAll('#hl-training .hl-plot')].map((plot) => plot.offsetTop)"
        first = page.evaluate(place)
        trained(visit)
        assert page.evaluate(place) == first, "the layout does not shift during a run"
        low = {name: round(found, 2) for name, found in page.evaluate(CONTRASTS).items() if found < 3}
        assert not low, (width, scheme, low)

        page.get_by_role("tab", name="Image").click()
        assert not image.evaluate(gray) and not page.get_by_text("does not use the image").is_visible()
        visit.painted("depth", 0)
        assert first_tab.bounding_box()["x"] == place_of_tabs["x"], "the tabs do not jump"
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_gradients_of_an_image_at_every_layer_follow_the_class(visit: Visit) -> None:
    page = opened(visit, "Image")
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
    expect(line).to_contain_text("goldfish")
