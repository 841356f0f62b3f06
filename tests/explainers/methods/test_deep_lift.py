"""DeepLIFT: completeness, closed forms of its rules, refusals; FullGrad: input and bias terms sum to the score."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import explainers
from explainers import UnsupportedOperation, deep_lift, deep_lift_shap, explain, full_grad, full_gradients
from explainers.perturbation.baselines import baseline_of
from explainers.perturbation.rng import PerImageGenerators
from explainers.rules.deeplift_rules import ELEMENTWISE, slope
from tests.explainers.relevance.test_lrp_conservation import Constants
from tests.explainers.relevance.test_relevance import Operation, WithOperation
from tests.support.nets import (
    Activated,
    ClassToken,
    Reused,
    Written,
    curved,
    plain,
    random_images,
    rel,
    residual,
    settle,
)
from tests.support.oracles.rules import baselines, multipliers_by_hand
from tests.support.token_nets import conv_next

CLASSES = [2, 0, 5]


def changes(net, x, baseline, classes=CLASSES):
    with torch.no_grad():
        return (net(x) - net(baseline))[range(len(x)), classes]


def complete(net, x, classes=CLASSES, rtol=1e-9, **options):
    """Σ attribution = score(x) − score(baseline); the baseline is zero unless given as a tensor."""
    found = deep_lift(net, x, classes, **options)
    baseline = options.get("baseline", torch.zeros_like(x))
    torch.testing.assert_close(found.flatten(1).sum(1), changes(net, x, baseline, classes), rtol=rtol, atol=1e-10)
    return found


# Elementwise

POSITIVE = ("log", "log10", "log1p", "log2", "rsqrt", "sqrt", "rdiv", "reciprocal")
SPELLED = {
    "clamp_max": lambda x: x.clamp_max(0.3),
    "clamp_min": lambda x: torch.clamp_min(x, 0.1),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clip": lambda x: x.clip(-0.5, 0.5),
    "pow": lambda x: x**3,
    "prelu": lambda x: F.prelu(x, torch.tensor([0.2], dtype=x.dtype)),
    "rdiv": lambda x: 2.0 / x,
    "rpow": lambda x: 2.0**x,
    "threshold": lambda x: F.threshold(x, 0.1, 0.0),
    "softsign": F.softsign,
    "log_sigmoid": F.logsigmoid,
}


def test_p62_every_elementwise_multiplier_is_the_ratio_of_differences():
    """Oracle: m = Δf / Δx in one layer, by the definition; and completeness behind a convolution.

    captum is wrong for functions, ReLU6, SiLU, GELU and Hardswish.
    """
    positive, start = random_images(1).abs() + 0.2, torch.full((1, 3, 12, 16), 0.1, dtype=torch.float64)
    for name in ELEMENTWISE.split():
        function = SPELLED.get(name) or getattr(torch, name, None) or getattr(F, name)
        inner = (lambda z, f=function: f(z.abs() + 0.1)) if name in POSITIVE else function
        complete(settle(WithOperation(inner).double()), random_images(1), [2])
        alone = nn.Sequential(Operation(function), nn.Flatten(), Operation(lambda z: z.sum(1, keepdim=True))).double()
        found, expected = deep_lift(alone, positive, 0, baseline=start), function(positive) - function(start)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: name + text)


def test_multipliers_at_the_baseline_are_gradients():
    """Limit: at x = baseline the ratio is the gradient; near it, the result is not a quotient of rounding errors."""
    x = torch.linspace(-3.3, 3.7, 401)
    for act in (F.relu, F.gelu, F.silu, F.hardswish, F.relu6, torch.tanh):
        gradient = torch.autograd.functional.jacobian(lambda v, act=act: act(v).sum(), x.double()).float()
        for step in (0.0, 1e-8, 1e-7, 1e-6):
            torch.testing.assert_close(slope(act, x, x * (1 + step)), gradient, rtol=2e-3, atol=2e-3)
        far = slope(act, x, torch.full_like(x, 0.905))
        torch.testing.assert_close(far, (act(x) - act(torch.tensor(0.905))) / (x - 0.905), rtol=1e-3, atol=1e-4)


def test_tiny_differences_across_a_kink_are_not_rounded_away():
    """No absolute threshold: for a ReLU, 1e-30 and -1e-30 differ."""
    found = slope(F.relu, torch.tensor([1e-30]), torch.tensor([-1e-30]))
    assert found.item() == pytest.approx(0.5)


# Whole networks


def test_p61_attributions_sum_to_the_difference_of_scores():
    """captum refuses a residual network whose ReLU is used more than once."""
    x = random_images()
    for build in (plain, residual, curved):
        complete(build(), x, baseline=baselines(3))
        for baseline in ("zeros", "mean", "blur", 0.5):
            found, start = deep_lift(build(), x, CLASSES, baseline=baseline), baseline_of(x, baseline)
            torch.testing.assert_close(found.flatten(1).sum(1), changes(build(), x, start), rtol=1e-9, atol=1e-10)


def test_probability_and_contrast_targets_are_complete():
    """Softmax and logarithm of the target are attributed too."""
    net, x = residual(), random_images()
    for target in (explainers.Probability(2), explainers.LogProbability(2), explainers.Contrast(2, 0)):
        found = deep_lift(net, x, target)
        expected = (target(net(x)) - target(net(torch.zeros_like(x)))).detach()
        torch.testing.assert_close(found.flatten(1).sum(1), expected, rtol=1e-9, atol=1e-12)


def test_p63_max_pool_attributes_its_difference_by_hand():
    """By hand: a rise from 2 to 5 is attributed to the 5; a fall from 4 to 3 to the position that held the 4.

    captum takes the position of another image of the batch.
    """
    x = torch.tensor([[1.0, 5.0, 3.0, 1.0]], dtype=torch.float64).view(1, 1, 1, 4)
    baseline = torch.tensor([[2.0, 1.0, 2.0, 4.0]], dtype=torch.float64).view(1, 1, 1, 4)
    x, baseline = (torch.cat([each, each.flip(3)]) for each in (x, baseline))
    weights = torch.tensor([2.0, 10.0], dtype=torch.float64)
    for pool in (
        lambda v: F.max_pool2d(v, (1, 2)),
        lambda v: F.adaptive_max_pool2d(v, (1, 2)),
        lambda v: F.max_pool1d(v[:, :, 0], 2)[:, :, None],
        lambda v: v.unflatten(3, (2, 2)).amax(4),
    ):
        net = nn.Sequential(
            Operation(pool), Operation(lambda v: (v.flatten(1) * weights).sum(1, keepdim=True))
        ).double()
        found = deep_lift(net, x, 0, baseline=baseline)[:, 0, 0]
        assert found.tolist() == [[0.0, 6.0, 0.0, -10.0], [-2.0, 0.0, 30.0, 0.0]]


# Networks with attention


def test_transformers_and_constant_operands_are_complete():
    x = random_images(2, 3, 32, 128)
    complete(settle(ClassToken().double()), x, [1, 3], rtol=1e-7)
    complete(settle(Constants(False).double()), random_images(), rtol=1e-7)


def test_softmax_of_distant_logits_stays_finite():
    """Logits differ by hundreds between image and baseline: exp overflows without a shared shift."""
    net = WithOperation(lambda x: (500 * x).softmax(1))
    net, x = settle(net.double()), random_images()
    assert complete(net, x, rtol=1e-7).isfinite().all()
    found = deep_lift(net.float(), x.float(), CLASSES)
    assert found.isfinite().all()


# Refusals and findings


REFUSED = {
    "cumprod": lambda x: x.cumprod(1),
    "sort": lambda x: x.sort(1).values,
    "where": lambda x: torch.where(x > x.mean(), x, 0.1 * x),
    "masked_fill": lambda x: x.masked_fill(x > 0.3, 0.3),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "pow": lambda x: x.abs() ** x,
    "conv2d": lambda x: F.conv2d(x, x[:1, :, :3, :3].relu()).expand(-1, 4, -1, -1),
    "tanh|relu": lambda x: x.tanh() if x.abs().sum() > 1e-3 else x.relu(),
    "gather": lambda x: x.gather(1, x.argmax(1, keepdim=True)).expand(-1, 4, -1, -1),
    "getitem": lambda x: x[:, x[0].mean((1, 2)).argsort()],
    "prod": lambda x: x * x.prod(1, keepdim=True),
    "grid_sample": lambda x: F.grid_sample(x, x[:, :2].tanh().permute(0, 2, 3, 1), align_corners=False),
}


@pytest.mark.parametrize("word", REFUSED)
def test_operations_without_a_rule_are_refused_with_operation_and_layer(word):
    net = settle(WithOperation(REFUSED[word]).double())
    net.conv.bias.data.zero_()
    with pytest.raises(UnsupportedOperation, match=f"({word}).*'strange'|'strange'.*({word})"):
        deep_lift(net, random_images(1), 2)


def test_a_completeness_gap_is_a_finding():
    """A part of the score that is detached from the image changes, but gets no attribution."""

    cut = Written(lambda net, x: net.inner(x) + x.detach().mean((1, 2, 3))[:, None], inner=plain())
    for method, options in (("deep_lift", {}), ("deep_lift_shap", {"samples": 4})):
        for net, told in ((cut, True), (plain(), False)):
            e = explain(method, net, random_images(), CLASSES, **options)
            assert all(("incomplete" in [finding.code for finding in each]) == told for each in e.findings), method


# SHAP


def test_shap_baselines_are_uniform_in_the_image_range():
    net, x = plain(), random_images()
    one, two = (deep_lift_shap(net, x, CLASSES, samples=3, seed=seed) for seed in (0, 1))
    assert rel(one, two) > 1e-3
    generator = PerImageGenerators(1, 0)
    expected = torch.zeros_like(x[0])
    for _ in range(3):
        drawn = generator.uniform_noise(0, 1, *x[0].shape)[0].double()
        start = x[0].min() + (x[0].max() - x[0].min()) * drawn
        expected += multipliers_by_hand(net, x[:1], [2], start[None])[0] / 3
    torch.testing.assert_close(one[0], expected, rtol=1e-6, atol=1e-10)


OTHERS = [2, 0, 4]


def deep():
    """A hidden linear layer with batch norm, whose biases have no position; a transposed convolution."""
    first = [nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(6, 4, 2, stride=2)]
    second = [nn.BatchNorm2d(4, affine=False), nn.LeakyReLU(0.1), nn.MaxPool2d(2), nn.Flatten()]
    head = [nn.Linear(4 * 6 * 8, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 7)]
    return settle(nn.Sequential(*first, *second, *head).double())


NETS = {
    "modules": plain,
    "in place": lambda: plain(inplace=True),
    "residual, reused in-place ReLU": residual,
    "functional ReLU": lambda: settle(Activated(F.relu).double()),
    "functional in-place ReLU": lambda: settle(Activated(lambda x: F.relu(x, inplace=True)).double()),
    "one convolution twice": lambda: settle(Reused().double()),
    "hidden layers": deep,
}


def test_p43_input_and_bias_terms_sum_to_the_score():
    images = random_images()
    for name, build in NETS.items():
        net = build()
        expected = net(images)[range(3), OTHERS].detach()
        found = full_gradients(net, images, OTHERS)
        torch.testing.assert_close(found.total(), expected, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(found.scores, expected)
        assert all(part.abs().max() > 0 for part in (found.input, found.elsewhere, *found.biases.values())), name


@pytest.mark.parametrize("height", [12, 13])
def test_p43_the_signed_map_sums_to_the_score_minus_non_spatial_terms(height):
    """Resizing preserves sums, also by factors that are not whole numbers."""
    nets = [residual()] + [NETS["hidden layers"]()] * (height == 12)
    for net in nets:
        images = random_images(height=height)
        signed = full_grad(net, images, OTHERS, magnitude=False)
        found = full_gradients(net, images, OTHERS)
        torch.testing.assert_close(signed.sum((1, 2)), found.scores - found.elsewhere, rtol=1e-10, atol=1e-11)
        assert (signed < 0).any() and (signed > 0).any()


def test_the_unattributed_remainder_is_a_finding():
    net, images = curved(), random_images()
    found = full_gradients(net, images, OTHERS)
    e = explain("full_grad", net, images, OTHERS)
    for n, row in enumerate(e.findings):
        (told,) = [each for each in row if each.code == "incomplete"]
        assert f"{float(found.scores[n] - found.total()[n]):.3g} of the score" in told.sentence
    clean = explain("full_grad", residual(), images, OTHERS)
    assert not any(each.code == "incomplete" for row in clean.findings for each in row)


def test_biases_of_layer_norms_run_along_the_channels():
    """Oracle: input and bias terms of the score by the gradients of the parameters."""
    # Both kinds on a grid of 8 rows with 8 channels, so that shapes do not tell the axes apart.
    net, image = conv_next(), random_images(1, 3, 32, 32).requires_grad_()
    parts = [image, *(each for name, each in net.named_parameters() if name.endswith("bias"))]
    slopes = torch.autograd.grad(net(image)[0, 1], parts)
    expected = sum((part * slope).sum().item() for part, slope in zip(parts, slopes, strict=True))
    found = full_gradients(net, image.detach(), 1)
    torch.testing.assert_close(float(found.total()), expected, rtol=1e-6, atol=1e-8)
