"""Gradient lab: an expression, a network in training, an image."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import pytest

from tests.saliscope.browser.conftest import PATIENCE, Visit, expect
from tests.saliscope.browser.test_page import HOSTILE


def opened(visit: Visit, part: str = "Expression") -> Any:
    """Open the page, and this part of the lab."""
    return show(visit.open(), part)


def show(visit: Visit, part: str) -> Any:
    """Open a part of the lab."""
    visit.open_view("Gradient lab")
    visit.page.get_by_role("tab", name=part).click()
    return visit.page


def table(page: Any, column: int) -> dict[str, list[str]]:
    """Return the numbers of a column, by tensor."""
    rows = page.locator("#hl-expression tbody tr").all()
    return {
        row.locator("th code").inner_text(): row.locator("td").nth(column).locator("span").all_inner_texts()
        for row in rows
    }


def test_an_experiment_is_drawn_and_its_code_does_the_same(first_view: Visit) -> None:
    visit, page = first_view, show(first_view, "Expression")
    visit.painted("expression", 0)
    assert table(page, 2) == {"v": ["2", "4", "6"]} and table(page, 3) == {"v": ["1", "2", "3"]}

    visit.after(lambda: page.get_by_role("button", name="(x + y) · xy").click(), "expression")

    assert {name: found[0] for name, found in table(page, 2).items()} == {
        "x": "55", "y": "39", "a": "15", "b": "8", "c": "1",
    }  # fmt: skip
    expect(page.locator("#hl-expression .hl-box")).to_have_count(5)
    expect(page.locator("#hl-expression .hl-edge-label"), "six uses, and the initial gradient").to_have_count(7)
    scope: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(page.locator("#hl-expression pre code").inner_text(), scope)
    assert scope["x"].grad.item() == 55 and not scope["a"].is_leaf and scope["grads"]["a"].item() == 15


@pytest.mark.slow
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
    visit.after(lambda: page.locator("#hl-expression select[name=hook]").select_option("zeros"), "expression")
    assert not amount.is_visible(), "no control without an effect"


@pytest.mark.slow
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


@pytest.mark.slow
def test_errors_in_an_expression_name_their_position_and_stay_text(visit: Visit) -> None:
    page = opened(visit)
    visit.painted("expression", 0)
    field, line = page.locator("#hl-expression textarea"), page.locator("#hl-expression .hl-line")

    field.fill("x = (1, 2)\ny = x * q")
    visit.after(lambda: page.keyboard.press("Control+Enter"), "expression")
    assert line.inner_text().startswith("Line 2, position 9: unknown name “q”")
    expect(page.locator("#hl-expression tbody tr"), "the previous result stays").to_have_count(1)

    for text in HOSTILE:
        field.fill(f"x = 1\n{text}")
        visit.after(lambda: page.keyboard.press("Control+Enter"), "expression")
        assert line.get_attribute("data-kind") == "error" and page.evaluate("window.__xss") is None, text


def test_a_run_is_drawn_live_and_diagnosed(first_view: Visit) -> None:
    visit, page = first_view, show(first_view, "Training")

    visit.after(lambda: page.get_by_role("button", name="Learning rate too high").click(), "training")
    page.wait_for_function("document.getElementById('hl-training').dataset.state === 'broken'", timeout=PATIENCE)

    assert "the loss is not finite" in page.locator("#hl-training .hl-line").inner_text()
    assert "grew from" in page.locator("#hl-training .hl-finding").inner_text()
    expect(page.locator("#hl-training .hl-plot svg")).to_have_count(4)
    plot = page.locator("#hl-training .hl-plot").nth(1)
    plot.focus()
    page.keyboard.press("ArrowRight")
    assert re.match(r"step 0: \d", page.locator("#hl-training output").nth(1).inner_text())


@pytest.mark.slow
def test_hooks_are_chosen_and_a_run_is_stopped(visit: Visit) -> None:
    page = opened(visit, "Training")
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
    page.wait_for_function("document.getElementById('hl-training').dataset.state === 'done'", timeout=PATIENCE)
    assert re.match(r"Stopped after \d+ of 500 steps", page.locator("#hl-training .hl-line").inner_text())
    page.locator("#hl-training .hl-plot").nth(1).hover()
    read = page.locator("#hl-training output").nth(1).inner_text()
    assert "conv1 0 " in read and "conv2" in read
    assert page.get_by_role("button", name="Start").is_enabled()


@pytest.mark.slow
def test_an_invalid_number_is_reported_at_its_field_and_the_last_run_is_marked(visit: Visit) -> None:
    page = opened(visit, "Training")
    part, line, start = page.locator("#hl-training"), page.locator("#hl-training .hl-line"), "Start"
    visit.after(lambda: page.get_by_role("button", name="MLP on a spiral").click(), "training")
    page.wait_for_function("document.getElementById('hl-training').dataset.state === 'done'")
    shown, sent = visit.number("training"), len(visit.requests)
    ran = line.inner_text()

    for name, typed, sentence in (
        ("steps", "-5", "Steps must be an integer from 1 to 500."),
        ("steps", "10.5", "Steps must be an integer from 1 to 500."),
        ("rate", "1e999", "Learning rate must be a number from 1e-6 to 100."),
        ("noise", "-1", "Gradient noise (std) must be a number from 0 to 1000, or empty to disable the hook."),
        ("depth", "", "Hidden layers must be an integer from 1 to 8."),
        (
            "clip_value",
            "0",
            "Value clipping threshold must be a number from 1e-9 to 1e9, or empty to disable the hook.",
        ),
        ("clip_norm", "1e", "Norm clipping threshold must be a number from 1e-9 to 1e9, or empty to disable the hook."),
    ):
        field = part.locator(f"input[name={name}]")
        before = field.input_value()
        field.focus()
        page.keyboard.press("Control+a")
        page.keyboard.press("Delete")
        page.keyboard.type(typed)  # like a user: `fill` rejects values that are not numbers
        page.get_by_role("button", name=start).click()

        wrong = page.locator(f"#{field.get_attribute('aria-describedby')}")
        assert wrong.inner_text() == sentence and field.get_attribute("aria-invalid") == "true"
        assert field.evaluate("field => document.activeElement === field")
        assert line.inner_text() == "Not started. Correct the marked field. The charts show the last valid run."
        expect(part.locator(".hl-old .hl-plot"), "the last result stays and is marked as outdated").to_have_count(4)
        if name == "steps":
            page.wait_for_timeout(700)  # input is validated again after a pause
        assert line.get_attribute("data-kind") == "error" and line.inner_text().startswith("Not started")
        field.fill(before)
        assert wrong.is_hidden() and field.get_attribute("aria-invalid") is None
        expect(part.locator(".hl-old")).to_have_count(0)
        assert line.inner_text() == ran

    assert visit.number("training") == shown and not [r for r in visit.requests[sent:] if "queue/join" in r]
    part.locator("input[name=steps]").fill("20")
    expect(part.locator(".hl-old")).to_have_count(1)
    assert line.inner_text() == f"{ran}. The settings have changed. Press Start to run them."
    visit.after(lambda: page.get_by_role("button", name=start).click(), "training")
    page.wait_for_function("document.getElementById('hl-training').dataset.state === 'done'")
    expect(part.locator(".hl-old")).to_have_count(0)
    assert line.inner_text().startswith("Trained for 20 steps")


@pytest.mark.slow
def test_an_invalid_hook_value_is_reported_at_its_field_and_the_last_result_is_marked(visit: Visit) -> None:
    page = opened(visit)
    visit.painted("expression", 0)
    part, line = page.locator("#hl-expression"), page.locator("#hl-expression .hl-line")
    amount, code = part.locator("input[name=amount]"), part.locator("pre").inner_text()
    for typed in ("", "1e999", "2e12"):
        amount.focus()
        page.keyboard.press("Control+a")
        page.keyboard.press("Delete")
        page.keyboard.type(typed)
        page.get_by_role("button", name="Run").click()
        sentence = page.locator(f"#{amount.get_attribute('aria-describedby')}").inner_text()
        assert sentence == "The factor must be a number from −1e12 to 1e12.", typed
        not_run = "Not run. Correct the marked field. The result below is from the last valid expression."
        assert line.inner_text() == not_run
        expect(part.locator(".hl-lab-results.hl-old")).to_have_count(1)
        assert part.locator("pre").inner_text() == code
    amount.fill("3")
    visit.after(lambda: page.keyboard.press("Enter"), "expression")
    expect(part.locator(".hl-old")).to_have_count(0)
    assert amount.get_attribute("aria-invalid") is None
    assert table(page, 2) == {"v": ["3", "6", "9"]}

    seed = part.locator("input[name=seed]")
    seed.fill("(1, inf, 2)")
    visit.after(seed.blur, "expression")
    assert "NaN and ∞ are not supported" in page.locator(f"#{seed.get_attribute('aria-describedby')}").inner_text()
    seed.fill("")
    part.locator("textarea").fill("x = (1, 0)\ny = log(x)")
    expect(part.locator(".hl-old")).to_have_count(1)
    assert "The expression has changed" in line.inner_text()
    page.get_by_role("button", name="Run").click()
    finding = part.locator(".hl-finding")
    finding.filter(has_text="y = log(x)").wait_for()  # the seed's field also ran the expression
    assert finding.inner_text().startswith("y = log(x) is −∞: the logarithm of 0 is not finite.")
    visit.after(lambda: page.get_by_role("button", name="y = 2v²").click(), "expression")
    expect(part.locator(".hl-old")).to_have_count(0)
    assert finding.is_hidden()


@pytest.mark.slow
def test_a_frozen_layer_is_reported_and_the_loss_has_a_suitable_axis(visit: Visit) -> None:
    page = opened(visit, "Training")
    part = page.locator("#hl-training")
    page.get_by_role("button", name="First layer frozen, noise on the others").focus()
    visit.after(lambda: page.keyboard.press("Enter"), "training")
    page.wait_for_function("document.getElementById('hl-training').dataset.state === 'done'")
    assert page.evaluate("document.activeElement.dataset.id") == "frozen", "the focus returns"

    (finding,) = part.locator(".hl-finding").all_inner_texts()
    assert "Gradient hooks set the gradient of 'hidden1.weight'" in finding and "ReLU" not in finding
    legend = part.locator(".hl-chart-box").nth(1).locator(".hl-legend span").all_inner_texts()
    assert legend == ["hidden1: 0", "hidden2", "hidden3", "output"]
    assert part.locator(".hl-chart-box .hl-title").first.inner_text() == "Loss (log scale)"
    cases = [[1, 0.5], [100, 1], [101, 1], [1000, 0], [1000, -1], [1000, None, 1], [None], [], [1e38, 1e-7]]
    found = page.evaluate("async (cases) => (await import('/hl/drawing/chart.js')).decades && cases.map("
                          "(await import('/hl/drawing/chart.js')).decades)", cases)  # fmt: skip
    assert found == [False, False, True, False, False, True, False, False, True]
    visit.after(lambda: page.get_by_role("button", name="Eight sigmoid layers").click(), "training")
    page.wait_for_function("document.getElementById('hl-training').dataset.state === 'done'")
    assert part.locator(".hl-chart-box .hl-title").first.inner_text() == "Loss", "from 0.75 to 0.69"


CONTRASTS = """async () => {
  const { hue } = await import("/hl/drawing/chart.js");
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
  const found = {}, probe = document.createElement("i"), host = document.querySelector("#hl-training .hl-plot");
  host.append(probe);
  for (let count = 1; count <= 9; count++) for (let k = 0; k < count; k++) {
    probe.style.color = hue(k, count);
    found[`line ${k} of ${count}`] = contrast(getComputedStyle(probe).color, 1, host);
  }
  probe.remove();
  for (const name of ["hl-curve", "hl-edge", "hl-cursor", "hl-bar-plain", "hl-bar-stage", "hl-bar-dead"]) {
    const place = name === "hl-edge" ? document.querySelector("#hl-expression .hl-graph") : host;
    const shape = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const frame = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    shape.setAttribute("class", name);
    frame.append(shape);
    place.append(frame);
    const style = getComputedStyle(shape), painted = style.stroke !== "none" ? style.stroke : style.fill;
    if (name !== "hl-curve") found[name] = contrast(painted, Number(style.opacity), place);
    frame.remove();
  }
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
def test_the_lab_grays_out_the_image_does_not_shift_and_its_colors_have_contrast(browser: Any, app: str) -> None:
    for width, scheme in ((390, "dark"), (768, "light")):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        visit = Visit(context.new_page(), app)
        page = opened(visit)
        left = page.locator("#hl-image")
        gray = "(image) => image.closest('[inert]') !== null && getComputedStyle(image).opacity < 0.5"
        visit.painted("expression", 0)
        place_of_tabs = page.locator("#hl-lab [role=tab]").first.bounding_box()["x"]
        assert page.get_by_text("does not use the image").is_visible()
        assert page.locator("#hl-lab [role=tab]").first.bounding_box()["y"] < 200, "no hole above the tabs"
        names = [tab.inner_text() for tab in page.get_by_role("tab").all() if tab.is_visible()]
        assert {"Explain", "Compare", "Channels", "Batch"} <= set(names), (width, names)
        assert {"Expression", "Training", "Image"} <= set(names), (width, names)
        assert left.evaluate(gray)
        page.get_by_role("tab", name="Training").click()
        assert left.evaluate(gray)

        page.get_by_role("button", name="Eight sigmoid layers").click()
        page.wait_for_function("document.querySelectorAll('#hl-training .hl-curve').length === 19")
        place = "[...document.querySelectorAll('#hl-training .hl-plot')].map((plot) => plot.offsetTop)"
        first = page.evaluate(place)
        page.wait_for_function("document.getElementById('hl-training').dataset.state === 'done'")
        assert page.evaluate(place) == first, "the layout does not shift during a run"
        low = {name: round(found, 2) for name, found in page.evaluate(CONTRASTS).items() if found < 3}
        assert not low, (width, scheme, low)
        assert page.evaluate("document.documentElement.scrollWidth") <= width

        page.get_by_role("tab", name="Image").click()
        assert not left.evaluate(gray) and not page.get_by_text("does not use the image").is_visible()
        visit.painted("depth", 0)
        assert page.locator("#hl-lab [role=tab]").first.bounding_box()["x"] == place_of_tabs, "the tabs do not jump"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("tab", name="Expression").click()
        assert left.evaluate(gray)
        page.get_by_role("tab", name="Explain").click()
        assert not left.evaluate(gray)
        visit.check()
        context.close()


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
    page.wait_for_function(
        "document.querySelector('#hl-depth .hl-line').innerText.includes('goldfish')", timeout=PATIENCE
    )
