"""A snapshot of a network is used only while nothing about it has changed; then nothing else is read again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explainers import default_layer, grad_cam, list_layers, saliency
from explainers.network.eval_view import eval_view
from explainers.network.state.snapshot import snapshots
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


def network() -> Net:
    torch.manual_seed(0)
    net = Net().eval()
    eval_view(net)
    known = snapshots.get(net)
    assert known is not None and known.modules() == [*breadth_first(net)]
    return net


def breadth_first(net: nn.Module) -> list[nn.Module]:
    found = [net]
    for module in found:
        found += module.children()
    return found


def without_running_mean(net: Net) -> None:
    net.body[1].running_mean = None


def inference_weight(net: Net) -> None:
    with torch.inference_mode():
        net.head.weight = nn.Parameter(torch.zeros(3, 4))


def sliced_data(net: Net) -> None:
    net.head.weight.data = net.head.weight.data[:2]


def other_forward(net: Net) -> None:
    net.body.forward = lambda x: x  # type: ignore[method-assign]


def in_another_order(net: Net) -> None:
    net.body._modules["1"], net.body._modules["0"] = net.body._modules["0"], net.body._modules["1"]


def renamed(net: Net) -> None:
    net._modules["tail"] = net._modules.pop("head")


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
    "order of layers": in_another_order,
    "name of a layer": renamed,
    "class": lambda net: setattr(net.body[2], "__class__", Other),
    "forward": other_forward,
    "compiled": lambda net: net.body.compile(),
    "backward hook": lambda net: net.body.register_full_backward_hook(lambda *_: None),
    "backward pre-hook": lambda net: net.body.register_full_backward_pre_hook(lambda *_: None),
    "shape": lambda net: setattr(net.head, "weight", nn.Parameter(torch.zeros(2, 4))),
    "shape of the data": sliced_data,
    "no bias": lambda net: setattr(net.head, "bias", None),
    "new buffer": lambda net: net.register_buffer("offset", torch.zeros(1)),
    "no running mean": without_running_mean,
    "inference mode": inference_weight,
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed(change: str) -> None:
    net = network()
    known = snapshots.get(net)
    assert known is not None
    CHANGES[change](net)
    assert known.modules() is None


def test_a_new_forward_of_a_class_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    known = snapshots.get(net)
    assert known is not None
    monkeypatch.setattr(Net, "forward", lambda self, x: self.head(self.body(x).amax((2, 3))))
    assert known.modules() is None


def test_weights_and_forward_hooks_do_not_matter() -> None:
    net = network()
    known = snapshots.get(net)
    assert known is not None
    net.head.weight.data.mul_(2)
    net.body[0].requires_grad_(False)
    net.body.register_forward_hook(lambda *_: None)
    assert known.modules() == breadth_first(net)
    assert eval_view(net).memo is known.memo


def test_a_changed_stride_changes_the_map_and_the_layers() -> None:
    net, images = network(), random_images(1).float()
    before = grad_cam(net, images, 1, layer="body").shape
    assert before == grad_cam(net, images, 1, layer="body").shape
    net.body[0].stride = (2, 2)
    after = grad_cam(net, images, 1, layer="body").shape
    layers = {layer.name: layer for layer in list_layers(net, images)}
    assert after[1:] == layers["body"].grid != before[1:] and default_layer(net, images) == "body"


def test_a_network_in_training_mode_still_runs_as_a_copy() -> None:
    net, images = network(), random_images(2).float()
    expected = saliency(net, images, 1)
    for mode in (True, False, True):
        net.train(mode)
        assert torch.equal(saliency(net, images, 1), expected)
        assert net.training == mode and (eval_view(net).network is net) != mode


def test_a_snapshot_does_not_keep_the_network() -> None:
    net = network()
    grad_cam(net, random_images(1).float(), 1)
    gone = weakref.ref(net), weakref.ref(net.head.weight)
    del net
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_a_network_that_changes_in_every_call_gets_few_snapshots() -> None:
    net = network()
    taken = set()
    for power in range(30):
        net.power = power
        eval_view(net)
        taken.add(id(snapshots.get(net)))
    assert len(taken) < 10
