"""Wrong uses of experiments and of what a layer represents are refused without side effects."""

from __future__ import annotations

from typing import Any

import torch

import explainers
from explainers import BadImages, BadOption, BadTarget, LayerNotFound
from explainers.concepts.names import name_units
from tests.explainers.contract.test_wrong_uses import INF, NAN, Counting, Row, check, zeros
from tests.support.nets import Twice, plain, random_images, settle
from tests.support.traces import nothing_left

MAPS = torch.rand(3, 4, 4)
TWICE = settle(Twice().double())


def intervened(error: str, **changed: Any) -> Row:
    """An intervention on a layer with 6 channels and a grid of 12 x 16."""
    return lambda n, x: explainers.intervene(n, x, **{"layer": "net.conv1", **changed}), BadOption, error


def erased(error: str, maps: Any = MAPS, **changed: Any) -> Row:
    return lambda n, x: explainers.smallest_region(n, x, maps, **changed), BadOption, error


def traced(error: str, image: int | slice = slice(0, 1), kind: type[Exception] = BadOption, **changed: Any) -> Row:
    given = {"layer": "net.conv1", "channel": 0, "cell": (0, 0)} | changed
    return lambda n, x: explainers.trace_value(n, x[image], **given), kind, error


def compared(error: str, kind: type[Exception] = BadOption, **changed: Any) -> Row:
    return lambda n, x: explainers.compare_models(n, **{"model_b": n, "images": x, **changed}), kind, error


def indexed(error: str, kind: type[Exception] = BadOption, **changed: Any) -> Row:
    return lambda n, x: explainers.index_units(n, **{"images": x, "layers": "net.conv1", **changed}), kind, error


def named(error: str, values: Any, labels: Any = ("cat",) * 3, kind: type[Exception] = BadOption, **other: Any) -> Row:
    return lambda n, x: name_units(values, labels, **other), kind, error


def visualized(error: str, target: Any = 1, kind: type[Exception] = BadOption, **changed: Any) -> Row:
    given = {"mean": 0.4, "std": 0.3, "size": (12, 16), "steps": 6} | changed
    return lambda n, x: explainers.feature_visualization(n, target, **given), kind, error


EXPERIMENTS: list[Row] = [
    intervened("Channel 6 does not exist: layer 'net.conv1' has channels 0 to 5", channels=6),
    intervened("channels is empty", channels=[]),
    intervened("cells is empty", cells=[]),
    intervened(r"the layer has a grid of \(12, 16\)", cells=torch.ones(5, 8, dtype=torch.bool)),
    intervened("does not exist", cells=[(0, -1)]),
    intervened("Cell 3 does not exist", cells=[3]),
    intervened("value=nan", value=NAN),
    intervened("value=True", value=True),
    intervened("does not broadcast", value=torch.zeros(5, 1, 1)),
    intervened("not finite", value=torch.full((1, 1, 1), INF)),
    intervened("must return a tensor of the same shape", value=lambda a: a[:, :1]),
    intervened("The function returned an int", value=lambda a: 3),
    intervened("Resize them to the same size", value=explainers.Swap(zeros(1, 3, 5, 5))),
    intervened("Give one, or one for each", value=explainers.Swap(zeros(2, 3, 12, 16))),
    intervened("finite floating-point", value=explainers.Swap(torch.zeros(1, 3, 12, 16, dtype=torch.uint8))),
    intervened("score='soft'", score="soft"),
    *((lambda n, x, make=make: make(), BadOption, "") for make in (  # type: ignore[misc]
        explainers.Clamp, lambda: explainers.Clamp(2, 1), lambda: explainers.Scale(INF),
        lambda: explainers.AddNoise(-1), lambda: explainers.Swap(3),
    )),
    (lambda n, x: explainers.patch_effects(n, x, zeros(1, 3, 5, 5), layer="net.conv1"), BadOption, "Resize them"),
    (lambda n, x: explainers.patch_effects(n, x, x, layer="net.head"), explainers.NoSpatialOutput, "head"),
    (lambda n, x: explainers.intervene(n, x, "net.conv"), LayerNotFound, "Did you mean .*'net.conv1'"),
    (lambda n, x: explainers.intervene(TWICE, x, "relu"), explainers.LayerRanRepeatedly, "Name the"),
    erased("constant", torch.ones(3, 4, 4)),
    erased("not finite", torch.full((3, 4, 4), NAN)),
    *(erased("one map", maps) for maps in (torch.rand(4, 4, 4), torch.rand(3, 3, 4, 4), 1.5)),
    erased("Unknown method 'map'", "map"),
    erased("goal='remove'", goal="remove"),
    erased("baseline", baseline="sharpen"),
    erased("needs probabilities", goal="half", score="logit"),
    traced("channel=6 does not exist: layer 'net.conv1' has channels 0 to 5", channel=6),
    traced(r"has a grid of \(12, 16\)", cell=(12, 0)),
    traced("Cell 3 does not exist", cell=3),
    traced("head", kind=explainers.NoSpatialOutput, layer="net.head"),
    traced("Give one image", slice(0, 2), BadImages),
    compared("has 3 images and images_b has 2", BadImages, images_b=random_images(2)),
    compared("7 and 3 classes", BadTarget, model_b=plain(classes=3)),
    compared("does not return maps", method="channel_effects"),
    compared("tolerance=-1", tolerance=-1),
    indexed("no image", BadImages, images=[]),
    indexed("tensor", explainers.WrongType, images="photos"),
    indexed("shape", BadImages, images=torch.zeros(2, 3, 12)),
    indexed("one size", BadImages, images=[zeros(1, 3, 8, 8), zeros(1, 3, 9, 8)]),
    indexed("positions", BadImages, images=[(zeros(2, 3, 8, 8), [1])]),
    indexed("layers", explainers.WrongType, layers=[]),
    indexed("net.conv1", LayerNotFound, layers="net.conv9"),
    indexed("head", explainers.NoSpatialOutput, layers="net.head"),
    indexed("top=0", top=0),
    indexed("cat", effects="cat"),
    indexed("effects", effects=[1, 2]),
    indexed("tops", tops=3),
    named("activations", [[1.0]], ["cat"], explainers.WrongType),
    named("activations", torch.zeros(3)),
    named("finite", torch.full((3, 1), NAN)),
    named("3 images", torch.zeros(3, 1), ["cat"] * 2),
    named("labels", torch.zeros(3, 1), "cat"),
    named("held_out", torch.zeros(3, 1), held_out=[True]),
    named("least=85", torch.zeros(3, 1), least=85),
    named("top=0", torch.zeros(3, 1), top=0),
    *(visualized("", **{name: value}) for name, value in (  # type: ignore[arg-type]
        ("image", "pixels"), ("size", (4, 4)), ("images", 0), ("steps", 0), ("std", 0.0), ("mean", [0.1]),
        ("diversity", -1), ("seed", -1),
    )),
    visualized("", image="maco", natural_images=torch.zeros(2, 3, 9, 9)),
    visualized("", None, BadTarget),
    visualized("", explainers.Direction("net.conv1", torch.ones(99)), BadTarget),
]  # fmt: skip


def test_wrong_uses_are_refused() -> None:
    for row in EXPERIMENTS:
        net, images = Counting().eval(), random_images()
        with nothing_left(net, images):
            check(row, net, images)
