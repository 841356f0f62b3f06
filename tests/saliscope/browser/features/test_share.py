"""State in the address, lost connections, figures and bundles."""

from __future__ import annotations

import io
import json
import re
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import app as command
from tests.saliscope.browser.conftest import PATIENCE, ROOT, Visit, expect

LOOK = """() => Object.fromEntries(['opacity', 'colors', 'low', 'high', 'smooth'].map((name) => {
  const field = document.querySelector(`#hl-overlay [name=${name}]`);
  return [name, field.type === 'checkbox' ? String(field.checked) : field.value];
}))"""
HOSTILE = "<img src=x onerror=window.__xss=1>${Object.assign(window,{__xss:1})}"


def query(visit: Visit) -> dict[str, str]:
    """Return the current parameters of the address."""
    text = visit.page.evaluate("location.search.slice(1)")
    return dict(urllib.parse.parse_qsl(text))


def holds(visit: Visit, **wanted: str | None) -> None:
    """Wait until the address has these parameters; None means absent."""
    visit.page.wait_for_function(
        """(wanted) => Object.entries(wanted).every(([name, value]) =>
          new URLSearchParams(location.search).get(name) === value)""",
        arg=wanted,
        timeout=PATIENCE,
    )


def again(visit: Visit, act: Callable[[], object]) -> None:
    """Reload the page and wait for its answer."""
    act()
    visit.painted("overlay", 0)
    visit.page.wait_for_function("document.documentElement.dataset.hlState === 'done'", timeout=PATIENCE)


@pytest.mark.slow
def test_reload_and_back_bring_the_state(visit: Visit) -> None:
    """Display settings are not history steps, and invalid parameters are ignored."""
    visit.open("?__theme=light&opacity=<b>&limits=5,1&colors=x&show=y&smooth=z&options=%7B%22rulo%22:1%7D")
    assert "no option “rulo”. Did you mean relu?" in visit.page.locator("#hl-findings").inner_text()
    assert visit.page.evaluate(LOOK)["opacity"] == "100"
    holds(visit, opacity=None, limits=None, colors=None, method="grad_cam", example="dog", __theme="light")
    page = visit.page

    visit.after(lambda: page.locator("#hl-examples button[data-id=cat]").click())
    visit.after(lambda: visit.choose("method", "HiResCAM"))
    asked = len(visit.requests)
    for name, value in (("opacity", "40"), ("colors", "viridis"), ("high", "0.05")):
        page.evaluate(
            """([name, value]) => {
              const field = document.querySelector(`#hl-overlay [name=${name}]`);
              field.value = value;
              for (const event of ['input', 'change']) field.dispatchEvent(new Event(event)); }""",
            [name, value],
        )
    holds(visit, opacity="40", colors="viridis", limits="0,0.05")
    assert [url for url in visit.requests[asked:] if not url.startswith("blob:")] == []
    visit.open_view("API")
    holds(visit, tab="api", example="cat", method="hires_cam", layer="head")
    before, look = query(visit), page.evaluate(LOOK)

    again(visit, page.reload)
    assert "HiResCAM" in visit.status and query(visit) == before and page.evaluate(LOOK) == look
    assert page.locator("#hl-navigation [aria-haspopup=menu]").inner_text().strip() == "API"
    assert page.locator("#hl-examples button[aria-pressed=true]").get_attribute("data-id") == "cat"

    visit.after(page.go_back)
    assert "Grad-CAM for tiger cat" in visit.status and page.evaluate(LOOK)["opacity"] == "100"
    visit.after(page.go_back)
    assert "German shepherd" in visit.status
    visit.after(page.go_forward)
    assert "tiger cat" in visit.status and query(visit)["example"] == "cat"


@pytest.mark.slow
def test_an_uploaded_image_is_restored_only_in_the_same_browser(visit: Visit, browser: Any, tmp_path: Path) -> None:
    visit.open()
    Image.open(ROOT / "assets/examples/cat.jpg").crop((20, 10, 320, 260)).save(tmp_path / "holiday.jpg")
    visit.after(lambda: visit.upload(tmp_path / "holiday.jpg"))
    visit.page.wait_for_function(
        """() => new Promise((resolve) => { const door = indexedDB.open('saliscope', 1); door.onsuccess = () => {
          const all = door.result.transaction('pictures').objectStore('pictures').getAll();
          all.onsuccess = () => { door.result.close(); resolve(all.result.length); }; }; })"""
    )
    visit.after(lambda: visit.choose("method", "LayerCAM"))
    status, address = re.sub(r" · .*", "", visit.status), visit.page.url
    assert "own" in query(visit) and "example" not in query(visit) and "holiday" not in address and "tmp" not in address

    again(visit, visit.page.reload)
    assert re.sub(r" · .*", "", visit.status) == status
    expect(visit.page.locator("#hl-examples button[aria-pressed=true]")).to_have_count(0)
    visit.after(lambda: visit.page.locator("#hl-examples button[data-id=cat]").click())
    visit.after(visit.page.go_back)
    assert re.sub(r" · .*", "", visit.status) == status

    visit.page.locator("#hl-link").click()
    link = visit.page.locator("#hl-linked input").input_value()
    assert link.replace("own=shared", "") == re.sub("own=[^&]*", "", address)
    other = Visit(browser.new_context().new_page(), visit.address)
    other.page.goto(link)
    other.page.wait_for_function(
        "document.querySelector('#hl-status .hl-line')?.innerText.includes('an image of the person who shared it')",
        timeout=PATIENCE,
    )
    other.page.goto(address)
    other.page.wait_for_function(
        "document.querySelector('#hl-status .hl-line')?.innerText.includes('was uploaded by a user')",
        timeout=PATIENCE,
    )
    assert other.page.locator("#hl-method [role=combobox]").input_value() == "LayerCAM"
    other.check()


@pytest.mark.slow
def test_choices_made_while_offline_are_kept(visit: Visit) -> None:
    """Gradio reloads the page when the connection is back."""
    visit.open()
    visit.after(lambda: visit.choose("class", "goldfish"))
    page = visit.page

    page.context.set_offline(True)
    visit.choose("method", "HiResCAM")
    page.locator("#hl-examples button[data-id=cat]").click()
    page.get_by_text("Connection to the server was lost").wait_for()
    visit.choose("layer", "stages.2 ")
    holds(visit, layer="stages.2", method="hires_cam", example="cat")
    with page.expect_navigation(timeout=PATIENCE):
        page.context.set_offline(False)

    visit.painted("overlay", 0)
    visit.settled()
    assert visit.status.startswith("HiResCAM for tiger cat at stages.2 of"), visit.status
    visit.errors.clear()  # from the time without a connection


@pytest.mark.slow
def test_a_plane_and_a_channel_of_a_link_are_shown(visit: Visit) -> None:
    page = visit.page
    page.goto(visit.address + "/?method=token_pca&plane=2")
    page.wait_for_function(
        "document.querySelector('#hl-status')?.innerText.includes('component 3 of 3')", timeout=PATIENCE
    )
    page.locator("#hl-planes").get_by_role("button", name="Previous").click()
    holds(visit, plane="1", method="token_pca")

    page.goto(visit.address + "/?tab=features&channel=17&layer=stages.4")
    page.wait_for_function("document.querySelector('#hl-channels-pane')?.dataset.channel === '17'", timeout=PATIENCE)
    holds(visit, channel="17", tab="features", layer="stages.4")


def saved(visit: Visit, item: str, within: str = "#hl-overlay") -> bytes:
    menu = visit.page.locator(within).get_by_role("button", name="Save", exact=True)
    if menu.get_attribute("aria-expanded") == "false":
        menu.click()
    assert menu.get_attribute("aria-expanded") == "true"
    with visit.page.expect_download() as download:
        visit.page.locator(within).get_by_role("button", name=item).click()
    return Path(download.value.path()).read_bytes()


def pdf_page(data: bytes) -> bytes:
    """Return the drawing of a PDF, after checking that its table of objects has their positions."""
    start = int(re.findall(rb"startxref\n(\d+)\n", data)[-1])
    offsets = [int(entry) for entry in re.findall(rb"(\d{10}) 00000 n ", data[start:])]
    assert data.startswith(b"%PDF-1.4") and data[start : start + 4] == b"xref" and offsets
    for number, offset in enumerate(offsets, 1):
        assert data[offset:].startswith(b"%d 0 obj" % number)
    number = int(re.search(rb"/Contents (\d+) 0 R", data)[1])
    stream = data[offsets[number - 1] :]
    length = int(re.search(rb"/Length (\d+)", stream)[1])
    begin = stream.index(b"stream\n") + 7
    return zlib.decompress(stream[begin : begin + length])


@pytest.mark.slow
def test_figures_are_saved(visit: Visit) -> None:
    """Width and resolution as set, the caption as text, contours as lines, and the map with transparency."""
    visit.open("?example=cat&layer=stages.4")
    drawing = ElementTree.fromstring(saved(visit, "Figure, SVG"))
    figure = Image.open(io.BytesIO(saved(visit, "Figure, PNG")))
    pdf = saved(visit, "Figure, PDF")
    alone = Image.open(io.BytesIO(saved(visit, "Map only")))

    assert drawing.attrib["width"] == "180mm" and figure.info["dpi"] == pytest.approx((300, 300), abs=0.01)
    assert figure.size[0] == round(180 / 25.4 * 300)
    assert figure.size[1] == pytest.approx(float(drawing.attrib["height"][:-2]) / 25.4 * 300, abs=1)
    content = pdf_page(pdf)
    assert re.search(rb"/MediaBox \[0 0 510\.2\d* ", pdf) and pdf.count(b"/Subtype /Image") == 3
    assert b"Grad-CAM for tiger cat".hex().encode() in content and content.count(b" l\n") > 50, "text and contours"
    paths = [node.attrib["d"] for node in drawing.iter("{http://www.w3.org/2000/svg}path")]
    assert len(paths) == 2 and paths[0] == paths[1] and paths[0].count("M") >= 2, "a halo and lines at two levels"
    texts = [node.text or "" for node in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert any(
        re.match(r"Grad-CAM for tiger cat \(\d+%\) at layer stages.4 of EfficientNet-Lite0", each) for each in texts
    )
    assert "Options: relu true." in texts and "logit" in texts
    sources = [node.attrib["href"] for node in drawing.iter("{http://www.w3.org/2000/svg}image")]
    assert len(sources) == 3 and all(source.startswith("data:image/") for source in sources)
    opaque = np.asarray(alone)[..., 3]
    assert alone.mode == "RGBA" and opaque.min() == 0 and opaque.max() > 240

    menu = visit.page.locator("#hl-overlay").get_by_role("button", name="Save", exact=True)
    menu.click()
    visit.page.locator("#hl-overlay [name=letters]").check()
    visit.page.locator("#hl-overlay [name=caption]").uncheck()
    visit.page.locator("#hl-overlay [name=width]").fill("90")
    small = ElementTree.fromstring(saved(visit, "Figure, SVG"))
    words = [node.text for node in small.iter("{http://www.w3.org/2000/svg}text")]
    assert small.attrib["width"] == "90mm" and {"a", "b"} <= set(words) and "Options: relu true." not in words
    menu.click()
    visit.page.locator("#hl-overlay").get_by_role("button", name="Copy BibTeX").click()
    visit.page.locator("#hl-overlay .hl-share-note", has_text="Copied.").wait_for()
    assert "eprint = {1610.02391}" in visit.page.evaluate("navigator.clipboard.readText()")
    circle = visit.page.evaluate(
        """async () => {
          const { isolines } = await import(new URL('hl/share/contours.js', document.baseURI));
          const side = 64, values = Float32Array.from({ length: side * side }, (_, i) =>
            1 - Math.hypot((i % side) + 0.5 - side / 2, Math.floor(i / side) + 0.5 - side / 2) / side);
          return isolines(values, side, side, 0.75);
        }"""
    )
    assert len(circle) == 1 and circle[0][0] == circle[0][-1], "one closed line"
    radii = np.hypot(*(np.array(circle[0]) - 0.5).T)
    assert np.allclose(radii, 0.25, atol=0.002)

    hostile = visit.page.evaluate(
        """async (title) => {
          const { svg } = await import(new URL('hl/share/figure.js', document.baseURI));
          const { view } = await import(new URL('hl/drawing/paint.js', document.baseURI));
          const bar = Object.assign(document.createElement('canvas'), { width: 4, height: 1 });
          const rendering = view({ h: 2, w: 2, values: new Float32Array([0, 1, NaN, 2]) });
          const value = { words: { title } }, ends = [title, title, title];
          const panel = { image: null, rendering, value, ends, bar, opacity: 0.5 };
          return svg([panel, { ...panel, name: title }, panel]).text();
        }""",
        HOSTILE + '&amp;]]>\x00\x0b"\ud800 ' + "x" * 400,
    )
    texts = "".join(
        node.text or "" for node in ElementTree.fromstring(hostile).iter("{http://www.w3.org/2000/svg}text")
    )
    assert HOSTILE.replace(" ", "") in texts.replace(" ", "") and "&amp;]]>" in texts
    assert visit.page.evaluate("window.__xss") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "question", ["?example=cat&method=smooth_grad&options=" + urllib.parse.quote('{"samples": 2}')]
)
def test_bundles_of_the_page_can_be_replayed(
    visit: Visit, tmp_path: Path, capsys: pytest.CaptureFixture[str], question: str
) -> None:
    """With the documented command, for one map and for a comparison."""
    visit.open(question)
    (tmp_path / "one.zip").write_bytes(saved(visit, "Bundle"))
    visit.after(lambda: visit.choose("method", "HiResCAM"))
    visit.page.get_by_role("tab", name="Compare").click()
    visit.page.wait_for_function(
        """() => [...document.querySelectorAll('.hl-compare-panel .hl-line')]
          .filter((each) => /\\d m?s on/.test(each.innerText)).length > 1""",
        timeout=PATIENCE,
    )
    (tmp_path / "two.zip").write_bytes(saved(visit, "Bundle", "#hl-compare"))

    for name, count in (("one.zip", 1), ("two.zip", 2)):
        with zipfile.ZipFile(tmp_path / name) as archive:
            index = json.loads(archive.read("bundle.json"))
            assert archive.testzip() is None and len(index["maps"]) == count
            assert Image.open(io.BytesIO(archive.read(index["maps"][-1]["files"]["figure"]))).width > 900
        with pytest.raises(SystemExit) as ended:
            command.main(["replay", str(tmp_path / name)])
        printed = capsys.readouterr().out
        assert ended.value.code == 0 and printed.count("equal") == count, printed
