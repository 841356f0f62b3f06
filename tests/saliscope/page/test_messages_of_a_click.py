"""How many messages the answer to a click has: the map of a quick method arrives in the first one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from saliscope.page import build
from saliscope.page.overlay.tab import Overlay
from saliscope.session import engine, model_cache
from saliscope.session.jobs import runs
from saliscope.session.jobs.runs import Run
from saliscope.session.methods import costs
from saliscope.session.request import Request, from_form
from saliscope.session.trust import messages as trust_messages
from tests.saliscope.session.test_headline import DOG

pytestmark = pytest.mark.usefixtures("without_experiments")


@pytest.fixture(scope="module")
def overlay() -> Overlay:
    """The tab of a page that is not served."""
    found: list[Overlay] = []
    with pytest.MonkeyPatch.context() as patch:
        wire = Overlay.wire
        patch.setattr(Overlay, "wire", lambda self: (found.append(self), wire(self))[1])
        build.build()
    model_cache.start(delay=0.0)
    model_cache.ready.wait()
    return found[0]


def updates(overlay: Overlay, question: Request, form: dict[str, Any], seconds: float = 2.0) -> list[dict[Any, Any]]:
    """The messages of an answer after a click that also sets the options."""
    first = {overlay.status: {"kind": "busy", "parts": []}, overlay.panel.options: "chosen"}
    return list(overlay._updates(question, form, Run(seconds), first=first, held=()))


def test_settings_and_map_of_a_quick_method_are_one_message(overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "seconds", lambda method, loaded: 0.1)  # however busy this machine is
    form = {"model": model_cache.first_model(), "layer": "blocks.3", "method": "grad_cam", "values": {}}
    with_map, stages, *later = updates(overlay, Request(DOG, layer="head"), form, seconds=60.0)
    assert {overlay.view, overlay.page.question, overlay.panel.options, overlay.bars} <= set(with_map)
    assert with_map[overlay.status]["kind"] == "done" and with_map[overlay.panel.options]["layer"] == "head"
    assert with_map[overlay.page.question]["id"] < with_map[overlay.view]["id"], "scripts compare them"
    *lists, experiment = later
    assert set(stages) == {overlay.strip} and len(lists) <= 1, "the columns of the list of layers"
    assert set(experiment) == {overlay.status}, "the sentence is sent after everything that a click waits for"
    assert experiment[overlay.status]["id"] == with_map[overlay.view]["id"] == with_map[overlay.status]["id"]
    assert experiment[overlay.status]["headline"] != with_map[overlay.status]["headline"]

    key = with_map[overlay.view]["crop"]["key"]
    again = list(overlay._updates(Request(DOG, layer="blocks.5"), form, Run(2.0), held=[key]))
    assert "src" not in again[0][overlay.view]["crop"] and len(str(again[0][overlay.view])) < 30_000


def test_settings_that_take_time_are_shown_before_the_map(overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    form = {"model": model_cache.first_model(), "layer": "head", "method": "grad_cam", "values": {}}
    for question in (Request(DOG, method="occlusion"), Request(DOG)):
        first, *rest = updates(overlay, question, form)
        assert overlay.view not in first and overlay.page.question in first and rest
        assert first[overlay.status]["kind"] == "busy"
        monkeypatch.setattr(costs, "seconds", lambda method, loaded: 1.0)  # a large network
    opened = list(overlay._updates(Request(DOG), {}, Run(2.0)))
    assert overlay.view not in opened[0], "lists of a page that opens do not delay its map"


def test_an_error_does_not_lose_the_change_that_was_clicked(overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise ValueError("broken")

    monkeypatch.setattr(engine, "load_input", refuse)
    form = {"model": model_cache.first_model(), "layer": "head", "method": "grad_cam", "values": {}}
    seen = []
    with pytest.raises(ValueError, match="broken"):
        for message in overlay._updates(Request(DOG), form, Run(2.0), first={overlay.panel.options: "chosen"}):
            seen.append(message)
    assert len(seen) == 1 and overlay.panel.options in seen[0] and overlay.page.question in seen[0]


def test_a_new_question_stops_the_check_of_the_last_map(overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both use the same processors. A repeated question does not stop it; a refused one says that it was stopped."""

    def refuse(*_: Any) -> Any:
        raise ValueError("broken")

    monkeypatch.setattr(engine, "resolve", refuse)
    ask: Any = SimpleNamespace(session_hash="asks")
    form: list[Any] = [None] * len(overlay.panel.inputs)
    with runs.start("asks/trust", question="last map") as check:
        assert check is not None
        with runs.start("asks", question=from_form(*form).signature):
            assert len(list(overlay._update(ask, form, None))) == 1 and not check.cancelled
        *_, stopped, error = overlay._update(ask, form, None, again=True)
    assert check.superseded, "it shows nothing itself"
    assert stopped == {overlay.trust.strip: {"key": "last map", "failed": trust_messages.STOPPED}}
    assert error[overlay.status]["kind"] == "error"
    later = list(overlay._update(ask, form, None, again=True))
    assert not any(overlay.trust.strip in message for message in later), "the check has ended"
    runs.end("asks")
