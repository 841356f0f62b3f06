"""Two models on the same images: the numbers of the library, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import explainers
from saliscope import zoo
from saliscope.errors import Refused
from saliscope.images import examples
from saliscope.page.models import view
from saliscope.session import model_cache
from saliscope.session.models import engine, messages
from saliscope.session.request import Request
from tests.saliscope.session.asking import DOG, steps_of
from tests.support.catalog import isolate_catalog

LABELS = ["cat", "dog", "fox"]


def first(seed: int = 1, classes: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, classes)).eval()


def scaled(**factors: float) -> nn.Sequential:
    """Return the first network with the weights and biases of some layers multiplied."""
    network = first()
    for name, factor in factors.items():
        for weights in network[int(name[1:])].parameters():
            weights.data.mul_(factor)
    return network


def second() -> nn.Sequential:
    return scaled(_2=1.2)


def opposite() -> nn.Sequential:
    return scaled(_6=-1.0)


def blind() -> nn.Sequential:
    return scaled(_0=0.0, _2=0.0)


def four() -> nn.Sequential:
    return first(2, 4)


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
            NAMES[name] = zoo.add(f"{__name__}:{name}", labels=labels, mean=half, std=half, size=32)
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
    packed = view.compared(1, found)
    assert len(packed["rows"]) == len(paths) == 9 and packed["rows"][0]["name"] == messages.YOUR_IMAGE
    assert torch.equal(found.result.scores_b, expected.scores_b)
    assert torch.equal(found.result.similarity, expected.similarity) and not found.notes
    assert found.result.differences == expected.differences and found.result.first_difference == "2"
    start = "The first layer that differs is 2 (relative difference "
    assert packed["divergence"].startswith(f"{start}{expected.differences['2']:.2f}).")
    assert [row["same"] for row in packed["rows"]] == [n not in expected.changed for n in range(9)]
    assert [[cell["text"] for cell in row] for row in packed["similarity"]] == expected.similarity_texts
    above = int((expected.similarity_interval[..., 0] > 0).sum())
    assert packed["similarity_notes"][0].startswith(f"{above} of {expected.similarity.numel()} intervals are above 0")
    row = packed["rows"][0]
    assert [each["h"] for each in row["maps"]] == [len(expected.maps_a[0])] * 2 and len(row["crops"]) == 2
    assert row["correlation"] == f"{float(expected.map_correlations[0]):.2f}" and not row["unknown"]


def test_what_the_page_says_about_other_pairs() -> None:
    """Opposite scores change all predictions; a network whose first layer is zero has zero maps."""
    packed = view.compared(1, compare("opposite", image=None))
    changed = [row for row in packed["rows"] if not row["same"]]
    assert len(changed) == 9 and packed["text"].startswith("The predictions differ for 9 of 9 images.")
    assert all(row["a"].split(",")[0] != row["b"].split(",")[0] for row in changed)

    alone = view.compared(1, compare("same", with_examples=False))
    assert alone["text"].startswith("The predictions differ for 0 of 1 image. Rank correlation of Grad-CAM: 1.00.")
    assert alone["similarity"] is None and alone["similarity_notes"][1:] == ["Include the examples."]
    assert alone["similarity_notes"][0].startswith("Not tested: needs at least 8 different images; given: 1.")
    assert alone["divergence"].startswith("The outputs of all 7 layers are equal")

    packed = view.compared(1, compare("blind"))
    assert packed["text"].endswith("Maps of Grad-CAM were not compared: the map of B is zero everywhere.")
    assert {row["correlation"] for row in packed["rows"]} == {"the map of B is zero everywhere"}
    (note,) = packed["similarity_notes"]
    assert packed["similarity"] is None and "the same output for all images" in note


def test_other_class_names_and_a_slow_method_are_noted_and_other_orders_refused() -> None:
    assert compare("renamed").notes[0].startswith("1 of 3 classes have different names")
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
