"""The messages of the answer to a click: the map of a quick method arrives in the first one."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from saliscope import limits
from saliscope.compute import engine, model_cache
from saliscope.compute.jobs import runs
from saliscope.compute.methods import costs
from saliscope.compute.trust import messages as trust_messages
from saliscope.page import features
from saliscope.page.events import HANDLERS, PAGE

pytestmark = pytest.mark.usefixtures("without_experiments", "loaded")
VISITORS, NUMBERS = itertools.count(), itertools.count(1)
Message = dict[str, Any]


def form(**names: str) -> dict[str, Any]:
    """The settings on the page after a click; its lists are those of the first model."""
    return {"image": "example:dog", **names, "options": {"model": model_cache.first_model(), "values": {}}}


def send(session: str, settings: dict[str, Any], event: str = "ask", **more: Any) -> Iterator[Message]:
    """The messages after an event of the page; the state is merged with the values and props of the parts."""
    request = {"part": PAGE, "event": event, "form": settings, "number": next(NUMBERS), **more}
    for text in features.respond(SimpleNamespace(_data=request), session):
        message = json.loads(text)
        if request["part"] == PAGE:
            assert message["question"] == request["number"], "the page drops answers to older questions"
        values = {id: props["value"] if props.keys() == {"value"} else props for id, props in message["props"].items()}
        yield {**values, **message["state"]}


def click(settings: dict[str, Any], **more: Any) -> list[Message]:
    """The messages after a new visitor changes some settings with a click."""
    return list(send(f"visitor {next(VISITORS)}", settings, **more))


def fail(*_: Any) -> Any:
    raise ValueError("broken")


def test_settings_and_map_of_a_quick_method_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "seconds", lambda method, loaded: 0.1)  # however busy this machine is
    with_map, stages, *later = click(form(layer="head"))
    view = with_map["hl-overlay"]
    assert {"question", "hl-options", "hl-bars", "hl-method"} <= set(with_map)
    assert with_map["hl-status"]["kind"] == "done" and with_map["hl-options"]["layer"] == "head"
    *lists, experiment = later
    assert set(stages) == {"hl-strip"} and len(lists) <= 1, "the columns of the list of layers"
    assert set(experiment) == {"hl-status"}, "the sentence is sent after everything that a click waits for"
    assert experiment["hl-status"]["id"] == view["id"] == with_map["hl-status"]["id"]
    assert experiment["hl-status"]["headline"] != with_map["hl-status"]["headline"]

    (again, *_) = click(form(layer="stages.4"), crops=[view["crop"]["key"]])
    assert "src" not in again["hl-overlay"]["crop"] and len(str(again["hl-overlay"])) < 30_000


def test_settings_that_take_time_are_shown_before_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    for method, values in (("occlusion", {"window": 112, "stride": 112}), ("grad_cam", {})):
        settings = form(method=method)
        settings["options"]["values"] = values
        first, second, *_ = click(settings)
        assert "hl-overlay" not in first and "question" in first
        assert second["hl-status"]["kind"] == ("busy" if method == "occlusion" else "done")
        monkeypatch.setattr(costs, "seconds", lambda method, loaded: 1.0)  # a large network
    steps = send("opens the page", {}, "open", data={"address": "layer=stages.4&class=goldfish", "first": True})
    restored = next(steps)
    assert restored["hl-image"]["image"] == "example:dog" and restored["hl-layer"] == "stages.4"
    lists = next(steps)
    assert "hl-overlay" not in restored | lists and len(lists["hl-model"]["names"]) > 3, "lists do not delay the map"
    assert any("hl-overlay" in step for step in steps)


def test_an_error_does_not_lose_the_change_that_was_clicked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "load_input", fail)
    settings = form(layer="stages.4")
    settings["options"]["values"] = {"relu": False}
    shown, error = click(settings)
    assert shown["question"]["options"] == {"relu": False} and shown["question"]["names"]["layer"] == "stages.4"
    assert shown["hl-options"]["values"] == {"relu": False}
    assert error["hl-status"]["kind"] == "error" and set(error) == {"hl-status"}, "the old map stays"


def test_what_has_another_type_is_left_out() -> None:
    """It would be an internal error, in the log of the server."""
    for wrong in ({"target": {"a": 1}}, {"layer": ["head"]}, {"method": 5, "model": [1]}, {"bands": 1}):
        (first, *_) = click(form(**wrong))  # type: ignore[arg-type]
        assert first["question"]["names"]["method"] == "grad_cam", wrong
    assert list(send("nobody", form(), "none")) == list(send("nobody", form(), part="none")) == []
    for nothing in (None, [], "x", {"part": [], "event": {}}, {"part": PAGE, "event": "stop", "form": 5}):
        assert list(features.respond(SimpleNamespace(_data=nothing), None)) == []
    (refused,) = click({"image": "/etc/passwd"})
    assert refused["hl-status"]["kind"] == "error"


@pytest.mark.slow
def test_no_event_is_an_internal_error_whatever_a_script_sends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "SECONDS", 3.0)
    modules = [sys.modules[handler.__module__] for handler in HANDLERS.values()]
    modules += [each for name, each in sys.modules.items() if name.startswith("saliscope.compute.")]
    fields = {name for each in modules for name in re.findall(r'"(\w+)"', inspect.getsource(each))}
    for part, event in HANDLERS:
        for wrong in (None, [[]], {"a": {}}, True, -2.5, 10**30, "x" * 3000):
            for data in (wrong, dict.fromkeys(fields, wrong)):
                sent = send(f"visitor {next(VISITORS)}", form(), event, part=part, data=data)
                for _ in itertools.islice(sent, 20):
                    pass
                assert caplog.messages == [], (part, event, str(wrong)[:20])


def test_a_new_question_stops_the_check_of_the_last_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both use the same processors. A question that fails says that the check was stopped."""
    monkeypatch.setattr(engine, "resolve", fail)
    for settings in (form(), {"image": "/etc/passwd"}):
        with runs.start("asks/trust", question="last map") as check:
            assert check is not None
            *_, stopped, error = send("asks", settings)
        assert check.superseded, "it shows nothing itself"
        assert stopped == {"hl-trust": {"key": "last map", "failed": trust_messages.STOPPED}}
        assert error["hl-status"]["kind"] == "error"
    runs.end("asks")
