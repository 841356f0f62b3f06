"""Five-band images with models of five, three and one input channels: upload, band selection, errors."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.saliscope.browser.conftest import Visit, expect
from tests.support.band_files import npy_file, tiff_file

HEIGHT, WIDTH = 60, 90
MODEL = "?model=bands5"
WRONG = "This network needs 5 bands, but the image has 3. Use a TIFF or NPY file with 5 bands."
DROP = """(place, [name, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([bytes], name));
  for (const kind of ["dragenter", "dragover", "drop"])
    place.dispatchEvent(new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
}"""
MEAN = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const sums = [0, 0, 0];
  for (let i = 0; i < data.length; i++) if (i % 4 < 3) sums[i % 4] += data[i] / (data.length / 4);
  return sums;
}"""


def scene() -> np.ndarray:
    """Return an image with five bands [5, h, w]; higher bands are brighter."""
    ramp = np.linspace(0, 1, WIDTH)[None].repeat(HEIGHT, 0)
    return np.stack([ramp ** (6 / (band + 1)) for band in range(5)])


@pytest.fixture
def tiff(tmp_path: Path) -> Path:
    path = tmp_path / "scene.tif"
    path.write_bytes(tiff_file((scene() * 9000).astype("u2"), packed=True, tile=32))
    return path


@pytest.fixture
def npy(tmp_path: Path) -> Path:
    path = tmp_path / "scene.npy"
    path.write_bytes(npy_file((scene() * 255).astype("u1").transpose(1, 2, 0)))
    return path


def opened(visit: Visit, query: str = "") -> Visit:
    """Open the page and wait until the example is rejected."""
    visit.page.goto(f"{visit.address}/{MODEL}{query}")
    visit.state("error")
    return visit


def picked(visit: Visit) -> list[str]:
    return [select.input_value() for select in visit.page.locator("#hl-bands select").all()]


def select(visit: Visit, color: str) -> Any:
    return visit.page.locator(f"#hl-bands select[name={color}]")


def photograph(visit: Visit) -> list[float]:
    """Return the mean red, green and blue of the image under the map."""
    visit.page.locator("#hl-overlay canvas").first.focus()
    visit.page.keyboard.down("p")
    means = visit.page.locator("#hl-overlay canvas").first.evaluate(MEAN)
    visit.page.keyboard.up("p")
    return means


def preview(visit: Visit) -> str:
    """Return the URL of the image preview once it is loaded."""
    visit.until("document.querySelector('#hl-image img')?.naturalWidth > 0")
    return visit.page.locator("#hl-image img").first.get_attribute("src")


@pytest.mark.slow
def test_the_bands_of_a_tiff_are_picked_and_other_models_receive_them(visit: Visit, tiff: Path) -> None:
    """Three selections before the first answer are all kept."""
    opened(visit)
    bands, selects = visit.page.locator("#hl-bands"), visit.page.locator("#hl-bands select")
    assert visit.status == visit.page.locator("#hl-overlay .hl-empty").inner_text() == WRONG
    assert not selects.first.is_visible()

    visit.after(lambda: visit.upload(tiff))
    assert preview(visit).endswith(".1-2-3.preview.png") and picked(visit) == ["1", "2", "3"]
    words = bands.inner_text()
    assert "The network receives all 5 bands" in words
    assert "5 bands of uint16, 90 × 60 pixels; values 0 to 9000" in words
    red, green, blue = photograph(visit)
    assert red + 10 < green and green + 10 < blue

    before = visit.number("overlay")
    for name, band in (("red", "5"), ("green", "4"), ("blue", "1")):
        select(visit, name).select_option(band)
    visit.until("document.querySelector('#hl-image img')?.src.endsWith('.5-4-1.preview.png')")
    visit.painted("overlay", before)
    visit.settled()
    assert picked(visit) == ["5", "4", "1"]
    red, green, blue = photograph(visit)
    assert red > green > blue + 50
    expect(visit.page.locator("#hl-examples button[aria-pressed=true]")).to_have_count(0)

    visit.after(lambda: visit.choose("model", "A network of 3 channels"))
    assert "The network receives these three bands." in bands.inner_text()
    visit.after(lambda: select(visit, "green").select_option("2"))
    visit.after(lambda: visit.choose("model", "A network of 1 channel"))
    assert "luminance of these bands as one channel" in bands.inner_text() and picked(visit) == ["5", "2", "1"]
    visit.after(lambda: visit.page.locator("#hl-examples button").nth(1).click())
    assert "Grad-CAM" in visit.status and not selects.first.is_visible()


@pytest.mark.slow
def test_an_array_passes_by_choice_drop_link_and_snippet(visit: Visit, npy: Path) -> None:
    opened(visit, "&bands=4,3,2")
    visit.after(lambda: visit.upload(npy))
    assert "scene.npy.4-3-2.preview.png" in preview(visit) and picked(visit) == ["4", "3", "2"]
    assert "5 bands of uint8" in visit.page.locator("#hl-bands").inner_text()
    visit.page.locator("#hl-link").click()
    field = visit.page.locator("#hl-linked input")
    field.wait_for()
    assert "bands=4%2C3%2C2" in field.input_value()
    visit.open_view("API")
    for text in ("bands='4,3,2'", 'numpy.load("image.npy")  # [5, height, width]'):
        visit.page.locator("#hl-api pre", has_text=text).first.wait_for()
    visit.open_view("Explain")

    visit.after(lambda: visit.page.locator("#hl-image button[aria-label='Remove Image']").first.click())
    visit.page.locator("#hl-image input[type=file]").first.wait_for(state="attached")
    place = visit.page.locator("#hl-image .upload-container, #hl-image button").first
    data = base64.b64encode(npy.read_bytes()).decode()
    visit.after(lambda: place.evaluate(DROP, ["<img src=x onerror=window.__xss=1>.npy", data]))
    assert "Grad-CAM" in visit.status and len(picked(visit)) == 3
    assert visit.page.evaluate("window.__xss") is None


@pytest.mark.slow
def test_images_without_five_bands_are_rejected_with_a_message(visit: Visit, tmp_path: Path) -> None:
    opened(visit)
    np.savez(tmp_path / "many.npz", picture=np.zeros((5, 8, 9)))
    (tmp_path / "broken.npy").write_bytes(npy_file(np.zeros((5, 8, 9)))[:-9])
    (tmp_path / "four.tif").write_bytes(tiff_file(np.zeros((4, 40, 50), "u2")))
    for name, message in (
        ("many.npz", "This is an NPZ archive."),
        ("broken.npy", "This NPY file is damaged or truncated."),
        ("four.tif", "This network needs 5 bands, but the image has 4."),
    ):
        visit.upload(tmp_path / name)
        expect(visit.page.locator("#hl-status .hl-line")).to_contain_text(message)


@pytest.mark.slow
def test_the_picker_fits_a_narrow_dark_page(window: Any, tiff: Path) -> None:
    visit = opened(window(390, 844, color_scheme="dark"))
    visit.page.locator("#hl-fold button").click()
    visit.after(lambda: visit.upload(tiff))
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
    boxes = [select.bounding_box() for select in visit.page.locator("#hl-bands select").all()]
    assert len({round(box["y"]) for box in boxes}) == 1 and all(box["height"] >= 28 for box in boxes)
    first = select(visit, "red")
    first.focus()
    visit.after(lambda: first.press("ArrowDown"))
    assert picked(visit) == ["2", "2", "3"]
