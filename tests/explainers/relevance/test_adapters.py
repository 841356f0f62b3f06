"""LRP of adapted and reparametrized weights is LRP of the merged weights, for every rule."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, spectral_norm, weight_norm

from explainers import excitation_backprop, lrp
from explainers.backward.lrp_rules import COMPOSITES, RULES
from tests.support.nets import plain, random_images, rel, settle

CLASSES = [2, 0, 5]


class Adapted(nn.Module):
    """A layer with a low-rank adapter, written as peft writes it."""

    def __init__(self, base: nn.Module, inner: bool = False) -> None:
        super().__init__()
        self.base, self.dropout, self.scale, self.inner = base, nn.Dropout(0.1), 1.5, inner
        if isinstance(base, nn.Linear):
            self.down = nn.Linear(base.in_features, 2, bias=False)
            self.up = nn.Linear(2, base.out_features, bias=False)
        else:
            self.down = nn.Conv2d(base.in_channels, 2, base.kernel_size, base.stride, base.padding, bias=False)
            self.up = nn.Conv2d(2, base.out_channels, 1, bias=False)

    def forward(self, x):
        low = self.down(self.dropout(x).to(self.down.weight.dtype))
        if self.inner:
            return self.up(self.scale * low) + self.base(x)
        return self.base(x) + self.up(low) * self.scale

    def merge(self) -> nn.Module:
        with torch.no_grad():
            product = self.up.weight.flatten(1) @ self.down.weight.flatten(1)
            self.base.weight += self.scale * product.view_as(self.base.weight)
        return self.base


def adapted(merged: bool, inner: bool = False) -> nn.Module:
    net = nn.Sequential(
        Adapted(nn.Conv2d(3, 6, 3, padding=1), inner),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        Adapted(nn.Conv2d(6, 5, 3, stride=2), inner),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        Adapted(nn.Linear(5, 8), inner),
        nn.ReLU(),
        nn.Linear(8, 7),
    )
    net = settle(net.double())
    if merged:
        for index in (0, 3, 7):
            net[index] = net[index].merge()
    return net


OPTIONS = [{"rule": rule, "epsilon": 0.05} for rule in RULES] + [{"composite": composite} for composite in COMPOSITES]


@pytest.mark.parametrize("options", [*OPTIONS, {"zero_bias": True}], ids=str)
def test_an_adapter_is_part_of_its_layer(options):
    """Oracle: the same network with the adapter's product added to the weights."""
    x = random_images()
    expected = lrp(adapted(merged=True), x, CLASSES, **options)
    for inner in (False, True):
        torch.testing.assert_close(lrp(adapted(False, inner), x, CLASSES, **options), expected, rtol=1e-8, atol=1e-12)


def test_excitation_backprop_of_an_adapter():
    x = random_images()
    found = [excitation_backprop(adapted(merged), x, CLASSES) for merged in (False, True)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-8, atol=1e-12)


def test_two_layers_next_to_a_third_stay_apart_with_an_activation_or_another_input():
    """Only a product of weights is an adapter; a bottleneck with a ReLU keeps its own rules."""

    class Bottleneck(nn.Module):
        def __init__(self, act):
            super().__init__()
            self.net = Adapted(nn.Conv2d(3, 6, 3, padding=1))
            self.act, self.fc = act, nn.Linear(6, 7)

        def forward(self, x):
            net = self.net
            return self.fc((net.base(x) + net.up(self.act(net.down(x)))).relu().mean((2, 3)))

    x = random_images().abs()
    nets = [settle(Bottleneck(act).double()) for act in (nn.ReLU(), nn.Identity())]
    for net in nets:
        net.net.down.weight.data.abs_()  # the ReLU changes nothing but which layers are merged
    torch.testing.assert_close(nets[0](x), nets[1](x))
    assert rel(lrp(nets[0], x, CLASSES), lrp(nets[1], x, CLASSES)) > 1e-3


class Low(nn.Module):
    """A parametrization by a low-rank change of the weight."""

    def __init__(self, weight):
        super().__init__()
        self.down = nn.Parameter(0.1 * torch.ones_like(weight[:1]))

    def forward(self, weight):
        return weight + torch.linspace(-1, 1, len(weight)).to(weight).view(-1, *[1] * (weight.ndim - 1)) * self.down


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: parametrize.register_parametrization(layer, "weight", Low(layer.weight)),
        weight_norm,
        parametrizations.weight_norm,
        spectral_norm,
        parametrizations.spectral_norm,
    ],
    ids=["parametrize", "weight_norm hook", "weight_norm", "spectral_norm hook", "spectral_norm"],
)
@pytest.mark.filterwarnings("ignore")
def test_computed_weights_are_weights(change):
    """Oracle: a plain network with the weights that the computation returns."""
    net, x = plain(), random_images()
    for layer in (net.conv1, net.conv2, net.head):
        change(layer)
    net.double().eval()
    with torch.no_grad():
        net(x)
    merged = plain()
    with torch.no_grad():
        for name in ("conv1", "conv2", "head"):
            getattr(merged, name).weight.copy_(getattr(net, name).weight)
    for options in ({}, {"rule": "gamma"}, {"rule": "epsilon", "epsilon": 0.1}):
        torch.testing.assert_close(
            lrp(net, x, CLASSES, **options), lrp(merged, x, CLASSES, **options), rtol=1e-8, atol=1e-12
        )
