"""The large image: reading, colors, limits, display modes, partial maps, the crop, and saved maps."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from explainers.maps.overlays import color_map, overlay, view
from tests.saliscope.browser.conftest import PATIENCE, ROOT, WRITE_DELAY, Visit, expect

PIXELS = """([from, to, side]) => {
  const canvas = document.querySelector('#hl-overlay canvas'), small = document.createElement('canvas');
  const left = Math.round(canvas.width * from), wide = Math.round(canvas.width * (to - from));
  [small.width, small.height] = [side, side];
  small.getContext('2d').drawImage(canvas, left, 0, wide, canvas.height, 0, 0, side, side);
  const { data } = small.getContext('2d').getImageData(0, 0, side, side);
  return btoa(Array.from(data, (each) => String.fromCharCode(each)).join(''));
}"""
STATES = """async () => {
  const { state, subscribe } = await import(new URL('hl/store.js', document.baseURI));
  window.states = []; window.asked = [];
  const frame = document.querySelector('#hl-overlay .hl-frame');
  new MutationObserver(() => states.push(frame.dataset.state)).observe(frame, {attributeFilter: ['data-state']});
  subscribe(['question'], () => asked.push(state.question.key));
}"""


def pixels(visit: Visit, start: float, end: float, side: int = 64) -> np.ndarray:
    """Return the canvas between two relative x positions, at side x side."""
    data = base64.b64decode(visit.page.evaluate(PIXELS, [start, end, side]))
    return np.frombuffer(data, np.uint8).reshape(side, side, 4)[..., :3].astype(int)


def show(visit: Visit, name: str) -> Any:
    """Return the radio button of a display mode."""
    return visit.page.locator("#hl-overlay .hl-shown").get_by_role("radio", name=name, exact=True)


def photo(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def local_requests(visit: Visit, before: int) -> list[str]:
    return [url for url in visit.requests[before:] if not url.startswith("blob:")]


def test_a_map_is_saved_read_and_drawn_with_other_settings(first_view: Visit) -> None:
    """Oracle: `explainers.overlay` of the saved image (opacity 0) and the saved `.npy` file. No setting needs a request."""
    visit, page = first_view, first_view.page
    requests, canvas = len(visit.requests), page.locator("#hl-overlay canvas").first
    drawn, npy = visit.saved("As shown, PNG"), visit.saved("Values, .npy")
    values = np.load(npy)
    assert drawn.name.startswith("efficientnet_lite0-grad_cam-head-")
    assert values.shape == (7, 7) and values.dtype == np.float32 and values.max() > 0
    shown = page.locator("#hl-overlay .hl-ends > span").last.inner_text().split()[0]
    assert float(shown) == pytest.approx(float(values.max()), rel=1e-3)

    slider = page.locator("#hl-overlay input[name=opacity]")
    slider.fill("0")
    plain = visit.saved("As shown, PNG")
    slider.fill("100")
    expected = np.asarray(overlay(Image.open(plain).convert("RGB"), torch.from_numpy(values))).astype(int)
    assert np.abs(photo(drawn) - expected).max() <= 2 and np.abs(photo(drawn) - photo(plain)).mean() > 20

    before = visit.shot()
    visit.open_colors()
    page.locator("#hl-overlay select[name=colors]").select_option("viridis")
    page.locator("#hl-overlay input[name=high]").fill("0.05")
    page.locator("#hl-overlay input[name=high]").blur()
    page.locator("#hl-overlay input[name=smooth]").uncheck()
    page.keyboard.press("Escape")
    canvas.hover()
    assert re.search(r"at row \d, column \d of 7 × 7", page.locator("#hl-overlay .hl-read").inner_text())
    assert visit.shot() != before and local_requests(visit, requests) == []


def test_display_modes_need_no_request(first_view: Visit) -> None:
    """By pointer, keys and long press. Oracles: the separate images, and the library's colormap."""
    visit, page, requests = first_view, first_view.page, len(first_view.requests)
    right, before = pixels(visit, 0.5, 1), visit.shot()
    page.locator("#hl-overlay canvas").first.focus()
    page.keyboard.down("p")
    photograph, left = visit.shot(), pixels(visit, 0, 0.5)
    page.keyboard.up("p")
    show(visit, "Image").check()
    assert visit.shot() == photograph != before
    assert page.locator("#hl-overlay input[name=opacity]").is_disabled(), "it would have no effect"

    show(visit, "Image").press("ArrowRight")
    assert show(visit, "Map").is_checked()
    visit.open_colors()
    page.locator("#hl-overlay input[name=smooth]").uncheck()
    page.keyboard.press("Escape")
    table = color_map("magma").reshape(-1, 3).numpy().astype(int)
    cells = pixels(visit, 0, 1, 1400)
    middles = cells[100::200, 100::200].reshape(-1, 1, 3)
    assert middles.shape[0] == 49 and np.abs(middles - table).max(axis=2).min(axis=1).max() <= 3, "one color per cell"
    inside, edge = cells[60:80, 650:750], cells[190:210, 650:750]
    assert np.abs(np.diff(inside, axis=0)).max() <= 2 < np.abs(np.diff(edge, axis=0)).max()
    visit.open_colors()
    page.locator("#hl-overlay input[name=smooth]").check()
    page.keyboard.press("Escape")

    show(visit, "Swipe").check()
    divider = page.get_by_role("slider", name="Divider")
    assert np.abs(pixels(visit, 0, 0.5) - left).mean() < 1 and np.abs(pixels(visit, 0.5, 1) - right).mean() < 1
    box = page.locator("#hl-overlay .hl-frame").bounding_box()
    divider.hover()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 30, steps=4)
    page.mouse.up()
    assert divider.get_attribute("aria-valuenow") == "80"
    assert np.abs(pixels(visit, 0.5, 1) - right).mean() > 5, "the divider has moved"
    divider.press("Home")
    divider.press("ArrowRight")
    assert divider.get_attribute("aria-valuenow") == "1"

    show(visit, "Overlay").check()
    assert visit.shot() == before
    page.locator("#hl-overlay .hl-shown label", has_text="Image").hover()
    page.mouse.down()
    assert visit.shot() == photograph
    page.wait_for_timeout(350)
    page.mouse.up()
    assert visit.shot() == before and show(visit, "Overlay").is_checked(), "a long press is temporary"
    assert local_requests(visit, requests) == []


@pytest.mark.slow
def test_pinned_limits_stay_until_they_are_released(visit: Visit) -> None:
    page = visit.open().page
    high, ends = page.locator("#hl-overlay input[name=high]"), page.locator("#hl-overlay .hl-ends")
    pin, note, own = page.locator("#hl-overlay .hl-pin"), page.locator("#hl-overlay .hl-note"), high.input_value()
    visit.open_colors()
    high.fill("")
    high.blur()
    assert "number" in note.inner_text() and high.get_attribute("aria-invalid") == "true"
    assert own in ends.inner_text(), "the last valid limits are in use"
    high.fill("2.5")
    high.blur()
    assert "2.5" in ends.inner_text() and not note.is_visible()
    pin.click()
    visit.after(lambda: visit.choose("layer", "stages.4 "))
    assert high.input_value() == "2.5" and pin.get_attribute("aria-pressed") == "true"
    visit.after(lambda: visit.choose("method", "Saliency"))
    assert float(high.input_value()) < 2.5, "another unit has its own limits"
    assert "pinned for maps in logit. This map is in logit per unit of input" in note.inner_text()
    assert high.evaluate("(input) => input.scrollWidth <= input.clientWidth"), "numbers are not cut off"
    page.wait_for_timeout(WRITE_DELAY)
    assert "limits=" not in page.url, "a link would apply them to this map"
    visit.after(lambda: visit.choose("method", "Grad-CAM"))
    assert high.input_value() == "2.5" and not note.is_visible(), "they come back with their unit"
    visit.open_colors()
    pin.click()
    assert pin.get_attribute("aria-pressed") == "false" and high.input_value() not in ("2.5", own)


@pytest.mark.slow
def test_the_crop_is_framed_on_the_image_and_can_be_moved(visit: Visit, tmp_path: Path) -> None:
    """Oracle: the central 224 of 256 pixels of the shorter side, for an image twice as wide as high."""
    page = visit.open("?true=malinois").page
    visit.after(lambda: page.get_by_role("button", name="Whole image").click())
    assert "(crop whole)" in visit.status and "crop%3Dwhole" in page.url and "true=malinois" in page.url
    visit.after(lambda: page.get_by_role("button", name="Center crop").click())
    visit.after(lambda: page.locator("#hl-image .hl-window i").press("ArrowUp"))
    expect(page.locator("#hl-crop [aria-pressed=true]")).to_have_count(0)
    assert "(crop 0.5,0.4)" in visit.status

    Image.open(ROOT / "assets/examples/cat.jpg").convert("RGB").resize((600, 300)).save(tmp_path / "wide.png")
    visit.after(lambda: page.get_by_role("button", name="Center crop").click())
    visit.after(lambda: visit.upload(tmp_path / "wide.png"))
    visit.until("document.querySelector('#hl-image img').naturalWidth === 600")
    frame = page.locator("#hl-image .hl-window")
    whole, crop, image = (
        each.bounding_box() for each in (frame, frame.locator("i"), page.locator("#hl-image img").first)
    )
    assert whole["width"] / whole["height"] == pytest.approx(2, rel=0.02)
    assert abs(whole["x"] + whole["width"] / 2 - image["x"] - image["width"] / 2) < 2
    assert crop["height"] / whole["height"] == pytest.approx(224 / 256, abs=0.02)
    assert crop["width"] == pytest.approx(crop["height"], abs=2)
    assert (crop["x"] - whole["x"]) * 2 + crop["width"] == pytest.approx(whole["width"], abs=3)


def scrub(visit: Visit, position: int) -> None:
    visit.page.locator("#hl-overlay input[name=progress]").evaluate(
        "(slider, to) => { slider.value = to; slider.dispatchEvent(new Event('input')); }", position
    )


@pytest.mark.slow
def test_partial_maps_can_be_scrubbed_and_are_cached(visit: Visit) -> None:
    """SmoothGrad in steps; returning to it shows the cached final map immediately, without recomputing."""
    page = visit.open("?method=smooth_grad").page
    slider, label = page.locator("#hl-overlay input[name=progress]"), page.locator("#hl-overlay .hl-step")
    final, at_end, requests = visit.shot(), label.inner_text(), len(visit.requests)
    count = int(slider.get_attribute("max"))
    assert 2 <= count <= 24 and re.fullmatch(r"100% · \d+\.\d s", at_end)

    drawn = {final}
    for position in (0, 1):
        scrub(visit, position)
        drawn.add(visit.shot())
        share, seconds = re.fullmatch(r"(\d+)% · (\d+\.\d) s", label.inner_text()).groups()
        assert int(share) < 100 and float(seconds) <= float(at_end.split()[2])
    assert len(drawn) == 3
    scrub(visit, count)
    visit.until("(final) => document.querySelector('#hl-overlay canvas').toDataURL() === final", final)
    assert visit.requests[requests:] == [] and label.inner_text() == at_end

    status = visit.status
    page.evaluate(STATES)
    visit.after(lambda: visit.choose("method", "Grad-CAM"))
    visit.after(lambda: visit.choose("method", "SmoothGrad"))
    assert visit.status == status and "partial" not in page.evaluate("states"), "the cached answer has its time"
    assert visit.shot() == final and slider.get_attribute("max") == str(count)

    first = page.evaluate("asked")[0]
    assert len({*page.evaluate("asked")}) == 2 and "/" not in first, "the key of a request contains no path"
    page.evaluate(
        "async (key) => (await import(new URL('hl/store.js', document.baseURI))).change('question', { key })", first
    )
    page.locator("#hl-overlay .hl-frame[data-state=recalled] .hl-recalled:not([hidden])").wait_for()
    assert visit.shot() != final and not slider.is_visible(), "Grad-CAM's map again"


@pytest.mark.slow
def test_a_stopped_run_keeps_its_partial_maps(visit: Visit) -> None:
    visit.start_long_run()
    page = visit.page
    slider, share = page.locator("#hl-overlay input[name=progress]"), page.locator("#hl-overlay .hl-step")
    assert slider.is_disabled(), "the newest map is shown during the run"
    visit.until("Number(document.querySelector('#hl-overlay .hl-step').textContent.split('%')[0]) > 0")
    page.locator("#hl-stop").click()
    visit.state("stopped")
    expect(slider).to_be_enabled()
    done, before = share.inner_text().split("%")[0], visit.shot()
    assert 0 < int(done) < 100 and f"stopped at {done}%" in visit.status and page.locator("#hl-stop").is_disabled()
    scrub(visit, 0)
    assert visit.shot() != before


@pytest.mark.slow
def test_gradients_are_drawn_as_magnitudes_and_read_exactly(visit: Visit) -> None:
    """Oracle: the value in the saved map, although blurred magnitudes are drawn."""
    page = visit.open("?method=saliency").page
    scale, ends = page.locator("#hl-overlay .hl-scale"), page.locator("#hl-overlay .hl-ends > span")
    assert ends.first.inner_text() == "0" and "|gradient|" in scale.inner_text()
    assert "99.5th percentile" in scale.locator(".hl-quiet").inner_text()
    values = np.load(visit.saved("Values, .npy"))
    canvas = page.locator("#hl-overlay canvas").first
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] * 100.5 / 224, "y": box["height"] * 60.5 / 224})
    words = page.locator("#hl-overlay .hl-read").inner_text()
    assert "row 61, column 101 of 224 × 224" in words
    assert float(words.split()[0].replace("−", "-")) == pytest.approx(float(values[60, 100]), rel=1e-3, abs=1e-9)
    assert float(ends.last.inner_text().split()[1]) == pytest.approx(
        view(torch.from_numpy(values), signed=False).high, rel=1e-3
    )

    # The dog and the panda: evidence against the German shepherd looked like evidence for it.
    visit.open("?method=input_x_gradient&example=pair&target=German+shepherd")
    signed = page.locator("#hl-overlay input[name=signed]")
    assert signed.is_checked() and ends.first.inner_text().startswith("≤ −")
    assert "blurred by 3 pixels" in scale.inner_text() and "|" not in scale.inner_text()
    guide = page.locator("#hl-guide").inner_text()
    assert "Red: " in guide and "blue: " in guide
    visit.open_colors()
    signed.uncheck()
    assert ends.first.inner_text() == "0" and "|score|" in scale.inner_text()
    assert "blurred by a pixel" in scale.inner_text() and "Magnitudes" in scale.inner_text()


def test_a_factorization_is_one_colored_image_and_every_plane_has_a_page(visit: Visit) -> None:
    page = visit.open("?method=deep_feature_factorization").page
    colored, planes = page.locator("#hl-overlay .hl-components"), page.locator("#hl-planes")
    colored.wait_for()
    expect(planes.locator(".hl-swatch")).to_have_count(5)
    assert "All components in their colors" in planes.inner_text()
    colors = colored.evaluate(
        "(c) => { const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height); const found = new Set();"
        "for (let p = 0; p < data.length; p += 4) {"
        " const most = Math.max(...data.slice(p, p + 3)), least = Math.min(...data.slice(p, p + 3));"
        " if (most - least > 60) found.add([0, 1, 2].map((k) => data[p + k] === most ? 1 : 0).join('')); }"
        "return found.size; }"
    )
    assert colors >= 2, "several hues"
    visit.after_partial(lambda: planes.get_by_role("option", name="Component 2").click())
    assert not colored.is_visible() and page.locator("#hl-overlay .hl-tools").is_visible()
    first = visit.shot()
    visit.after_partial(lambda: planes.get_by_role("button", name="Next").click())
    assert "component 3 of 5" in visit.status and planes.locator("input").input_value() == "3"
    assert visit.shot() != first
    visit.after(lambda: visit.choose("method", "Grad-CAM"))
    assert not planes.locator(".hl-pager").is_visible()


@pytest.mark.slow
def test_planes_have_thumbnails_and_numbers(visit: Visit) -> None:
    """A link shows its plane; the image appears under a thumbnail by hover."""
    page = visit.page
    page.goto(visit.address + "/?method=token_pca&plane=2&example=cat")
    visit.until("document.querySelector('#hl-status')?.innerText.includes('component 3 of 3')")
    tiles = page.locator("#hl-planes [role=option]")
    expect(tiles).to_have_count(3)
    drawn = "(tile) => tile.querySelector('canvas').toDataURL()"
    plain = tiles.nth(1).evaluate(drawn)
    tiles.nth(1).hover()
    assert tiles.nth(1).evaluate(drawn) != plain
    visit.after(lambda: tiles.nth(1).click(), "planes")
    assert "component 2 of 3" in visit.status and tiles.nth(1).get_attribute("aria-selected") == "true"
    visit.after(lambda: visit.choose("method", "Feature maps"))
    assert re.search(r"channel \d+ of 1280", visit.status)
    number = page.locator("#hl-planes input")
    number.fill("17")
    visit.after_partial(number.blur)
    assert "channel 17 of 1280" in visit.status
    visit.until("new URLSearchParams(location.search).get('plane') === '17'")


def test_the_link_of_a_class_and_its_small_map(first_view: Visit) -> None:
    """The three most likely classes have small maps; a click on one explains the class and moves nothing."""
    visit, page = first_view, first_view.page
    small, rows = page.locator("#hl-bars canvas[data-small]"), page.locator("#hl-bars button[data-index]")
    expect(small).to_have_count(3)
    expect(rows).to_have_count(5)
    assert len({each.evaluate("(c) => c.toDataURL()") for each in small.all()}) == 3
    boxes = "[...document.querySelectorAll('#hl-bars button')].map((each) => each.getBoundingClientRect().height)"
    page.evaluate(
        f"() => {{ window.heights = []; new MutationObserver(() => heights.push({boxes}))"
        ".observe(document.querySelector('#hl-bars'), {childList: true, subtree: true, attributes: true}); }"
    )
    name = rows.nth(1).locator(".hl-name").inner_text()

    visit.after(small.nth(1).click)

    expect(small).to_have_count(3)
    assert f"for {name} " in visit.status and page.locator("#hl-class input").first.input_value() == name
    assert page.locator("#hl-bars button[aria-pressed=true] .hl-name").inner_text() == name
    heights = [row for row in page.evaluate("heights") if row]
    assert heights and all(row == heights[0] for row in heights), "the layout does not shift when the maps arrive"
    page.wait_for_url(re.compile("class=" + name), timeout=PATIENCE)
