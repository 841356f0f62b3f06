"""The test helper itself: each kind of side effect is detected."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from tests.support.nets import random_images, residual
from tests.support.traces import Marker, differences, graphs_alive, snapshot, tensors_alive


@pytest.mark.parametrize(
    "leave",
    [
        lambda net, x: net.layer2.register_forward_hook(lambda *a: None),
        lambda net, x: net.layer2.register_forward_pre_hook(lambda *a: None),
        lambda net, x: net.layer2.register_full_backward_hook(lambda *a: None),
        lambda net, x: net.layer2.train(),
        lambda net, x: net.fc.weight.requires_grad_(False),
        lambda net, x: setattr(net.fc.weight, "grad", torch.ones_like(net.fc.weight)),
        lambda net, x: net.bn1.running_mean.add_(1e-9),
        lambda net, x: setattr(net.layer1, "activations", torch.zeros(1)),
        lambda net, x: setattr(net.layer1, "relu", torch.nn.ReLU()),
        lambda net, x: setattr(net.layer1.relu, "inplace", False),
        lambda net, x: x.requires_grad_(),
        lambda net, x: x.mul_(1),
        lambda net, x: torch.rand(1),
        lambda net, x: numpy.random.rand(),
        lambda net, x: random.random(),
    ],
)
def test_each_side_effect_is_detected(leave):
    net, x = residual(), random_images()
    before = snapshot(net, x)
    assert not differences(before, snapshot(net, x))

    leave(net, x)

    assert differences(before, snapshot(net, x))


def test_graphs_and_tensors_kept_alive_are_counted():
    kept = Marker()(torch.ones(2, requires_grad=True)).sum()
    assert graphs_alive() == 1
    del kept
    assert graphs_alive() == 0

    before = tensors_alive()
    kept = [torch.ones(1)]
    assert tensors_alive() == before + len(kept)
