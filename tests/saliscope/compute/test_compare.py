"""Comparisons, without a browser: panels of the page, and two models on the same images."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import explainers
from saliscope import zoo
from saliscope.compute import model_cache
from saliscope.compute.answers import Answer
from saliscope.compute.compare import questions
from saliscope.compute.compare.questions import PanelRequest
from saliscope.compute.models import engine, messages
from saliscope.compute.request import Request
from saliscope.errors import Refused
from saliscope.images import examples
from saliscope.page.compare import compare as panels
from saliscope.page.events import Ask
from saliscope.page.models import models as view
from tests.saliscope.compute.asking import CAT, DOG, MODEL, answered, inputs, steps_of
from tests.support import dense_nets
from tests.support.catalog import isolate_catalog

PAGE = {"model": MODEL, "layer": "head", "target": "", "method": "grad_cam", "bands": ""}

pytestmark = pytest.mark.usefixtures("blob_models")


def answer(image: str = CAT, page: dict[str, str] | None = None, **asked: Any) -> Answer:
    *_, found = steps_of(questions.answers, PanelRequest(0, 1, page=PAGE | (page or {}), **asked), image)
    assert isinstance(found, Answer)
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
        ({"options": relu, "own": {"method": "hires_cam"}}, {"method": "hires_cam"}),
    ):
        assert torch.equal(answer(**asked).map, of_page(**same).map), asked


def test_the_runner_up_is_the_second_class() -> None:
    """Class-agnostic methods are replaced when classes are compared, unless they are the panel's own."""
    first, second = of_page().top[:2]
    found = answer(page={"target": "goldfish"}, runner_up=True)
    top = answer(page={"target": "goldfish"}, own={"target": ""})
    assert (found.target, top.target) == (second[0], first[0]) and found.confidence == pytest.approx(second[1])
    compared = {"runner_up": True, "by_class": True}
    for asked, name in (
        ({}, "eigen_cam"),
        (compared, "grad_cam"),
        (compared | {"own": {"method": "eigen_cam"}}, "eigen_cam"),
    ):
        assert answer(page={"method": "eigen_cam"}, **asked).settings.method.name == name


def test_an_unavailable_panel_setting_raises() -> None:
    """No other map is shown instead, since the comparison would be wrong."""
    wrong = (("method", "no_such"), ("layer", "<img src=x>"), ("target", "unicorn#7"), ("model", "resnet5000"))
    for name, value in (*wrong, ("method", "attention_rollout")):
        with pytest.raises(Refused) as error:
            answer(own={name: value})
        assert "default" not in str(error.value)


def test_another_model_keeps_the_page_settings_it_supports(blobs: str) -> None:
    page = {"layer": "stages.3", "target": "tabby"}
    found = answer(blobs, page, own={"model": "blobs_detection"})
    assert torch.equal(found.map, answered(Request(blobs, "blobs_detection")).map)
    found = answer(blobs, page | {"target": "green blob"}, own={"model": "blobs_segmentation"})
    assert found.name == "green blob"
    with pytest.raises(Refused, match=r"“blue blob” was not detected in this image.*Detected: red blob"):
        answer(blobs, page, own={"model": "blobs_detection", "target": "blue blob"})


def test_the_runner_up_of_detected_objects(blobs: str, tmp_path: Path) -> None:
    """The second object; of regions, the next class."""
    dense_nets.blobs(("#ff0000", (40, 40, 140, 140))).save(single := tmp_path / "one.png")
    dense_nets.blobs().save(nothing := tmp_path / "none.png")
    for model in ("blobs_detection", "blobs_segmentation"):
        assert answer(blobs, own={"model": model}, runner_up=True).name == "green blob"
        with pytest.raises(Refused, match=r"^No second"):
            answer(str(single), own={"model": model}, runner_up=True)
    with pytest.raises(Refused, match="No object detected"):
        answer(str(nothing), own={"model": "blobs_detection"})


def test_script_input_is_validated() -> None:
    hostile = {"slot": 9, "number": "1", "image": ["x"], "page": {"model": 3, "layer": "x" * 501, "target": "a"},
               "options": [1], "own": "x", "runner": 1, "classed": "yes", "lists": 1}  # fmt: skip

    assert questions.parse(hostile) == PanelRequest(0, 0, page={"target": "a"})
    sent = {"slot": 3, "number": 4, "image": "p", "own": {"model": "m", "path": "x"}, "runner": True}
    sent |= {"options": {"k": 1}}
    assert questions.parse(sent) == PanelRequest(3, 4, "p", {}, {"k": 1}, {"model": "m"}, True)


def test_the_view_answers_a_request_once(blobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If two steps follow quickly, the browser may only receive the second."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))

    def ask(**changed: Any) -> list[dict[str, Any]]:
        event = {"slot": 1, "number": 5, "image": blobs, "page": PAGE, "lists": True, **changed}
        form = {**PAGE, "image": blobs, "options": {"model": MODEL}}
        return [step["compared.1"] for step in panels.answer(Ask("hl-compare", "submit", event, form, "twice"))]

    own = {"model": "blobs_detection"}
    *_, last = ask(own=own)
    assert (last["number"], last["state"], last["names"]["model"]) == (5, "done", "blobs_detection")
    assert last["view"]["crop"]["window"] == [0, 0, 1, 1] and [name for _, name in last["found"]] == [
        "red blob",
        "green blob",
        "red blob#2",
    ]
    assert last["lists"]["layer"] and last["lists"]["target"] == []
    assert last["view"]["map"]["h"] and ask(own=own) == []
    assert [value["state"] for value in ask(number=6, image="other.jpg")] == ["passed"]


LABELS = ["cat", "dog", "fox"]


def first(seed: int = 1, classes: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, classes)).eval()


def scaled(factors: dict[int, float]) -> nn.Sequential:
    """Return the first network with the weights and biases of some layers multiplied."""
    network = first()
    for layer, factor in factors.items():
        for weights in network[layer].parameters():
            weights.data.mul_(factor)
    return network


second, opposite = partial(scaled, {2: 1.2}), partial(scaled, {6: -1.0})
blind, four = partial(scaled, {0: 0.0, 2: 0.0}), partial(first, 2, 4)
same = shuffled = renamed = first
NAMES: dict[str, str] = {}
"""The public names of the networks."""


@pytest.fixture(scope="module", autouse=True)
def offered(loaded: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Offer the networks."""
    own = {"shuffled": LABELS[::-1], "renamed": ["cat", "dog", "wolf"], "four": [*LABELS, "hen"]}
    half = (0.5, 0.5, 0.5)
    with pytest.MonkeyPatch.context() as patch:
        isolate_catalog(patch, tmp_path_factory.mktemp("networks"))
        for name in ("first", "second", "opposite", "blind", "same", *own):
            labels = own.get(name, LABELS)
            mean = (0.3, 0.4, 0.5) if name == "renamed" else half
            NAMES[name] = zoo.add(f"{__name__}:{name}", labels=labels, mean=mean, std=half, size=32)
        yield


def compare(other: str, *, image: str | None = DOG, method: str = "", **options: Any) -> engine.Compared:
    request = Request(image, model=NAMES["first"], method=method)
    found: engine.Compared = steps_of(engine.compare, request, NAMES.get(other, other), **options)[-1]
    return found


def test_the_numbers_are_those_of_the_library() -> None:
    """Oracle: `compare_models` on the same ten inputs; the middle convolution is the first that differs."""
    found = compare("second")
    a, b = (model_cache.load(NAMES[name]).model for name in ("first", "second"))
    paths = [DOG, *(str(each.path) for each in examples.all_examples().values() if str(each.path) != DOG)]
    images = torch.cat([a.prepare(Image.open(path)) for path in paths])
    expected = explainers.compare_models(a.network, b.network, images, method=found.method)
    packed = view.compared(found)
    assert len(packed["rows"]) == len(paths) == 9 and packed["rows"][0]["name"] == messages.YOUR_IMAGE
    assert torch.equal(found.result.scores_b, expected.scores_b) and not found.notes
    assert found.result.differences == expected.differences
    start = "The first layer that differs is 2 (relative difference "
    assert packed["divergence"].startswith(f"{start}{expected.differences['2']:.2f}).")
    assert [row["same"] for row in packed["rows"]] == [n not in expected.changed for n in range(9)]
    assert [[cell["text"] for cell in row] for row in packed["similarity"]] == expected.similarity_texts
    above = int((expected.similarity_interval[..., 0] > 0).sum())
    assert packed["similarity_notes"][0].startswith(f"{above} of {expected.similarity.numel()} intervals are above 0")
    row = packed["rows"][0]
    assert [each["h"] for each in row["maps"]] == [len(expected.maps_a[0])] * 2
    assert row["correlation"] == f"{float(expected.map_correlations[0]):.2f}" and not row["unknown"]


def test_what_the_page_says_about_other_pairs() -> None:
    """Opposite scores change all predictions; a network whose first layer is zero has zero maps."""
    packed = view.compared(compare("opposite", image=None))
    assert packed["text"].startswith("The predictions differ for 9 of 9 images.")
    assert all(row["a"].split(",")[0] != row["b"].split(",")[0] for row in packed["rows"])

    alone = view.compared(compare("same", with_examples=False))
    assert alone["text"].startswith("The predictions differ for 0 of 1 image. Rank correlation of Grad-CAM: 1.00.")
    assert alone["similarity"] is None and alone["similarity_notes"][1:] == ["Include the examples."]
    assert alone["divergence"].startswith("The outputs of all 7 layers are equal")

    packed = view.compared(compare("blind"))
    assert packed["text"].endswith("Maps of Grad-CAM were not compared: the map of B is zero everywhere.")
    assert {row["correlation"] for row in packed["rows"]} == {"the map of B is zero everywhere"}
    (note,) = packed["similarity_notes"]
    assert packed["similarity"] is None and "the same output for all images" in note


def test_other_class_names_and_a_slow_method_are_noted_and_other_orders_refused() -> None:
    found = compare("renamed", with_examples=False)
    assert found.notes[0].startswith("1 of 3 classes have different names") and not found.same_inputs
    for scores, name in ((found.result.scores_a, "first"), (found.result.scores_b, "renamed")):
        network, images = inputs(DOG, NAMES[name])
        torch.testing.assert_close(scores, network(images).detach())
    slow = compare("second", method="rise", with_examples=False)
    assert slow.method.name == "grad_cam" and "RISE is slow or does not explain both models" in slow.notes[0]
    for other, message in (
        ("shuffled", "the same 3 classes in another order"),
        ("four", "has 3 classes and .* has 4"),
        ("first", "Choose another second model"),
        ("", "Choose a second model"),
        ("nothing", "nothing"),
    ):
        with pytest.raises(Refused, match=message):
            compare(other)
    with pytest.raises(Refused, match="No image selected"):
        compare("second", image=None, with_examples=False)
