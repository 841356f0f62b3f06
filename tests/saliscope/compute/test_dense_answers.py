"""Segmentation networks and detectors in the engine: detections, explanations and messages.

The blobs of tests/support/dense_nets.py are detected where they were painted, so the expected answers are known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import explainers
from saliscope.compute import model_cache
from saliscope.compute.answers import Answer, Scene, Settings, Stages
from saliscope.compute.channels import engine as channels
from saliscope.compute.channels.answers import Channels, Contribution
from saliscope.compute.request import Request
from saliscope.errors import Refused
from saliscope.zoo import catalog
from saliscope.zoo.model import Model
from saliscope.zoo.sources.torchvision_models import SOURCE
from saliscope.zoo.sources.torchvision_networks import preparation_of, weights_by_name
from tests.saliscope.compute.asking import forget_networks, last_steps
from tests.support import dense_nets
from tests.support.catalog import isolate_catalog

pytestmark = pytest.mark.usefixtures("blob_models")
TASKS = ("detection", "segmentation")


def painted(folder: Path, *colors: str) -> str:
    """Return an image with a blob of each color."""
    dense_nets.blobs(*((color, (40, 40, 140, 140)) for color in colors)).save(folder / "painted.png")
    return str(folder / "painted.png")


def names(scene: Scene) -> list[str]:
    return [each.name for each in scene.objects]


def ask(image: str, model: str, **more: Any) -> dict[type, Any]:
    return last_steps(Request(image, model=f"blobs_{model}", **more))


def inputs(found: dict[type, Any]) -> tuple[torch.nn.Module, torch.Tensor, Any]:
    """Return the network, its input and the target of an answer."""
    scene = found[Scene]
    model = found[Answer].settings.loaded.model
    return model.network, model.prepare(scene.crop), scene.chosen.target


def test_detections_are_found_and_the_strongest_is_explained(blobs: str) -> None:
    """Oracle: the painted boxes, up to one cell of the grid."""
    found = ask(blobs, "detection")
    scene, answer = found[Scene], found[Answer]
    assert names(scene) == ["red blob", "green blob", "red blob#2"] and scene.chosen is scene.objects[0]
    assert scene.objects[0].box == pytest.approx((160 / 256, 24 / 192, 216 / 256, 80 / 192), abs=16 / 192)
    assert (answer.name, answer.target, answer.confidence) == ("red blob", 1, scene.objects[0].share)
    expected = explainers.hires_cam(*inputs(found), layer=answer.settings.layer)
    torch.testing.assert_close(answer.map, expected[0])
    row, column = divmod(int(answer.map.argmax()), answer.map.shape[1])
    left, top, right, bottom = scene.objects[0].box
    assert left <= (column + 0.5) / answer.map.shape[1] <= right and top <= (row + 0.5) / answer.map.shape[0] <= bottom


def test_the_map_is_that_of_the_box_and_label_by_overlap(blobs: str) -> None:
    """A second detection of the class has a separate map in its box."""
    found = ask(blobs, "detection", target="red blob#2")
    answer, stages, (_, _, target) = found[Answer], found[Stages], inputs(found)
    assert answer.name == "red blob#2" and target.overlap == 0.5 and target.labels == (1,)
    column = int(answer.map.argmax()) % answer.map.shape[1]
    assert (column + 0.5) / answer.map.shape[1] < 112 / 256, "the larger, paler one is on the left"
    assert len(stages.maps) >= 2
    for name, plane in stages.maps.items():
        torch.testing.assert_close(plane, explainers.grad_cam(*inputs(found), layer=name)[0])


def test_regions_are_classes_and_their_connected_parts(blobs: str) -> None:
    """Oracle: the areas of the painted ellipses."""
    found = ask(blobs, "segmentation")
    scene, answer = found[Scene], found[Answer]
    assert names(scene) == ["red blob", "red blob#1", "red blob#2", "green blob", "__background__"]
    areas = {each.name: each.share for each in scene.objects}
    assert areas["red blob#1"] == pytest.approx(3.1416 * 48 * 48 / (256 * 192), rel=0.15)
    assert areas["red blob"] == pytest.approx(areas["red blob#1"] + areas["red blob#2"], rel=0.02)
    assert sum(each.share for each in scene.objects if not each.rank) == pytest.approx(1)
    network, images, _ = inputs(found)
    region, layer = explainers.MaskScores(network(images)["out"][0].argmax(0) == 1, 1), answer.settings.layer
    torch.testing.assert_close(answer.map, explainers.hires_cam(network, images, region, layer=layer)[0])


def test_an_object_is_selected_by_its_name(blobs: str) -> None:
    """A missing one becomes a note, and the first object is explained."""
    found = ask(blobs, "segmentation", target="green blob#1")
    assert found[Scene].chosen is found[Scene].objects[3] and not found[Answer].settings.notes
    missing = {
        "3": "“blue blob” was not detected",
        "red blob#9": "in this image",
        "purple blob": "Unknown class “purple",
    }
    for model in TASKS:
        for target, note in missing.items():
            found = ask(blobs, model, target=target)
            assert note in " ".join(found[Answer].settings.notes) and found[Answer].name == "red blob", target


def test_without_detections_there_is_a_message_with_a_remedy_and_no_map(tmp_path: Path) -> None:
    """The channels of the network are shown anyway."""
    path = painted(tmp_path, "#b04040")
    found = ask(path, "detection")
    scene = found[Scene]
    assert Answer not in found and Stages not in found and scene.chosen is None and not scene.objects
    assert "at least 0.5 (the strongest detection is red blob" in scene.message
    lowered = ask(path, "detection", options=scene.remedy)[Answer]
    assert lowered.name == "red blob" and lowered.settings.min_score == scene.remedy["min_score"] < 0.5

    path = painted(tmp_path)
    nothing = ask(path, "detection")[Scene]
    assert nothing.message.startswith("No object detected with a score of at least 0.5. ") and not nothing.remedy
    gray = ask(path, "segmentation")
    assert names(gray[Scene]) == ["__background__"] and Answer not in gray and "background" in gray[Scene].message
    assert ask(path, "segmentation", target="__background__")[Answer].map.isfinite().all()

    request = Request(path, model="blobs_detection", layer="backbone.2")
    assert last_steps(request, channels.all_channels)[Channels].subject is None
    contribution = last_steps(request, channels.channel, number=0)[Contribution]
    assert contribution.effect is None and contribution.reason.startswith("Nothing was detected")
    with pytest.raises(Refused, match="Nothing was detected"):
        last_steps(request, channels.measure, kind="effect")


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 6))])
def test_every_listed_method_answers_or_does_not_support_the_operations(blobs: str, part: int) -> None:
    """A sixth of the methods; the others are slow tests. No method fails because of missing class scores."""
    quick = {"samples": 4, "steps": 4, "iterations": 4, "window": 32, "stride": 32}
    for model in TASKS:
        listed = model_cache.list_methods(model_cache.load(f"blobs_{model}"))
        known = {method.name for method in listed}
        assert "grad_cam" in known and ("d_rise" in known) == (model == "detection")
        for method in listed[part::6]:
            options = {name: value for name, value in quick.items() if name in method.options}
            try:
                answer = ask(blobs, model, method=method.name, options=options)[Answer]
            except explainers.ExplainerError as error:
                assert method.name in ("cam", "deep_lift", "deep_lift_shap"), error
            else:
                assert answer.map.ndim == 2 and answer.name == "red blob"


def test_boxes_detected_in_inference_mode_are_a_target(blobs: str) -> None:
    network, images, _ = inputs(ask(blobs, "detection"))
    with torch.inference_mode():
        found = network(images)[0]
    maps = explainers.hires_cam(network, images, explainers.BoxScores(found["boxes"][:1], (int(found["labels"][0]),)))
    assert maps.max() > 0 and not maps.is_inference()


def test_channels_have_effects_on_detected_objects(blobs: str) -> None:
    """Oracle: the score of a red blob only depends on the red channel."""
    for model in TASKS:
        request = Request(blobs, model=f"blobs_{model}", layer="backbone.2")
        every = last_steps(request, channels.all_channels, sort="effect")[Channels]
        one = last_steps(request, channels.channel, number=0)
        contribution = one[Contribution]
        assert every.numbers[0] == 0 and every.effects[0] > 0.4 and every.subject.name == "red blob"
        assert contribution.effect == pytest.approx(every.effects[0], rel=1e-5)
        assert contribution.parts[0] > 0.4 and contribution.parts[0] > 5 * contribution.parts[1:].abs().max()


def test_own_networks_are_explained(blobs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As with `--model`: built by a function, with the task inferred from the output. One channel is binary."""
    isolate_catalog(monkeypatch, tmp_path)
    usual: dict[str, Any] = {"size": (96, 128), "mean": [0] * 3, "std": [1] * 3}
    detector = catalog.add("tests.support.dense_nets:Detection", **usual)
    found = last_steps(Request(blobs, model=detector, target="1#2"))
    assert model_cache.load(detector).model.task == "detection" and names(found[Scene]) == ["1", "2", "1#2"]
    assert found[Answer].name == "1#2" and not found[Answer].settings.notes and found[Answer].map.max() > 0

    binary = catalog.add("tests.support.dense_nets:Red", labels=["red"], **usual)
    found = last_steps(Request(blobs, model=binary))
    assert names(found[Scene]) == ["red", "red#1", "red#2"] and found[Answer].name == "red"
    network, images, target = inputs(found)
    assert torch.equal(target.mask, network(images)[0, 0] > 0)
    nothing = last_steps(Request(painted(tmp_path, "#00ff00"), model=binary))
    assert Answer not in nothing and nothing[Scene].objects == ()


def test_a_detection_of_another_scale_has_another_layer(monkeypatch: pytest.MonkeyPatch, blobs: str) -> None:
    """SSD with random weights."""
    import torchvision

    name = "ssdlite320_mobilenet_v3_large"
    labels = weights_by_name()[name].meta["categories"]
    network = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=len(labels))
    monkeypatch.setattr(SOURCE, "load", lambda *_: Model(name, network, labels, preparation_of(name), "detection"))
    found = last_steps(Request(blobs, model=name, options={"min_score": 0.01}))
    answer = found[Answer]
    assert found[Scene].chosen.name == answer.name and len(found[Stages].maps) >= 2
    assert float(answer.explanation.raw.abs().max()) > 0, "the explained object depends on the layer"
    assert answer.settings.layer != answer.settings.loaded.default and found[Settings].layer == answer.settings.layer
    assert "other_layer" in [finding.code for finding in answer.explanation.findings[0]]
    forget_networks()  # with random weights
    assert not model_cache.has(name)
