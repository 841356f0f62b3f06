"""The erase view in Chromium: painting, undo, the address, the keyboard, refusals, and saving."""

from __future__ import annotations

import json
import re
import urllib.parse
import zipfile

import pytest

from tests.saliscope.browser.conftest import WRITE_DELAY, Visit, expect

LINE, ROWS = ".hl-erase-status .hl-line", ".hl-erase-predictions tbody"


def edit(visit: Visit) -> str:
    """Return the edit in the address."""
    visit.page.wait_for_timeout(WRITE_DELAY)
    found = re.search(r"[?&]edit=([^&]*)", visit.page.url)
    return found[1] if found else ""


def paint(visit: Visit, *points: tuple[float, float]) -> None:
    """Draw a line through points, as fractions of the image."""
    box = visit.page.locator(".hl-erase-paint").bounding_box()
    mouse, places = visit.page.mouse, [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    mouse.move(*places[0])
    mouse.down()
    for place in places[1:]:
        mouse.move(*place, steps=12)
    mouse.up()


def test_covering_painting_undo_and_refusal(visit: Visit) -> None:
    page = visit.open().page
    line, rows = page.locator(LINE), page.locator(ROWS)
    visit.after(lambda: page.get_by_role("button", name="Cover this region").click(), "erase")
    expect(line).to_contain_text("German shepherd: 94% before, ")
    assert visit.headline.startswith("After the edit: German shepherd, 78%. 94% before; ")
    visit.open_view("Explain")
    assert visit.headline.startswith("German shepherd, 94%.")
    visit.open_view("Erase")
    expect(rows.locator("tr").first.locator("td").nth(2)).to_have_text(re.compile(r"^−\d+\.\d pp$"))
    ends = page.locator(".hl-erase-view .hl-ends")
    assert ends.nth(0).inner_text() == ends.nth(1).inner_text(), "one color range"

    sent = len(visit.requests)
    visit.after(lambda: paint(visit, (0.1, 0.8), (0.5, 0.6), (0.9, 0.9)), "erase")
    stroke, shown = edit(visit), rows.inner_text()
    assert re.fullmatch(r"top\.200_brush\.\w\w\.(\w{4}){2,12}", stroke), stroke
    page.locator(".hl-erase-paint").focus()
    page.keyboard.press("Control+z")
    visit.until(f"text => document.querySelector('{ROWS}').innerText !== text", shown)
    assert edit(visit) == "top.200"
    page.keyboard.press("Control+Shift+z")
    visit.until(f"text => document.querySelector('{ROWS}').innerText === text", shown)
    assert len(visit.sent(sent, "queue/join")) == 1, "a stroke is one request, and known answers need none"

    page.get_by_role("button", name="Image changes").click()
    page.get_by_label("Rotate, °").fill("400")
    page.keyboard.press("Tab")
    expect(line).to_have_text("Rotation 400 is out of range. Give -180 to 180 degrees.")
    expect(page.locator(".hl-erase[data-old=true]")).to_have_count(1)
    assert rows.inner_text() == shown, "the last answer stays"
    page.get_by_role("button", name="Undo").click()
    page.locator(".hl-erase[data-old=false]").wait_for()

    page.locator("#hl-examples [data-id=cat]").click()  # and undo, before the same edit of this image is answered
    page.evaluate(
        """async () => {
          const line = document.querySelector('.hl-erase-status .hl-line')
          const headline = document.querySelector('#hl-status .hl-headline')
          const end = performance.now() + 20000, until = async (reached) => {
            while (!reached() && performance.now() < end) await new Promise(requestAnimationFrame)
          }
          await until(() => line.dataset.kind === 'busy')
          await until(() => headline.innerText.startsWith('Tiger cat') || line.dataset.kind !== 'busy')
          document.querySelector("#hl-erase button[aria-keyshortcuts='Control+Z']").click()
        }"""
    )
    expect(page.locator(f"{LINE}[data-kind=done]"), "not the known answer about the former image").to_contain_text(
        "Tiger cat: 39% before, "
    )


def test_a_link_repeats_the_edit_with_the_keyboard_and_saves_it(visit: Visit) -> None:
    """A second image by link, a dab by keyboard, the smallest region, and a bundle with both images."""
    page = visit.open("?model=bands3&example=coffee&tab=erase&edit=box.0c0cUUUU_fill.image_flip.x&second=cat").page
    visit.painted("erase", 0)
    expect(page.locator(".hl-erase .hl-second [aria-pressed=true]")).to_have_attribute("data-id", "cat")
    expect(page.get_by_role("button", name="Image changes (1)")).to_be_visible()
    page.locator(".hl-erase-paint").focus()
    for key in ("ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    visit.after(lambda: page.keyboard.press(" "), "erase")
    assert re.fullmatch(r"box\.0c0cUUUU_brush\.\w\w\.\w{4}_fill\.image_flip\.x", edit(visit)), edit(visit)

    page.locator(".hl-share > button:visible").last.click()
    bundle = page.locator(".hl-share-items:visible button").filter(has_text="Bundle")
    with zipfile.ZipFile(visit.download(bundle.click)) as archive:
        index = json.loads(archive.read("bundle.json"))
        assert {"photograph.jpg", "second.jpg", "map.npy"} <= set(archive.namelist())
    assert index["maps"][0]["question"]["edit"] == edit(visit) and index["second"]["file"] == "second.jpg"

    page.locator(".hl-erase [data-value=mean]").click()
    page.wait_for_timeout(100)
    for name, words, found in (
        ("that changes it", "forward passes", r"first\.\d+_fill\.mean"),
        ("that keeps half of its probability", "half of its probability (", r"first\.\d+_invert_fill\.mean"),
    ):
        visit.after(page.get_by_role("button", name=f"Smallest region {name}").click, "erase")
        expect(page.locator(".hl-erase-status")).to_contain_text(words)
        assert re.fullmatch(found, edit(visit))
    kept = float(re.search(r"; (\d+)% of its probability is kept", visit.headline)[1])
    assert 50 <= kept < 100


OLD = """() => Object.fromEntries([...document.querySelectorAll(".hl-erase-views > section")].map(
  (part) => [part.querySelector("h2").textContent, getComputedStyle(part).opacity < 0.6]))"""


@pytest.mark.slow
def test_new_predictions_do_not_wait_for_a_slow_map(visit: Visit) -> None:
    """They replace the old ones, which dim at the click; the map after the edit stays dim until it is new."""
    page = visit.open("?method=occlusion&options=" + urllib.parse.quote('{"window": 100}')).page
    line, rows = page.locator(LINE), page.locator(ROWS)
    visit.after(lambda: page.get_by_role("button", name="Cover this region").click(), "erase")
    expect(line).to_have_attribute("data-kind", "done")
    before, headline = rows.inner_text(), visit.headline
    paint(visit, (0.1, 0.3), (0.9, 0.4))
    assert page.evaluate(OLD) == {"Before": False, "After": True, "Predictions": True}
    page.evaluate(
        f"""() => {{
          window.frames = [];
          const watch = () => {{
            const rows = document.querySelector("{ROWS}").innerText, old = ({OLD})();
            frames.push([rows, old.Predictions, old.After, document.querySelector(".hl-headline").innerText]);
            requestAnimationFrame(watch);
          }};
          watch();
        }}"""
    )
    expect(line).to_have_attribute("data-kind", "done")
    expect(page.locator(".hl-erase-view[data-old=true]")).to_have_count(0)
    new, frames = rows.inner_text(), page.evaluate("frames")
    assert all(is_old == (text == before) for text, is_old, *_ in frames), "no other predictions in between"
    assert any(text == new and is_after_old for text, _, is_after_old, _ in frames), "before the map"
    assert {sentence for text, _, _, sentence in frames if text == new} == {visit.headline} != {headline}
    click = "document.querySelector('#hl-examples [data-id=goldfish]').click()"
    dims = f"() => {{ {click}; return ({OLD})(); }}"
    assert page.evaluate(dims) == {"Before": True, "After": True, "Predictions": True}


def test_a_link_shows_the_predictions_after_its_edit_before_any_slow_map(visit: Visit) -> None:
    options = urllib.parse.quote('{"samples": 50000}')
    visit.page.goto(f"{visit.address}/?method=rise&options={options}&tab=erase&edit=box.0c0cUUUU_fill.mean")
    expect(visit.page.locator(".hl-headline")).to_contain_text("After the edit:")
    expect(visit.page.locator(f"{ROWS} tr")).not_to_have_count(0)
    expect(visit.page.locator(LINE)).to_have_attribute("data-kind", "busy")


@pytest.mark.slow
def test_a_new_map_before_the_edit_has_no_color_range_with_an_old_one_after_it(visit: Visit) -> None:
    """Grad-CAM, then Occlusion, whose values have another unit."""
    page = visit.open("?tab=erase&edit=box.0c0cUUUU_fill.mean").page
    expect(page.locator(LINE)).to_have_attribute("data-kind", "done")
    notes = page.locator(".hl-erase-view .hl-compare-range")
    expect(notes).to_have_text(["Both maps have one color range"] * 2)
    page.evaluate(
        f"""() => {{
          window.frames = [];
          const watch = () => {{
            const {{ Before, After }} = ({OLD})();
            if (!Before && After) frames.push(document.querySelector(".hl-erase-view .hl-compare-range").textContent);
            requestAnimationFrame(watch);
          }};
          watch();
        }}"""
    )
    visit.choose("method", "Occlusion")
    visit.until("frames.length > 0")
    expect(page.locator(".hl-erase-view[data-old=true]")).to_have_count(0)
    assert {*page.evaluate("frames")} == {""}
