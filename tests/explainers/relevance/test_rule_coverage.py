"""Backward rules for the operations of real networks: norms of constant baselines, operations in every form."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import explainers
from explainers import BadOption, UnsupportedOperation, deep_lift, excitation_backprop, lrp
from tests.explainers.methods.test_deep_lift import changes
from tests.explainers.relevance.test_relevance import Operation, WithOperation, sums, without_bias
from tests.support.nets import Written, random_images, settle

# Baselines at which a norm meets a constant


def norms(norm):
    """Six residual blocks with a norm each, over tokens that are all zero for a black image."""

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = x + F.gelu(block(norm(x)))
        return self.fc(x.mean(1))

    blocks = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(6))
    return Written(forward, conv=nn.Conv2d(3, 8, 4, 4, bias=False), fc=nn.Linear(8, 7), blocks=blocks)


def turned(norm):
    return lambda x: norm(x.transpose(1, 2)).transpose(1, 2)


def moments(x):
    variance, mean = torch.var_mean(x, -1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-6)


NORMS = {
    "layer norm": lambda x: F.layer_norm(x, (8,)),
    "layer norm of tiny eps": lambda x: F.layer_norm(x, (8,), eps=1e-12),
    "group norm": turned(lambda x: F.group_norm(x, 2)),
    "instance norm": turned(F.instance_norm),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "rms norm": lambda x: F.rms_norm(x, (8,)),
    "over std": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6),
    "times rsqrt": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "times power": lambda x: (x.pow(2).mean(-1, keepdim=True) + 1e-12).pow(-0.5) * x,
    "times reciprocal": lambda x: x * (1 / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-6)),
    "var_mean": moments,
    "response norm": lambda x: x * (lambda g: g / (g.mean(-1, keepdim=True) + 1e-6))(x.norm(p=2, dim=1, keepdim=True)),
}


def test_norms_of_a_constant_baseline_keep_finite_multipliers():
    """1 / sqrt(eps) at the baseline, in six layers, gave attributions of 1e12 and more that cancel."""
    for norm, dtype in product(NORMS, (torch.float32, torch.float64)):
        net, x = settle(norms(NORMS[norm]).to(dtype)), random_images(2, 3, 32, 24).to(dtype)
        found = deep_lift(net, x, [1, 2])
        expected = changes(net, x, torch.zeros_like(x), [1, 2])
        torch.testing.assert_close(sums(found), expected, rtol=1e-4, atol=1e-5)
        assert found.abs().sum() < 1000 * expected.abs().sum(), norm


def test_a_baseline_without_a_score_is_refused_with_another():
    def over_std(x):
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)

    net, x = settle(norms(over_std).double()), random_images(2, 3, 32, 24)
    for method in (deep_lift, explainers.deep_lift_shap):
        with pytest.raises(BadOption, match=r"NaN or infinite on the baseline.*baseline='blur'"):
            method(net, x, 1, baseline=0.0)
    expected = changes(net, x, explainers.perturbation.baselines.baseline_of(x, "blur"), 1)
    torch.testing.assert_close(sums(deep_lift(net, x, 1, baseline="blur")), expected)


@pytest.mark.parametrize(("count", "word"), [(5, "cancel"), (20, "NaN or infinite")])
def test_attributions_that_only_cancel_are_refused(count, word):
    """Products with a factor that is 1000 at the baseline and 1/1000 at the image, one after another."""

    def strange(x):
        signal, gate = x[:, :1], 1e3 - (1e3 - 1e-3) * x[:, 1:2].abs().clamp(max=1e-9) * 1e9
        for _ in range(count):
            signal = (signal * gate).clamp(-1, 1)
        return torch.cat([signal] * 4, 1)

    net = nn.Sequential(Operation(strange), Operation(lambda v: v.mean((2, 3)) + 1e-3))
    with pytest.raises(BadOption, match=f"{word}.*baseline='blur'"):
        deep_lift(net, random_images(1).float(), 1)


def test_a_small_difference_of_large_outputs_is_not_lost():
    """A target that is 0 at both ends has attributions that cancel; the rest is rounding of the outputs."""
    net, x = settle(norms(NORMS["layer norm"])), random_images(1, 3, 32, 24).float()
    with torch.no_grad():
        start, end = net(torch.zeros_like(x))[0], net(x)[0]
    slope = (end[1] - start[1]) / (end[0] - start[0])
    found = deep_lift(net, x, lambda output: output[:, 1] - start[1] - slope * (output[:, 0] - start[0]))
    assert found.isfinite().all() and found.abs().sum() > 0.1 and abs(found.sum()) < 1e-3


@pytest.mark.parametrize("quotient", [False, True])
def test_products_and_quotients_in_closed_form(quotient):
    """a b gives (Δa (b + b') + Δb (a + a')) / 2; a = y b gives Δy = (Δa − ȳ Δb) / b̄, with means of both ends."""
    part = (lambda v: v[:, :1] / (2 + v[:, 1:])) if quotient else (lambda v: v[:, :1] * v[:, 1:])
    net = nn.Sequential(Operation(part), nn.Flatten(), Operation(lambda v: v.sum(1, keepdim=True))).double()
    x, start = random_images(2, 2).abs(), torch.full((2, 2, 12, 16), 0.7, dtype=torch.float64)
    a, b, da, db = x[:, :1], x[:, 1:], x[:, :1] - 0.7, x[:, 1:] - 0.7
    mean_b, mean_y = (b + 4.7) / 2, (a / (2 + b) + 0.7 / 2.7) / 2
    expected = [da / mean_b, -mean_y * db / mean_b] if quotient else [da * (b + 0.7) / 2, db * (a + 0.7) / 2]
    found = deep_lift(net, x, 0, baseline=start)
    torch.testing.assert_close(found, torch.cat(expected, 1), rtol=1e-10, atol=1e-12)


def test_layer_norm_in_closed_form():
    """With σ = sqrt(v + eps): m_c = 2 / (σ + σ'), m_σ = −(y + y') / (σ + σ'), m_v = m_σ / (σ + σ')."""
    net = nn.Sequential(nn.Flatten(), nn.LayerNorm(12, eps=0.1, elementwise_affine=False), nn.Linear(12, 1, bias=False))
    settle(net.double())
    x, start = random_images(2, 3, 2, 2), random_images(2, 3, 2, 2, seed=3)
    c, d = (v.flatten(1) - v.flatten(1).mean(1, keepdim=True) for v in (x, start))
    s, t = ((v.square().mean(1, keepdim=True) + 0.1).sqrt() for v in (c, d))
    g = net[2].weight.detach()
    by_scale = -(g * (c / s + d / t)).sum(1, keepdim=True) / (s + t)
    m = 2 * g / (s + t) + by_scale / (s + t) * (c + d) / 12
    expected = (m - m.mean(1, keepdim=True)) * (x - start).flatten(1)
    torch.testing.assert_close(deep_lift(net, x, 0, baseline=start).flatten(1), expected, rtol=1e-9, atol=1e-12)


# Operations


def in_view(x):
    x = x.clone()
    x[:, :2].mul_(x[:, 2:].tanh())
    return x


OPERATIONS = {
    "addcmul": lambda x: torch.addcmul(x, x, x.tanh(), value=0.5),
    "addcdiv": lambda x: torch.addcdiv(x, x, 1 + x * x) + torch.addcdiv(x, x, 1 + x * x, value=0.5),
    "lerp": lambda x: torch.lerp(x, x.relu(), 0.3) + x.lerp(x.relu(), x.sigmoid()),
    "norm": lambda x: x * x.norm(dim=1, keepdim=True) + x * torch.norm(x, "fro", dim=(2, 3), keepdim=True),
    "norm of order 1": lambda x: x * torch.norm(x, 1, (2, 3), True),
    "norm of order 3": lambda x: x * torch.linalg.vector_norm(x, 3, dim=1)[:, None],
    "largest": lambda x: x * torch.linalg.norm(x, float("inf"), dim=1, keepdim=True),
    "std": lambda x: x * x.std((2, 3), keepdim=True) + x * torch.std(x, dim=1, correction=0, keepdim=True),
    "var": lambda x: x + x.var(1, unbiased=False, keepdim=True) + sum(torch.var_mean(x, (2, 3), keepdim=True)),
    "cosine_similarity": lambda x: x * F.cosine_similarity(x, x.tanh() + 1, dim=1)[:, None],
    "rms_norm": lambda x: F.rms_norm(x, x.shape[1:]) + F.local_response_norm(x, 3),
    "softmin": lambda x: F.softmin(x, dim=1) * x,
    "glu": lambda x: torch.cat([F.glu(x, 1)] * 2, 1),
    "normalize": lambda x: F.normalize(x, dim=1) + F.normalize(x, p=1.0, dim=2),
    "instance_norm": lambda x: F.instance_norm(x) + x,
    "maximum": lambda x: torch.maximum(x, x.flip(1)) + torch.max(x, torch.zeros_like(x)),
    "minimum": lambda x: torch.minimum(x, x.flip(1)) + x.amin((2, 3), keepdim=True) + x.min(1, keepdim=True)[0],
    "max over channels": lambda x: x * x.max(1, keepdim=True)[0] + x.max(dim=1).values[:, None],
    "multiply, divide": lambda x: torch.multiply(x, x.tanh()) + torch.divide(x, 1 + x * x),
    "linalg.matmul": lambda x: torch.linalg.matmul(x, x.transpose(2, 3).tanh()),
    "baddbmm": lambda x: torch.baddbmm(x[:, 0], x[:, 1], x[:, 2].mT, alpha=0.5)[:, None].expand(-1, 4, -1, -1),
    "expit, fold": lambda x: torch.special.expit(x) * x + F.fold(F.unfold(x, 2), x.shape[2:], 2),
    "times rsqrt, square": lambda x: x * torch.rsqrt(1 + x * x) + x * (2 + x * x) ** -0.5 + torch.square(x) + x**2,
    "generalised mean": lambda x: F.avg_pool2d(x.clamp(min=1e-6).pow(torch.tensor([3.0]).to(x)), 2).pow(1 / 3.0),
    "in a view": in_view,
    "index of a constant": lambda x: x[:, torch.tensor([1, 0, 2, 3])].gather(1, torch.zeros_like(x, dtype=torch.long)),
    "padding": lambda x: F.pad(F.pad(x, (1, 1, 1, 1), mode="circular"), (1, 1, 1, 1), mode="reflect"),
    "gate in place": lambda x: x.mul_(x.mean((2, 3), keepdim=True).sigmoid()),
    "constant over": lambda x: 1.0 / (1 + x.exp()) + x.softmax(1),
    "log_softmax": lambda x: F.log_softmax(3 * x, dim=1) + x.logsumexp(1, keepdim=True) * x,
    "layer_norm, group_norm": lambda x: F.layer_norm(x, x.shape[1:]) + F.group_norm(x, 2),
    "einsum": lambda x: torch.einsum("nchw,ndhw->ncdh", x, x.tanh()).mean(2, keepdim=True).expand(-1, 4, -1, -1),
    "a query without keys": lambda x: F.scaled_dot_product_attention(
        x, x.flip(1), x, attn_mask=torch.ones(10, 10, dtype=torch.bool).tril(-2)
    ),
    "causal attention": lambda x: F.scaled_dot_product_attention(x, x.flip(2), x.relu(), is_causal=True),
    "attention of grouped heads": lambda x: F.scaled_dot_product_attention(
        x, x[:, :2].flip(2), x[:, :2].tanh(), attn_mask=x.new_ones(10, 10).tril(2), scale=0.3, enable_gqa=True
    ),
    "moves": lambda x: F.channel_shuffle(x, 2).roll((1, 2), (2, 3)).rot90(1, (2, 3)).repeat_interleave(2, 2).triu(),
}


NOT_IN_LRP = ("constant over", "log_softmax")
"""LRP has no rule for them."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_complete_in_deep_lift_and_conserved_in_lrp(name):
    """Completeness of DeepLIFT; conservation of LRP-epsilon, where no bias absorbs anything."""
    net, x = settle(WithOperation(OPERATIONS[name]).double()), random_images(2, 3, 12, 12)
    for given, baseline in ((x, torch.zeros_like(x)), (x, torch.full_like(x, 0.4)), (x[:1], torch.zeros_like(x[:1]))):
        found, classes = deep_lift(net, given, [1, 2][: len(given)], baseline=baseline), [1, 2][: len(given)]
        torch.testing.assert_close(sums(found), changes(net, given, baseline, classes), rtol=1e-9, atol=1e-11)
        assert found.abs().sum() > 1e-3
    if name not in NOT_IN_LRP:
        without_bias(net)
        torch.testing.assert_close(sums(lrp(net, x, [1, 2], rule="epsilon")), net(x)[range(2), [1, 2]].detach())


@pytest.mark.parametrize("method", [deep_lift, lrp], ids=lambda m: m.__name__)
def test_norms_of_matrices_are_refused_unless_they_are_constant(method):
    """A spectral norm of the weights is a number; one of features has no rule."""
    weights = torch.rand(4, 4, dtype=torch.float64)
    divided = settle(WithOperation(lambda x: x / torch.linalg.norm(weights, 2)).double())
    expected = settle(WithOperation(lambda x: x / float(torch.linalg.norm(weights, 2))).double())
    x = random_images(2)
    torch.testing.assert_close(method(divided, x, 1), method(expected, x, 1))
    net = settle(WithOperation(lambda x: x + torch.linalg.norm(x, 2, dim=(2, 3), keepdim=True)).double())
    with pytest.raises(UnsupportedOperation, match="norm in layer 'strange'"):
        method(net, x, 1)


def test_relevance_of_a_norm_is_in_proportion_to_squares():
    """By hand: of |x| each value gets x_i² / Σ x²."""
    net = nn.Sequential(nn.Flatten(), Operation(lambda v: v.norm(dim=1, keepdim=True)))
    x = random_images(2)
    size = x.flatten(1).norm(dim=1).view(2, 1, 1, 1)
    torch.testing.assert_close(lrp(net, x, 0), x**2 / size)


def test_excitation_of_negative_means_and_enlarged_logits_is_not_lost():
    """By hand: each negative part of the mean gets its share, and scaling of logits passes all relevance on."""
    net = nn.Sequential(Operation(lambda v: v.mean((2, 3))), nn.Linear(1, 1, bias=False)).double()
    net[1].weight.data.fill_(-1.0)
    x = torch.tensor([[-3.0, 1.0, -1.0, 0.0]], dtype=torch.float64).view(1, 1, 2, 2)
    expected = torch.tensor([[0.75, 0.0, 0.25, 0.0]], dtype=torch.float64).view(1, 1, 2, 2)
    assert torch.equal(excitation_backprop(net, x, 0), expected)
    head = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.Upsample(scale_factor=2, mode="bilinear")
    )
    settle(head.double())[2].bias.data.fill_(-50.0)
    found = excitation_backprop(head, random_images(2), lambda output: output[:, 1].mean((1, 2)))
    assert (sums(found) > 0.7).all(), "relevance is only lost at inactive ReLUs"


@pytest.mark.parametrize("method", [lrp, excitation_backprop], ids=lambda m: m.__name__)
def test_in_place_operations_on_a_part_are_tracked(method):
    """The graph holds a copy into the whole, and not the operation."""

    def part(x):
        x = x.clone()
        x[:, :2].sin_()
        return x

    for strange in (part, lambda x: x.clone().sin_()):
        with pytest.raises(UnsupportedOperation, match="sin in layer 'strange'"):
            method(settle(WithOperation(strange).double()), random_images(1), 1)
