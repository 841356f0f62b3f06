"""Networks that are changed between two calls: layers and maps are those of a copy that was never profiled.

A snapshot of a network is used only while nothing about it has changed but the values of its weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, avg_pool2d, conv2d, grid_sample

from explainers import default_layer, explain, grad_cam, list_layers
from tests.support.nets import random_images, settle

IMAGES = random_images(2, height=16, width=16)


class Patches(nn.Module):
    """Tokens whose forward depends on attributes of several kinds, of an image that it moves by tensors' values."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, 8, 4, stride=4), nn.LayerNorm(8)
        self.position = nn.Parameter(torch.zeros(1, 1, 8))
        self.blocks = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.mix, self.fc = nn.Linear(8, 8), nn.Linear(8, 3)
        self.depth, self.scale, self.options = 1, 1.0, {"pool": [1, 1]}
        self.config = SimpleNamespace(inner=SimpleNamespace(class_token=False))
        self.theta = nn.Parameter(torch.zeros(2, 3))
        self.register_buffer("columns", torch.arange(16))
        self.register_buffer("shift", torch.zeros(1, dtype=torch.long))
        settle(self.double())
        self.eval()
        self.theta.data.copy_(torch.eye(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        grid = affine_grid(self.theta.expand(len(x), 2, 3), list(x.shape), align_corners=False)
        x = grid_sample(x, grid, align_corners=False)[..., self.columns].roll(
            0 if self.shift is None else int(self.shift), 2
        )
        x = avg_pool2d(self.patch(x) * self.scale, self.options["pool"])
        for block in self.blocks[: self.depth]:
            x = block(x)
        x = x.flatten(2).transpose(1, 2) + self.position
        if self.config.inner.class_token:
            x = torch.cat([x.mean(1, keepdim=True), x], 1)
        return self.fc(self.mix(self.norm(x)).mean(1))


class Counting(Patches):
    """It changes in every call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


def method_of_the_class(net: Any) -> None:
    original = Patches.forward
    net.__class__ = type("Patched", (Patches,), {"forward": original})
    grad_cam(net, IMAGES, 1)
    type(net).forward = lambda self, x: original(self, x.flip(-1))


class Halved(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return avg_pool2d(super().forward(input), 2)


def halve(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return avg_pool2d(output, 2)


def inference_weight(net: Patches) -> None:
    with torch.inference_mode():
        net.mix.weight = nn.Parameter(torch.ones(8, 8, dtype=torch.float64))


def fewer_scores(net: Patches) -> None:
    for tensor in (net.fc.weight, net.fc.bias):
        tensor.data = tensor.data[:2]


def set_to(name: str, value: Any) -> Callable[[Patches], Any]:
    """The change of an attribute of a module, such as "patch.stride"."""
    path, _, attribute = name.rpartition(".")
    return lambda net: setattr(net.get_submodule(path), attribute, value)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "tuple": set_to("patch.stride", (2, 2)),
    "more blocks, the same grid": set_to("depth", 3),
    "number": set_to("scale", 2.0),
    "nested configuration": lambda net: setattr(net.config.inner, "class_token", True),
    "list in a dict": lambda net: net.options["pool"].__setitem__(0, 2),
    "mode": lambda net: net.norm.train(not net.norm.training),
    "kernel": lambda net: setattr(net.patch, "weight", nn.Parameter(net.patch.weight[:, :, :2].detach().clone())),
    "shape of the data": fewer_scores,
    "no bias": set_to("patch.bias", None),
    "no buffer": set_to("shift", None),
    "inference mode": inference_weight,
    "layer": set_to("norm", nn.Identity()),
    "new layer": lambda net: net.blocks.insert(0, nn.AvgPool2d(2)),
    "order of layers": lambda net: net.blocks._modules.update({"0": net.blocks._modules.pop("0")}),
    "name of a layer": lambda net: net._modules.update(first=net._modules["patch"]),
    "forward": lambda net: setattr(
        net.patch, "forward", lambda x: conv2d(x, net.patch.weight, net.patch.bias, stride=3)
    ),
    "class": lambda net: setattr(net.patch, "__class__", Halved),
    "compiled": lambda net: net.mix.compile(backend="eager"),
    "backward hook": lambda net: net.mix.register_full_backward_hook(lambda module, *given: (2 * given[0][0],)),
    "method of the class": method_of_the_class,
    "hook": lambda net: net.patch.register_forward_hook(halve),
    # The grid stays the same, so only the positions show the change.
    "warp": lambda net: net.theta.data[0, 0].fill_(0.5),
    "mirror": lambda net: net.columns.copy_(net.columns.flip(0)),
    "move": lambda net: net.shift.fill_(8),
}


def seen(net: nn.Module) -> tuple[list[Any], list[Tensor]]:
    """The layers and the default layer; maps at the default layer and at another one."""
    found = explain("grad_cam", net, IMAGES, 1)
    names = [list_layers(net, IMAGES), default_layer(net, IMAGES), found.layer]
    return names, [found.raw, grad_cam(net, IMAGES, 1, layer="norm")]


@pytest.mark.parametrize("change", CHANGES)
def test_layers_and_maps_after_a_change(change):
    for kind, training in ((Patches, False), (Counting, True)):
        net = kind().train(training)
        seen(net)
        CHANGES[change](net)
        (names, maps), (expected, right) = seen(net), seen(copy.deepcopy(net))
        assert names == expected
        torch.testing.assert_close(maps, right)
