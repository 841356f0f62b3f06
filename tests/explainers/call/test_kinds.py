"""Unusual networks: each image has the map of a new network that only sees this image, or the call is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from explainers import METHODS, ExplainerError, Through, explain
from tests.support.calls import call
from tests.support.deciding_nets import Conv, lights
from tests.support.kinds import KINDS, Applied, Kind, normalize, normalize_in_place
from tests.support.traces import nothing_left

FAMILIES = ("saliency", "integrated_gradients", "smooth_grad", "grad_cam", "ablation_cam", "rise", "lrp")
"""A method of each family: one gradient, a path, noise, a layer, changes at a layer, masks and rules."""
OTHERS = [name for name, each in METHODS.items() if name not in FAMILIES and not (each.needs and each.needs(Conv()))]
DIFFERENT = ("experts", "sorted", "mean", "dropout", "buffer in place", "modified input", "squeezed scores")
DIFFERENT = (*DIFFERENT, "scores in float64", "checkpoints", "reentrant checkpoints", "modified input, row by row")
"""Kinds that run in different ways."""
SMALL = {"samples": 4, "steps": 4, "scales": 2}

Explained = list[tuple[Tensor, list[str]]] | str


def run(name: str, net: nn.Module, images: Tensor, target: list[int]) -> Explained:
    """Return the map and the codes of the findings of each image, or the error."""
    chosen = {key: value for key, value in SMALL.items() if key in METHODS[name].options}
    try:
        found = explain(name, net, images, target, compare=False, **chosen)
    except ExplainerError as error:
        return str(error)
    return [(map, [finding.code for finding in row]) for map, row in zip(found.map, found.findings, strict=True)]


def same(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).norm() <= 1e-4 * expected.norm() + 1e-9)


def check(kind: Kind, name: str) -> None:
    images = kind.images
    numbers = range(len(images))
    alone = [run(name, kind.make(), images[n : n + 1], [n + 1]) for n in numbers]
    net = kind.make()
    with nothing_left(net, images):
        both = run(name, net, images, [n + 1 for n in numbers])
        later = run(name, net, images[:1], [1])
    for n in numbers:
        if isinstance(alone[n], str):
            assert (n > 0 or later == alone[n]) and isinstance(both, str), name
            continue
        map, codes = alone[n][0]
        assert n > 0 or same(later[0][0], map), name
        if isinstance(both, str):
            assert kind.code == "decides_by_image", f"{name} is refused: {both}"
        else:
            assert same(both[n][0], map), name
        if kind.code:
            assert isinstance(both, str) or kind.code in both[n][1], name
            assert kind.code in codes or kind.code == "rows_depend", "one image has no other rows"
        if kind.code == "decides_by_image":
            assert (n > 0 or later[0][1] == codes) and (isinstance(both, str) or both[n][1] == codes), name
        if kind.plain and n == 0:
            assert same(map, run(name, kind.plain(), images[n : n + 1], [n + 1])[0][0]), name


@pytest.mark.parametrize("kind", KINDS)
def test_maps_depend_neither_on_the_batch_nor_on_earlier_calls(kind: str) -> None:
    for name in FAMILIES if kind in DIFFERENT else ("integrated_gradients", "grad_cam", "rise"):
        check(KINDS[kind], name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_all_methods_treat_each_kind_alike(name: str) -> None:
    for kind in DIFFERENT:
        check(KINDS[kind], name)


@pytest.mark.parametrize("change", [torch.jit.script, lambda part: torch.jit.freeze(torch.jit.script(part))])
def test_a_network_with_a_scripted_part_has_the_maps_of_the_whole_one(change) -> None:
    """The compiled code is the user's own, also in the fused copy: its parameters stay as they are."""
    net = Conv()
    net.second = change(net.second)
    before = [(name, id(each), each.requires_grad) for name, each in net.named_parameters()]
    for name in ("saliency", "occlusion", "integrated_gradients", "grad_cam"):
        layer = {"layer": "first"} if METHODS[name].takes_layer else {}
        torch.testing.assert_close(call(name, net, lights(), 1, **layer), call(name, Conv(), lights(), 1, **layer))
    assert [(name, id(each), each.requires_grad) for name, each in net.named_parameters()] == before


class Bypassed(Conv):
    """The features are multiplied by a channel of the image: a path around all layers."""

    def __init__(self, change) -> None:
        super().__init__()
        self.change = [change]

    def forward(self, x: Tensor) -> Tensor:
        x = self.change[0](x)
        return self.head((self.second(self.first(x).relu()) * x[:, :1, ::4, ::4]).mean((2, 3)))


@pytest.mark.sample
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.gradients])
def test_a_network_may_modify_its_image_also_around_a_layer_or_behind_chosen_channels(name: str) -> None:
    """Each point of a path and each pass to the channels runs the network on the same image."""
    paths = name in ("layer_integrated_gradients", "layer_conductance", "internal_influence")
    for make, target in ((Applied, Through([1, 3], "second", [1, 2, 3])), *[(Bypassed, 1)] * paths):
        found = []
        for change in (normalize_in_place, normalize):
            try:
                found.append(call(name, make(change), lights(), target, **({"layer": "second"} if paths else {})))
            except ExplainerError as error:
                found.append(str(error))
        assert found[0] == found[1] if isinstance(found[1], str) else torch.allclose(*found, rtol=1e-4, atol=1e-6)
