"""Five-band images with models of five, three and one input channels: upload, band selection, errors."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.saliscope.browser.conftest import Visit, expect, served
from tests.support.band_files import npy_file, tiff_file

HEIGHT, WIDTH = 60, 90
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


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("bands"), "-m", "tests.saliscope.browser.band_app") as found:
        yield found


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
    """Open the page and wait until the example is rejected (or explained, if the model accepts RGB images)."""
    visit.page.goto(f"{visit.address}/{query}")
    visit.page.wait_for_function("['error', 'done'].includes(document.documentElement.dataset.hlState)")
    return visit


def picked(visit: Visit) -> list[str]:
    return [select.input_value() for select in visit.page.locator("#hl-bands select").all()]


def select(visit: Visit, color: str):
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
    visit.page.wait_for_function("document.querySelector('#hl-image img')?.naturalWidth > 0")
    return visit.page.locator("#hl-image img").first.get_attribute("src")


@pytest.mark.slow
def test_a_tiff_is_shown_and_its_bands_are_picked(visit: Visit, tiff: Path) -> None:
    opened(visit)
    assert visit.status == visit.page.locator("#hl-overlay .hl-empty").inner_text() == WRONG
    assert not visit.page.locator("#hl-bands select").first.is_visible()

    visit.after(lambda: visit.upload(tiff))

    assert preview(visit).endswith(".1-2-3.preview.png")
    assert picked(visit) == ["1", "2", "3"]
    words = visit.page.locator("#hl-bands").inner_text()
    assert (
        "The network receives all 5 bands" in words and "5 bands of uint16, 90 × 60 pixels; values 0 to 9000" in words
    )
    red, green, blue = photograph(visit)
    assert red + 10 < green and green + 10 < blue

    visit.after(lambda: select(visit, "red").select_option("5"))

    assert picked(visit) == ["5", "2", "3"] and photograph(visit)[0] > blue + 5
    assert preview(visit).endswith(".5-2-3.preview.png")
    expect(visit.page.locator("#hl-examples button[aria-pressed=true]")).to_have_count(0)


@pytest.mark.slow
def test_bands_selected_in_quick_succession_are_kept(visit: Visit, tiff: Path) -> None:
    """Three selections before the first answer: the last answer includes all three."""
    opened(visit)
    visit.after(lambda: visit.upload(tiff))
    before = visit.number("overlay")
    for name, band in (("red", "5"), ("green", "4"), ("blue", "1")):
        select(visit, name).select_option(band)
    visit.painted("overlay", before)
    visit.page.wait_for_timeout(1500)
    visit.settled()

    assert picked(visit) == ["5", "4", "1"]
    red, green, blue = photograph(visit)
    assert red > green > blue + 50


@pytest.mark.slow
def test_an_array_passes_by_choice_and_by_drop(visit: Visit, npy: Path) -> None:
    opened(visit)
    visit.after(lambda: visit.upload(npy))
    assert (
        "scene.npy.1-2-3.preview.png" in preview(visit)
        and "5 bands of uint8" in visit.page.locator("#hl-bands").inner_text()
    )

    visit.after(lambda: visit.page.locator("#hl-image button[aria-label='Remove Image']").first.click())
    visit.page.locator("#hl-image input[type=file]").first.wait_for(state="attached")
    place = visit.page.locator("#hl-image .upload-container, #hl-image button").first
    data = base64.b64encode(npy.read_bytes()).decode()
    visit.after(lambda: place.evaluate(DROP, ["<img src=x onerror=window.__xss=1>.npy", data]))

    assert "Grad-CAM" in visit.status and picked(visit) == ["1", "2", "3"]
    assert visit.page.evaluate("window.__xss") is None


@pytest.mark.slow
def test_other_models_receive_the_selected_bands(visit: Visit, tiff: Path) -> None:
    opened(visit)
    visit.after(lambda: visit.upload(tiff))

    visit.after(lambda: visit.choose("model", "A network of 3 channels"))
    assert "The network receives these three bands." in visit.page.locator("#hl-bands").inner_text()
    visit.after(lambda: select(visit, "green").select_option("5"))
    assert picked(visit) == ["1", "5", "3"]

    visit.after(lambda: visit.choose("model", "A network of 1 channel"))
    assert "luminance of these bands as one channel" in visit.page.locator("#hl-bands").inner_text() and picked(
        visit
    ) == ["1", "5", "3"]

    visit.after(lambda: visit.page.locator("#hl-examples button").nth(1).click())
    assert "Grad-CAM" in visit.status and not visit.page.locator("#hl-bands select").first.is_visible()


@pytest.mark.slow
def test_bands_travel_in_the_link_and_the_snippets(visit: Visit, npy: Path) -> None:
    opened(visit, "?bands=4,3,2")
    visit.after(lambda: visit.upload(npy))
    assert picked(visit) == ["4", "3", "2"]

    visit.page.locator("#hl-link").click()
    field = visit.page.locator("#hl-linked input")
    field.wait_for()
    assert "bands=4%2C3%2C2" in field.input_value()
    visit.open_view("API")
    for text in ("bands='4,3,2'", 'numpy.load("image.npy")  # [5, height, width]'):
        visit.page.locator("#hl-api pre", has_text=text).first.wait_for()


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
        visit.page.wait_for_function(
            "(message) => document.querySelector('#hl-status .hl-line').innerText.startsWith(message)", arg=message
        )


@pytest.mark.slow
def test_the_picker_fits_a_narrow_dark_page(browser, app: str, tiff: Path) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    visit = opened(Visit(context.new_page(), app))
    visit.page.locator("#hl-fold button").click()
    visit.after(lambda: visit.upload(tiff))

    assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
    boxes = [select.bounding_box() for select in visit.page.locator("#hl-bands select").all()]
    assert len({round(box["y"]) for box in boxes}) == 1 and all(box["height"] >= 28 for box in boxes)
    first = select(visit, "red")
    first.focus()
    visit.after(lambda: first.press("ArrowDown"))
    assert picked(visit) == ["2", "2", "3"]
    visit.check()
    context.close()
