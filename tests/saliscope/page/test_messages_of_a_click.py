"""The messages of the answer to a click: the map of a quick method arrives in the first one."""

from __future__ import annotations

import base64
import inspect
import itertools
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import explainers
from saliscope import limits
from saliscope.compute import engine, messages, model_cache
from saliscope.compute.bundles import links
from saliscope.compute.bundles import messages as bundle_messages
from saliscope.compute.jobs import runs
from saliscope.compute.methods import costs
from saliscope.compute.trust import messages as trust_messages
from saliscope.page import features
from saliscope.page.events import HANDLERS, PAGE
from tests.saliscope.compute.asking import DOG, inputs

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
    assert with_map["hl-bars"]["all"]["w"] == 1000, "the list of classes has all probabilities"
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


def test_a_stop_while_a_network_is_loaded_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started, loaded = threading.Event(), threading.Event()
    monkeypatch.setattr(engine, "resolve", lambda *_: started.set() or loaded.wait(30))
    seen: list[Message] = []
    asked = threading.Thread(target=lambda: seen.extend(send("loads", form(model="vitty"))))
    asked.start()
    assert started.wait(30)
    (line,) = [text["hl-status"] for text in send("loads", form(), "stop", part="hl-actions")]
    loaded.set()
    asked.join()
    assert line["kind"] == "busy" and line["parts"][0]["text"] == messages.STOPS_AFTER_LOADING
    stopped = seen[-1]["hl-status"]
    assert stopped["parts"][0]["text"].startswith(messages.STOPPED_BEFORE)


def view(part: str, event: str, sent: dict[str, Any], **names: str) -> Message:
    """The last values of all parts after an event of a view."""
    steps = send(f"visitor {next(VISITORS)}", form(**names), event, part=part, data=sent)
    return {name: value for step in steps for name, value in step.items()}


def test_channels_follow_the_answer_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    layer, parts = {"layer": "stages.2"}, {"hl-grid", "hl-grid-status"}
    opened = view("hl-grid", "answered", {"key": "k", "number": 0}, **layer)
    ids = {name: opened["hl-grid"][name] for name in ("about", "whom")}
    facts = opened["hl-channel-facts"]
    assert opened["hl-grid"]["key"] == "k" and opened["hl-opened"]["number"] == facts["number"] == 0
    assert facts["share"]["lines"] and len(facts["fields"]["rows"]) == 28 and "hl-channel-why" in opened
    same = view("hl-grid", "answered", {"key": "l", "number": 0, **ids}, **layer)
    assert set(same) == parts and same["hl-grid"] == {"key": "l", "same": True, **ids}, "the page has both"
    other = view("hl-grid", "answered", {"key": "l", "number": 0, **ids}, **layer, target="goldfish")
    assert other["hl-grid"]["same"] and "goldfish" in other["hl-channel-facts"]["share"]["title"]
    assert set(view("hl-grid", "answered", {"key": "k"}, **layer)) == parts, "no channel is open"
    for number, is_open in ((15, True), (16, False)):
        closed = view("hl-grid", "answered", {"key": "k", "number": number}, layer="stages.0")
        assert (closed["hl-opened"]["number"] is not None) == is_open, "the layer has 16 channels"
    assert "Channel 16 was closed" in closed["hl-opened"]["sentence"] and closed["hl-channel-facts"] == {}
    none = view("hl-grid", "answered", {"key": "k", "number": 0}, image="")
    assert none["hl-grid"] == {"key": "k"} and none["hl-opened"]["number"] is None

    measured = view("hl-grid", "submit", {"measure": "gradient"}, **layer)["hl-grid"]
    shares = np.frombuffer(base64.b64decode(measured["values"]["b64"]), "f4")
    assert measured["kind"] == "gradient" and len(shares) == 40 and shares.any()
    here = view("hl-grid", "submit", {"measure": "here", "cell": [3, 4]}, **layer)["hl-grid"]
    assert here["note"].endswith("row 4, column 5.") and here["cell"] == [3, 4]
    for sent, numbers in (([5, 2], [5, 2]), ([], 40), ([5, "2"], 40), ([True], 40)):
        found = view("hl-grid", "submit", {"numbers": sent}, **layer)["hl-grid"]["numbers"]
        assert found == numbers or len(found) == numbers
    for sent, kind in (({"measure": "here"}, "here"), ({"numbers": [40]}, None)):
        refused = view("hl-grid", "submit", sent, **layer)
        assert refused["hl-grid"] == {"refused": kind} and refused["hl-grid-status"]["kind"] == "error"
    cell = view("hl-grid", "select", {"channel": 3, "cell": [1, 2]}, **layer)
    assert set(cell) == {"hl-channel-why", "hl-grid-status"} and cell["hl-channel-why"]["cell"] == [1, 2]
    saved = view("hl-grid", "save", {}, **layer)["download"]
    (file,) = tmp_path.rglob(f"*{saved['name']}")
    np.testing.assert_array_equal(np.load(file), explainers.feature_maps(*inputs(DOG), layer="stages.2")[0])


def test_an_edit_is_shown_with_its_region_and_its_changes() -> None:
    def erase(**sent: Any) -> dict[str, Any]:
        found: dict[str, Any] = view("hl-erase", "submit", {"number": 1, **sent}, layer="head")["hl-erase"]
        return found

    plain = erase()
    assert plain["before"]["map"]["h"] == 7 and "after" not in plain and "mask" not in plain
    assert {row["after"] for row in plain["rows"]} == {row["change"] for row in plain["rows"]} == {None}
    found = erase(edit="brush.5k.FFFFWWWW_fill.mean", held=plain["key"])
    assert (found["state"], found["number"], "before" in found) == ("done", 1, False), "the script has that map"
    bits = np.unpackbits(np.frombuffer(base64.b64decode(found["mask"]["b64"]), "u1"))
    assert found["mask"]["text"].startswith(f"{bits.sum():,} of {224 * 224:,} pixels (")
    assert found["after"]["map"]["h"] == 7 and found["headline"] and "German shepherd: " in found["text"]
    assert [row["name"] for row in found["rows"] if row["target"]] == ["German shepherd"]
    assert all(row["rises"] == row["change"].startswith("+") for row in found["rows"])
    assert not erase(edit="flip.x")["mask"]["text"] and erase(search="keep")["edit"].startswith("first.")
    assert erase(edit="top.1001")["state"] == "refused"


def test_the_page_opens_with_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(address: str, **sent: Any) -> Iterator[Message]:
        return send(f"visitor {next(VISITORS)}", {}, "open", data={"address": address, "first": True, **sent})

    opened = {name: value for step in start("model=resnet5000") for name, value in step.items()}
    (note,) = [item for item in opened["hl-findings"]["items"] if "not available" in item["sentence"]]
    assert note["remedy"] == {"model": model_cache.first_model()} and opened["hl-overlay"]["map"]["h"] == 7
    *_, gone = start(f"{links.OWN}=x")
    assert gone["hl-status"]["kind"] == "idle" and gone["hl-status"]["parts"] == [{"text": bundle_messages.GONE}]
    empty = click({"image": ""})[0]
    assert empty["hl-status"]["kind"] == "idle" and empty["hl-overlay"]["words"] and empty["hl-bars"] is None
    second = view("hl-planes", "select", {"plane": 1}, method="token_pca")
    assert "component 2 of 3" in str(second["hl-status"]) and second["hl-planes"]["plane"] == 1
    assert "from 0 to 2" in str(view("hl-planes", "select", {"plane": 3}, method="token_pca")["hl-status"])

    monkeypatch.setattr(model_cache, "ready", threading.Event())  # the network is not loaded yet
    for address, sent, kind in (("", {}, "landing"), ("", {"landed": True}, None), ("layer=stages.4", {}, "busy")):
        steps = start(address, **sent)
        _, shown = next(steps), next(steps)
        assert shown.get("hl-status", {}).get("kind") == kind and ("hl-strip" in shown) == (kind != "busy"), address
