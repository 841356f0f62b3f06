"""Networks with scripted parts, functional transforms, inner gradients, unusual outputs: right, or refused with a
message."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import METHODS, BadOption, ExplainerError, grad_cam, occlusion, saliency
from tests.support.calls import small
from tests.support.nets import rel

METHOD_NAMES = (
    "saliency grad_cam score_cam occlusion deep_lift lrp cam shapley_cam ablation_cam integrated_gradients".split()
)


class Base(nn.Module):
    """Two convolutions and a linear head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 6, 3, 1, 1), nn.Linear(6, 5)
        self.eval()

    def features(self, x):
        return self.second(self.first(x).relu()).relu()

    def scores(self, maps):
        return self.head(maps.mean((2, 3)))

    def forward(self, x):
        return self.scores(self.features(x))


class Scripted(Base):
    def __init__(self):
        super().__init__()
        self.second = torch.jit.script(self.second)


class InnerGradient(Base):
    def forward(self, x):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.first(leaf).sum(), leaf)
        return super().forward(x * gradient.sign())


class Then(Base):
    """The network ends with a function of its maps."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(self, self.features(x))


NETS = {
    "scripted": Scripted,
    "inner gradient": InnerGradient,
    "quantile": lambda: Then(lambda net, maps: net.head(maps.flatten(2).quantile(0.9, dim=2))),
    "complex": lambda: Then(lambda net, maps: torch.complex(net.scores(maps), net.scores(maps))),
}


def images(count=2):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_unusual_code_is_explained_or_refused_in_words(make):
    for name in METHOD_NAMES:
        try:
            both = METHODS[name](make(), images(), 1, **small(name))
        except ExplainerError:
            continue
        alone = [METHODS[name](make(), images()[n : n + 1], 1, **small(name)) for n in range(2)]
        assert rel(both, torch.cat(alone)) < 1e-4, name


def test_a_network_with_scripted_parts_has_the_maps_of_the_whole_one():
    for freeze in (False, True):
        net = Scripted()
        net.second = torch.jit.freeze(net.second) if freeze else net.second
        for name in ("saliency", "occlusion", "integrated_gradients"):
            assert rel(METHODS[name](net, images(), 1), METHODS[name](Base(), images(), 1)) < 1e-4
        assert rel(grad_cam(net, images(), 1, layer="first"), grad_cam(Base(), images(), 1, layer="first")) < 1e-4


def added():
    """An operation that refuses tensors of two types, as in bfloat16."""
    return Then(lambda net, maps: net.scores(torch.zeros(maps.shape).index_add_(1, torch.arange(6), maps)))


def test_bfloat16_falls_back_or_is_refused_in_words(monkeypatch):
    monkeypatch.setattr("explainers.call.scores.computes_bf16", lambda device: True)

    found = METHODS["sess"](added(), images(), 1, scales=2, layer="second", precision="auto")

    assert rel(found, METHODS["sess"](added(), images(), 1, scales=2, layer="second")) < 1e-6
    with pytest.raises(BadOption, match="does not run in bfloat16.*index_add_"):
        METHODS["rise"](added(), images(), 1, samples=4, precision="bf16")


def test_a_compiled_function_as_forward_runs_uncompiled():
    net = Base()
    compiled = torch.compile(net, backend="eager")

    for method in (saliency, grad_cam, occlusion):
        assert rel(method(net, images(), 1, forward=compiled), method(net, images(), 1)) < 1e-4
