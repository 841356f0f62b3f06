"""State in the address, lost connections, figures and bundles."""

from __future__ import annotations

import io
import json
import re
import urllib.parse
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

import app as command
from tests.saliscope.browser.conftest import ROOT, Visit, expect

LOOK = """() => Object.fromEntries(['opacity', 'colors', 'low', 'high', 'smooth'].map((name) => {
  const field = document.querySelector(`#hl-overlay [name=${name}]`);
  return [name, field.type === 'checkbox' ? String(field.checked) : field.value];
}))"""
SET = """([name, value]) => {
  const field = document.querySelector(`#hl-overlay [name=${name}]`);
  field.value = value;
  for (const event of ['input', 'change']) field.dispatchEvent(new Event(event));
}"""
STORED = """() => new Promise((resolve) => { const door = indexedDB.open('saliscope', 1); door.onsuccess = () => {
  const all = door.result.transaction('pictures').objectStore('pictures').getAll();
  all.onsuccess = () => { door.result.close(); resolve(all.result.length); }; }; })"""
SVG = "{http://www.w3.org/2000/svg}"


def query(visit: Visit) -> dict[str, str]:
    """Return the current parameters of the address."""
    return dict(urllib.parse.parse_qsl(visit.page.evaluate("location.search.slice(1)")))


def holds(visit: Visit, **wanted: str | None) -> None:
    """Wait until the address has these parameters; None means absent."""
    parameter = "new URLSearchParams(location.search).get(name)"
    visit.until(f"(wanted) => Object.entries(wanted).every(([name, value]) => {parameter} === value)", wanted)


def linked(visit: Visit) -> str:
    """Return the link that the page offers."""
    visit.page.locator("#hl-link").click()
    return visit.page.locator("#hl-linked input").input_value()


def again(visit: Visit, act: Callable[[], object]) -> None:
    """Reload the page and wait for its answer."""
    act()
    visit.painted("overlay", 0)
    visit.settled()
    visit.errors.clear()  # Gradio's, about the event stream of the page before
    visit.state("done")


@pytest.mark.slow
def test_reload_and_back_bring_the_state(visit: Visit) -> None:
    """Display settings are not history steps, and invalid parameters are ignored."""
    page = visit.open("?__theme=light&opacity=<b>&limits=5,1&colors=x&show=y&smooth=z&options=%7B%22rulo%22:1%7D").page
    expect(page.locator("#hl-findings")).to_contain_text("no option “rulo”. Did you mean relu?")
    assert page.evaluate(LOOK)["opacity"] == "100"
    holds(visit, opacity=None, limits=None, colors=None, method="grad_cam", example="dog", __theme="light")

    visit.example("cat")
    visit.after(lambda: visit.choose("method", "HiResCAM"))
    asked = len(visit.requests)
    for name, value in (("opacity", "40"), ("colors", "viridis"), ("high", "0.05")):
        page.evaluate(SET, [name, value])
    holds(visit, opacity="40", colors="viridis", limits="0,0.05")
    assert visit.sent(asked) == []
    visit.open_view("API")
    holds(visit, tab="api", example="cat", method="hires_cam", layer="head")
    before, look = query(visit), page.evaluate(LOOK)
    again(visit, page.reload)
    assert "HiResCAM" in visit.status and query(visit) == before and page.evaluate(LOOK) == look
    expect(page.locator("#hl-navigation [aria-haspopup=menu]")).to_contain_text("API")
    expect(page.locator("#hl-examples button[aria-pressed=true]")).to_have_attribute("data-id", "cat")

    for act, words in ((page.go_back, "Grad-CAM for tiger cat"), (page.go_back, "German shepherd")):
        visit.after(act)
        assert words in visit.status and page.evaluate(LOOK)["opacity"] == "100"
    visit.after(page.go_forward)
    assert "tiger cat" in visit.status and query(visit)["example"] == "cat"
    link = linked(visit)
    assert "example=cat" in link and "method=grad_cam" in link
    page.goto(visit.address + "/?tab=features&channel=17&layer=stages.4")
    expect(page.locator("#hl-channels-pane")).to_have_attribute("data-channel", "17")
    holds(visit, channel="17", tab="features", layer="stages.4")


@pytest.mark.slow
def test_an_uploaded_image_is_restored_only_in_the_same_browser(window: Any, tmp_path: Path) -> None:
    visit = window().open()
    Image.open(ROOT / "assets/examples/cat.jpg").crop((20, 10, 320, 260)).save(tmp_path / "holiday 50%.jpg")
    visit.after(lambda: visit.upload(tmp_path / "holiday 50%.jpg"))
    visit.until(STORED)
    visit.after(lambda: visit.choose("method", "LayerCAM"))
    status, address = visit.status.split(" · ")[0], visit.page.url
    assert "v=1" in address
    assert "own" in query(visit) and "example" not in query(visit) and "holiday" not in address and "tmp" not in address
    again(visit, visit.page.reload)
    assert visit.status.startswith(status)
    visit.until("document.querySelector('#hl-image img').naturalWidth > 0")
    expect(visit.page.locator("#hl-examples button[aria-pressed=true]")).to_have_count(0)
    visit.example("cat")
    visit.after(visit.page.go_back)
    assert visit.status.startswith(status)

    link, other = linked(visit), window()
    assert link.replace("own=shared", "") == re.sub("own=[^&]*", "", address)
    line = expect(other.page.locator("#hl-status .hl-line"))
    other.page.goto(link)
    line.to_contain_text("an image of the person who shared it")
    other.page.goto(address)
    line.to_contain_text("was uploaded by a user")
    expect(other.page.locator("#hl-method [role=combobox]")).to_have_value("LayerCAM")


@pytest.mark.slow
def test_choices_made_while_offline_are_kept(window: Any) -> None:
    """Gradio reloads the page when the connection is back."""
    visit = window().open("?class=goldfish")
    page = visit.page
    page.context.set_offline(True)
    visit.choose("method", "HiResCAM")
    page.locator("#hl-examples button[data-id=cat]").click()
    page.get_by_text("Connection to the server was lost").wait_for()
    visit.choose("layer", "stages.2 ")
    holds(visit, layer="stages.2", method="hires_cam", example="cat")
    with page.expect_navigation():
        page.context.set_offline(False)
    again(visit, lambda: None)
    assert visit.status.startswith("HiResCAM for tiger cat at stages.2 of"), visit.status


@pytest.mark.slow
def test_figures_are_saved(visit: Visit) -> None:
    """Width and resolution as set, the caption as text, contours as lines, and the map with transparency."""
    page = visit.open("?example=cat&layer=stages.4").page
    own = page.locator("#hl-overlay")
    drawing, figure = ElementTree.parse(visit.saved("Figure, SVG")).getroot(), Image.open(visit.saved("Figure, PNG"))
    pdf, alone = visit.saved("Figure, PDF").read_bytes(), Image.open(visit.saved("Map only")).convert("RGBA")
    assert drawing.attrib["width"] == "180mm" and figure.info["dpi"] == pytest.approx((300, 300), abs=0.01)
    assert figure.size[0] == round(180 / 25.4 * 300)
    assert figure.size[1] == pytest.approx(float(drawing.attrib["height"][:-2]) / 25.4 * 300, abs=1)
    assert re.search(rb"/MediaBox \[0 0 510\.2\d* ", pdf) and pdf.count(b"/Subtype /Image") == 3
    paths = [node.attrib["d"] for node in drawing.iter(f"{SVG}path")]
    assert len(paths) == 2 and paths[0] == paths[1] and paths[0].count("M") >= 2, "a halo and lines at two levels"
    texts = [node.text or "" for node in drawing.iter(f"{SVG}text")]
    title = re.compile(r"Grad-CAM for tiger cat \(\d+%\) at layer stages.4 of EfficientNet-Lite0")
    assert any(map(title.match, texts)) and "Options: relu true." in texts and "logit" in texts
    sources = [node.attrib["href"] for node in drawing.iter(f"{SVG}image")]
    assert len(sources) == 3 and all(source.startswith("data:image/") for source in sources)
    low, high = alone.getchannel("A").getextrema()
    assert low == 0 and high > 240

    menu = own.get_by_role("button", name="Save", exact=True)
    menu.click()
    own.locator("[name=letters]").check()
    own.locator("[name=caption]").uncheck()
    own.locator("[name=width]").fill("90")
    small = ElementTree.parse(visit.saved("Figure, SVG")).getroot()
    words = [node.text for node in small.iter(f"{SVG}text")]
    assert small.attrib["width"] == "90mm" and {"a", "b"} <= set(words) and "Options: relu true." not in words
    menu.click()
    own.get_by_role("button", name="Copy BibTeX").click()
    own.locator(".hl-share-note", has_text="Copied.").wait_for()
    assert "eprint = {1610.02391}" in page.evaluate("navigator.clipboard.readText()")


@pytest.mark.slow
def test_bundles_of_the_page_can_be_replayed(visit: Visit, capsys: pytest.CaptureFixture[str]) -> None:
    """With the documented command, for one map and for a comparison."""
    visit.open("?example=cat&method=smooth_grad&options=" + urllib.parse.quote('{"samples": 2}'))
    one = visit.saved("Bundle")
    visit.after(lambda: visit.choose("method", "HiResCAM"))
    visit.page.get_by_role("tab", name="Compare").click()
    visit.until("document.querySelectorAll('.hl-compare-panel[data-state=done][data-old=false]').length === 2")
    two = visit.saved("Bundle", "#hl-compare")
    for path, count in ((one, 1), (two, 2)):
        with zipfile.ZipFile(path) as archive:
            index = json.loads(archive.read("bundle.json"))
            assert archive.testzip() is None and len(index["maps"]) == count
            assert Image.open(io.BytesIO(archive.read(index["maps"][-1]["files"]["figure"]))).width > 900
        with pytest.raises(SystemExit) as ended:
            command.main(["replay", str(path)])
        printed = capsys.readouterr().out
        assert ended.value.code == 0 and printed.count("equal") == count, printed
