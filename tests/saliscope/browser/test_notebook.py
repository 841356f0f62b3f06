"""Maps in notebooks, in Chromium: controls, values at the pointer, and what remains where scripts are blocked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from explainers import Explanation, explain, show
from explainers.display.charts import charts_html, line_chart
from explainers.display.display import Display
from tests.saliscope.browser.conftest import expect


def explained() -> Explanation:
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    images = torch.full((1, 3, 8, 8), 0.5)
    images[..., 6:] = 0.9
    return explain("input_x_gradient", nn.Sequential(*layers).eval(), images, 1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Explanation]:
    path, e = tmp_path_factory.mktemp("notebook") / "page.html", explained()
    show([e, e]).to_html(path)
    return path, e


@pytest.fixture
def page(browser, written) -> Iterator:
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or errors.append(request.url))
    page.goto(written[0].as_uri())
    page.wait_for_selector(".saliscope canvas[tabindex]")
    yield page
    page.close()
    assert errors == []


def colors(page, x: float, y: float) -> list[int]:
    """Return the color of the first map at a relative position."""
    return page.locator("canvas[tabindex]").first.evaluate(
        "(canvas, [x, y]) => [...canvas.getContext('2d')"
        ".getImageData(x * canvas.width, y * canvas.height, 1, 1).data].slice(0, 3)",
        [x, y],
    )


def test_values_are_read_modes_change_the_drawing_and_limits_are_set(page, written) -> None:
    """Oracle: the value of the map, by pointer; an invalid limit is refused, and the drawing stays."""
    canvas, read = page.locator("canvas[tabindex]").first, page.locator("output").first
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] * 6.5 / 8, "y": box["height"] * 2.5 / 8})
    value = float(read.inner_text().split()[0].replace("\N{MINUS SIGN}", "-"))
    assert value == pytest.approx(float(written[1].map[0, 2, 6]), rel=5e-3)
    assert "row 3, column 7 of 8 × 8" in read.inner_text()
    page.mouse.move(0, 0)
    assert read.inner_text() == ""
    canvas.press("ArrowLeft")
    assert "row 5, column 4" in read.inner_text()

    mode, share = page.locator("select").first, page.locator("input[type=range]").first
    overlay = colors(page, 0.1, 0.5)
    mode.select_option("photograph")
    image = colors(page, 0.1, 0.5)
    assert all(abs(value - 128) < 6 for value in image) and overlay != image and share.is_disabled()
    mode.select_option("swipe")
    share.fill("0.5")
    assert colors(page, 0.1, 0.5) == image
    mode.select_option("map")
    assert colors(page, 0.1, 0.5) != image
    mode.select_option("overlay")
    share.fill("0")
    assert colors(page, 0.1, 0.5) == image
    share.fill("1")

    low, high = page.locator("input[type=number]").first, page.locator("input[type=number]").nth(1)
    own, before = high.input_value(), colors(page, 0.9, 0.5)
    high.fill(str(100 * float(own)))
    assert round(float(page.locator(".saliscope-ticks").first.inner_text().split()[-2]) / float(own)) == 100
    assert colors(page, 0.9, 0.5) != before
    low.fill(str(1e9))
    assert not low.evaluate("field => field.validity.valid")
    page.get_by_role("button", name="Reset").first.click()
    assert high.input_value() == own and colors(page, 0.9, 0.5) == before


def test_fields_show_small_and_large_numbers_whole(browser, tmp_path) -> None:
    scales, e = (-2.3456e-11, -0.00016, 123456.7, -9.876e12), explained()
    show([replace(e, map=e.map * scale / e.map.abs().max()) for scale in scales]).to_html(tmp_path / "page.html")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("input[type=number]")
    for scale, high in zip(scales, page.locator("input[type=number]").all()[1::2], strict=True):
        assert float(high.input_value()) == pytest.approx(abs(scale), rel=1e-3)
        for typed in (None, "0.000123456789012"):
            if typed:
                high.fill(typed)
            # An element that scrolls has more text than room.
            assert high.evaluate("field => field.scrollWidth - field.clientWidth") == 0, scale
    page.close()


def test_no_text_of_a_chart_leaves_it_or_covers_another(browser, tmp_path) -> None:
    values = [[-0.00016, 0.0001], [-1.5e9, 3e9], [1e-12, -2.3e-7], [0, 0], [-1.7e308, 1.7e308], [0.123456, 0.123457]]
    charts = []
    for pair in values:
        for logarithmic in (False, True):
            lines = {f"encoder.layers.{k}.attention.weight": list(enumerate(pair, 123456)) for k in range(3)}
            charts += line_chart("norm of the gradient", lines, x="step", y="score", logarithmic=logarithmic)
    Display(charts_html(charts), "").to_html(tmp_path / "page.html")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    wrong = page.locator("svg").evaluate_all("""(charts) => charts.flatMap((chart) => {
        const whole = chart.getBoundingClientRect();
        const texts = [...chart.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
        const out = texts.filter(([, a]) => a.left < whole.left || a.right > whole.right || a.bottom > whole.bottom);
        const crossed = texts.filter(([, a], k) => texts.some(([, b], j) => j < k && a.left < b.right - 1
            && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3));
        return [...out, ...crossed].map(([text]) => text);
    })""")
    page.close()
    assert len(charts) == 12
    assert wrong == []


def test_where_scripts_are_blocked_a_static_image_remains(browser, written) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(written[0].as_uri())
    expect(page.locator(".saliscope figure img")).to_have_count(2)
    expect(page.locator("canvas")).to_have_count(0)
    assert page.locator("img").first.get_attribute("alt").startswith("Input × gradient")
    context.close()
