"""Stop, and clicks during a run of the same or of another user."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.saliscope.browser.conftest import PATIENCE, Visit

LONG = "?method=smooth_grad&options=" + urllib.parse.quote('{"samples": 3}')
STATE = "document.documentElement.dataset.hlState"


def start_long_run(visit: Visit) -> None:
    """Start a run with 1,000 samples and wait for its first partial map."""
    visit.open(LONG)
    visit.page.locator("#hl-more > button, #hl-more button.label-wrap").first.click()
    visit.page.locator("#hl-option-samples").fill("1000")
    visit.page.locator("#hl-option-samples").blur()
    visit.after_partial(lambda: visit.page.locator("#hl-explain").click())


def until(visit: Visit, condition: str) -> None:
    visit.page.wait_for_function(condition, timeout=PATIENCE)


@pytest.fixture
def other(browser, app: str):
    """Open a page for a second user."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    found = Visit(context.new_page(), app)
    yield found
    found.check()
    context.close()


@pytest.mark.slow
def test_a_stopped_method_does_not_restart(visit: Visit) -> None:
    """Selecting by mouse raises the event twice."""
    visit.open()
    visit.after_partial(lambda: visit.choose("method", "RISE"))

    visit.page.locator("#hl-stop").click()

    until(visit, f"{STATE} === 'stopped'")
    words, number = visit.status, visit.number("status")
    assert "RISE for " in words and "stopped at " in words
    visit.page.wait_for_timeout(1500)
    assert visit.status == words and visit.number("status") == number
    assert visit.page.locator("#hl-stop").is_disabled()
    visit.after_partial(lambda: visit.page.locator("#hl-explain").click())  # an explicit request restarts it
    visit.page.locator("#hl-stop").click()
    until(visit, f"{STATE} === 'stopped'")


def choose_in_a_row(visit: Visit) -> None:
    """Choose a method and four stages in a row during a slow method: the last choice replaces all others."""
    visit.choose("method", "Grad-CAM")
    for layer in ("stages.1 ", "stages.3 ", "stages.2 ", "stages.5 "):
        visit.choose("layer", layer)

    until(visit, "/^Grad-CAM for .* at stages.5 of/.test(document.querySelector('#hl-status .hl-line').innerText)")
    visit.settled()
    assert visit.page.locator("#hl-layer input").input_value().startswith("stages.5")
    words = visit.status
    visit.page.wait_for_timeout(700)
    assert visit.status == words


@pytest.mark.slow
def test_a_request_that_arrives_late_does_not_replace_a_newer_one(visit: Visit) -> None:
    visit.open()
    late: list[Any] = []

    def hold_the_first(route: Any) -> None:
        if not late and "stages.1" in (route.request.post_data or ""):
            late.append(route)
        else:
            route.continue_()

    visit.page.route("**/queue/join*", hold_the_first)
    visit.choose("layer", "stages.1 ")
    until(visit, "new URL(location).searchParams.get('layer') === 'stages.1'")
    visit.page.wait_for_timeout(500)
    visit.after(lambda: visit.choose("layer", "stages.3 "))
    assert late and "at stages.3 of" in visit.status
    late[0].continue_()
    visit.page.wait_for_timeout(1500)
    assert "at stages.3 of" in visit.status


def test_a_fast_request_is_answered_before_another_users_slow_run_and_the_latest_choice_replaces_it(
    visit: Visit, other: Visit
) -> None:
    start_long_run(visit)

    other.open("?example=dog&method=hires_cam")
    other.after(lambda: other.page.locator("#hl-examples button[data-id=cat]").click())

    assert "HiResCAM" in other.status and visit.page.evaluate(STATE) == "busy", visit.status
    other.choose("method", "RISE")
    until(other, "document.querySelector('#hl-status').innerText.includes('Waiting for another user’s run, about')")
    until(
        other, "getComputedStyle(document.querySelector('#hl-overlay canvas')).opacity < 1"
    )  # after a delay of 0.25 s
    choose_in_a_row(visit)
    until(other, "document.querySelector('#hl-status .hl-line').innerText.startsWith('RISE: ')")
    other.page.locator("#hl-stop").click()
    until(other, f"{STATE} === 'stopped'")


@pytest.mark.slow
def test_a_new_image_resets_the_class_unless_it_is_pinned(visit: Visit) -> None:
    visit.open("?example=cat")
    visit.after(lambda: visit.choose("class", "goldfish"))
    assert "for goldfish" in visit.status

    visit.after(lambda: visit.page.locator("#hl-examples button[data-id=dog]").click())
    assert "goldfish" not in visit.status
    visit.after(lambda: visit.choose("class", "goldfish"))
    visit.page.locator("#hl-pin input").check()
    visit.after(lambda: visit.page.locator("#hl-examples button[data-id=cat]").click())
    assert "for goldfish" in visit.status


@pytest.mark.slow
def test_a_rejected_upload_marks_the_old_map(visit: Visit, tmp_path: Path) -> None:
    visit.open()
    (tmp_path / "drawing.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")

    visit.after(lambda: visit.upload(tmp_path / "drawing.svg"), "status")

    until(visit, f"{STATE} === 'error'")
    assert "SVG" in visit.status
    until(visit, "getComputedStyle(document.querySelector('#hl-overlay canvas')).opacity < 0.7")
    Image.new("RGB", (80, 60), (90, 120, 20)).save(tmp_path / "plain.png")
    visit.after(lambda: visit.upload(tmp_path / "plain.png"))
    until(visit, "getComputedStyle(document.querySelector('#hl-overlay canvas')).opacity > 0.99")
