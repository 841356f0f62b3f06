"""Two models on the same images: the numbers of the library, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from PIL import Image

import explainers
from saliscope import zoo
from saliscope.errors import Refused
from saliscope.images import examples
from saliscope.page.models import view
from saliscope.session import model_cache
from saliscope.session.jobs.runs import Run
from saliscope.session.models import engine, messages
from saliscope.session.request import Request
from tests.saliscope.session.asking import DOG
from tests.support.catalog import isolate_catalog

LABELS = ["cat", "dog", "fox"]
NETWORKS = """
import torch
from torch import nn

def first(seed=1, classes=3):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, classes)).eval()

def second():
    network = first()
    network[2].weight.data.mul_(1.2)
    return network

def third():
    network = first()
    network[6].weight.data.neg_()
    network[6].bias.data.neg_()
    return network

def blind():
    network = first()
    network[0].weight.data.zero_()
    network[0].bias.data.zero_()
    network[2].weight.data.zero_()
    network[2].bias.data.zero_()
    return network

def same():
    return first()

def shuffled():
    return first()

def renamed():
    return first()

def four():
    return first(2, 4)
"""
"""Networks of one architecture: the second and third differ from the first in one layer."""


@pytest.fixture(scope="module", autouse=True)
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Offer the networks; returns their public names."""
    folder = tmp_path_factory.mktemp("networks")
    (folder / "two.py").write_text(NETWORKS)
    labels = dict.fromkeys(["first", "second", "third", "blind", "same"], LABELS)
    labels |= {"shuffled": LABELS[::-1], "renamed": ["cat", "dog", "wolf"], "four": [*LABELS, "hen"]}
    model_cache.start("auto", 0.0)
    for _ in model_cache.wait():
        pass
    with pytest.MonkeyPatch.context() as patch:
        isolate_catalog(patch, folder)
        half = (0.5, 0.5, 0.5)
        for name, each in labels.items():
            NAMES[name] = zoo.add(f"{folder / 'two.py'}:{name}", labels=each, mean=half, std=half, size=32)
        yield NAMES


NAMES: dict[str, str] = {}


def compare(other: str, *, image: str | None = DOG, **options: Any) -> engine.Compared:
    steps = [*engine.compare(Request(image, model=NAMES["first"]), NAMES.get(other, other), Run(60.0), **options)]
    assert isinstance(steps[-1], engine.Compared)
    return steps[-1]


def test_the_numbers_are_those_of_the_library() -> None:
    """Oracle: `compare_models` on the same ten inputs; the middle convolution is the first that differs."""
    found = compare("second")
    a, b = (model_cache.load(NAMES[name]).model for name in ("first", "second"))
    paths = [DOG, *(str(each.path) for each in examples.all_examples().values() if str(each.path) != DOG)]
    images = torch.cat([a.prepare(Image.open(path)) for path in paths])
    expected = explainers.compare_models(a.network, b.network, images, method=found.method)
    packed = view.compared(1, found)

    assert len(packed["rows"]) == len(paths) == 9 and packed["rows"][0]["name"] == messages.YOUR_IMAGE
    assert torch.equal(found.result.scores_b, expected.scores_b)
    assert torch.equal(found.result.similarity, expected.similarity) and not found.notes
    assert found.result.differences == expected.differences and found.result.first_difference == "2"
    assert packed["divergence"].startswith("The first layer that differs is 2 (relative difference 0.15).")
    assert [row["same"] for row in packed["rows"]] == [n not in expected.changed for n in range(9)]
    assert [[cell["text"] for cell in row] for row in packed["similarity"]] == expected.similarity_texts
    above = int((expected.similarity_interval[..., 0] > 0).sum())
    assert packed["similarity_notes"][0].startswith(f"{above} of {expected.similarity.numel()} intervals are above 0")
    first = packed["rows"][0]
    assert [each["h"] for each in first["maps"]] == [len(expected.maps_a[0])] * 2 and len(first["crops"]) == 2
    assert first["correlation"] == f"{float(expected.map_correlations[0]):.2f}" and not first["unknown"]


def test_predictions_that_change_are_marked() -> None:
    """The opposite scores, so that no prediction is the same."""
    packed = view.compared(1, compare("third", image=None))
    changed = [row for row in packed["rows"] if not row["same"]]

    assert len(changed) == 9 and packed["text"].startswith("The predictions differ for 9 of 9 images.")
    assert all(row["a"].split(",")[0] != row["b"].split(",")[0] for row in changed)


def test_equal_models_and_single_images() -> None:
    alone = view.compared(1, compare("same", with_examples=False))

    assert alone["text"].startswith("The predictions differ for 0 of 1 image. Rank correlation of Grad-CAM: 1.00.")
    assert alone["similarity"] is None
    assert alone["similarity_notes"][0].startswith("Not tested: needs at least 8 different images; given: 1.")
    assert alone["similarity_notes"][1:] == ["Include the examples."]
    assert alone["divergence"].startswith("The outputs of all 7 layers are equal")


def test_maps_without_a_correlation_have_the_reason() -> None:
    """A network whose first layer is zero has zero maps: the page says so instead of a dash."""
    packed = view.compared(1, compare("blind"))
    assert packed["text"].endswith("Maps of Grad-CAM were not compared: the map of B is zero everywhere.")
    assert {row["correlation"] for row in packed["rows"]} == {"the map of B is zero everywhere"}
    assert packed["similarity"] is None and len(packed["similarity_notes"]) == 1
    assert "the same output for all images" in packed["similarity_notes"][0]


def test_other_class_names_are_noted_and_other_orders_refused() -> None:
    assert compare("renamed").notes[0].startswith("1 of 3 classes have different names")
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


def test_a_slow_method_is_replaced_with_a_note() -> None:
    request = Request(DOG, model=NAMES["first"], method="rise")
    found = [*engine.compare(request, NAMES["second"], Run(60.0), with_examples=False)][-1]
    assert isinstance(found, engine.Compared)

    assert found.method.name == "grad_cam" and "RISE is slow or does not explain both models" in found.notes[0]
