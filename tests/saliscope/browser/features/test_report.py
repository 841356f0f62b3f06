"""The report in a browser: all controls, no requests, no errors, in light and dark mode, narrow and wide."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

import explainers
from saliscope.runs import report
from saliscope.runs.rows import SCHEMA
from tests.saliscope.browser.conftest import PATIENCE, expect
from tests.support.stored_runs import store_rows

NAMES = ["cat", "dog", "owl"]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory) -> Path:
    """Write a report on 90 images of three classes, every third one wrong, the last one unreadable."""
    folder = tmp_path_factory.mktemp("report")
    random = np.random.default_rng(0)
    rows = []
    for k in range(90):
        label, prediction = k % 3, (k % 3 + (k % 9 == 0)) % 3
        score = {"class": NAMES[prediction], "index": prediction, "probability": 0.5 + k / 200}
        values = random.random((7, 7)) * np.linspace(0, 1, 7) ** (label + 1)
        row = {"path": f"{NAMES[label]}/{k:03d}.png", "label": NAMES[label], "label_index": label, "score": 2.0}
        row |= {"label_probability": 0.2, "correct": label == prediction, "top5": [score]}
        for kind in ("prediction", "target"):
            row |= {kind: NAMES[prediction], f"{kind}_index": prediction}
        row["probability"] = score["probability"]
        row |= {"map": values.astype("<f2").tobytes(), "map_height": 7, "map_width": 7}
        rows.append(row | ({"findings": ["flat"], "finding_texts": ["The map is even."]} if k % 10 == 0 else {}))
    rows.append({"path": "owl/gone.png", "label": "owl", "error": "The file is cut off."})
    rows.sort(key=lambda row: row["path"])
    settings = {"model": "toy", "method": "grad_cam", "target": "predicted", "options": {}}
    finished = store_rows(folder, {"settings": settings, "source": "toys"}, pa.Table.from_pylist(rows, SCHEMA))
    return report.write(finished, folder / "report.html", report.Report(read=photograph, link="http://127.0.0.1:7860"))


def photograph(path: str) -> Image.Image:
    random = np.random.default_rng(int(re.findall(r"\d+", path)[0]))
    small = Image.fromarray(random.integers(0, 255, (6, 8, 3), dtype=np.uint8))
    return small.resize((160, 120), Image.Resampling.BICUBIC)


@pytest.fixture
def reader(browser, page_file: Path):
    """Open the page, which may make no requests and log no errors."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: message.type in ("error", "warning") and errors.append(message.text))
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    yield page
    asked = [url for url in requests if not url.startswith("data:")]
    assert asked == [page_file.as_uri()], asked
    assert not errors, errors
    context.close()


def test_an_answer_leads_to_its_evidence(reader) -> None:
    """The first answer is visible at once, its link shows the row of the confusion, and its images open."""
    answer = reader.locator("#answers .answer").first
    expect(answer).to_contain_text("cat is predicted as dog in 10 of 30 images")
    expect(answer).to_be_in_viewport()
    answer.locator(".thumb").first.click()
    expect(reader.locator("#large-title")).to_have_text("cat, predicted as dog")
    reader.keyboard.press("Escape")
    answer.get_by_role("link").click()
    row = reader.locator("#confusions tr", has_text="cat").first
    expect(row).to_be_in_viewport()
    expect(row).to_contain_text("dog")


@pytest.mark.slow
def test_every_table_sorts_and_links_to_its_images(reader) -> None:
    for section in ("classes", "confusions", "relevance", "findings", "about"):
        for header in reader.locator(f"#{section} thead th button").all():
            header.click()
            cell = header.locator("xpath=..")
            first = cell.get_attribute("aria-sort")
            header.click()
            expect(cell).to_have_attribute("aria-sort", "descending" if first == "ascending" else "ascending")
    accuracy = reader.locator("#classes thead th button", has_text="Accuracy")
    accuracy.click()
    texts = reader.locator("#classes tbody tr > :nth-child(3)").all_inner_texts()
    shares = [float(text.rstrip("%")) for text in texts]
    descending = accuracy.locator("xpath=..").get_attribute("aria-sort") == "descending"
    assert shares == sorted(shares, reverse=descending) and len(set(shares)) > 1
    reader.locator("#classes thead th button", has_text="Class").first.click()
    assert reader.locator("#classes tbody tr > :nth-child(1)").all_inner_texts() in (NAMES, NAMES[::-1])
    for section, text, count in (("confusions", "", 10), ("classes", "owl", 30), ("findings", "", 9)):
        reader.locator(f"#{section} button.link", has_text=text).first.click()
        expect(reader.locator("#count")).to_have_text(re.compile(f"^{count} of"))


def test_images_are_filtered(reader) -> None:
    """Oracle: 90 images k, 30 per class; k % 9 == 0 is wrong (all of them cats), k % 10 == 0 has a finding."""
    form, cells, count = reader.locator("#filters"), reader.locator("#grid .cell"), expect(reader.locator("#count"))
    count.to_have_text("90 of 90 images, 80 correct")
    expect(cells).to_have_count(60)
    reader.locator("#more").click()
    expect(cells).to_have_count(90)
    for name, value, text in (
        ("class", "cat", "30 of 90 images, 20 correct"),
        ("correct", "wrong", "10 of 90 images, 0 correct"),
        ("prediction", "owl", "No image matches these filters."),
    ):
        form.locator(f"[name={name}]").select_option(value)
        count.to_contain_text(text)
    form.locator("[type=reset]").click()
    count.to_contain_text("90 of 90")
    form.locator("[name=finding]").select_option("flat")
    count.to_contain_text(re.compile("^9 of 90"))
    form.locator("[type=reset]").click()
    form.locator("[name=text]").fill("CAT/00")
    count.to_contain_text("4 of 90")  # 0, 3, 6, 9
    for order, first in (("high", "cat/009.png"), ("low", "cat/000.png")):
        form.locator("[name=order]").select_option(order)
        expect(cells.first).to_have_attribute("aria-label", re.compile(first))
    form.locator("[name=maps]").uncheck()
    expect(reader.locator("#grid canvas[data-plain]")).to_have_count(4)


def test_an_image_opens_large(reader) -> None:
    """Arrow keys, buttons, the slider and Esc work; the focus returns."""
    first, stage = reader.locator("#grid .cell").first, reader.locator("#large[open] #stage")
    first.click()
    expect(stage).to_have_attribute("data-shown", "0")
    expect(reader.locator("#previous")).to_be_disabled()
    drawn = stage.evaluate("(stage) => stage.toDataURL()")
    reader.locator("#opacity").fill("0")
    reader.wait_for_function("(drawn) => document.getElementById('stage').toDataURL() !== drawn", arg=drawn)
    reader.locator("#close").focus()
    reader.keyboard.press("ArrowRight")
    expect(stage).to_have_attribute("data-shown", "1")
    reader.locator("#next").click()
    expect(stage).to_have_attribute("data-shown", "2")
    reader.keyboard.press("ArrowLeft")
    expect(stage).to_have_attribute("data-shown", "1")
    href = re.compile("^http://127.0.0.1:7860/.model=toy&class=")
    expect(reader.locator("#details a")).to_have_attribute("href", href)
    expect(reader.locator("#details")).to_contain_text("The app must be started with this run")
    reader.keyboard.press("Escape")
    expect(reader.locator("#large[open]")).to_have_count(0)
    expect(first).to_be_focused()
    reader.locator("#all-mistakes").click()
    expect(reader.locator(".mistake:visible")).to_have_count(10)


@pytest.mark.slow
def test_a_map_is_drawn_as_in_the_app(reader, page_file: Path) -> None:
    """Oracle: `explainers.overlay` of the same map and image."""
    data = json.loads(re.search(r'id="data">(.*?)</script>', page_file.read_text("utf-8"), re.S)[1])
    picture = data["images"][1]
    packed = data["maps"][picture["map"]]
    steps = np.frombuffer(base64.b64decode(packed["b"]), np.int8).reshape(7, 7)
    photo = Image.open(io.BytesIO(base64.b64decode(picture["image"].partition(",")[2]))).convert("RGB")

    reader.locator("#grid .cell").nth(1).click()
    reader.wait_for_selector("#stage[data-shown='1']")
    shown = reader.evaluate("document.getElementById('stage').toDataURL().split(',')[1]")
    actual = Image.open(io.BytesIO(base64.b64decode(shown))).convert("RGB")
    values = torch.from_numpy(steps.astype(np.float32)) / 127 * packed["m"]
    expected = explainers.overlay(photo.resize(actual.size, Image.Resampling.BILINEAR), values)
    found, wanted, plain = (np.asarray(each, dtype=float) for each in (actual, expected, photo.resize(actual.size)))
    assert np.abs(found - wanted).mean() < 4 and actual.size == (640, 480)
    assert np.abs(plain - wanted).mean() > 20, "the map must not be empty"


@pytest.mark.slow
def test_all_images_are_printed(reader) -> None:
    """Also those that were never scrolled to, and those below "Show more"."""
    blank = "[...document.querySelectorAll('canvas:not(#stage)')].filter((each) => !('drawn' in each.dataset)).length"
    assert reader.evaluate(blank) > 10 and reader.locator("#more").is_visible()
    assert reader.pdf().count(b"/Subtype /Image") >= 90 and reader.evaluate(blank) == 0
    reader.set_viewport_size({"width": 390, "height": 844})
    assert reader.evaluate("document.documentElement.scrollWidth") == 390, "it fits a phone"
    reader.set_viewport_size({"width": 718, "height": 1000})  # A4
    reader.emulate_media(media="print")
    cut = "[...document.querySelectorAll('main *')].filter((each) => each.scrollWidth > each.clientWidth + 2 "
    cut += "&& getComputedStyle(each).overflowX !== 'visible').length"
    assert reader.evaluate("document.documentElement.scrollWidth") == 718 and reader.evaluate(cut) == 0


def test_the_navigation_follows_the_section_and_no_buttons_are_printed(reader) -> None:
    current = reader.locator("nav a[aria-current]")
    expect(current).to_have_text("Answers")
    reader.set_viewport_size({"width": 390, "height": 844})
    for name in ("Clusters", "Details", "Classes"):
        link = reader.locator("nav a", has_text=name)
        reader.evaluate("(id) => document.querySelector(id).scrollIntoView()", link.get_attribute("href"))
        expect(current).to_have_text(name)
        reader.wait_for_function("document.querySelector('nav a[aria-current]').getBoundingClientRect().right < 390")
    reader.emulate_media(media="print")
    shown = reader.locator("button:visible, input:visible, select:visible, nav:visible")
    plain = shown.filter(has_not=reader.locator("canvas")).and_(reader.locator(":not(.link, thead *)"))
    expect(plain, "except for images, names and headings").to_have_count(0)
