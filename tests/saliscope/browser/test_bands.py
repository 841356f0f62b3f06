"""Five-band images with models of five, three and one input channels: upload, band selection, errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.saliscope.browser.conftest import Visit, expect
from tests.saliscope.browser.test_page import give
from tests.support.band_files import npy_file, tiff_file

WRONG = "This network needs 5 bands, but the image has 3. Use a TIFF or NPY file with 5 bands."


def scene() -> np.ndarray:
    """Return an image with five bands [5, 60, 90]; higher bands are brighter."""
    ramp = np.linspace(0, 1, 90)[None].repeat(60, 0)
    return np.stack([ramp ** (6 / (band + 1)) for band in range(5)])


def picked(visit: Visit) -> list[str]:
    return [select.input_value() for select in visit.page.locator("#hl-bands select").all()]


def photograph(visit: Visit) -> list[float]:
    """Return the mean red, green and blue of the image under the map."""
    canvas = visit.page.locator("#hl-overlay canvas").first
    canvas.focus()
    visit.page.keyboard.down("p")
    means = visit.pixels()[..., :3].mean((0, 1)).tolist()
    visit.page.keyboard.up("p")
    return means


@pytest.mark.slow
def test_the_bands_of_a_tiff_are_picked_and_other_models_receive_them(window: Any, tmp_path: Path) -> None:
    """On a phone. Three selections before the first answer are all kept."""
    (tmp_path / "scene.tif").write_bytes(tiff_file((scene() * 9000).astype("u2"), packed=True, tile=32))
    visit = window(390, 844, color_scheme="dark")
    page, bands, selects = visit.page, visit.page.locator("#hl-bands"), visit.page.locator("#hl-bands select")
    page.goto(f"{visit.address}/?model=bands5")
    visit.state("error")
    assert visit.status == page.locator("#hl-overlay .hl-empty").inner_text() == WRONG
    page.locator("#hl-fold button").click()
    visit.after(lambda: visit.upload(tmp_path / "scene.tif"))
    assert picked(visit) == ["1", "2", "3"] and page.evaluate("document.documentElement.scrollWidth") == 390
    expect(bands).to_contain_text("The network receives all 5 bands")
    expect(bands).to_contain_text("5 bands of uint16, 90 × 60 pixels; values 0 to 9000")
    red, green, blue = photograph(visit)
    assert red + 10 < green and green + 10 < blue
    choose = """(all) => all.forEach((select, k) => {
      select.value = "541"[k];
      select.dispatchEvent(new Event("change", { bubbles: true }));
    })"""
    visit.after(lambda: selects.evaluate_all(choose))
    expect(page.locator("#hl-image img").first).to_have_attribute("src", re.compile("^data:image/jpeg"))
    visit.settled()
    red, green, blue = photograph(visit)
    assert picked(visit) == ["5", "4", "1"] and red > green > blue + 50

    for channels, words in (("3 channels", "receives these three bands."), ("1 channel", "as one channel")):
        visit.after(lambda channels=channels: visit.choose("model", f"A network of {channels}"))
        expect(bands).to_contain_text(words)
    visit.after(lambda: page.locator("#hl-examples button").nth(1).click())
    expect(selects.first).to_be_hidden()


@pytest.mark.slow
def test_an_array_passes_by_choice_drop_link_and_snippet(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    page.goto(f"{visit.address}/?model=bands5&bands=4,3,2")
    visit.state("error")
    data = npy_file((scene() * 255).astype("u1").transpose(1, 2, 0))
    (tmp_path / "scene.npy").write_bytes(data)
    visit.after(lambda: visit.upload(tmp_path / "scene.npy"))
    expect(page.locator("#hl-bands")).to_contain_text("5 bands of uint8")
    assert picked(visit) == ["4", "3", "2"]
    page.locator("#hl-link").click()
    expect(page.locator("#hl-linked input")).to_have_value(re.compile("bands=4%2C3%2C2"))
    visit.open_view("API")
    for text in ("bands='4,3,2'", 'numpy.load("image.npy")  # [5, height, width]'):
        page.locator("#hl-api pre", has_text=text).first.wait_for()
    visit.open_view("Explain")
    visit.after(lambda: give(visit, "#hl-head", "drop", "<img src=x onerror=window.__xss=1>.npy", data))
    assert "Grad-CAM" in visit.status and picked(visit) == ["1", "2", "3"]
    assert page.evaluate("window.__xss") is None
