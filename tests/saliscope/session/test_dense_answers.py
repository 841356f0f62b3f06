"""Segmentation networks and detectors in the engine: detections, explanations and messages.

The blobs of tests/support/dense_nets.py are detected where they were painted, so the expected answers are known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision

import explainers
from saliscope.errors import Refused
from saliscope.session import engine, messages, model_cache
from saliscope.session.answers import Answer, Refining, Scene, Settings, Stages
from saliscope.session.channels import engine as channels
from saliscope.session.channels.answers import Channels, Contribution, InputGradient, ReceptiveFields, Sheet
from saliscope.session.jobs import runs
from saliscope.session.request import Request
from saliscope.zoo import catalog
from saliscope.zoo.model import Model
from saliscope.zoo.sources.torchvision_dense import SOURCE, preparation_of, weights_by_name
from tests.saliscope.session.asking import last_steps
from tests.support import dense_nets


@pytest.fixture(autouse=True)
def offered(loaded: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both blob models, and a separate model cache."""
    monkeypatch.setattr(catalog, "SOURCES", (*catalog.SOURCES, dense_nets.Blobs()))
    monkeypatch.setattr(model_cache, "_loaded", model_cache._loaded.copy())


@pytest.fixture
def image(tmp_path: Path) -> str:
    path = tmp_path / "scene.png"
    dense_nets.scene().save(path)
    return str(path)


def names(scene: Scene) -> list[str]:
    return [each.name for each in scene.objects]


def ask(image: str, model: str, **more: Any) -> dict[type, Any]:
    return last_steps(Request(image, model=f"blobs_{model}", **more))


def test_detections_are_found_and_the_strongest_is_explained(image: str) -> None:
    """Oracle: the painted boxes, up to one cell of the grid."""
    found = ask(image, "detection")
    scene, answer = found[Scene], found[Answer]

    assert names(scene) == ["red blob", "green blob", "red blob#2"] and scene.chosen is scene.objects[0]
    assert scene.objects[0].box == pytest.approx((160 / 256, 24 / 192, 216 / 256, 80 / 192), abs=16 / 192)
    assert answer.name == "red blob" and answer.target == 1 and answer.confidence == scene.objects[0].share
    expected = explainers.hires_cam(*inputs(found), layer=answer.settings.layer)
    torch.testing.assert_close(answer.map, expected[0])
    row, column = divmod(int(answer.map.argmax()), answer.map.shape[1])
    left, top, right, bottom = scene.objects[0].box
    assert left <= (column + 0.5) / answer.map.shape[1] <= right and top <= (row + 0.5) / answer.map.shape[0] <= bottom


def test_the_map_is_that_of_the_box_and_label_by_overlap(image: str) -> None:
    """A second detection of the class has a separate map in its box; the map of Grad-CAM is in the stronger box."""
    found = ask(image, "detection", target="red blob#2")
    answer, stages = found[Answer], found[Stages]

    assert answer.name == "red blob#2" and answer.settings.names["target"] == "red blob#2"
    assert inputs(found)[2].overlap == 0.5 and inputs(found)[2].labels == (1,)
    column = int(answer.map.argmax()) % answer.map.shape[1]
    assert (column + 0.5) / answer.map.shape[1] < 112 / 256, "the larger, paler one is on the left"
    assert len(stages.maps) >= 2
    other = ask(image, "detection", target="red blob#2", method="grad_cam")[Answer]
    assert int(other.map.argmax()) % other.map.shape[1] > column
    for name, plane in stages.maps.items():
        torch.testing.assert_close(plane, explainers.grad_cam(*inputs(found), layer=name)[0])


def test_regions_are_classes_and_their_connected_parts(image: str) -> None:
    """Oracle: the areas of the painted ellipses."""
    found = ask(image, "segmentation")
    scene, answer = found[Scene], found[Answer]

    assert names(scene) == ["red blob", "red blob#1", "red blob#2", "green blob", "__background__"]
    areas = {each.name: each.share for each in scene.objects}
    assert areas["red blob#1"] == pytest.approx(3.1416 * 48 * 48 / (256 * 192), rel=0.15)
    assert areas["red blob"] == pytest.approx(areas["red blob#1"] + areas["red blob#2"], rel=0.02)
    classes = {each.label: each.share for each in scene.objects if not each.rank}
    assert sum(classes.values()) == pytest.approx(1)
    network, images, _ = inputs(found)
    mask = network(images)["out"][0].argmax(0) == 1
    expected = explainers.hires_cam(network, images, explainers.MaskScores(mask, 1), layer=answer.settings.layer)
    torch.testing.assert_close(answer.map, expected[0])
    assert line(answer).startswith(f"HiResCAM for red blob ({100 * areas['red blob']:.0f}% of the pixels) at ")


def line(answer: Answer) -> str:
    return "".join(part if isinstance(part, str) else part["text"] for part in messages.answer_parts(answer))


def test_an_object_is_selected_by_its_name(image: str) -> None:
    """A missing one becomes a note, and the first object is explained."""
    for target, chosen in (("red blob#2", 2), ("green blob", 3), ("green blob#1", 3)):
        found = ask(image, "segmentation", target=target)
        assert found[Scene].chosen is found[Scene].objects[chosen] and not found[Answer].settings.notes, target
    for model in ("detection", "segmentation"):
        for target, note in (
            ("3", "“blue blob” was not detected in this image"),
            ("red blob#9", "in this image"),
            ("purple blob", "Unknown class “purple blob”"),
        ):
            found = ask(image, model, target=target)
            assert note in " ".join(found[Answer].settings.notes) and found[Answer].name == "red blob", target
            assert found[Scene].chosen is found[Scene].objects[0]


def test_without_detections_there_is_a_message_with_a_remedy_and_no_map(tmp_path: Path) -> None:
    path = str(tmp_path / "pale.png")
    dense_nets.blobs(("#b04040", (40, 40, 140, 140))).save(path)

    found = ask(path, "detection")
    scene = found[Scene]

    assert Answer not in found and Stages not in found and scene.chosen is None and not scene.objects
    assert "at least 0.5 (the strongest detection is red blob" in scene.message
    lowered = ask(path, "detection", options=scene.remedy)
    assert lowered[Answer].name == "red blob" and lowered[Answer].map.max() > 0
    assert lowered[Answer].settings.min_score == scene.remedy["min_score"] < 0.5

    dense_nets.blobs().save(path)
    nothing = ask(path, "detection")[Scene]
    assert nothing.message.startswith("No object detected with a score of at least 0.5. ") and not nothing.remedy
    gray = ask(path, "segmentation")
    assert names(gray[Scene]) == ["__background__"] and Answer not in gray and "background" in gray[Scene].message
    assert ask(path, "segmentation", target="__background__")[Answer].map.isfinite().all()


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2))])
@pytest.mark.parametrize("model", ["detection", "segmentation"])
def test_every_listed_method_answers_or_raises_an_explainer_error(image: str, model: str, part: int) -> None:
    """A third of the methods; the other two thirds are slow tests."""
    loaded = model_cache.load(f"blobs_{model}")
    listed = model_cache.list_methods(loaded)
    quick = {"samples": 4, "steps": 4, "iterations": 4, "window": 32, "stride": 32}

    assert {"grad_cam", "saliency", "occlusion", "rise"} <= {method.name for method in listed}
    assert ("d_rise" in {method.name for method in listed}) == (model == "detection")
    refused = {}
    for method in listed[part::3]:
        options = {name: value for name, value in quick.items() if name in method.options}
        try:
            answer = ask(image, model, method=method.name, options=options)[Answer]
        except explainers.ExplainerError as error:
            refused[method.name] = error
        else:
            assert answer.map.ndim == 2 and answer.name == "red blob"
    # These methods do not support the operations of this network; no method fails because of missing class scores.
    assert set(refused) <= {"cam", "deep_lift", "deep_lift_shap"}, refused
    assert all(isinstance(error, explainers.ExplainerError) for error in refused.values())
    assert not any(isinstance(error, explainers.BadTarget) for error in refused.values()), refused


def test_boxes_detected_in_any_mode_are_a_target() -> None:
    network, images = dense_nets.Detection().eval(), torch.rand(1, 3, 96, 128)
    images[:, 1:, 20:60, 30:80] = 0
    images[:, 0, 20:60, 30:80] = 1
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = network(images)[0]
        target = explainers.BoxScores(found["boxes"][:1], (int(found["labels"][0]),))
        maps = explainers.hires_cam(network, images, target)
        assert maps.max() > 0 and not maps.is_inference()


def test_a_detection_that_vanishes_or_moves_scores_zero(image: str) -> None:
    """The target on perturbed images: painted over, replaced by another class, and with the object moved."""
    network, images, target = inputs(ask(image, "detection"))
    clean = float(target(network(images)))
    variants = images.repeat(3, 1, 1, 1)
    variants[0, :, :48, 72:] = 0.47
    variants[1] = variants[1].roll(1, 0)
    variants[2] = images[0].flip(-1)

    assert clean == pytest.approx(float(network(images)[0]["scores"][0]))
    assert target(network(variants)).tolist() == [0, 0, 0]


def test_stop_keeps_the_partial_map_of_a_detector(image: str) -> None:
    request = Request(image, model="blobs_detection", method="occlusion", options={"window": 8, "stride": 2})
    seen = []
    with runs.start(None) as run:
        for step in engine.explain(request, run):
            seen.append(step)
            if isinstance(step, Refining) and step.map is not None:
                run.stop()

    answer = next(step for step in seen if isinstance(step, Answer))
    assert answer.share < 1 and answer.by_user and answer.map.isfinite().all()
    assert all(step.name == "red blob" for step in seen if isinstance(step, Refining))


def test_a_method_that_compares_classes_is_refused_with_a_reason(image: str) -> None:
    found = ask(image, "detection", method="finer_cam")

    (note,) = found[Answer].settings.notes
    assert note.startswith("Finer-CAM does not support this network: It compares") and found[Answer].map.max() > 0


@pytest.mark.parametrize("model", ["detection", "segmentation"])
def test_channels_have_effects_on_detected_objects(image: str, model: str) -> None:
    """Oracle: the score of a red blob only depends on the red channel."""
    request = Request(image, model=f"blobs_{model}", layer="backbone.2")

    every = last_steps(request, channels.all_channels, sort="effect")[Channels]
    one = last_steps(request, channels.channel, number=0)
    contribution = one[Contribution]

    assert every.numbers[0] == 0 and every.effects[0] > 0.4 and every.subject.name == "red blob"
    assert contribution.effect == pytest.approx(every.effects[0], rel=1e-5)
    assert contribution.parts[0] > 0.4 and contribution.parts[0] > 5 * contribution.parts[1:].abs().max()
    rows, columns = one[ReceptiveFields].spans
    assert len(rows) == one[InputGradient].grid[0] and len(columns) == one[InputGradient].grid[1]
    assert columns[0] == pytest.approx((0, 8 / one[ReceptiveFields].size[0])), "three 2 x 2 convolutions with stride 2"


def test_channels_are_shown_without_detections(tmp_path: Path) -> None:
    path = str(tmp_path / "gray.png")
    dense_nets.blobs().save(path)
    request = Request(path, model="blobs_detection", layer="backbone.2")

    assert bool(last_steps(request, channels.sheet)[Sheet].dead.all())
    assert last_steps(request, channels.all_channels)[Channels].subject is None
    contribution = last_steps(request, channels.channel, number=0)[Contribution]
    assert contribution.effect is None and contribution.reason.startswith("Nothing was detected")
    with pytest.raises(Refused, match="Nothing was detected"):
        last_steps(request, channels.measure, kind="effect")


def test_a_custom_detector_needs_no_class_names(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `--model`: built by a function, with the task inferred from the output and numbered classes."""
    monkeypatch.setattr(catalog, "_ADDED", {})
    name = catalog.add("tests.support.dense_nets:Detection", size=(96, 128), mean=[0] * 3, std=[1] * 3)

    found = last_steps(Request(image, model=name, target="1#2"))

    assert model_cache.load(name).model.task == "detection" and names(found[Scene]) == ["1", "2", "1#2"]
    assert found[Answer].name == "1#2" and not found[Answer].settings.notes and found[Answer].map.max() > 0


def test_a_network_with_one_channel_is_binary(image: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(catalog, "_ADDED", {})
    name = catalog.add("tests.support.dense_nets:Red", size=(96, 128), labels=["red"], mean=[0] * 3, std=[1] * 3)

    found = last_steps(Request(image, model=name))

    assert names(found[Scene]) == ["red", "red#1", "red#2"] and found[Answer].name == "red"
    network, images, target = inputs(found)
    assert torch.equal(target.mask, network(images)[0, 0] > 0)
    dense_nets.blobs(("#00ff00", (40, 40, 140, 140))).save(tmp_path / "green.png")
    nothing = last_steps(Request(str(tmp_path / "green.png"), model=name))
    assert Answer not in nothing and nothing[Scene].objects == () and "background" in nothing[Scene].message


@pytest.mark.parametrize("name", ["lraspp_mobilenet_v3_large", "ssdlite320_mobilenet_v3_large"])
def test_torchvision_networks_are_explained(monkeypatch: pytest.MonkeyPatch, image: str, name: str) -> None:
    """With random weights and an image that is not square, from the request to the maps of all stages."""
    torch.manual_seed(0)
    weights, task = weights_by_name()[name]
    count = len(weights.meta["categories"])
    network = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=count)
    model = Model(name, network, weights.meta["categories"], preparation_of(name), task)
    monkeypatch.setattr(SOURCE, "load", lambda *_: model)

    found = last_steps(Request(image, model=name, options={"min_score": 0.01} if task == "detection" else {}))

    answer = found[Answer]
    assert answer.map.ndim == 2 and answer.map.isfinite().all()
    assert (answer.map.shape[0] < answer.map.shape[1]) == (task == "segmentation"), "SSD resizes the image to a square"
    assert answer.explanation.statistics and found[Scene].chosen.name == answer.name
    assert answer.settings.layer.startswith("backbone") and len(found[Stages].maps) >= 2
    assert float(answer.explanation.raw.abs().max()) > 0, "the explained object depends on the layer"
    codes = [finding.code for finding in answer.explanation.findings[0]]
    assert ("other_layer" in codes) == (answer.settings.layer != answer.settings.loaded.default)
    assert found[Settings].layer == answer.settings.layer, "the page lists the layer of the map"


def inputs(found: dict[type, Any]) -> tuple[Any, torch.Tensor, Any]:
    """Return network, input and target of an answer."""
    scene = found[Scene]
    model = scene.settings.loaded.model
    return model.network, model.prepare(scene.crop), scene.chosen.target
