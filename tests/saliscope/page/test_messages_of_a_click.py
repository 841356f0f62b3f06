"""The messages of the answer to a click: the map of a quick method arrives in the first one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from saliscope.page.serving.gradio_setup import gradio as gr  # isort: skip  (switches first)
from saliscope.compute import engine, model_cache
from saliscope.compute.jobs import runs
from saliscope.compute.methods import costs
from saliscope.compute.request import NAMES, from_form
from saliscope.compute.trust import messages as trust_messages
from saliscope.page import build
from saliscope.page.overlay.tab import Overlay
from tests.saliscope.compute.asking import DOG

pytestmark = pytest.mark.usefixtures("without_experiments")
VISITORS = count()
Messages = list[dict[Any, Any]]


@pytest.fixture(scope="module")
def overlay(loaded: object) -> Iterator[Overlay]:
    """The tab of a page that is not served; the examples count as uploads."""
    found: list[Overlay] = []
    with pytest.MonkeyPatch.context() as patch:
        wire = Overlay.wire
        patch.setattr(Overlay, "wire", lambda self: (found.append(self), wire(self))[1])
        patch.setenv("GRADIO_TEMP_DIR", os.path.dirname(DOG))
        build.build()
        yield found[0]


def form(**names: str) -> list[Any]:
    """The values of the settings on the page."""
    return [DOG, *(names.get(name, "") for name in NAMES), None, {"model": model_cache.first_model(), "values": {}}]


def click(overlay: Overlay, clicked: dict[str, Any], *, held: tuple[str, ...] = (), **names: str) -> Messages:
    """The messages after a visitor changes some settings with a click."""
    visitor: Any = SimpleNamespace(session_hash=f"visitor {next(VISITORS)}")
    sent = [False, {"number": 1, "crops": list(held)}]
    return list(overlay.apply(gr.EventData(None, clicked), visitor, *form(**names), *sent))


def fail(*_: Any) -> Any:
    raise ValueError("broken")


def test_settings_and_map_of_a_quick_method_are_one_message(overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "seconds", lambda method, loaded: 0.1)  # however busy this machine is
    with_map, stages, *later = click(overlay, {"layer": "head"}, layer="blocks.3")
    layer, status, view, question = overlay.panel.layer, overlay.status, overlay.view, overlay.page.question
    assert {view, question, overlay.panel.options, overlay.bars, layer} <= set(with_map)
    assert with_map[status]["kind"] == "done" and with_map[overlay.panel.options]["layer"] == "head"
    assert with_map[question]["id"] < with_map[view]["id"], "scripts compare them"
    *lists, experiment = later
    assert set(stages) == {overlay.strip} and len(lists) <= 1, "the columns of the list of layers"
    assert set(experiment) == {status}, "the sentence is sent after everything that a click waits for"
    assert experiment[status]["id"] == with_map[view]["id"] == with_map[status]["id"]
    assert experiment[status]["headline"] != with_map[status]["headline"]

    again = click(overlay, {"layer": "blocks.5"}, held=(with_map[view]["crop"]["key"],))
    assert "src" not in again[0][view]["crop"] and len(str(again[0][view])) < 30_000


def test_settings_that_take_time_are_shown_before_the_map(overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("occlusion", "grad_cam"):
        first, *rest = click(overlay, {"method": method})
        assert overlay.view not in first and overlay.page.question in first and rest
        assert first[overlay.status]["kind"] == "busy"
        monkeypatch.setattr(costs, "seconds", lambda method, loaded: 1.0)  # a large network
    visitor: Any = SimpleNamespace(session_hash="opens the page", query_params={})
    opened = next(overlay.first(visitor, None))
    assert overlay.view not in opened, "lists of a page that opens do not delay its map"


def test_an_error_does_not_lose_the_change_that_was_clicked(overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "load_input", fail)
    shown, error = click(overlay, {"remedy": {"relu": False}})
    assert shown[overlay.panel.options]["values"] == {"relu": False} and overlay.page.question in shown
    assert error[overlay.status]["kind"] == "error"


def test_a_new_question_stops_the_check_of_the_last_map(overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both use the same processors. A repeated question does not stop it; a refused one says that it was stopped."""
    monkeypatch.setattr(engine, "resolve", fail)
    visitor: Any = SimpleNamespace(session_hash="asks")
    values = [*form(), False, None]
    with runs.start("asks/trust", question="last map") as check:
        assert check is not None
        with runs.start("asks", question=from_form(*form()).signature):
            assert len(list(overlay.update(visitor, *values))) == 1 and not check.cancelled
        *_, stopped, error = overlay.recompute(visitor, *values)
    assert check.superseded, "it shows nothing itself"
    assert stopped == {overlay.trust.strip: {"key": "last map", "failed": trust_messages.STOPPED}}
    assert error[overlay.status]["kind"] == "error"
    later = list(overlay.recompute(visitor, *values))
    assert not any(overlay.trust.strip in message for message in later), "the check has ended"
    runs.end("asks")
