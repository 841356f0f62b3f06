"""What LRP conserves: constants, biases, ε and cancellation; unusual outputs, targets and forward passes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import explainers
from explainers import BadOption, explain, lrp
from tests.explainers.relevance.test_relevance import CLASSES, input_x_gradient, scores, sums, two_branches
from tests.support.nets import Written, plain, random_images, rel, settle


def codes(explanation):
    return [{finding.code: finding for finding in row} for row in explanation.findings]


def biased(build):
    """The network with large biases, in convolutions, norms and the head."""
    net = build()
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear, nn.BatchNorm2d)) and module.bias is not None:
            module.bias.data.add_(0.5)
    return net


def test_zero_bias_by_hand_in_every_place_of_a_constant():
    """Oracle: input x gradient with the factors y / (z + ε) as constants, where z leaves a constant of y out."""
    parts = {"conv": nn.Conv2d(3, 4, 4, 4), "norm": nn.LayerNorm(4), "fc": nn.Linear(4, 7)}
    net = Written(lambda net, x: net.fc(net.norm(net.conv(x).flatten(2).mT + net.position).mean(1)), **parts)
    net.position = nn.Parameter(torch.zeros(4))
    net, x, epsilon = settle(net.double()), random_images(1, 3, 8, 12), 1e-3
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


def test_p67_the_share_that_biases_absorb_is_stated_with_a_remedy_that_works():
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


GATES = {
    "resized": lambda gate: F.interpolate(gate[:, :, ::2, ::2], gate.shape[2:]),
    "pooled": lambda gate: F.avg_pool2d(gate, 3, 1, 1),
    "residual": lambda gate: 1 + gate,
    "halved": lambda gate: gate / 2,
    "two": lambda gate: gate * gate.flip(1) + gate.flip(2),
}


@pytest.mark.parametrize("form", GATES)
def test_a_gate_stays_one_resized_or_scaled(form):
    """Half of the relevance went into the gate's branch of Ghost modules, which resize it: parts that only cancel."""
    x, gate = random_images(), GATES[form]
    net = two_branches(lambda a, b: a * gate(b.sigmoid()))
    cut = two_branches(lambda a, b: a * gate(b.sigmoid()).detach())
    found = lrp(net, x, CLASSES, rule="epsilon", epsilon=0.0)
    torch.testing.assert_close(found, input_x_gradient(cut, x), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("product", [torch.mul, lambda a, b: a @ b.transpose(2, 3)], ids=["mul", "matmul"])
def test_two_factors_of_a_product_get_half_its_relevance_each(product):
    """Neither is a gate: each has half the product's relevance, distributed in proportion to its summands."""
    x, net = random_images(), two_branches(product)
    cut = two_branches(lambda a, b: (product(a, b.detach()) + product(a.detach(), b)) / 2)
    found = lrp(net, x, CLASSES, rule="epsilon")
    torch.testing.assert_close(found, input_x_gradient(cut, x), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(sums(found), scores(net, x), rtol=1e-9, atol=1e-12)


class SlotOutput:
    __slots__ = ("logits",)

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class HiddenOutput:
    """Its tensor is in a function, not in an attribute."""

    def __init__(self, logits: Tensor) -> None:
        self.read = lambda: logits


explainers.register_output(HiddenOutput, lambda output: [output.read()], lambda output, parts: HiddenOutput(*parts))
OUTPUTS: dict[str, tuple[Callable[[Tensor], Any], Any]] = {
    "namespace": (lambda scores: SimpleNamespace(logits=scores), 1),
    "slots": (SlotOutput, 1),
    "nested": (lambda scores: {"a": [SimpleNamespace(b=scores)]}, lambda output: output["a"][0].b[:, 1]),
    "object per image": (
        lambda scores: [SimpleNamespace(row=row) for row in scores],
        lambda output: torch.stack([each.row[1] for each in output]),
    ),
    "registered": (HiddenOutput, lambda output: output.read()[:, 1]),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_relevance_starts_from_the_score_in_any_output(kind: str) -> None:
    wrap, target = OUTPUTS[kind]
    images = torch.ones(2, 3, 2, 2) * torch.tensor([1.0, 2.0]).view(2, 1, 1, 1)
    net = Written(lambda self, x: wrap(self.head(x.flatten(1))), head=nn.Linear(12, 2))
    net.head.weight.data, net.head.bias.data = torch.tensor([[1.0], [-2.0]]).expand(2, 12), torch.zeros(2)
    for name in ("lrp", "attn_lrp", "cp_lrp", "deep_lift"):
        found = getattr(explainers, name)(net, images, target)
        assert torch.allclose(found.flatten(1).sum(1), torch.tensor([-24.0, -48.0])), name


def test_lrp_says_when_its_sum_is_not_the_score() -> None:
    torch.manual_seed(0)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3, bias=False))
    network, images = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), *head), torch.randn(2, 3, 8, 8)
    linear = (2, explainers.Contrast(1, 2), lambda output: 3 * output[:, 2])
    other = (lambda y: y[:, 2] ** 2, lambda y: y[:, 2] + 5, explainers.Probability(2), explainers.LogProbability(2))
    for target in (*linear, *other):
        found = explainers.explain("lrp", network, images, target, rule="epsilon")
        for row, findings, facts in zip(found.raw, found.findings, found.statistics, strict=True):
            assert ("nonlinear_target" in [each.code for each in findings]) == (target in other)
            if target in linear:
                assert float(row.sum()) == pytest.approx(facts["target_score"], rel=1e-3)
