"""The requests and answers of comparison panels, without a browser."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from saliscope.errors import Refused
from saliscope.session.answers import Answer
from saliscope.session.compare import questions
from saliscope.session.compare.questions import CropBox, PanelRequest
from saliscope.session.request import Request
from tests.saliscope.session.asking import CAT, MODEL, answered, steps_of
from tests.support import dense_nets

PAGE = {"model": MODEL, "layer": "head", "target": "", "method": "grad_cam", "bands": ""}

pytestmark = pytest.mark.usefixtures("blob_models")


def steps(image: str = CAT, page: dict[str, str] | None = None, **asked: Any) -> dict[type, Any]:
    """Return the last step of each kind."""
    asked_for = PanelRequest(0, 1, page=PAGE | (page or {}), **asked)
    return {type(step): step for step in steps_of(questions.answers, asked_for, image)}


def answer(image: str = CAT, page: dict[str, str] | None = None, **asked: Any) -> Answer:
    found: Answer = steps(image, page, **asked)[Answer]
    return found


def of_page(**changed: Any) -> Answer:
    """Return the page's answer for these settings."""
    named = {name: value for name, value in PAGE.items() if name != "bands"}
    return answered(Request(CAT, **(named | changed)))


def test_a_panel_equals_the_page_except_for_its_own_settings() -> None:
    """Oracle: the page's own answer to the same settings. The options are the page's method's."""
    relu = {"relu": False}
    for asked, same in (
        ({}, {}),
        ({"options": relu}, {"options": relu}),
        ({"own": {"layer": "stages.3"}}, {"layer": "stages.3"}),
        ({"own": {"target": "goldfish"}}, {"target": "goldfish"}),
        ({"options": relu, "own": {"method": "layer_cam"}}, {"method": "layer_cam"}),
    ):
        assert torch.equal(answer(**asked).map, of_page(**same).map), asked


def test_the_runner_up_is_the_second_class() -> None:
    """Class-agnostic methods are replaced when classes are compared, unless they are the panel's own."""
    first, second = of_page().top[:2]
    found = answer(page={"target": "goldfish"}, runner_up=True)
    top = answer(page={"target": "goldfish"}, own={"target": ""})
    assert (found.target, top.target) == (second[0], first[0])
    assert found.confidence == pytest.approx(second[1]) and found.confidence < top.confidence
    compared = {"runner_up": True, "by_class": True}
    for asked, name in (
        ({}, "eigen_cam"),
        (compared, "grad_cam"),
        (compared | {"own": {"method": "eigen_cam"}}, "eigen_cam"),
    ):
        assert answer(page={"method": "eigen_cam"}, **asked).settings.method.name == name


def test_an_unavailable_panel_setting_raises() -> None:
    """No other map is shown instead, since the comparison would be wrong."""
    for name, value, named in (
        ("method", "no_such", "no_such"),
        ("layer", "<img src=x>", "<img src=x>"),
        ("target", "unicorn#7", "unicorn#7"),
        ("model", "resnet5000", "resnet5000"),
        ("method", "attention_rollout", "Attention"),
    ):
        with pytest.raises(Refused) as error:
            answer(own={name: value})
        assert named in str(error.value) and "default" not in str(error.value)


def test_another_model_keeps_the_page_settings_it_supports(blobs: str) -> None:
    page = {"layer": "stages.3", "target": "tabby"}

    found = answer(blobs, page, own={"model": "blobs_detection"})
    single = answered(Request(blobs, "blobs_detection"))
    assert (found.name, found.settings.method.name) == ("red blob", "hires_cam")
    assert found.settings.layer == single.settings.layer and torch.equal(found.map, single.map)

    found = answer(blobs, page | {"target": "green blob"}, own={"model": "blobs_segmentation"})
    assert found.name == "green blob"
    with pytest.raises(Refused, match=r"“blue blob” was not detected in this image.*Detected: red blob"):
        answer(blobs, page, own={"model": "blobs_detection", "target": "blue blob"})


def test_the_runner_up_of_detected_objects(blobs: str, tmp_path: Path) -> None:
    """The second object; of regions, the next class."""
    assert answer(blobs, own={"model": "blobs_detection"}, runner_up=True).name == "green blob"
    assert answer(blobs, own={"model": "blobs_segmentation"}, runner_up=True).name == "green blob"
    assert answer(blobs, {"model": "blobs_detection"}, own={"target": "red blob#2"}).name == "red blob#2"
    single = tmp_path / "one.png"
    dense_nets.blobs(("#ff0000", (40, 40, 140, 140))).save(single)
    for task in ("detection", "segmentation"):
        with pytest.raises(Refused, match=r"^No second"):
            answer(str(single), own={"model": f"blobs_{task}"}, runner_up=True)
    nothing = tmp_path / "none.png"
    dense_nets.blobs().save(nothing)
    with pytest.raises(Refused, match="No object detected"):
        answer(str(nothing), own={"model": "blobs_detection"})


def test_the_crop_that_the_network_receives(tmp_path: Path) -> None:
    """Oracle: resized to 256 by 512 pixels, center-cropped to 224; very long images lose their ends first."""

    def box(*size: int) -> tuple[float, ...]:
        Image.new("RGB", size, "#806040").save(tmp_path / "image.png")
        found: CropBox = steps(str(tmp_path / "image.png"), place=True)[CropBox]
        return found.box

    assert box(200, 400) == pytest.approx((16 / 256, 144 / 512, 240 / 256, 368 / 512), abs=1e-6)
    assert box(400, 200) == pytest.approx((144 / 512, 16 / 256, 368 / 512, 240 / 256), abs=1e-6)
    left, top, right, bottom = box(100, 800)
    assert (left + right, top + bottom) == pytest.approx((1, 1))
    assert (bottom - top) * 800 == pytest.approx(87.5, abs=0.5)
    assert CropBox not in steps()


def test_script_input_is_validated() -> None:
    hostile = {"slot": 9, "number": "1", "image": ["x"], "page": {"model": 3, "layer": "x" * 501, "target": "a"},
               "options": [1], "own": "x", "runner": 1, "classed": "yes", "lists": 1, "place": None}  # fmt: skip

    assert questions.parse(hostile) == PanelRequest(0, 0, page={"target": "a"})
    assert questions.parse({}) == PanelRequest(0, 0)
    sent = {"slot": 3, "number": 4, "image": "p", "own": {"model": "m", "path": "x"}, "runner": True}
    sent |= {"options": {"k": 1}}
    assert questions.parse(sent) == PanelRequest(3, 4, "p", {}, {"k": 1}, {"model": "m"}, True)


def test_the_tab_answers_a_request_once_with_all_values_in_its_last_step(
    page: Any, blobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If two steps follow quickly, the browser may only receive the second."""
    from saliscope.page.compare import tab

    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    compare = tab.Compare(page)
    compare.build()

    def ask(**changed: Any) -> list[dict[str, Any]]:
        event = {"slot": 1, "number": 5, "image": blobs, "page": PAGE, "lists": True, "place": True, **changed}
        form = (blobs, MODEL, "head", "", "grad_cam", {}, {"model": MODEL})
        steps = compare.answer(SimpleNamespace(_data=event), SimpleNamespace(session_hash="twice"), *form)
        return [step[compare.slots[1]] for step in steps]

    own = {"model": "blobs_detection"}
    *_, last = ask(own=own)
    assert (last["slot"], last["number"], last["state"]) == (1, 5, "done")
    assert last["box"] == (0, 0, 1, 1) and last["names"]["model"] == "blobs_detection"
    assert [name for _, name in last["found"]] == ["red blob", "green blob", "red blob#2"]
    lists = last["lists"]
    assert (MODEL in [name for _, name, _ in lists["model"]]) and lists["target"] == []
    assert "grad_cam" in [name for _, name, *_ in lists["method"]] and len(lists["layer"]) >= 3
    assert last["view"]["map"]["h"] and last["view"]["words"]["unit"]
    (again,) = ask(own=own)
    assert "view" not in again and again.get("state") is None
    assert [value["state"] for value in ask(number=6, image="other.jpg")] == ["passed"]
