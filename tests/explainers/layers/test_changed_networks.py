"""Networks that are changed between two calls: layers and maps are those of a copy that was never profiled."""

from __future__ import annotations

import copy
import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explainers import METHODS, default_layer, explain, grad_cam, list_layers
from explainers.layers import profile
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


def stride(net: Patches) -> None:
    net.patch.stride = (2, 2)


def one_side(net: Patches) -> None:
    net.patch.stride = (2, 4)


def more_blocks(net: Patches) -> None:
    net.depth = 3  # the grid stays the same


def fewer_blocks(net: Patches) -> None:
    net.depth = 0


def nested_configuration(net: Patches) -> None:
    net.config.inner.class_token = True


def list_in_a_dict(net: Patches) -> None:
    net.options["pool"][0] = 2


def new_kernel(net: Patches) -> None:
    net.patch.weight = nn.Parameter(net.patch.weight[:, :, :2].detach().clone())


def replaced_layer(net: Patches) -> None:
    net.norm = nn.Identity()


def replaced_last_layer(net: Patches) -> None:
    net.mix = nn.Identity()


def rebound_forward(net: Patches) -> None:
    net.patch.forward = lambda x: nn.functional.conv2d(x, net.patch.weight, net.patch.bias, stride=3)


def hook_that_changes_the_grid(net: Patches) -> None:
    net.patch.register_forward_hook(lambda module, inputs, output: nn.functional.avg_pool2d(output, 2))


def class_of_a_module(net: Patches) -> None:
    class Halved(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            return nn.functional.avg_pool2d(super().forward(input), 2)

    net.patch.__class__ = Halved


CHANGES = (
    stride,
    one_side,
    more_blocks,
    fewer_blocks,
    nested_configuration,
    list_in_a_dict,
    new_kernel,
    replaced_layer,
    replaced_last_layer,
    rebound_forward,
    hook_that_changes_the_grid,
    class_of_a_module,
)


def seen(net: nn.Module, images: Tensor) -> list[Any]:
    layers = list_layers(net, images)
    explanation = explain("grad_cam", net, images, 1)
    return [
        layers,
        default_layer(net, images),
        explanation.layer,
        *explanation.raw,
        *grad_cam(net, images, 1, layer="norm"),
    ]


def never_profiled(net: nn.Module) -> nn.Module:
    return copy.deepcopy(net)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_layers_and_maps_after_a_change(change, training):
    net, images = settle(Patches()).double().train(training), random_images(2, height=16, width=16)
    seen(net, images)

    change(net)

    for found, right in zip(seen(net, images), seen(never_profiled(net), images), strict=True):
        if isinstance(right, Tensor):
            torch.testing.assert_close(found, right)
        else:
            assert found == right


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


def warp(net: Any) -> None:
    net.theta.data[0, 0] = 0.5


def mirror(net: Any) -> None:
    net.columns.copy_(net.columns.flip(0))


def move(net: Any) -> None:
    net.shift.fill_(6)


def method_of_the_class(net: Any) -> None:
    original = type(net).forward
    net.__class__ = type("Patched", (Moved,), {"forward": original})
    explain("grad_cam", net, random_images(1, height=16, width=16), 1)
    type(net).forward = lambda self, x: original(self, x.flip(-1))


@pytest.mark.parametrize("change", [warp, mirror, move, method_of_the_class])
def test_maps_after_a_change_of_positions(change):
    """The grid stays the same, so only the positions show the change."""
    net, images = settle(Moved()).double().eval(), random_images(1, height=16, width=16)
    net.theta.data.copy_(torch.eye(2, 3))
    grad_cam(net, images, 1)
    change(net)
    torch.testing.assert_close(grad_cam(net, images, 1), grad_cam(never_profiled(net), images, 1))


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
    assert list_layers(net, images) == list_layers(never_profiled(net), images)


def test_the_profile_is_computed_once_and_counters_do_not_invalidate_it_forever(monkeypatch):
    traces: list[Any] = []
    trace = profile._trace
    monkeypatch.setattr(profile, "_trace", lambda *args: traces.append(args) or trace(*args))
    net, images = residual(), random_images()

    for name in METHODS:
        if METHODS[name].takes_layer and not METHODS[name].long and METHODS[name].applies(net) is None:
            explain(name, net, images)
    assert len(traces) == 1

    net, traces[:] = settle(Patches()).double().eval(), []
    for _ in range(8):
        grad_cam(net, images, 1)
    assert len(traces) <= 4
    net.depth = 3
    assert default_layer(net, images) == default_layer(never_profiled(net), images)
    net.patch.stride = (2, 2)
    assert grad_cam(net, images, 1).shape == grad_cam(never_profiled(net), images, 1).shape
