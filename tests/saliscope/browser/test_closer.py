"""Display modes, pinned limits, the crop frame, small maps, partial maps and cached maps."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest
from PIL import Image

from explainers.maps.overlays import color_map
from tests.saliscope.browser.conftest import PATIENCE, ROOT, WRITE_DELAY, Visit, expect

PIXELS = """([part, side]) => {
  const canvas = document.querySelector('#hl-overlay canvas');
  const from = Math.round(canvas.width * part[0]), wide = Math.round(canvas.width * (part[1] - part[0]));
  const small = document.createElement('canvas');
  [small.width, small.height] = [side, side];
  small.getContext('2d').drawImage(canvas, from, 0, wide, canvas.height, 0, 0, side, side);
  const { data } = small.getContext('2d').getImageData(0, 0, side, side);
  const letters = Array.from(data, (each) => String.fromCharCode(each));
  return btoa(letters.join(''));
}"""
CELLS = """(count) => {
  const canvas = document.querySelector('#hl-overlay canvas'), { width } = canvas, cell = width / count;
  const { data } = canvas.getContext('2d').getImageData(0, 0, width, width);
  const at = (x, y) => Array.from(data.slice(4 * (Math.round(y) * width + Math.round(x))).slice(0, 4));
  return Array.from({ length: count * count }, (_, k) => {
    const x = (k % count) * cell, y = Math.floor(k / count) * cell, up = k < count ? cell - 1 : 0;
    return [[cell / 2, cell / 2], [cell / 4, up], [cell / 4, up || -1]].map(([right, down]) => at(x + right, y + down));
  });
}"""
STATES = """async () => {
  const { state, subscribe } = await import(new URL('hl/store.js', document.baseURI));
  window.states = []; window.asked = [];
  const frame = document.querySelector('#hl-overlay .hl-frame');
  new MutationObserver(() => states.push(frame.dataset.state)).observe(frame, {attributeFilter: ['data-state']});
  subscribe(['question'], () => asked.push(state.question.key));
}"""
KEPT = """async () => {
  const { MapCache } = await import(new URL('hl/overlay/map_cache.js', document.baseURI));
  const kept = new MapCache(), map = (length) => ({ b64: 'a'.repeat(length) });
  for (let k = 1; k <= 400; k++) kept.partial({ key: 'run', share: k / 400, seconds: k, map: map(10) });
  const shares = kept.entry('run').partials.map((each) => each.share);
  kept.partial({ key: 'run', share: 0.1, seconds: 1, map: map(10) });
  const anew = kept.entry('run').partials.length;
  for (let k = 0; k < 30; k++) kept.partial({ key: 'large', share: k / 30, seconds: k, map: map(4e6) });
  const large = kept.entry('large').partials.length;
  for (let k = 0; k < 100; k++) kept.put({ key: `q${k}`, map: map(10), crop: { src: `picture ${k % 2}`, of: k } });
  const found = [kept.find('q99'), kept.find('q98'), kept.find('q0')].map((each) => each && each.crop.src);
  for (let k = 0; k < 9; k++) kept.put({ key: `h${k}`, map: map(20e6), crop: { src: 'large' } });
  return { shares, anew, large, found, heavy: [...kept.entries.keys()].filter((key) => key[0] === 'h') };
}"""


def shot(visit: Visit) -> str:
    """Return the pixels of the canvas."""
    return visit.page.evaluate("document.querySelector('#hl-overlay canvas').toDataURL()")


def pixels(visit: Visit, start: float, end: float, side: int) -> np.ndarray:
    """Return the canvas between two relative x positions, at side x side."""
    data = base64.b64decode(visit.page.evaluate(PIXELS, [[start, end], side]))
    return np.frombuffer(data, np.uint8).reshape(side, side, 4)[..., :3].astype(int)


def half(visit: Visit, start: float, end: float) -> np.ndarray:
    """Return the canvas between two relative x positions, at 64 x 64."""
    return pixels(visit, start, end, 64)


def show(visit: Visit, name: str):
    """Return the radio button of a display mode."""
    return visit.page.locator("#hl-overlay .hl-shown").get_by_role("radio", name=name, exact=True)


def scrub(visit: Visit, position: int) -> None:
    visit.page.locator("#hl-overlay input[name=progress]").evaluate(
        "(slider, to) => { slider.value = to; slider.dispatchEvent(new Event('input')); }", position
    )


@pytest.mark.slow
def test_display_modes_need_no_request(visit: Visit) -> None:
    """By pointer, keys and long press. Oracles: the separate images, and the library's colormap."""
    page, requests = visit.open().page, len(visit.requests)
    overlay = half(visit, 0, 0.5), half(visit, 0.5, 1)
    show(visit, "Image").check()
    photograph = half(visit, 0, 0.5), half(visit, 0.5, 1)
    assert page.locator("#hl-overlay input[name=opacity]").is_disabled(), "it would have no effect"

    show(visit, "Image").press("ArrowRight")
    assert show(visit, "Map").is_checked()
    visit.open_colors()
    page.locator("#hl-overlay input[name=smooth]").uncheck()
    page.keyboard.press("Escape")
    bar = page.locator("#hl-overlay .hl-bar").evaluate(
        "(bar) => Array.from(bar.getContext('2d').getImageData(0, 0, 256, 1).data)"
    )
    table = color_map("magma").reshape(-1, 3).numpy().astype(int)
    assert np.abs(np.array(bar).reshape(256, 4)[:, :3] - table).max() <= 2, "the bar has the map's colors"
    cells = pixels(visit, 0, 1, 1400)
    middles = cells[100::200, 100::200].reshape(-1, 1, 3)
    assert middles.shape[0] == 49 and np.abs(middles - table).max(axis=2).min(axis=1).max() <= 3, (
        "each cell has one color"
    )
    inside, edge = cells[60:80, 650:750], cells[190:210, 650:750]
    assert np.abs(np.diff(inside.astype(int), axis=0)).max() <= 2 < np.abs(np.diff(edge.astype(int), axis=0)).max()
    visit.open_colors()
    page.locator("#hl-overlay input[name=smooth]").check()
    page.keyboard.press("Escape")

    show(visit, "Swipe").check()
    divider = page.get_by_role("slider", name="Divider")
    assert np.abs(half(visit, 0, 0.49) - half(visit, 0, 0.49)).max() == 0
    left, right = half(visit, 0, 0.5), half(visit, 0.5, 1)
    assert np.abs(left - photograph[0]).mean() < 1 and np.abs(right - overlay[1]).mean() < 1
    box = page.locator("#hl-overlay .hl-frame").bounding_box()
    divider.hover()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 30, steps=4)
    page.mouse.up()
    assert divider.get_attribute("aria-valuenow") == "80"
    assert np.abs(half(visit, 0.5, 0.75) - overlay[1]).mean() > 10, "the divider has moved"
    divider.press("Home")
    divider.press("ArrowRight")
    assert divider.get_attribute("aria-valuenow") == "1"

    show(visit, "Overlay").check()
    before = shot(visit)
    page.locator("#hl-overlay .hl-shown label", has_text="Image").hover()
    page.mouse.down()
    held = shot(visit)
    page.wait_for_timeout(350)
    page.mouse.up()
    assert held != before == shot(visit) and show(visit, "Overlay").is_checked(), "a long press is temporary"
    page.locator("#hl-overlay .hl-shown label", has_text="Image").click()
    assert shot(visit) == held and show(visit, "Image").is_checked(), "a short press selects"
    assert [url for url in visit.requests[requests:] if not url.startswith("blob:")] == []


@pytest.mark.slow
def test_pinned_limits_stay_until_they_are_released(visit: Visit) -> None:
    page = visit.open().page
    low, high = page.locator("#hl-overlay input[name=low]"), page.locator("#hl-overlay input[name=high]")
    pin, note = page.locator("#hl-overlay .hl-pin"), page.locator("#hl-overlay .hl-note")
    own = high.input_value()
    visit.open_colors()
    high.fill("")
    high.blur()
    assert "number" in note.inner_text() and high.get_attribute("aria-invalid") == "true"
    ends = page.locator("#hl-overlay .hl-ends")
    assert own in ends.inner_text(), "the last valid limits are in use"
    high.fill("2.5")
    high.blur()
    assert "2.5" in ends.inner_text() and not note.is_visible()

    pin.click()
    visit.after(lambda: visit.choose("layer", "stages.4 "))
    assert (low.input_value(), high.input_value(), pin.get_attribute("aria-pressed")) == ("0", "2.5", "true")
    assert "2.5" in ends.inner_text() and not note.is_visible()
    visit.after(lambda: visit.choose("method", "Saliency"))
    assert high.input_value() != "2.5" and float(high.input_value()) < 2.5, "another unit has its own limits"
    assert "pinned for maps in logit. This map is in logit per unit of input" in note.inner_text()
    page.wait_for_timeout(WRITE_DELAY)
    assert "limits=" not in page.url, "a link would apply them to this map"
    visit.after(lambda: visit.choose("method", "Grad-CAM"))
    assert high.input_value() == "2.5" and not note.is_visible(), "they come back with their unit"
    visit.after(lambda: visit.choose("method", "Saliency"))
    for field in (low, high):
        assert field.evaluate("(input) => input.scrollWidth <= input.clientWidth"), "numbers are not cut off"

    visit.open_colors()
    pin.click()
    assert float(high.input_value()) < 2.5 and not note.is_visible()
    assert high.evaluate("(input) => input.scrollWidth <= input.clientWidth")
    visit.after(lambda: visit.choose("method", "Grad-CAM"))
    assert pin.get_attribute("aria-pressed") == "false" and high.input_value() not in ("2.5", own)


@pytest.mark.slow
def test_the_crop_is_framed_on_the_image(visit: Visit, tmp_path) -> None:
    """Oracle: the central 224 of 256 pixels of the shorter side, for an image twice as wide as high."""
    photo = Image.open(ROOT / "assets/examples/cat.jpg").convert("RGB").resize((600, 300))
    photo.save(tmp_path / "wide.png")
    page = visit.open().page
    frame = page.locator("#hl-image .hl-window")
    frame.wait_for()

    visit.after(lambda: visit.upload(tmp_path / "wide.png"))
    page.wait_for_function("document.querySelector('#hl-image img').naturalWidth === 600")
    frame.wait_for()

    whole, crop = frame.bounding_box(), frame.locator("i").bounding_box()
    image = page.locator("#hl-image img").first.bounding_box()
    assert whole["width"] / whole["height"] == pytest.approx(2, rel=0.02)
    assert abs(whole["x"] + whole["width"] / 2 - image["x"] - image["width"] / 2) < 2
    assert crop["height"] / whole["height"] == pytest.approx(224 / 256, abs=0.02)
    assert crop["width"] == pytest.approx(crop["height"], abs=2)
    assert (crop["x"] - whole["x"]) * 2 + crop["width"] == pytest.approx(whole["width"], abs=3)

    page.locator("#hl-image button[aria-label='Remove Image']").first.click()
    page.wait_for_function("document.documentElement.dataset.hlState === 'idle'", timeout=PATIENCE)
    assert not frame.is_visible()


@pytest.mark.slow
def test_the_most_likely_classes_have_small_maps(visit: Visit) -> None:
    page = visit.open().page
    small = page.locator("#hl-bars canvas[data-small]")
    expect(small).to_have_count(3)
    expect(page.locator("#hl-bars button[data-index]")).to_have_count(5)
    assert len({each.evaluate("(c) => c.toDataURL()") for each in small.all()}) == 3
    assert "Grad-CAM at head" in page.locator("#hl-bars").inner_text()
    boxes = "[...document.querySelectorAll('#hl-bars button')].map((each) => each.getBoundingClientRect().height)"
    page.evaluate(
        f"() => {{ window.heights = []; new MutationObserver(() => heights.push({boxes}))"
        ".observe(document.querySelector('#hl-bars'), {childList: true, subtree: true, attributes: true}); }"
    )
    name = page.locator("#hl-bars button .hl-name").nth(1).inner_text()

    visit.after(small.nth(1).click)

    expect(small).to_have_count(3)
    assert name in visit.status
    heights = [row for row in page.evaluate("heights") if row]
    assert heights and all(row == heights[0] for row in heights), "the layout does not shift when the maps arrive"
    visit.after(lambda: visit.choose("method", "Saliency"))
    assert "Saliency," in page.locator("#hl-bars").inner_text()


@pytest.mark.slow
def test_partial_maps_can_be_scrubbed_and_are_cached(visit: Visit) -> None:
    """SmoothGrad in steps; returning to it shows the cached final map immediately, without recomputing."""
    page = visit.open("?method=smooth_grad").page
    slider, label = page.locator("#hl-overlay input[name=progress]"), page.locator("#hl-overlay .hl-step")
    final, label_text, requests = shot(visit), label.inner_text(), len(visit.requests)
    count = int(slider.get_attribute("max"))
    assert 2 <= count <= 24 and re.fullmatch(r"100% · \d+\.\d s", label_text)

    looks = {final}
    for position in (0, 1):
        scrub(visit, position)
        looks.add(shot(visit))
        share, seconds = re.fullmatch(r"(\d+)% · (\d+\.\d) s", label.inner_text()).groups()
        assert int(share) < 100 and float(seconds) <= float(label_text.split()[2])
    assert len(looks) == 3
    scrub(visit, count)
    page.wait_for_function(
        "(final) => document.querySelector('#hl-overlay canvas').toDataURL() === final", arg=final, timeout=PATIENCE
    )
    assert visit.requests[requests:] == [] and label.inner_text() == label_text

    status = visit.status
    page.evaluate(STATES)
    visit.after(lambda: visit.choose("method", "Grad-CAM"))
    visit.after(lambda: visit.choose("method", "SmoothGrad"))
    assert visit.status == status and "partial" not in page.evaluate("states"), "the cached answer has its time"
    assert shot(visit) == final and slider.get_attribute("max") == str(count)

    first = page.evaluate("asked")[0]
    assert len({*page.evaluate("asked")}) == 2 and "/" not in first, "the key of a request contains no path"
    page.evaluate(
        "async (key) => (await import(new URL('hl/store.js', document.baseURI))).change('question', { key })", first
    )
    page.locator("#hl-overlay .hl-frame[data-state=recalled] .hl-recalled:not([hidden])").wait_for()
    assert shot(visit) != final and not slider.is_visible(), "Grad-CAM's map again"
    opacity = "getComputedStyle(document.querySelector('#hl-overlay canvas')).opacity"
    page.evaluate("document.documentElement.dataset.hlState = 'busy'")
    assert page.evaluate(opacity) == "1", "the map belongs to this request"


@pytest.mark.slow
def test_a_stopped_run_keeps_its_partial_maps(visit: Visit) -> None:
    page = visit.open("?method=smooth_grad&options=" + json.dumps({"samples": 3})).page
    page.locator("#hl-more > button, #hl-more button.label-wrap").first.click()
    page.locator("#hl-option-samples").fill("1000")
    page.locator("#hl-option-samples").blur()
    visit.after_partial(lambda: page.locator("#hl-explain").click())
    slider = page.locator("#hl-overlay input[name=progress]")
    assert slider.is_disabled(), "the newest map is shown during the run"
    page.wait_for_function("Number(document.querySelector('#hl-overlay .hl-step').textContent.split('%')[0]) > 0")

    page.locator("#hl-stop").click()

    page.wait_for_function("document.documentElement.dataset.hlState === 'stopped'", timeout=PATIENCE)
    page.locator("#hl-overlay input[name=progress]:not([disabled])").wait_for()
    share = int(page.locator("#hl-overlay .hl-step").inner_text().split("%")[0])
    assert 0 < share < 100 and f"stopped at {share}%" in visit.status
    before = shot(visit)
    scrub(visit, 0)
    assert shot(visit) != before


@pytest.mark.slow
def test_the_map_cache_is_bounded(visit: Visit) -> None:
    visit.page.goto(visit.address)

    found = visit.page.evaluate(KEPT)

    gaps = np.diff(found["shares"])
    assert len(gaps) == 23 and found["shares"][-1] == 1 and gaps.max() < 5 * gaps.min(), "evenly spaced"
    assert found["anew"] == 1 and 2 <= found["large"] <= 4
    assert found["found"] == ["picture 1", "picture 0", None] and 3 <= len(found["heavy"]) <= 5
