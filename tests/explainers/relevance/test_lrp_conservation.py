"""What LRP conserves with each option, and the findings about what it does not: biases, ε and cancellation."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from explainers import BadOption, explain, lrp
from explainers.backward.lrp_rules import COMPOSITES
from tests.explainers.relevance.test_relevance import scores, sums
from tests.support.nets import plain, random_images, residual, settle

CLASSES = [2, 0, 5]


def codes(explanation):
    return [{finding.code: finding for finding in row} for row in explanation.findings]


def biased(build):
    """The network with large biases, in convolutions, norms and the head."""
    net = build()
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear, nn.BatchNorm2d)) and module.bias is not None:
            module.bias.data.add_(0.5)
    return net


@pytest.mark.parametrize("build", [plain, residual], ids=["plain", "residual"])
def test_without_biases_in_the_denominators_the_sum_is_the_score(build):
    """zero_bias=True conserves the whole score at ε = 0; zero_bias=False loses what the biases absorb."""
    net, x = biased(build), random_images()
    for composite in COMPOSITES:
        kept = lrp(net, x, CLASSES, composite=composite, zero_bias=True)
        torch.testing.assert_close(sums(kept), scores(net, x), rtol=1e-8, atol=1e-10)
        absorbed = 1 - sums(lrp(net, x, CLASSES, composite=composite)) / scores(net, x)
        assert (absorbed.abs() > 0.05).all(), composite


def test_zero_bias_by_hand_in_every_place_of_a_constant():
    """Oracle: input x gradient with the factors y / (z + ε) as constants, where z leaves a constant of y out."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 4, 4), nn.LayerNorm(4), nn.Linear(4, 7)
            self.position = nn.Parameter(torch.randn(4) + 1)

        def forward(self, x):
            tokens = self.conv(x).flatten(2).mT + self.position
            return self.fc(self.norm(tokens).mean(1))

    net, x, epsilon = settle(Net().double()), random_images(1, 3, 8, 12), 1e-3
    net.norm.bias.data.add_(0.7)

    def passed(z, constant):
        factor = ((z + constant) / (z + epsilon * z.sign())).detach()
        return z * factor + (z + constant - z * factor).detach()

    leaf = x.clone().requires_grad_()
    z = F.conv2d(leaf, net.conv.weight, stride=4).flatten(2).mT
    tokens = passed(z, net.conv.bias + net.position)
    centred = tokens - tokens.mean(2, keepdim=True)
    scale = (centred.square().mean(2, keepdim=True) + 1e-5).rsqrt().detach() * net.norm.weight
    normed = passed(centred * scale, net.norm.bias)
    scores = passed(normed.mean(1) @ net.fc.weight.T, net.fc.bias)
    expected = leaf * torch.autograd.grad(scores[0, 2], leaf)[0]

    actual = lrp(net, x, 2, rule="epsilon", epsilon=epsilon, zero_bias=True)

    torch.testing.assert_close(actual, expected.detach(), rtol=1e-9, atol=1e-12)


def test_the_share_that_biases_absorb_is_stated_with_a_remedy_that_works():
    net, x = biased(plain), random_images()
    with torch.no_grad():
        net.conv1.bias.fill_(50.0)
    e = explain("lrp", net, x, CLASSES)

    for row, total, score in zip(codes(e), sums(e.raw).tolist(), scores(net, x).tolist(), strict=True):
        found = row["absorbed"]
        assert found.facts["share"] == pytest.approx(1 - total / score)
        if found.facts["share"] > 0.5:
            assert f"{100 * found.facts['share']:.5g}%" in found.sentence and found.remedy == {"zero_bias": True}
    large = [row for row in codes(e) if row["absorbed"].remedy]
    assert large
    again = explain("lrp", net, x, CLASSES, **large[0]["absorbed"].remedy)
    assert not any("absorbed" in row for row in codes(again))
    given = codes(explain("lrp", net, x, CLASSES, rule="epsilon"))
    assert {"zero_bias": True, "rule": None} in [row["absorbed"].remedy for row in given if "absorbed" in row]


def test_few_positive_contributions_by_hand():
    """By hand: |z| = 3 z⁺ divides by z⁺, |z| = 19 z⁺ by z⁻, as the rule's table says."""

    net = nn.Sequential(nn.Conv2d(2, 2, 1, bias=False), nn.Flatten(), nn.Linear(2, 2, bias=False)).double()
    net[0].weight.data = torch.tensor([[1.0, -4.0], [1.0, -20.0]], dtype=torch.float64).view(2, 2, 1, 1)
    net[2].weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    x = torch.ones(1, 2, 1, 1, dtype=torch.float64)

    assert lrp(net, x, 0).flatten().tolist() == [-3.0, 0.0]
    assert lrp(net, x, 1).flatten().tolist() == [0.0, -19.0]


def test_cancellation_is_reported_with_a_remedy():
    """By hand: alpha_beta gives -y to a unit of size 1e-4, and its inputs, which cancel in it, get 1e4 y each."""

    layers = {"conv1": nn.Conv2d(2, 2, 1, bias=False), "conv2": nn.Conv2d(2, 1, 1, bias=False)}
    net = nn.Sequential(OrderedDict(layers, flat=nn.Flatten(), fc=nn.Linear(1, 2, bias=False))).double()
    net.conv1.weight.data = torch.tensor([[1, 0], [1, 1e-4 - 1]], dtype=torch.float64).view(2, 2, 1, 1)
    net.conv2.weight.data = torch.tensor([1.0, -1.0], dtype=torch.float64).view(1, 2, 1, 1)
    net.fc.weight.data = torch.tensor([[1.0], [0.5]], dtype=torch.float64)
    options, x = {"rule": {"conv2": "alpha_beta", "conv1": "epsilon"}}, torch.ones(1, 2, 1, 1, dtype=torch.float64)
    e = explain("lrp", net, x, 0, **options)

    (row,) = codes(e)
    score = 1 - 1e-4
    torch.testing.assert_close(
        e.raw.flatten(), torch.tensor([2 - 1e4, 1e4 - 1], dtype=torch.float64) * score, rtol=1e-9, atol=0
    )
    assert row["cancelled"].remedy == {"rule": None, "composite": "epsilon_plus"}
    assert f"{float(e.raw.abs().sum()):.3g}" in row["cancelled"].sentence
    again = explain("lrp", net, x, 0, **{**options, **row["cancelled"].remedy})
    assert "cancelled" not in codes(again)[0]


def test_overflowing_relevances_are_refused():
    net = plain().float()
    with torch.no_grad():
        net.conv2.weight.fill_(1e-30)
        net.conv2.bias.fill_(1e15)
    with pytest.raises(BadOption, match="image 0 are NaN or infinite.*composite='epsilon_plus'"):
        lrp(net, random_images(1).float(), 2, rule="epsilon", zero_bias=True)
