"""Stop, and clicks during a run of the same or of another user."""

from __future__ import annotations

from typing import Any

import pytest

from tests.saliscope.browser.conftest import Visit, expect


@pytest.mark.slow
def test_a_stopped_method_does_not_restart_and_a_late_request_does_not_replace_a_newer_one(visit: Visit) -> None:
    """Selecting by mouse raises the event twice."""
    stop, late = visit.open().page.locator("#hl-stop"), list[Any]()
    visit.after_partial(lambda: visit.choose("method", "RISE"))
    stop.click()
    visit.state("stopped")
    words, number = visit.status, visit.number("status")
    assert "RISE for " in words and "stopped at " in words
    visit.page.wait_for_timeout(1500)
    assert visit.status == words and visit.number("status") == number
    expect(stop).to_be_disabled()
    visit.after_partial(lambda: visit.page.locator("#hl-explain").click())  # an explicit request restarts it
    stop.click()
    visit.state("stopped")

    def hold_the_first(route: Any) -> None:
        if not late and "stages.1" in (route.request.post_data or ""):
            late.append(route)
        else:
            route.continue_()

    visit.after(lambda: visit.choose("method", "Grad-CAM"))
    visit.page.route("**/queue/join*", hold_the_first)
    visit.choose("layer", "stages.1 ")
    visit.until("new URL(location).searchParams.get('layer') === 'stages.1'")
    visit.page.wait_for_timeout(500)
    visit.after(lambda: visit.choose("layer", "stages.3 "))
    assert late and "at stages.3 of" in visit.status
    late[0].continue_()
    visit.page.wait_for_timeout(1500)
    assert "at stages.3 of" in visit.status


@pytest.mark.slow
def test_a_fast_request_is_answered_before_another_users_slow_run_and_the_latest_choice_replaces_it(
    visit: Visit, window: Any
) -> None:
    other = window()
    other.open("?example=dog&method=hires_cam")
    visit.start_long_run()
    other.example("cat")
    assert "HiResCAM" in other.status and visit.page.evaluate("document.documentElement.dataset.hlState") == "busy"
    other.choose("method", "RISE")
    expect(other.page.locator("#hl-status")).to_contain_text("Waiting for another user’s run, about")
    other.until("getComputedStyle(document.querySelector('#hl-overlay canvas')).opacity < 1")

    visit.choose("method", "Grad-CAM")
    for layer in ("stages.1 ", "stages.5 "):
        visit.choose("layer", layer)
    visit.until("/^Grad-CAM for .* at stages.5 of/.test(document.querySelector('#hl-status .hl-line').innerText)")
    visit.settled()
    words = visit.status
    visit.page.wait_for_timeout(700)
    assert visit.status == words and visit.page.locator("#hl-layer input").input_value().startswith("stages.5")
    other.until("document.querySelector('#hl-status .hl-line').innerText.startsWith('RISE: ')")
    other.page.locator("#hl-stop").click()
    other.state("stopped")
