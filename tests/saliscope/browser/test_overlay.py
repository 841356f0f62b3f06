"""The large image: reading, colors, limits, display modes, partial maps, the crop, and saved maps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from explainers.maps.overlays import color_map, overlay, view
from tests.saliscope.browser.conftest import ROOT, WRITE_DELAY, Visit, expect

STATES = """async () => {
  window.states = [];
  const frame = document.querySelector('#hl-overlay .hl-frame');
  new MutationObserver(() => states.push(frame.dataset.state)).observe(frame, {attributeFilter: ['data-state']});
}"""


def own(visit: Visit, selector: str) -> Any:
    return visit.page.locator(f"#hl-overlay {selector}")


def show(visit: Visit, name: str) -> Any:
    """Return the radio button of a display mode."""
    return own(visit, ".hl-shown").get_by_role("radio", name=name, exact=True)


def smooth(visit: Visit, on: bool) -> None:
    visit.open_colors()
    own(visit, "input[name=smooth]").set_checked(on)
    visit.page.keyboard.press("Escape")


def number(text: str) -> float:
    return float(text.split()[0].replace("−", "-"))


def test_a_map_is_saved_read_and_drawn_with_other_settings(visit: Visit) -> None:
    """Oracle: `explainers.overlay` of the saved image (opacity 0) and the saved `.npy` file. No setting needs a request."""
    requests = len(visit.open("?model=bands3").requests)
    drawn, values = visit.saved("As shown, PNG"), np.load(visit.saved("Values, .npy"))
    assert drawn.name.startswith("bands3-grad_cam-relu2-")
    assert values.shape == (16, 16) and values.dtype == np.float32
    shown = own(visit, ".hl-ends > span").last.inner_text()
    assert number(shown) == pytest.approx(float(values.max()), rel=1e-3)
    slider = own(visit, "input[name=opacity]")
    slider.fill("0")
    plain = Image.open(visit.saved("As shown, PNG")).convert("RGB")
    slider.fill("100")
    expected = np.asarray(overlay(plain, torch.from_numpy(values))).astype(int)
    found = np.asarray(Image.open(drawn).convert("RGB")).astype(int)
    assert np.abs(found - expected).max() <= 2 and np.abs(found - np.asarray(plain)).mean() > 20

    before = visit.shot()
    visit.open_colors()
    own(visit, "select[name=colors]").select_option("viridis")
    own(visit, "input[name=high]").fill("0.05")
    own(visit, "input[name=high]").blur()
    visit.page.keyboard.press("Escape")
    own(visit, "canvas").first.hover()
    expect(own(visit, ".hl-read")).to_contain_text(re.compile(r"at row \d+, column \d+ of 16 × 16"))
    assert visit.shot() != before and visit.sent(requests) == []


def test_display_modes_need_no_request(visit: Visit) -> None:
    """By pointer, keys and long press. Oracles: the separate images, and the library's colormap."""
    page, requests = visit.open("?model=bands3").page, len(visit.requests)
    whole, before = visit.pixels(), visit.shot()
    half = whole.shape[1] // 2
    own(visit, "canvas").first.focus()
    page.keyboard.down("p")
    photograph, image = visit.shot(), visit.pixels()
    page.keyboard.up("p")
    show(visit, "Image").check()
    assert visit.shot() == photograph != before
    expect(own(visit, "input[name=opacity]"), "it would have no effect").to_be_disabled()

    show(visit, "Image").press("ArrowRight")
    expect(show(visit, "Map")).to_be_checked()
    smooth(visit, False)
    table = color_map("magma").reshape(-1, 3).numpy().astype(int)
    cells = np.asarray(Image.fromarray(visit.pixels()[..., :3].astype("u1")).resize((3200, 3200))).astype(int)
    middles = cells[100::200, 100::200].reshape(-1, 1, 3)
    assert middles.shape[0] == 256 and np.abs(middles - table).max(axis=2).min(axis=1).max() <= 3, "one color per cell"
    inside, edge = cells[60:80, 650:750], cells[190:210, 650:750]
    assert np.abs(np.diff(inside, axis=0)).max() <= 2 < np.abs(np.diff(edge, axis=0)).max()
    smooth(visit, True)

    show(visit, "Swipe").check()
    divider, box = page.get_by_role("slider", name="Divider"), own(visit, ".hl-frame").bounding_box()
    shown = visit.pixels()
    assert np.abs(shown - image)[:, :half].mean() < 1 and np.abs(shown - whole)[:, half:].mean() < 1
    divider.hover()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 30, steps=4)
    page.mouse.up()
    expect(divider).to_have_attribute("aria-valuenow", "80")
    assert np.abs(visit.pixels() - whole)[:, half:].mean() > 5, "the divider has moved"
    divider.press("Home")
    expect(divider).to_have_attribute("aria-valuenow", "0")

    show(visit, "Overlay").check()
    own(visit, ".hl-shown label").filter(has_text="Image").hover()
    page.mouse.down()
    assert visit.shot() == photograph
    page.wait_for_timeout(350)
    page.mouse.up()
    expect(show(visit, "Overlay"), "a long press is temporary").to_be_checked()
    assert visit.shot() == before and visit.sent(requests) == []


@pytest.mark.slow
def test_pinned_limits_stay_until_they_are_released(visit: Visit) -> None:
    visit.open()
    high, pin, note = own(visit, "input[name=high]"), own(visit, ".hl-pinned"), own(visit, ".hl-note")
    ends, first = own(visit, ".hl-ends"), own(visit, "input[name=high]").input_value()
    visit.open_colors()
    high.fill("")
    high.blur()
    expect(note).to_contain_text("number")
    expect(ends, "the last valid limits are in use").to_contain_text(first)
    high.fill("2.5")
    high.blur()
    expect(ends).to_contain_text("2.5")
    pin.click()
    visit.after(lambda: visit.choose("layer", "stages.4 "))
    expect(high).to_have_value("2.5")
    visit.after(lambda: visit.choose("method", "Saliency"))
    expect(note).to_contain_text("pinned for maps in logit. This map is in logit per unit of input")
    assert float(high.input_value()) < 2.5, "another unit has its own limits"
    assert high.evaluate("(input) => input.scrollWidth <= input.clientWidth"), "numbers are not cut off"
    visit.page.wait_for_timeout(WRITE_DELAY)
    assert "limits=" not in visit.page.url, "a link would apply them to this map"
    visit.after(lambda: visit.choose("method", "Grad-CAM"))
    expect(high, "they come back with their unit").to_have_value("2.5")
    visit.open_colors()
    pin.click()
    expect(pin).to_have_attribute("aria-pressed", "false")
    assert high.input_value() not in ("2.5", first)


@pytest.mark.slow
def test_the_crop_is_framed_on_the_image_and_can_be_moved(visit: Visit, tmp_path: Path) -> None:
    """Oracle: the central 224 of 256 pixels of the shorter side, for an image twice as wide as high."""
    page = visit.open("?true=malinois").page
    frame, buttons = page.locator("#hl-image .hl-window"), page.locator("#hl-crop button")
    visit.after(lambda: buttons.filter(has_text="Whole image").click())
    assert "(crop whole)" in visit.status and "crop%3Dwhole" in page.url and "true=malinois" in page.url
    visit.after(lambda: buttons.filter(has_text="Center crop").click())
    visit.after(lambda: frame.locator("i").press("ArrowUp"))
    expect(page.locator("#hl-crop [aria-pressed=true]")).to_have_count(0)
    assert "(crop 0.5,0.4)" in visit.status

    Image.open(ROOT / "assets/examples/cat.jpg").convert("RGB").resize((600, 300)).save(tmp_path / "wide.png")
    visit.after(lambda: buttons.filter(has_text="Center crop").click())
    visit.after(lambda: visit.upload(tmp_path / "wide.png"))
    visit.until("document.querySelector('#hl-image img').naturalWidth === 600")
    whole, crop = frame.bounding_box(), frame.locator("i").bounding_box()
    assert whole["width"] / whole["height"] == pytest.approx(2, rel=0.02)
    assert crop["height"] / whole["height"] == pytest.approx(224 / 256, abs=0.02)
    assert crop["width"] == pytest.approx(crop["height"], abs=2)
    assert (crop["x"] - whole["x"]) * 2 + crop["width"] == pytest.approx(whole["width"], abs=3)


def scrub(visit: Visit, position: int) -> None:
    own(visit, "input[name=progress]").evaluate(
        "(slider, to) => { slider.value = to; slider.dispatchEvent(new Event('input')); }", position
    )


@pytest.mark.slow
def test_partial_maps_can_be_scrubbed_are_cached_and_remain_after_a_stop(visit: Visit) -> None:
    """SmoothGrad in steps; returning to it shows the cached final map immediately, without recomputing."""
    page = visit.open("?method=smooth_grad").page
    slider, label = own(visit, "input[name=progress]"), own(visit, ".hl-step")
    final, at_end, requests = visit.shot(), label.inner_text(), len(visit.requests)
    count = int(slider.get_attribute("max"))
    assert 2 <= count <= 24 and re.fullmatch(r"100% · \d+\.\d s", at_end)
    drawn = {final}
    for position in (0, 1):
        scrub(visit, position)
        drawn.add(visit.shot())
        share, seconds = re.fullmatch(r"(\d+)% · (\d+\.\d) s", label.inner_text()).groups()
        assert int(share) < 100 and float(seconds) <= float(at_end.split()[2])
    scrub(visit, count)
    visit.until("(final) => document.querySelector('#hl-overlay canvas').toDataURL() === final", final)
    assert len(drawn) == 3 and visit.requests[requests:] == []

    status = visit.status
    page.evaluate(STATES)
    for name in ("Grad-CAM", "SmoothGrad"):
        visit.after(lambda name=name: visit.choose("method", name))
    assert visit.status == status and "partial" not in page.evaluate("states"), "the cached answer has its time"
    assert visit.shot() == final and slider.get_attribute("max") == str(count)

    visit.start_long_run()
    expect(slider, "the newest map is shown during the run").to_be_disabled()
    visit.until("Number(document.querySelector('#hl-overlay .hl-step').textContent.split('%')[0]) > 0")
    page.locator("#hl-stop").click()
    visit.state("stopped")
    expect(slider).to_be_enabled()
    done, before = label.inner_text().split("%")[0], visit.shot()
    assert 0 < int(done) < 100 and f"stopped at {done}%" in visit.status
    scrub(visit, 0)
    assert visit.shot() != before


@pytest.mark.slow
def test_gradients_are_drawn_as_magnitudes_and_read_exactly(visit: Visit) -> None:
    """Oracle: the value in the saved map, although blurred magnitudes are drawn."""
    visit.open("?method=saliency")
    scale, ends, canvas = own(visit, ".hl-scale"), own(visit, ".hl-ends > span"), own(visit, "canvas").first
    expect(ends.first).to_have_text("0")
    expect(scale).to_contain_text(re.compile(r"\|gradient\|[\s\S]*99.5th percentile"))
    values = np.load(visit.saved("Values, .npy"))
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] * 100.5 / 224, "y": box["height"] * 60.5 / 224})
    expect(own(visit, ".hl-read")).to_contain_text("row 61, column 101 of 224 × 224")
    read = number(own(visit, ".hl-read").inner_text())
    assert read == pytest.approx(float(values[60, 100]), rel=1e-3, abs=1e-9)
    high = view(torch.from_numpy(values), signed=False).high
    assert float(ends.last.inner_text().split()[1]) == pytest.approx(high, rel=1e-3)

    # The dog and the panda: evidence against the German shepherd looked like evidence for it.
    visit.open("?method=input_x_gradient&example=pair&target=German+shepherd")
    expect(ends.first).to_contain_text("≤ −")
    expect(scale).to_contain_text("blurred by 3 pixels")
    expect(visit.page.locator("#hl-guide")).to_contain_text(re.compile(r"Red: [\s\S]*blue: "))
    visit.open_colors()
    own(visit, "input[name=signed]").uncheck()
    expect(ends.first).to_have_text("0")
    expect(scale).to_contain_text(re.compile(r"\|score\|[\s\S]*blurred by a pixel|blurred by a pixel[\s\S]*\|score\|"))


def test_a_factorization_is_one_colored_image_and_every_plane_has_a_page(visit: Visit) -> None:
    page = visit.open("?method=deep_feature_factorization").page
    colored, planes = own(visit, ".hl-components"), page.locator("#hl-planes")
    colored.wait_for()
    expect(planes.locator(".hl-swatch")).to_have_count(5)
    expect(planes).to_contain_text("All components in their colors")
    colors = visit.pixels("#hl-overlay .hl-components")[..., :3]
    strong = colors[np.ptp(colors, axis=2) > 60]
    assert len({*strong.argmax(1)}) >= 2, "several hues"
    visit.after_partial(lambda: planes.get_by_role("option", name="Component 2").click())
    expect(colored).to_be_hidden()
    first = visit.shot()
    visit.after_partial(lambda: planes.get_by_role("button", name="Next").click())
    expect(planes.locator("input")).to_have_value("3")
    assert "component 3 of 5" in visit.status and visit.shot() != first
    visit.until("new URLSearchParams(location.search).get('plane') === '2'")  # from 0, so that a link shows it
    tiles, drawn = planes.get_by_role("option"), "(tile) => tile.querySelector('canvas').toDataURL()"
    plain = tiles.nth(1).evaluate(drawn)
    tiles.nth(1).hover()
    assert tiles.nth(1).evaluate(drawn) != plain, "the image appears under a thumbnail by hover"
    visit.after(lambda: visit.choose("method", "Feature maps"))
    planes.locator("input").fill("17")
    visit.after_partial(planes.locator("input").blur)
    assert "channel 17 of 1280" in visit.status
    visit.after(lambda: visit.choose("method", "Grad-CAM"))
    expect(planes.locator(".hl-pager")).to_be_hidden()


@pytest.mark.slow
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
    expect(page.locator("#hl-class input").first).to_have_value(name)
    expect(page.locator("#hl-bars button[aria-pressed=true] .hl-name")).to_have_text(name)
    heights = [row for row in page.evaluate("heights") if row]
    assert heights and all(row == heights[0] for row in heights), "the layout does not shift when the maps arrive"
    page.wait_for_url(re.compile("class=" + name))
