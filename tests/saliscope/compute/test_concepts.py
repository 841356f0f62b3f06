"""Concepts of the page: the numbers of the library, effects on another class, stopping, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

import explainers
from saliscope.compute.concepts import engine
from saliscope.compute.concepts.answers import Measured, Wanted
from saliscope.compute.interventions.answers import BeforeAfter
from saliscope.compute.jobs import runs
from saliscope.compute.request import Request
from saliscope.errors import Refused
from saliscope.images import examples
from saliscope.page.concepts import concepts as view
from saliscope.percentages import percent
from tests.saliscope.compute.asking import CAT, DOG, MEDIUM, SMALL, inputs, steps_of

pytestmark = pytest.mark.usefixtures("loaded")


def found(request: Request, k: int = 4, files: tuple[str, ...] = ()) -> Measured:
    """Return the concepts for a request."""
    *_, step = steps_of(engine.find, request, Wanted(k, files))
    assert isinstance(step, Measured)
    return step


@pytest.fixture(scope="module")
def batch(loaded: Any) -> torch.Tensor:
    """Return the inputs of the dog and of all other examples."""
    others = [str(each.path) for each in examples.all_examples().values() if str(each.path) != DOG]
    return torch.cat([inputs(path, MEDIUM)[1] for path in (DOG, *others)])


@pytest.fixture(scope="module")
def expected(batch: torch.Tensor) -> explainers.Concepts:
    """Return the concepts of these images by the library."""
    return explainers.find_concepts(inputs(DOG, MEDIUM)[0], batch, "head", 4)


def test_maps_and_effects_are_those_of_the_library(batch: torch.Tensor, expected: explainers.Concepts) -> None:
    images = batch[:1]
    step = found(Request(DOG, MEDIUM, layer="head"))
    assert step.found.concepts.images == len(examples.all_examples())
    assert step.found.concepts.error == pytest.approx(expected.error, rel=1e-3)
    assert torch.allclose(step.found.maps, expected.maps(images)[0], rtol=1e-3, atol=1e-3)
    assert torch.allclose(step.effects, expected.effects(images)[0], rtol=1e-3, atol=1e-3)
    sheet = view.sheet(step)
    shown, share = sheet["items"], percent(1 - step.found.concepts.error)
    assert f"explain {share} of the variance of its features in 9 images" in sheet["summary"]
    assert [item["index"] for item in shown] == step.effects.argsort(descending=True).tolist()

    other = found(Request(DOG, MEDIUM, layer="head", target="malinois"))
    label = step.settings.loaded.names.index("malinois")
    assert torch.equal(other.found.concepts.dictionary.directions, step.found.concepts.dictionary.directions)
    assert torch.allclose(other.effects, expected.effects(images, label)[0], rtol=1e-3, atol=1e-3)
    assert not torch.allclose(other.effects, step.effects, rtol=1e-2)


def test_the_cuts_are_of_the_images_where_a_concept_is_strongest(batch: torch.Tensor) -> None:
    others = [each.alt for each in examples.all_examples().values() if str(each.path) != DOG]
    step = found(Request(DOG, MEDIUM, layer="head"))
    peaks = replace(step.found.concepts, model=inputs(DOG, MEDIUM)[0]).maps(batch).flatten(2).amax(2)
    for index, cuts in enumerate(step.found.cuts):
        best = [("", *others)[k] for k in peaks[:, index].argsort(descending=True)[: len(cuts)].tolist()]
        assert [cut.name if cut.name in others else "" for cut in cuts] == best
        assert len(cuts) == min(4, int((peaks[:, index] > 0).sum()))


def test_a_cut_is_around_the_strongest_cell() -> None:
    step = found(Request(DOG, layer="head"), files=(DOG,))
    for index, (cut, *_) in enumerate(step.found.cuts):
        row, column = divmod(int(step.found.maps[index].argmax()), 7)
        if not (2 <= row <= 4 and 2 <= column <= 4):
            continue  # at the edge of the image, the cell is not in the middle of the cut
        colors = []
        for image, side, x, y in (
            (step.crop, 15, (column + 0.5) / 7 * step.crop.width, (row + 0.5) / 7 * step.crop.height),
            (cut.image, 45 * cut.image.width / step.crop.width, cut.image.width / 2, cut.image.height / 2),
        ):
            box = (x - side, y - side, x + side, y + side)
            colors.append(image.resize((1, 1), Image.Resampling.BOX, box).tobytes())
        assert max(abs(a - b) for a, b in zip(*colors, strict=True)) < 12


@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_a_scaled_concept_changes_prediction_and_map_as_in_the_library(
    factor: float, batch: torch.Tensor, expected: explainers.Concepts
) -> None:
    network, images = inputs(DOG, MEDIUM)[0], batch[:1]
    index = int(expected.effects(images).argmax())
    *_, step = steps_of(engine.scale, Request(DOG, MEDIUM, layer="head"), Wanted(4), index, factor)
    assert isinstance(step, BeforeAfter) and step.maps is not None
    result = explainers.intervene(network, images, "head", value=expected.scaling({index: factor}))
    names = step.settings.loaded.names
    for each in step.classes:
        label = names.index(each.name)
        before, after = (float(scores[0].softmax(0)[label]) for scores in (result.before, result.after))
        assert (each.before, each.after) == (pytest.approx(before, abs=1e-3), pytest.approx(after, abs=1e-3))
    with result.applied(network):
        changed = explainers.grad_cam(network, images, int(result.before.argmax()), layer="head")
    assert torch.allclose(step.maps.after, changed[0], atol=1e-2)
    assert torch.equal(step.maps.before, step.maps.after) == (factor == 1)


def test_a_slow_method_is_replaced_by_a_quick_one() -> None:
    request = Request(DOG, MEDIUM, layer="head", method="smooth_grad", options={"samples": 1000})
    *_, step = steps_of(engine.scale, request, Wanted(4), 0, 0.0)
    assert step.settings.method.name == "grad_cam" and step.maps is not None


def test_one_image_is_enough() -> None:
    step = found(Request(CAT, layer="head"), 16, (CAT,))
    assert step.found.concepts.images == 1 and len(step.effects) == len(step.found.maps)
    with pytest.raises(explainers.BadOption, match="k=16 needs at least 16 cells"):
        found(Request(CAT, model=SMALL, layer="head"), 16, (CAT,))


def test_a_layer_with_many_cells_uses_fewer_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer has 8 x 8 cells."""
    for most, images in ((9 * 64, 9), (2 * 64 + 63, 2), (63, 1)):
        monkeypatch.setattr(engine, "CELLS", most)
        step = found(Request(DOG, model=SMALL, layer="stages.2"))
        assert (step.found.concepts.images, step.found.concepts.cells) == (images, 64 * images)


def test_a_stopped_job_shows_and_keeps_nothing(new_dog: str) -> None:
    request = Request(new_dog, model=SMALL, layer="stages.2")
    with runs.start(None) as run:
        steps = engine.find(request, Wanted(16), run)
        next(steps)
        run.stop()
        with pytest.raises(Refused, match="Stopped"):
            list(steps)
    assert found(request, 16).found.concepts.finished


@pytest.mark.usefixtures("blob_models")
def test_what_is_refused_says_why(blobs: str) -> None:
    for model in ("blobs_detection", "blobs_segmentation"):
        with pytest.raises(Refused, match="Choose a model that classifies images"):
            found(Request(blobs, model=model))
    with pytest.raises(Refused, match="image"):
        found(Request(None))
    wrong: list[Any] = [{"k": 5}, {"k": None}, {"k": 8, "files": ["/etc/passwd"]}]
    for data in wrong:
        with pytest.raises(Refused):
            engine.parse(data)
    for index, factor in ((4, 0.0), (-1, 0.0), (0, 2.1), (0, float("nan"))):
        with pytest.raises(Refused, match="not valid"):
            steps_of(engine.scale, Request(DOG, MEDIUM, layer="head"), Wanted(4), index, factor)
