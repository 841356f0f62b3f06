"""LRP of gates, norms, products and attention: factors that scale the signal are treated as constants."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from explainers import lrp
from tests.explainers.relevance.test_relevance import CLASSES, input_x_gradient, scores, sums
from tests.support.nets import random_images, rel, settle


def constant_norm(x, shape, weight, bias, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt().detach() * weight + bias


class Constants(nn.Module):
    """A network with a gate, a layer norm and attention of mixed heads; with `cut`, their constants are detached."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, 4, bias=False)
        self.squeeze, self.widen = nn.Linear(8, 4), nn.Linear(4, 8)
        self.ln, self.mix = nn.LayerNorm(8), nn.Linear(2, 2)
        self.qkv, self.out = nn.Linear(8, 24, bias=False), nn.Linear(8, 8, bias=False)
        self.fc = nn.Linear(8, 7, bias=False)
        object.__setattr__(self, "cut", cut)

    def forward(self, x):
        cut = self.cut
        x = self.conv(x)
        x = x * (F.hardswish(x) / x).detach() if cut else F.hardswish(x)
        gate = self.widen(self.squeeze(x.mean((2, 3))).relu()).sigmoid()[:, :, None, None]
        x = x * (gate.detach() if cut else gate)
        x = x.flatten(2).transpose(1, 2)
        y = constant_norm(x, 8, self.ln.weight, self.ln.bias) if cut else self.ln(x)
        q, k, v = self.qkv(y).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        weights = self.mix((q @ k.transpose(-2, -1) / 2).softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2) * 0.5
        weights = 1 + weights / weights.sum(-1, keepdim=True)
        y = (weights.detach() if cut else weights) @ v
        x = x + self.out(y.transpose(1, 2).flatten(2))
        x = x * (F.gelu(x) / x).detach() if cut else F.gelu(x)
        return self.fc(x.mean(1))


def test_gates_norms_and_attention_by_detaching_constants():
    """Oracle: input x gradient of the network in which every constant is detached by hand."""
    nets = [settle(Constants(cut).double()) for cut in (False, True)]
    for net in nets:
        net.ln.bias.data.zero_()
    x = random_images()
    expected = input_x_gradient(nets[1], x)

    actual = lrp(nets[0], x, CLASSES, rule="epsilon", epsilon=0.0)

    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(sums(actual), scores(nets[0], x), rtol=1e-8, atol=1e-12)
    assert rel(input_x_gradient(nets[0], x), expected) > 0.1


class Product(nn.Module):
    """Two branches, of which the function of a product is read."""

    def __init__(self, function) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 1, bias=False), nn.Conv2d(3, 4, 1, bias=False)
        self.fc = nn.Linear(4, 7, bias=False)
        object.__setattr__(self, "function", function)

    def forward(self, x):
        return self.fc(self.function(self.conv1(x), self.conv2(x)).mean((2, 3)))


GATES = {
    "resized": lambda gate: F.interpolate(gate[:, :, ::2, ::2], gate.shape[2:]),
    "pooled": lambda gate: F.avg_pool2d(gate, 3, 1, 1),
    "doubled": lambda gate: 2 * gate,
    "its rest": lambda gate: 1 - gate,
    "residual": lambda gate: 1 + gate,
    "halved": lambda gate: gate / 2,
    "two": lambda gate: gate * gate.flip(1) + gate.flip(2),
}


@pytest.mark.parametrize("form", GATES)
def test_a_gate_stays_one_resized_or_scaled(form):
    """Half of the relevance went into the gate's branch of Ghost modules, which resize it: parts that only cancel."""
    x, gate = random_images(), GATES[form]
    net = settle(Product(lambda a, b: a * gate(b.sigmoid())).double())
    cut = settle(Product(lambda a, b: a * gate(b.sigmoid()).detach()).double())
    found = lrp(net, x, CLASSES, rule="epsilon", epsilon=0.0)
    torch.testing.assert_close(found, input_x_gradient(cut, x), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("product", [torch.mul, lambda a, b: a @ b.transpose(2, 3)], ids=["mul", "matmul"])
def test_two_factors_of_a_product_get_half_its_relevance_each(product):
    """Neither is a gate: each has half the product's relevance, distributed in proportion to its summands."""
    x, net = random_images(), settle(Product(product).double())
    cut = settle(Product(lambda a, b: (product(a, b.detach()) + product(a.detach(), b)) / 2).double())
    found = lrp(net, x, CLASSES, rule="epsilon")
    torch.testing.assert_close(found, input_x_gradient(cut, x), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(sums(found), scores(net, x), rtol=1e-9, atol=1e-12)
