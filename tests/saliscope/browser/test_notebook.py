"""Maps in notebooks, in Chromium: controls, values at the pointer, and what remains where scripts are blocked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from explainers import Explanation, explain, show
from explainers.display.charts import charts_html, line_chart
from explainers.display.display import Display
from tests.saliscope.browser.conftest import expect


@pytest.fixture(scope="module")
def e() -> Explanation:
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    images = torch.full((1, 3, 8, 8), 0.5)
    images[..., 6:] = 0.9
    return explain("input_x_gradient", nn.Sequential(*layers).eval(), images, 1)


@pytest.fixture
def page(browser) -> Iterator[Any]:
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or errors.append(request.url))
    yield page
    page.close()
    assert errors == []


def opened(page: Any, display: Display, folder: Path) -> Any:
    display.to_html(folder / "page.html")
    page.goto((folder / "page.html").as_uri())
    return page


def test_values_are_read_modes_change_the_drawing_and_limits_are_set(page: Any, e: Explanation, tmp_path: Path) -> None:
    """Oracle: the value of the map, by pointer; an invalid limit is refused, and the drawing stays."""
    canvas, read = opened(page, show([e, e]), tmp_path).locator("canvas[tabindex]").first, page.locator("output").first
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] * 6.5 / 8, "y": box["height"] * 2.5 / 8})
    expect(read).to_contain_text("row 3, column 7 of 8 × 8")
    value = float(read.inner_text().split()[0].replace("\N{MINUS SIGN}", "-"))
    assert value == pytest.approx(float(e.map[0, 2, 6]), rel=5e-3)
    page.mouse.move(0, 0)
    expect(read).to_have_text("")
    canvas.press("ArrowLeft")
    expect(read).to_contain_text("row 5, column 4")

    def color(x: float = 0.1) -> list[int]:
        script = "(c, x) => [...c.getContext('2d').getImageData(x * c.width, 0.5 * c.height, 1, 1).data].slice(0, 3)"
        return canvas.evaluate(script, x)

    mode, share = page.locator("select").first, page.locator("input[type=range]").first
    overlay = color()
    mode.select_option("photograph")
    image = color()
    assert all(abs(value - 128) < 6 for value in image) and overlay != image
    expect(share).to_be_disabled()
    mode.select_option("swipe")
    share.fill("0.5")
    assert color() == image
    mode.select_option("map")
    assert color() != image
    mode.select_option("overlay")
    share.fill("0")
    assert color() == image
    share.fill("1")

    low, high = page.locator("input[type=number]").first, page.locator("input[type=number]").nth(1)
    own, before = high.input_value(), color(0.9)
    high.fill(str(100 * float(own)))
    assert round(float(page.locator(".saliscope-ticks").first.inner_text().split()[-2]) / float(own)) == 100
    assert color(0.9) != before
    low.fill(str(1e9))
    assert not low.evaluate("field => field.validity.valid")
    page.get_by_role("button", name="Reset").first.click()
    expect(high).to_have_value(own)
    assert color(0.9) == before


def test_no_text_of_a_chart_leaves_it_or_covers_another(page: Any, tmp_path: Path) -> None:
    values = [[-0.00016, 0.0001], [-1.5e9, 3e9], [1e-12, -2.3e-7], [0, 0], [-1.7e308, 1.7e308], [0.123456, 0.123457]]
    charts = []
    for pair in values:
        for logarithmic in (False, True):
            lines = {f"encoder.layers.{k}.attention.weight": list(enumerate(pair, 123456)) for k in range(3)}
            charts += line_chart("norm of the gradient", lines, x="step", y="score", logarithmic=logarithmic)
    opened(page, Display(charts_html(charts), ""), tmp_path)
    wrong = page.locator("svg").evaluate_all("""(charts) => charts.flatMap((chart) => {
        const whole = chart.getBoundingClientRect();
        const texts = [...chart.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
        const out = texts.filter(([, a]) => a.left < whole.left || a.right > whole.right || a.bottom > whole.bottom);
        const crossed = texts.filter(([, a], k) => texts.some(([, b], j) => j < k && a.left < b.right - 1
            && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3));
        return [...out, ...crossed].map(([text]) => text);
    })""")
    assert len(charts) == 12 and wrong == []


def test_where_scripts_are_blocked_a_static_image_remains(browser, e: Explanation, tmp_path: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = opened(context.new_page(), show([e, e]), tmp_path)
    expect(page.locator(".saliscope figure img")).to_have_count(2)
    expect(page.locator("canvas")).to_have_count(0)
    assert page.locator("img").first.get_attribute("alt").startswith("Input × gradient")
    context.close()
