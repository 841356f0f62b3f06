"""The canvas with a map over an image draws the same as the library, with all settings."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from explainers.maps.overlays import bar_colors, overlay, view
from tests.saliscope.browser.conftest import Visit

DRAW = """async ([photo, values, h, w, width, height, options]) => {
  const load = (name) => import(new URL(`/hl/${name}.js`, document.baseURI));
  const { view, draw } = await load('drawing/paint'), { bytes } = await load('wire');
  const pixels = new Uint8ClampedArray(bytes(photo));
  draw(pixels, width, height, view({ h, w, values: new Float32Array(bytes(values).buffer) }, options));
  return btoa(Array.from(pixels, (each) => String.fromCharCode(each)).join(''));
}"""
BARE = "/hl/drawing/paint.js"
"""A page of the app that makes no requests."""
BAR = """async ([colors, fine]) => {
  const { bar } = await import(new URL('/hl/drawing/paint.js', document.baseURI));
  return Array.from(bar(new Uint8ClampedArray(4 * 256), { colors, fine })).filter((_, i) => i % 4 < 3);
}"""


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def broken() -> torch.Tensor:
    values = noise(9, 7).abs()
    values[4, 3] = torch.nan
    return values


MAPS = {
    "coarse": (noise(7, 7).abs(), {}),
    "signed": (noise(7, 9), {}),
    "cells": (noise(7, 7), {"smooth": False}),
    "limits": (noise(7, 7).abs(), {"limits": [0.0, 5.0], "colors": "viridis"}),
    "fine": (noise(224, 224) ** 3, {}),
    "sizes": (noise(224, 224) ** 3, {"signed": False}),
    "sharp": (noise(64, 96), {"smooth": False}),
    "smooth": (torch.nn.functional.interpolate(noise(1, 1, 7, 7), (224, 224), mode="bicubic")[0, 0], {}),
    "blank": (torch.zeros(7, 7), {}),
    "broken": (broken(), {}),
    "nothing": (torch.full((40, 40), torch.nan), {}),
}


@pytest.fixture(scope="module")
def bare(browser, app: str) -> Iterator[Any]:
    """A page that only imports modules."""
    page = browser.new_page()
    page.goto(app + BARE)
    yield page
    page.close()


@pytest.mark.parametrize("size", [(150, 110), (400, 420)])
@pytest.mark.parametrize("name", MAPS)
def test_the_page_draws_what_the_library_draws(bare: Any, name: str, size: tuple[int, int]) -> None:
    """Oracle: `explainers.overlay` on the same pixels, within 2 of 255."""
    values, options = MAPS[name]
    photo = Image.effect_mandelbrot(size, (-2, -1.2, 0.8, 1.2), 60).convert("RGB")
    photo = Image.merge("RGB", [photo.getchannel(0), photo.getchannel(0).rotate(90), photo.getchannel(0).rotate(180)])
    packed = [text(photo.convert("RGBA").tobytes()), text(values.numpy().astype("<f4").tobytes())]

    found = bare.evaluate(DRAW, [*packed, *values.shape, *size, options])

    drawn = np.frombuffer(base64.b64decode(found), np.uint8).reshape(size[1], size[0], 4)[..., :3].astype(int)
    expected = np.asarray(overlay(photo, values, **options)).astype(int)
    off = np.abs(drawn - expected).max(axis=2)
    assert (off > 2).mean() < 1e-4, (off.max(), (off > 2).mean())
    assert expected.std() > 5


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("colors", ["magma", "viridis", "signed"])
def test_the_pages_color_bar_is_the_librarys(bare: Any, colors: str, fine: bool) -> None:
    found = bare.evaluate(BAR, [colors, fine])

    assert np.abs(np.array(found) - bar_colors(256, colors, fine).flatten().numpy().astype(int)).max() <= 2


def test_a_saved_image_is_the_librarys_overlay_of_the_saved_map(first_view: Visit) -> None:
    """Oracle: `explainers.overlay` of the saved image (opacity 0) and the saved `.npy` file."""
    visit = first_view
    slider = visit.page.locator("#hl-overlay input[name=opacity]")
    usual = slider.input_value()
    drawn = saved(visit, "As shown, PNG")
    values = torch.from_numpy(np.load(io.BytesIO(saved(visit, "Values, .npy"))).astype(np.float32))
    slider.fill("0")
    plain = saved(visit, "As shown, PNG")
    slider.fill(usual)

    expected = np.asarray(overlay(Image.open(io.BytesIO(plain)).convert("RGB"), values)).astype(int)
    found = np.asarray(Image.open(io.BytesIO(drawn)).convert("RGB")).astype(int)
    assert np.abs(found - expected).max() <= 2
    assert np.abs(found - np.asarray(Image.open(io.BytesIO(plain)).convert("RGB")).astype(int)).mean() > 20


def saved(visit: Visit, button: str) -> bytes:
    visit.page.locator("#hl-overlay").get_by_role("button", name="Save", exact=True).click()
    with visit.page.expect_download() as download:
        visit.page.locator("#hl-overlay").get_by_role("button", name=button).click()
    return Path(download.value.path()).read_bytes()


@pytest.mark.slow
def test_holding_shows_only_the_image(visit: Visit) -> None:
    """By P on the canvas or a long press on the label; the result equals opacity 0."""
    visit.open()
    page, canvas = visit.page, visit.page.locator("#hl-overlay canvas").first
    slider = page.locator("#hl-overlay input[name=opacity]")
    shown = shot(visit)
    slider.fill("0")
    photograph = shot(visit)
    slider.fill("100")
    assert shot(visit) == shown != photograph

    page.locator("#hl-overlay .hl-shown label", has_text="Image").hover()
    page.mouse.down()
    assert shot(visit) == photograph
    page.wait_for_timeout(350)
    page.mouse.up()
    assert shot(visit) == shown

    canvas.focus()
    page.keyboard.down("p")
    assert shot(visit) == photograph
    page.keyboard.up("p")
    assert shot(visit) == shown


def shot(visit: Visit) -> str:
    """Return the pixels of the canvas."""
    return visit.page.evaluate("document.querySelector('#hl-overlay canvas').toDataURL()")


@pytest.mark.slow
def test_gradients_are_magnitudes_and_the_color_bar_says_so(visit: Visit) -> None:
    visit.open("?method=saliency")
    scale = visit.page.locator("#hl-overlay .hl-scale")
    assert scale.locator(".hl-ends span").first.inner_text() == "0" and "|gradient|" in scale.inner_text()
    assert "99.5th percentile" in scale.locator(".hl-quiet").inner_text()


@pytest.mark.slow
def test_attributions_with_a_sign_are_red_and_blue_unless_magnitudes_are_chosen(visit: Visit) -> None:
    """The dog and the panda: evidence against the German shepherd looked like evidence for it."""
    visit.open("?method=input_x_gradient&example=pair&target=German+shepherd")
    signed, scale = visit.page.locator("#hl-overlay input[name=signed]"), visit.page.locator("#hl-overlay .hl-scale")
    ends = visit.page.locator("#hl-overlay .hl-ends > span")
    assert signed.is_checked() and ends.first.inner_text().startswith("≤ −")
    assert "blurred by 3 pixels" in scale.inner_text() and "|" not in scale.inner_text()
    guide = visit.page.locator("#hl-guide").inner_text()
    assert "Red: " in guide and "blue: " in guide

    visit.open_colors()
    signed.uncheck()

    assert ends.first.inner_text() == "0" and "|score|" in scale.inner_text()
    assert "blurred by a pixel" in scale.inner_text() and "Magnitudes" in scale.inner_text()


@pytest.mark.slow
def test_values_read_from_a_fine_map_are_not_blurred(visit: Visit) -> None:
    """Oracle: the value in the saved map, although blurred magnitudes are drawn."""
    visit.open("?method=saliency")
    values = np.load(io.BytesIO(saved(visit, "Values, .npy")))
    canvas, read = visit.page.locator("#hl-overlay canvas").first, visit.page.locator("#hl-overlay .hl-read")

    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] * 100.5 / 224, "y": box["height"] * 60.5 / 224})

    words = read.inner_text()
    assert "row 61, column 101 of 224 × 224" in words
    assert float(words.split()[0].replace("−", "-")) == pytest.approx(float(values[60, 100]), rel=1e-3, abs=1e-9)
    top = float(visit.page.locator("#hl-overlay .hl-ends > span").last.inner_text().split()[1])
    assert top == pytest.approx(view(torch.from_numpy(values), signed=False).high, rel=1e-3)


@pytest.mark.slow
def test_the_canvas_has_the_resolution_of_the_screen(browser, app: str) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, device_scale_factor=2)
    visit = Visit(context.new_page(), app).open()

    wide = visit.page.locator("#hl-overlay canvas").first.evaluate("(c) => [c.width, c.getBoundingClientRect().width]")

    assert wide[0] == pytest.approx(2 * wide[1], abs=1)
    visit.check()
    context.close()
