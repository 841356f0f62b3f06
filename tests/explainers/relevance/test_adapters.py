"""LRP of adapted and reparametrized weights is LRP of the merged weights, for every rule."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, spectral_norm, weight_norm

from explainers import excitation_backprop, lrp
from explainers.rules.lrp_rules import COMPOSITES, RULES
from tests.support.nets import Written, plain, random_images, rel, settle

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


class Decomposed(Adapted):
    """DoRA: a direction and a magnitude for each output channel, written as peft writes it (peft.tuners.lora.dora).

    With `again`, the layer runs a second time, as in versions of peft before 0.14 and with dropout.
    """

    def __init__(self, base: nn.Module, again: bool = False) -> None:
        super().__init__(base)
        self.again, rest = again, [1] * (base.weight.ndim - 2)
        self.magnitude = nn.Parameter(torch.ones(1, len(base.weight), *rest))
        self.shape = (-1, *rest)

    def factor(self):
        low = (self.up.weight.flatten(1) @ self.down.weight.flatten(1)).view_as(self.base.weight)
        norm = (self.base.weight + self.scale * low.detach()).flatten(1).norm(dim=1).detach()
        return (2 + self.magnitude) / norm.view(1, *self.shape)

    def forward(self, x):
        result, factor = self.base(x), self.factor()
        if self.again:
            names = () if x.ndim == 2 else ("stride", "padding", "dilation", "groups")
            options = {name: getattr(self.base, name) for name in names}
            base = (F.linear if x.ndim == 2 else F.conv2d)(x, self.base.weight, bias=None, **options)
        else:
            base = result - self.base.bias.view(self.shape)
        low = self.up(self.down(self.dropout(x)))
        return result + ((factor - 1) * base + factor * low * self.scale)

    def merge(self) -> nn.Module:
        factor = self.factor().detach().view(-1, *[1] * (self.base.weight.ndim - 1))
        merged = super().merge()
        with torch.no_grad():
            merged.weight *= factor
        return merged


FORMS = {
    "outer": Adapted,
    "inner": partial(Adapted, inner=True),
    "DoRA": Decomposed,
    "DoRA again": partial(Decomposed, again=True),
}


def adapted(merged: bool, form: str = "outer", head: bool = False) -> nn.Module:
    adapt = FORMS[form]
    net = nn.Sequential(
        adapt(nn.Conv2d(3, 6, 3, padding=1)),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        adapt(nn.Conv2d(6, 5, 3, stride=2)),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        adapt(nn.Linear(5, 8)),
        nn.ReLU(),
        adapt(nn.Linear(8, 7)) if head else nn.Linear(8, 7),
    )
    net = settle(net.double())
    if merged:
        for index in (0, 3, 7, 9) if head else (0, 3, 7):
            net[index] = net[index].merge()
    return net


OPTIONS = [{"rule": rule, "epsilon": 0.05} for rule in RULES] + [{"composite": composite} for composite in COMPOSITES]


@pytest.mark.sample
@pytest.mark.parametrize("options", [*OPTIONS, {"zero_bias": True}], ids=str)
def test_an_adapter_is_part_of_its_layer(options):
    """Oracle: the same network with the adapter's product added to the weights."""
    x = random_images()
    for form in FORMS:
        whole, parts = adapted(True, form), adapted(False, form)
        torch.testing.assert_close(whole(x), parts(x))
        expected, found = (lrp(net, x, CLASSES, **options) for net in (whole, parts))
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12, msg=lambda text: f"{form}: {text}")  # noqa: B023


@pytest.mark.parametrize("contrast", [False, True])
def test_excitation_backprop_of_an_adapter(contrast):
    """Also of one in the last layer, which the contrast reads."""
    x = random_images()
    for form in FORMS:
        nets = [adapted(merged, form, head=True) for merged in (False, True)]
        found, expected = (excitation_backprop(net, x, CLASSES, contrast=contrast) for net in nets)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12, msg=form)


@pytest.mark.parametrize("form", ["outer", "DoRA"])
def test_adapted_layers_side_by_side_stay_apart(form):
    """Two layers of the same input and form whose outputs are added are two layers, with adapters or without."""

    def sides():
        left, right = (FORMS[form](nn.Conv2d(3, 6, 3, padding=1)) for _ in range(2))
        forward = lambda net, x: net.fc((net.left(x) + net.right(x)).relu().mean((2, 3)))  # noqa: E731
        return settle(Written(forward, left=left, right=right, fc=nn.Linear(6, 7)).double())

    x, nets = random_images(), [sides() for _ in range(2)]
    nets[1].left, nets[1].right = nets[1].left.merge(), nets[1].right.merge()
    found = [lrp(net, x, CLASSES, rule="gamma") for net in nets]
    torch.testing.assert_close(found[0], found[1], rtol=1e-8, atol=1e-12)


def test_two_layers_next_to_a_third_stay_apart_with_an_activation_or_another_input():
    """Only a product of weights is an adapter; a bottleneck with a ReLU keeps its own rules."""

    def forward(net, x):
        return net.fc((net.inner.base(x) + net.inner.up(net.act(net.inner.down(x)))).relu().mean((2, 3)))

    x, parts = random_images().abs(), {"inner": Adapted(nn.Conv2d(3, 6, 3, padding=1)), "fc": nn.Linear(6, 7)}
    nets = [settle(Written(forward, act=act, **parts).double()) for act in (nn.ReLU(), nn.Identity())]
    for net in nets:
        net.inner.down.weight.data.abs_()  # the ReLU changes nothing but which layers are merged
    torch.testing.assert_close(nets[0](x), nets[1](x))
    assert rel(lrp(nets[0], x, CLASSES), lrp(nets[1], x, CLASSES)) > 1e-3


@pytest.mark.parametrize(
    ("size", "padding", "up"),
    [
        (3, 1, {"kernel_size": (12, 16)}),
        (3, 1, {"kernel_size": 1, "stride": 16}),
        ((12, 16), 0, {"kernel_size": 1, "padding": 1}),
    ],
)
def test_only_a_layer_of_single_positions_is_merged_with_the_one_before(size, padding, up):
    """Oracle: a ReLU between them, which changes nothing else. Outputs of one cell are broadcast."""
    base, down = (nn.Conv2d(3, channels, size, padding=padding) for channels in (6, 2))
    parts = {"base": base, "down": down, "up": nn.Conv2d(2, 6, **up), "fc": nn.Linear(6, 7)}

    def forward(net, x):
        return net.fc((net.base(x) + net.up(net.act(net.down(x)))).relu().mean((2, 3)))

    nets = [settle(Written(forward, act=act, **parts).double()) for act in (nn.ReLU(), nn.Identity())]
    for net in nets:
        net.down.weight.data.abs_()
    found = [lrp(net, random_images().abs(), CLASSES) for net in nets]
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)


class Low(nn.Module):
    """A parametrization by a low-rank change of the weight."""

    def __init__(self, weight):
        super().__init__()
        self.down = nn.Parameter(0.1 * torch.ones_like(weight[:1]))

    def forward(self, weight):
        return weight + torch.linspace(-1, 1, len(weight)).to(weight).view(-1, *[1] * (weight.ndim - 1)) * self.down


COMPUTED = {
    "parametrize": lambda layer: parametrize.register_parametrization(layer, "weight", Low(layer.weight)),
    "weight_norm hook": weight_norm,
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm hook": spectral_norm,
    "spectral_norm": parametrizations.spectral_norm,
}


@pytest.mark.parametrize("change", COMPUTED.values(), ids=COMPUTED)
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
