"""Detection and segmentation models: found objects, selecting them by click and keyboard, and no detections."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.saliscope.browser.conftest import Visit, expect
from tests.support import dense_nets


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """Return an image of two red blobs and a green one."""
    dense_nets.scene().save(tmp_path / "scene.png")
    return tmp_path / "scene.png"


def open_with(visit: Visit, model: str, picture: Path, query: str = "") -> Any:
    visit.open(f"?model=blobs_{model}{query}")
    visit.after(lambda: visit.upload(picture))
    return visit.page


def click_at(visit: Visit, x: float, y: float) -> None:
    """Click on a pixel of the scene."""
    canvas = visit.page.locator("#hl-overlay canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] * x / 256, "y": box["height"] * y / 192})


def ink(visit: Visit) -> int:
    """Return the number of drawn pixels of boxes or outlines."""
    return int((visit.pixels("#hl-overlay .hl-things")[..., 3] > 0).sum())


def listed(visit: Visit) -> Any:
    """Return the assertions about the names in the list."""
    return expect(visit.page.locator("#hl-bars .hl-name"))


def test_detections_are_drawn_and_chosen_in_the_list_by_click_and_by_key(visit: Visit, picture: Path) -> None:
    page = open_with(visit, "detection", picture)
    listed(visit).to_have_text(["red blob", "green blob", "red blob#2"])
    assert visit.status.startswith("HiResCAM for red blob at backbone") and ink(visit) > 1000
    assert re.match(r"Red blob, \d+%\.", visit.headline)
    expect(page.locator("#hl-class").get_by_text("Object", exact=True)).to_have_count(1)
    page.locator("#hl-bars button").nth(2).focus()
    visit.after(lambda: page.keyboard.press("Enter"))
    assert "red blob#2" in visit.status
    page.locator("#hl-link").click()
    expect(page.locator("#hl-linked input")).to_have_value(re.compile(r"class=red\+blob%232"))

    visit.after(lambda: click_at(visit, 190, 150))
    assert "green blob" in visit.status
    before = visit.number("overlay")
    click_at(visit, 130, 12)
    click_at(visit, 190, 150)
    assert visit.number("overlay") == before, "there is no other object"
    page.locator("#hl-overlay canvas").first.focus()
    for key in ["ArrowLeft"] * 16 + ["ArrowRight"] * 3 + ["ArrowUp"] * 3:
        page.keyboard.press(key)
    expect(page.locator("#hl-overlay .hl-read")).to_contain_text("· red blob#2")
    visit.after(lambda: page.keyboard.press("Enter"))
    assert "red blob#2" in visit.status
    page.locator("#hl-overlay input[name=things]").uncheck()
    assert ink(visit) == 0


@pytest.mark.slow
def test_a_region_is_chosen_by_a_click_and_its_class_by_the_next(visit: Visit, picture: Path) -> None:
    """A pinned class that is not in the next image is reported."""
    page = open_with(visit, "segmentation", picture)
    listed(visit).to_have_text(["red blob", "red blob#1", "red blob#2", "green blob", "__background__"])
    assert "of the pixels" in visit.headline and ink(visit) > 1000
    for name in ("red blob#1", "red blob", "red blob#1"):
        visit.after(lambda: click_at(visit, 64, 88))
        assert f"for {name} at " in visit.status
    visit.after(lambda: page.locator("#hl-bars .hl-bars button").last.click())
    assert "__background__" in visit.status
    visit.after(lambda: click_at(visit, 190, 140))
    assert "green blob" in visit.status
    page.locator("#hl-pin input").check()
    visit.example("coffee")
    expect(page.locator("#hl-findings")).to_contain_text("“green blob” was not detected in this image. Detected: red")


@pytest.mark.slow
def test_no_detections_are_reported_and_objects_replace_the_classes_in_all_views(
    visit: Visit, picture: Path, tmp_path: Path
) -> None:
    """A lower score is offered. The classes return with a classifier."""
    page = open_with(visit, "detection", picture)
    page.get_by_role("tab", name="Channels").click()
    visit.painted("grid", 0)
    visit.after(lambda: page.locator("#hl-grid select[name=sort]").select_option("effect"), "grid")
    expect(page.locator("#hl-grid .hl-quiet")).to_contain_text("the score of red blob")
    expect(page.locator("#hl-channel-facts")).to_contain_text("Contribution to red blob")
    visit.open_view("API")
    page.locator("#hl-api pre").filter(has_text="target = explainers.BoxScores(").wait_for()
    visit.open_view("Explain")

    dense_nets.blobs(("#b04040", (40, 40, 140, 140))).save(tmp_path / "pale.png")
    visit.after(lambda: visit.upload(tmp_path / "pale.png"))
    strongest = "the strongest detection is red blob"
    assert visit.status.startswith(f"No object detected with a score of at least 0.5 ({strongest}")
    listed(visit).to_have_count(0)
    save = page.locator("#hl-overlay").get_by_role("button", name="Save", exact=True)
    expect(save).to_be_hidden()
    assert ink(visit) == 0 and visit.pixels()[..., 3].all(), "the image is shown"
    visit.after(lambda: page.locator("#hl-findings button").click())
    listed(visit).to_have_text(["red blob"])
    expect(save).to_be_visible()
    assert visit.headline.startswith("Red blob, 14%")

    visit.after(lambda: visit.choose("model", "EfficientNet-Lite0"))
    assert visit.status.startswith("Grad-CAM for ") and ink(visit) == 0
    visit.after(lambda: visit.choose("class", "goldfish"))
    assert "goldfish" in visit.status
