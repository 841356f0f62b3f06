"""A snapshot of a network is used only while nothing about it has changed; then nothing else is read again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explainers import grad_cam
from explainers.network.eval_view import eval_view
from explainers.network.state.snapshot import Snapshot, snapshots
from tests.support.nets import random_images


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=1), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 3)
        self.power, self.sides, self.settings = 1.0, [1, 2], {"scale": 1.0}

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Other(nn.ReLU):
    pass


def network() -> tuple[Net, Snapshot]:
    net = Net().eval()
    eval_view(net)
    known = snapshots.get(net)
    assert known is not None and known.modules() is not None and set(known.modules()) == set(net.modules())
    return net, known


def inference_weight(net: Net) -> None:
    with torch.inference_mode():
        net.head.weight = nn.Parameter(torch.zeros(3, 4))


CHANGES: dict[str, Callable[[Net], Any]] = {
    "mode": lambda net: net.body[1].train(),
    "number": lambda net: setattr(net, "power", 2.0),
    "tuple": lambda net: setattr(net.body[0], "stride", (2, 2)),
    "list in place": lambda net: net.sides.append(3),
    "dictionary in place": lambda net: net.settings.update(scale=2.0),
    "new attribute": lambda net: setattr(net, "extra", 1),
    "another attribute": lambda net: (delattr(net, "power"), setattr(net, "strength", 1.0)),
    "several values for one": lambda net: setattr(net, "power", torch.ones(2)),
    "new layer": lambda net: net.body.append(nn.ReLU()),
    "replaced layer": lambda net: net.body.__setitem__(2, nn.ReLU()),
    "order of layers": lambda net: net.body._modules.update({"0": net.body._modules.pop("0")}),
    "name of a layer": lambda net: net._modules.update(tail=net._modules.pop("head")),
    "class": lambda net: setattr(net.body[2], "__class__", Other),
    "forward": lambda net: setattr(net.body, "forward", lambda x: x),
    "compiled": lambda net: net.body.compile(),
    "backward hook": lambda net: net.body.register_full_backward_hook(lambda *_: None),
    "backward pre-hook": lambda net: net.body.register_full_backward_pre_hook(lambda *_: None),
    "shape": lambda net: setattr(net.head, "weight", nn.Parameter(torch.zeros(2, 4))),
    "shape of the data": lambda net: setattr(net.head.weight, "data", net.head.weight.data[:2]),
    "no bias": lambda net: setattr(net.head, "bias", None),
    "new buffer": lambda net: net.register_buffer("offset", torch.zeros(1)),
    "no running mean": lambda net: setattr(net.body[1], "running_mean", None),
    "inference mode": inference_weight,
}


def test_every_change_is_noticed_but_that_of_weights_and_forward_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, change in CHANGES.items():
        net, known = network()
        change(net)
        assert known.modules() is None, kind

    net, known = network()
    net.head.weight.data.mul_(2)
    net.body[0].requires_grad_(False)
    net.body.register_forward_hook(lambda *_: None)
    assert known.modules() is not None and eval_view(net).memo is known.memo

    monkeypatch.setattr(Net, "forward", lambda self, x: self.head(self.body(x).amax((2, 3))))
    assert known.modules() is None, "a new forward of the class"


def test_a_snapshot_does_not_keep_the_network() -> None:
    net, _ = network()
    grad_cam(net, random_images(1).float(), 1)
    gone = weakref.ref(net), weakref.ref(net.head.weight)
    del net
    gc.collect()
    assert [each() for each in gone] == [None, None]
