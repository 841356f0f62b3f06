"""The requests and answers of comparison panels, without a browser."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
import torch
from PIL import Image

from saliscope.errors import Refused
from saliscope.page.compare import tab as compare_tab
from saliscope.session import model_cache
from saliscope.session.answers import Answer
from saliscope.session.compare import questions
from saliscope.session.compare.questions import CropBox, PanelRequest
from saliscope.session.jobs import runs
from saliscope.session.request import Request
from saliscope.zoo import catalog
from tests.saliscope.session.asking import CAT, MODEL, answered
from tests.support import dense_nets

PAGE = {"model": MODEL, "layer": "head", "target": "", "method": "grad_cam", "bands": ""}


@pytest.fixture(autouse=True)
def offered(loaded: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled network and both blob models."""
    monkeypatch.setattr(catalog, "SOURCES", (*catalog.SOURCES, dense_nets.Blobs()))
    monkeypatch.setattr(model_cache, "_loaded", model_cache._loaded.copy())


@pytest.fixture
def blobs(tmp_path: Path) -> str:
    """Two red blobs and a green one."""
    dense_nets.scene().save(tmp_path / "scene.png")
    return str(tmp_path / "scene.png")


def steps(image: str = CAT, page: dict[str, str] | None = None, **asked: Any) -> dict[type, Any]:
    """The last step of each kind."""
    with runs.start(None) as run:
        ask = PanelRequest(0, 1, page=PAGE | (page or {}), **asked)
        return {type(step): step for step in questions.answers(ask, image, run)}


def answer(image: str = CAT, page: dict[str, str] | None = None, **asked: Any) -> Answer:
    return steps(image, page, **asked)[Answer]


def of_page(**changed: Any) -> Answer:
    """The page's answer for these settings."""
    named = {name: value for name, value in PAGE.items() if name != "bands"}
    return answered(Request(CAT, **(named | changed)))


def test_a_panel_equals_the_page_except_for_its_own_settings() -> None:
    """Oracle: the page's own answer to the same settings."""
    relu = {"relu": False}
    assert torch.equal(answer().map, of_page().map)
    assert torch.equal(answer(options=relu).map, of_page(options=relu).map)
    assert torch.equal(answer(own={"layer": "stages.3"}).map, of_page(layer="stages.3").map)
    assert torch.equal(answer(own={"target": "goldfish"}).map, of_page(target="goldfish").map)
    other = answer(options=relu, own={"method": "layer_cam"})
    assert torch.equal(other.map, of_page(method="layer_cam").map), "the options are the page's method's"


def test_the_runner_up_is_the_second_class() -> None:
    first, second = of_page().top[:2]

    found = answer(page={"target": "goldfish"}, runner_up=True)
    top = answer(page={"target": "goldfish"}, own={"target": ""})

    assert (found.target, top.target) == (second[0], first[0])
    assert found.confidence == pytest.approx(second[1]) and found.confidence < top.confidence


def test_class_agnostic_methods_are_replaced_when_classes_are_compared() -> None:
    page = {"method": "eigen_cam"}

    assert answer(page=page).settings.method.name == "eigen_cam"
    assert answer(page=page, runner_up=True, by_class=True).settings.method.name == "grad_cam"
    own = answer(page=page, runner_up=True, by_class=True, own={"method": "eigen_cam"})
    assert own.settings.method.name == "eigen_cam", "not an option of the panel"


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
    for size, wanted in [((200, 400), (16 / 256, 144 / 512)), ((400, 200), (144 / 512, 16 / 256))]:
        path = tmp_path / f"{size[0]}.png"
        Image.new("RGB", size, "#806040").save(path)
        box = steps(str(path), place=True)[CropBox].box
        assert box == pytest.approx((*wanted, 1 - wanted[0], 1 - wanted[1]), abs=1e-6)
    path = tmp_path / "long.png"
    Image.new("RGB", (100, 800), "#806040").save(path)
    left, top, right, bottom = steps(str(path), place=True)[CropBox].box
    assert (left + right, top + bottom) == pytest.approx((1, 1))
    assert (bottom - top) * 800 == pytest.approx(87.5, abs=0.5)
    assert CropBox not in steps()


def test_one_time_values_are_in_the_last_step_too(blobs: str) -> None:
    """If two steps follow quickly, the browser may only receive the second."""
    ask = PanelRequest(2, 7, page=PAGE, own={"model": "blobs_detection"}, lists=True, place=True)
    known: dict[str, Any] = {}
    with runs.start(None) as run:
        *_, last = compare_tab._values(ask, blobs, run, known)

    assert (last["slot"], last["number"], last["state"]) == (2, 7, "done")
    assert last["box"] == (0, 0, 1, 1) and last["names"]["model"] == "blobs_detection"
    assert [name for _, name in last["found"]] == ["red blob", "green blob", "red blob#2"]
    lists = last["lists"]
    assert (MODEL in [name for _, name, _ in lists["model"]]) and lists["target"] == []
    assert "grad_cam" in [name for _, name, *_ in lists["method"]] and len(lists["layer"]) >= 3
    assert last["view"]["map"]["h"] and last["view"]["words"]["unit"]


def test_script_input_is_validated() -> None:
    hostile = {"slot": 9, "number": "1", "image": ["x"], "page": {"model": 3, "layer": "x" * 501, "target": "a"},
               "options": [1], "own": "x", "runner": 1, "classed": "yes", "lists": 1, "place": None}  # fmt: skip

    assert questions.parse(hostile) == PanelRequest(0, 0, page={"target": "a"})
    assert questions.parse({}) == PanelRequest(0, 0)
    sent = {"slot": 3, "number": 4, "image": "p", "own": {"model": "m", "path": "x"}, "runner": True}
    sent |= {"options": {"k": 1}}
    assert questions.parse(sent) == PanelRequest(3, 4, "p", {}, {"k": 1}, {"model": "m"}, True)


def ask_tab(tab: Any, event: dict[str, Any], session: str, *form: Any) -> list[Any]:
    """The values of the panel's component, as its handler yields them."""
    visitor = SimpleNamespace(session_hash=session)
    found = tab.answer(SimpleNamespace(_data=event), visitor, *form)
    return [value for step in found for value in step.values()]


def test_a_repeated_request_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    long_image = tmp_path / "cat.jpg"
    long_image.write_bytes(Path(CAT).read_bytes())
    tab = SimpleNamespace(slots=[gr.HTML(render=False) for _ in range(questions.SLOTS)])
    tab.answer = compare_tab.Compare.answer.__get__(tab)
    event = {"slot": 1, "number": 5, "image": str(long_image), "page": PAGE}
    form = (str(long_image), MODEL, "head", "", "grad_cam", {}, {"model": MODEL})

    first, second = ask_tab(tab, event, "twice", *form), ask_tab(tab, event, "twice", *form)
    moved = ask_tab(tab, event | {"number": 6, "image": "other.jpg"}, "twice", *form)

    assert first[-1]["state"] == "done" and "view" in first[-1]
    assert len(second) == 1 and "view" not in second[0] and second[0].get("state") is None
    assert [value["state"] for value in moved] == ["passed"]
