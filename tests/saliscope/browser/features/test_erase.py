"""The erase view in Chromium: painting, undo, the address, the keyboard, refusals, and saving."""

from __future__ import annotations

import json
import re
import zipfile

from tests.saliscope.browser.conftest import WRITE_DELAY, Visit, expect


def line(visit: Visit) -> str:
    return visit.page.locator(".hl-erase-status .hl-line").inner_text()


def edit(visit: Visit) -> str:
    """Return the edit in the address."""
    visit.page.wait_for_timeout(WRITE_DELAY)
    found = re.search(r"[?&]edit=([^&]*)", visit.page.url)
    return found[1] if found else ""


def paint(visit: Visit, *points: tuple[float, float]) -> None:
    """Draw a line through points, as fractions of the image."""
    box = visit.page.locator(".hl-erase-paint").bounding_box()
    assert box
    mouse, places = visit.page.mouse, [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    mouse.move(*places[0])
    mouse.down()
    for place in places[1:]:
        mouse.move(*place, steps=12)
    mouse.up()


def test_covering_painting_undo_and_refusal(visit: Visit) -> None:
    visit.open()
    page = visit.page
    visit.after(lambda: page.get_by_role("button", name="Cover this region").click(), "erase")
    assert line(visit).startswith("German shepherd: 94% before, ") and edit(visit) == "top.200"
    assert visit.headline.startswith("After the edit: German shepherd, 78%. 94% before; ")
    visit.open_view("Explain")
    assert visit.headline.startswith("German shepherd, 94%.")
    visit.open_view("Erase")
    rows = page.locator(".hl-erase-predictions tbody tr")
    change = rows.first.locator("td").nth(2).inner_text()
    assert rows.count() >= 5 and re.fullmatch(r"−\d+\.\d pp", change), change
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the table is not cut off"
    ends = page.locator(".hl-erase-view .hl-ends")
    assert ends.nth(0).inner_text() == ends.nth(1).inner_text(), "one color range"

    sent: list[int] = []
    page.on("request", lambda request: "queue/join" in request.url and sent.append(len(request.post_data or "")))
    visit.after(lambda: paint(visit, (0.1, 0.8), (0.5, 0.6), (0.9, 0.9)), "erase")
    stroke = edit(visit)
    assert re.fullmatch(r"top\.200_brush\.\w\w\.(\w{4}){2,12}", stroke), stroke
    assert len(sent) == 1 and sent[0] < 20_000, sent

    shown = page.locator(".hl-erase-predictions tbody").inner_text()
    page.locator(".hl-erase-paint").focus()
    page.keyboard.press("Control+z")
    visit.until("text => document.querySelector('.hl-erase-predictions tbody').innerText !== text", shown)
    assert edit(visit) == "top.200" and len(sent) == 1, "known answers need no request"
    page.keyboard.press("Control+Shift+z")
    visit.until("text => document.querySelector('.hl-erase-predictions tbody').innerText === text", shown)

    page.get_by_role("button", name="Image changes").click()
    page.get_by_label("Rotate, °").fill("400")
    page.keyboard.press("Tab")
    page.locator(".hl-erase-status .hl-line[data-kind=error]").wait_for()
    assert line(visit) == "Rotation 400 is out of range. Give -180 to 180 degrees."
    expect(page.locator(".hl-erase[data-old=true]")).to_have_count(1)
    assert page.locator(".hl-erase-predictions tbody").inner_text() == shown, "the last answer stays"
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
    page.locator(".hl-erase-status .hl-line[data-kind=done]").wait_for()
    assert line(visit).startswith("Tiger cat: 39% before, "), "not the known answer about the former image"


def test_a_link_repeats_the_edit_with_the_keyboard_and_saves_it(visit: Visit) -> None:
    """A second image by link, a dab by keyboard, the smallest region, and a bundle with both images."""
    visit.open("?example=coffee&tab=erase&edit=box.0c0cUUUU_fill.image_flip.x&second=cat")
    visit.painted("erase", 0)
    page = visit.page
    assert page.locator(".hl-erase .hl-second [aria-pressed=true]").get_attribute("data-id") == "cat"
    assert page.get_by_role("button", name="Image changes (1)").is_visible()

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
    visit.after(lambda: page.get_by_role("button", name="Smallest region that changes it").click(), "erase")
    status = page.locator(".hl-erase-status")
    expect(status).to_contain_text("forward passes")
    assert re.fullmatch(r"first\.\d+_fill\.mean", edit(visit))
    button = page.get_by_role("button", name="Smallest region that keeps half of its probability")
    visit.after(lambda: button.click(), "erase")
    expect(status).to_contain_text("half of its probability (")
    assert re.fullmatch(r"first\.\d+_invert_fill\.mean", edit(visit))
    kept = float(re.search(r"; (\d+)% of its probability is kept", visit.headline)[1])
    assert 50 <= kept < 100


def test_erase_fits_a_phone(phone: Visit) -> None:
    phone.after(lambda: phone.page.get_by_role("button", name="Cover this region").click(), "erase")
    page = phone.page

    assert page.evaluate("document.documentElement.scrollWidth") == 390
    for name in ("Undo", "Clear", "Smallest region that changes it"):
        box = page.get_by_role("button", name=name).bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= 390
