"""Networks that are changed between two calls: layers and maps are those of a copy that was never profiled."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explainers import default_layer, explain, grad_cam, list_layers
from tests.support.nets import random_images, residual, settle


class Patches(nn.Module):
    """A network of tokens whose forward depends on attributes of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, 8, 4, stride=4), nn.LayerNorm(8)
        self.position = nn.Parameter(torch.zeros(1, 1, 8))
        self.blocks = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.mix, self.fc = nn.Linear(8, 8), nn.Linear(8, 3)
        self.depth, self.calls, self.options = 1, 0, {"pool": [1, 1]}
        self.config = SimpleNamespace(inner=SimpleNamespace(class_token=False))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = nn.functional.avg_pool2d(self.patch(x), self.options["pool"])
        for block in self.blocks[: self.depth]:
            x = block(x)
        x = x.flatten(2).transpose(1, 2) + self.position
        if self.config.inner.class_token:
            x = torch.cat([x.mean(1, keepdim=True), x], 1)
        return self.fc(self.mix(self.norm(x)).mean(1))


def rebound_forward(net: Patches) -> None:
    net.patch.forward = lambda x: nn.functional.conv2d(x, net.patch.weight, net.patch.bias, stride=3)


def hook_that_changes_the_grid(net: Patches) -> None:
    net.patch.register_forward_hook(lambda module, inputs, output: nn.functional.avg_pool2d(output, 2))


class Halved(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(super().forward(input), 2)


CHANGES: dict[str, Callable[[Patches], Any]] = {
    "stride": lambda net: setattr(net.patch, "stride", (2, 2)),
    "one side": lambda net: setattr(net.patch, "stride", (2, 4)),
    "more blocks, the same grid": lambda net: setattr(net, "depth", 3),
    "nested configuration": lambda net: setattr(net.config.inner, "class_token", True),
    "list in a dict": lambda net: net.options["pool"].__setitem__(0, 2),
    "kernel": lambda net: setattr(net.patch, "weight", nn.Parameter(net.patch.weight[:, :, :2].detach().clone())),
    "layer": lambda net: setattr(net, "norm", nn.Identity()),
    "last layer": lambda net: setattr(net, "mix", nn.Identity()),
    "forward": rebound_forward,
    "hook": hook_that_changes_the_grid,
    "class": lambda net: setattr(net.patch, "__class__", Halved),
}


def seen(net: nn.Module, images: Tensor) -> tuple[list[Any], list[Tensor]]:
    """The layers and the default layer; maps at the default layer and at another one."""
    found = explain("grad_cam", net, images, 1)
    names = [list_layers(net, images), default_layer(net, images), found.layer]
    return names, [found.raw, grad_cam(net, images, 1, layer="norm")]


@pytest.mark.parametrize("change", CHANGES)
def test_layers_and_maps_after_a_change(change):
    for training in (False, True):
        net, images = settle(Patches()).double().train(training), random_images(2, height=16, width=16)
        seen(net, images)

        CHANGES[change](net)

        (names, maps), (expected, right) = seen(net, images), seen(copy.deepcopy(net), images)
        assert names == expected
        torch.testing.assert_close(maps, right)


class Moved(nn.Module):
    """Moves its image by the values of a parameter and of two buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.eye(2, 3))
        self.register_buffer("columns", torch.arange(16))
        self.register_buffer("shift", torch.zeros(1, dtype=torch.long))
        self.conv, self.fc = nn.Conv2d(3, 8, 3, 2, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        grid = nn.functional.affine_grid(self.theta.expand(len(x), 2, 3), list(x.shape), align_corners=False)
        x = nn.functional.grid_sample(x, grid, align_corners=False)[..., self.columns].roll(int(self.shift), 2)
        return self.fc(self.conv(x).relu().mean((2, 3)))


def method_of_the_class(net: Any) -> None:
    original = type(net).forward
    net.__class__ = type("Patched", (Moved,), {"forward": original})
    explain("grad_cam", net, random_images(1, height=16, width=16), 1)
    type(net).forward = lambda self, x: original(self, x.flip(-1))


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.theta.data[0, 0].fill_(0.5),
        lambda net: net.columns.copy_(net.columns.flip(0)),
        lambda net: net.shift.fill_(6),
        method_of_the_class,
    ],
    ids=["warp", "mirror", "move", "method of the class"],
)
def test_maps_after_a_change_of_positions(change):
    """The grid stays the same, so only the positions show the change."""
    net, images = settle(Moved()).double().eval(), random_images(1, height=16, width=16)
    net.theta.data.copy_(torch.eye(2, 3))
    grad_cam(net, images, 1)
    change(net)
    torch.testing.assert_close(grad_cam(net, images, 1), grad_cam(copy.deepcopy(net), images, 1))


def test_a_module_that_takes_the_address_of_an_earlier_one():
    """Ids of modules are used again after they are freed."""
    net, images = residual(), random_images()
    net.layer2 = nn.Sequential(nn.AvgPool2d(2), net.layer2)
    list_layers(net, images)
    freed = id(net.layer2[0])
    for _ in range(100):
        net.layer2[0] = nn.Identity()
        gc.collect()
        net.layer2[0] = nn.AvgPool2d(4)
        if id(net.layer2[0]) == freed:
            break
    assert list_layers(net, images) == list_layers(copy.deepcopy(net), images)
