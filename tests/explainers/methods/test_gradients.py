"""Gradients, path integrals, integrals at a layer and XRAI: completeness, noise, quadrature, reported gaps."""

from __future__ import annotations

import re
from collections import OrderedDict

import pytest
import torch
from torch import nn

import explainers
import explainers.methods.gradients.quadrature as bisection
from explainers import explain, forgrad, gradient_shap, integrated_gradients, internal_influence, var_grad, xrai
from explainers.call.loop import Loop
from explainers.methods.gradients.quadrature import GAP, MAX_POINTS, Bisection, bisect
from explainers.perturbation.segments import superpixels
from tests.support.nets import ClassToken, Scaled, Weighted, Written, curved, random_images, rel, residual, settle
from tests.support.oracles.gradients import filtered, merge_by_hand

CLASSES = [2, 0, 5]
NOISY = [explainers.smooth_grad, explainers.smooth_grad_squared, var_grad, gradient_shap]


# Means over noise


def test_p97_noise_depends_on_the_seed_and_not_on_the_chunk_or_the_precision():
    net, x = residual(), random_images()
    for method in NOISY:
        expected = method(net, x, [1, 2, 3], samples=8, seed=4)
        for size in (1, 3, 100):
            found = method(net, x[1:], [2, 3], samples=8, seed=4, batch_size=size)
            torch.testing.assert_close(found, expected[1:], rtol=1e-9, atol=1e-14)
        assert rel(method(net, x, [1, 2, 3], samples=8, seed=5), expected) > 0.01
        coarse = method(curved().float(), x.float(), 1, samples=4)
        assert coarse.dtype == torch.float32 and rel(coarse, method(curved(), x, 1, samples=4)) < 1e-5, method


def test_p98_noise_is_relative_to_the_range_of_the_image():
    """The same image in other units (and a model that converts them back) gives the same map in those units."""
    x, given = random_images(2), {"samples": 5, "sigma": 0.2}
    for method, power in (
        (explainers.smooth_grad, 1),
        (explainers.smooth_grad_squared, 2),
        (var_grad, 2),
        (gradient_shap, 0),
    ):
        first = method(Scaled(1.0).eval(), x, 1, **given)
        for scale in (255.0, 0.01):
            found = method(Scaled(scale).eval(), x * scale, 1, **given) * scale**power
            assert rel(found, first) < 1e-8, method


def test_p98_the_variance_is_biased_by_default():
    net, x = curved(), random_images()
    biased, unbiased = (var_grad(net, x, 1, samples=5, unbiased=which) for which in (False, True))
    torch.testing.assert_close(unbiased, biased * 5 / 4, rtol=1e-12, atol=0)
    assert torch.equal(var_grad(net, x, 1, samples=5), biased)
    for which in (False, True):
        assert not var_grad(net, x, 1, samples=1, unbiased=which).any(), "one sample has no variance, not NaN"


def test_a_small_variance_next_to_a_large_mean_keeps_its_precision():
    """E[g²] − E[g]² would leave rounding noise in float32: 1e8 against 1e-2."""

    steep = Written(lambda _, x: (1e4 * x + 0.05 * x**2).sum((1, 2, 3))[:, None] * torch.tensor([1, -1]))
    x = random_images(1)
    expected = var_grad(steep, x, 0, samples=6, batch_size=2)
    found = var_grad(steep, x.float(), 0, samples=6, batch_size=2)
    assert rel(found, expected) < 0.05 and expected.max() < 0.1


# Gradient SHAP


def test_gradient_shap_of_a_linear_model_is_exact_if_each_baseline_is_sampled_equally_often():
    net, x, some = settle(Weighted((3, 12, 16), 6).double()), random_images(), random_images(4, seed=2)
    expected = net.fc.weight.detach()[CLASSES].view_as(x) * (x - some.mean(0))
    found = gradient_shap(net, x, CLASSES, samples=8, baselines=some)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)


def incomplete_findings(e):
    """The findings of a completeness gap, one list per image."""
    return [[each for each in row if each.code == "incomplete"] for row in e.findings]


def reported_gaps(told):
    return sum(float(re.search(r"a gap of ([^ ]+) ", each.sentence)[1]) for row in told for each in row)


def test_p99_the_completeness_gap_of_few_samples_is_reported_with_its_size():
    net, x, some = curved(), random_images(), random_images(4, seed=2)
    e = explain("gradient_shap", net, x, CLASSES, samples=4, baselines=some)
    expected = (net(x) - net(some).mean(0))[range(3), CLASSES].detach()
    gaps = (e.raw.sum((1, 2, 3)) - expected).abs() / expected.abs()
    for row, gap, whole in zip(incomplete_findings(e), gaps.tolist(), expected.tolist(), strict=True):
        assert bool(row) == (gap > 0.01)
        if row:
            assert f"({gap:.1%})" in row[0].sentence and f"{whole:.4g}" in row[0].sentence
            assert row[0].remedy == {"samples": 16}
    assert any(incomplete_findings(e))


def test_p100_the_completeness_gap_is_reported_and_its_remedy_reduces_it():
    net, x = residual(), random_images()
    for name, options in {
        "integrated_gradients": {},
        "blur_integrated_gradients": {},
        "forgrad": {"base": "integrated_gradients"},
        "guided_integrated_gradients": {"anchors": 0},
        "layer_integrated_gradients": {"layer": "layer1"},
        "xrai": {},
    }.items():
        told = incomplete_findings(explain(name, net, x, 1, steps=2, **options))
        first = next(row[0] for row in told if row)
        assert first.remedy["steps"] > 2 and "%" in first.sentence, name
        fine = incomplete_findings(explain(name, net, x, 1, steps=40, **options))
        assert reported_gaps(fine) < reported_gaps(told) / 2, name


def test_p100_no_gap_is_reported_for_complete_maps_or_with_through():
    net, x = curved(), random_images()
    for name in ("integrated_gradients", "blur_integrated_gradients", "layer_integrated_gradients", "xrai"):
        assert not any(incomplete_findings(explain(name, net, x, CLASSES))), name
    part = explain("integrated_gradients", net, x, CLASSES, steps=2, through=("conv1", [0]))
    assert not any(incomplete_findings(part)), "through some channels only a part passes"


# Stopping, order, FORGrad, wrong use


def test_forgrad_filters_the_magnitude_of_its_base():
    net, x = curved(), random_images()
    noisy = explainers.smooth_grad(net, x, CLASSES, samples=6, seed=3).abs().amax(1)
    told = []
    found = forgrad(net, x, CLASSES, cutoff=4.0, samples=6, seed=3, batch_size=2, progress=told.append)
    torch.testing.assert_close(found, filtered(noisy, 4.0).abs(), rtol=1e-9, atol=1e-12)
    assert len(told) == 3 and torch.equal(told[-1].map, found)
    path = integrated_gradients(net, x, CLASSES, steps=20).sum(1).abs()
    found = forgrad(net, x, CLASSES, base="integrated_gradients", cutoff=4.0, steps=20, progress=told.append)
    torch.testing.assert_close(found, filtered(path, 4.0).abs(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(told[-1].map, found)
    # Saliency runs no variants of the images, so another input may have one row for each image.
    factors = torch.tensor([1.0, 2.0, -3.0], dtype=x.dtype)[:, None]
    weighted = {"forward": lambda batch: net(batch) * factors, "progress": told.append}
    found = forgrad(net, x, 1, base="saliency", cutoff=4.0, **weighted)
    expected = filtered(explainers.saliency(net, x, 1).abs().amax(1) * factors.abs()[..., None], 4.0).abs()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert torch.equal(told[-1].map, found)


ALL = [explainers.layer_integrated_gradients, explainers.layer_conductance, internal_influence]


def skip():
    """Smooth, with a skip connection around `inner`."""

    def forward(self, x):
        x = torch.tanh(self.stem(x))
        return self.head(torch.tanh(x + self.inner(x)).mean((2, 3)))

    parts = {"stem": nn.Conv2d(3, 4, 3, padding=1), "inner": nn.Conv2d(4, 4, 3, padding=1), "head": nn.Linear(4, 7)}
    return settle(Written(forward, **parts).double())


def test_layer_integral_excludes_the_skip_connection():
    net, x = skip(), random_images()
    begin = net.inner(torch.tanh(net.stem(torch.zeros_like(x)))).detach()
    handle = net.inner.register_forward_hook(lambda m, i, o: begin)
    without = net(x)[range(3), CLASSES].detach()
    handle.remove()
    expected = net(x)[range(3), CLASSES].detach() - without
    e = explain("layer_integrated_gradients", net, x, CLASSES, layer="inner", steps=40)
    torch.testing.assert_close(e.raw.sum((1, 2, 3)), expected, rtol=1e-9, atol=1e-11)
    assert not any(each.code == "incomplete" for row in e.findings for each in row)


def test_influence_default_layer_has_a_spatially_varying_gradient():
    """At the last stage, before pooling and a linear head, the map is constant; the default is the stage before."""
    net, x = residual(), random_images()
    drawn = explain("internal_influence", net, x, CLASSES, steps=4)
    assert drawn.layer == "layer1" and drawn.options["reduce"] == "norm"
    asked = internal_influence(net, x, CLASSES, layer="layer1", steps=4)
    torch.testing.assert_close(drawn.raw, asked, rtol=0, atol=0)
    torch.testing.assert_close(drawn.map, asked.norm(dim=1), rtol=1e-12, atol=0)
    last = internal_influence(net, x, CLASSES, layer="layer2", steps=4)
    torch.testing.assert_close(last, last[..., :1, :1].expand_as(last), rtol=1e-9, atol=1e-15)
    assert float(asked.flatten(2).std(2).min()) > 0


@pytest.mark.parametrize("method", ALL, ids=lambda m: m.__name__)
def test_stopped_early_the_partial_sum_estimates_the_whole(method):
    net, x, told = curved(), random_images(), []
    options = {"batch_size": 4, "progress": lambda partial: told.append(partial) or partial.fraction < 0.5}
    stopped = method(net, x, CLASSES, layer="conv2", steps=40, **options)
    assert 0.5 <= told[-1].fraction < 0.65
    torch.testing.assert_close(told[-1].map, stopped.norm(dim=1) if method is internal_influence else stopped.sum(1))
    if method is explainers.layer_conductance:
        share = (told[-1].done - 1) / 40
        part = (net(share * x) - net(torch.zeros_like(x)))[range(3), CLASSES].detach()
        torch.testing.assert_close(stopped.sum((1, 2, 3)) * share, part, rtol=1e-2, atol=1e-4)
    else:
        assert rel(stopped, method(net, x, CLASSES, layer="conv2", steps=40)) < 0.1


class Abrupt(nn.Module):
    """The layer saturates in the first thousandths of the path; `around` is the weight of a path that bypasses it.

    y = Σ w A⁴ + around Σ x², so the conductance of a unit is w A(x)⁴, by integration of 4 w A³ dA.
    """

    def __init__(self, around=0.0):
        super().__init__()
        self.inner, self.around = nn.Hardtanh(), around

    def forward(self, x):
        a = self.inner(300 * x)
        weights = torch.linspace(1, 2, a[0].numel(), dtype=x.dtype).view(a[0].shape)
        score = ((weights * a**4).flatten(1).sum(1) + self.around * (x**2).flatten(1).sum(1)) / a[0].numel()
        return torch.stack([score, -score], 1)

    def truth(self, x):
        a = self.inner(300 * x)
        return torch.linspace(1, 2, a[0].numel(), dtype=x.dtype).view(a[0].shape) * a**4 / a[0].numel()


@pytest.mark.parametrize("around", [0.0, 3.0])
def test_conductance_converges_where_even_steps_do_not(around):
    """50 even steps gave nearly twice the truth, without a finding."""
    net, x = Abrupt(around), random_images(2, 1, 3, 4)
    found = explain("layer_conductance", net, x, 0, layer="inner")
    assert rel(found.raw.sum((1, 2, 3)), net.truth(x).sum((1, 2, 3))) < 0.01
    assert rel(found.raw, net.truth(x)) < 0.05
    assert not any(each.code in ("incomplete", "not_converged") for row in found.findings for each in row)
    assert ("promised_sum" in found.statistics[0]) == (around == 0)


@pytest.mark.parametrize(("around", "code"), [(0.0, "incomplete"), (3.0, "not_converged")])
def test_conductance_reports_steps_that_do_not_suffice(around, code):
    net, x = Abrupt(around), random_images(2, 1, 3, 4)
    found = explain("layer_conductance", net, x, 0, layer="inner", steps=7)
    assert [each.code for row in found.findings for each in row] == [code, code]
    assert found.findings[0][0].remedy == {"steps": 28}
    enough = explain("layer_conductance", curved(), random_images(), 2, layer="act2", steps=200)
    assert not any(each.code == code for row in enough.findings for each in row)


def test_influence_reports_steps_that_do_not_suffice():
    # The gradient of a positive unit jumps from 0 to 1 where the path crosses 0.3.
    net = nn.Sequential(
        OrderedDict(inner=nn.Identity(), step=nn.Threshold(0.3, 0.3), flat=nn.Flatten(), fc=nn.Linear(12, 2))
    )
    net.fc.weight.data = torch.tensor([[1.0], [-1.0]]).expand(2, 12)
    net, x = net.double(), random_images(2, 1, 3, 4)
    true = (1 - 0.3 / x).where(x > 0.3, 0)
    few = explain("internal_influence", net, x, 0, layer="inner", steps=7)
    assert [each.code for row in few.findings for each in row] == ["not_converged"] * 2
    assert few.findings[0][0].remedy == {"steps": 28}
    facts, error = few.findings[0][0].facts, float((few.raw - true)[0].norm())
    assert error / 2 < facts["error"] < 10 * error and facts["total"] == pytest.approx(float(few.raw[0].norm()))
    enough = explain("internal_influence", net, x, 0, layer="inner", steps=301)
    assert not any(each.code == "not_converged" for row in enough.findings for each in row)


@pytest.mark.parametrize("method", ["layer_integrated_gradients", "layer_conductance"])
def test_the_share_of_the_class_token_is_no_gap(method):
    """The map has no place for it. It was reported as a gap that more steps would close, after 256 points."""
    net, x = settle(ClassToken().double()), random_images(2, 3, 32, 128)
    found = explain(method, net, x, [1, 2], layer="blocks.0")
    assert not any(each.code == "incomplete" for row in found.findings for each in row)
    whole = (net(x) - net(torch.zeros_like(x)))[range(2), [1, 2]].detach()
    assert rel(found.raw.sum((1, 2, 3)), whole) > 0.01
    for row, total, rise in zip(found.statistics, found.raw.sum((1, 2, 3)).tolist(), whole.tolist(), strict=True):
        assert row["promised_sum"] == pytest.approx(total, abs=0.01 * abs(rise))


# Adaptive quadrature by the completeness gap


CHANGES = {
    "waves": (
        lambda t: t + 1 - torch.cos(20 * torch.pi * t),
        lambda t: 1 + 20 * torch.pi * torch.sin(20 * torch.pi * t),
    ),
    "jump": (lambda t: (t > 0.3).double(), lambda t: 0 * t),
    "not a number": (lambda t: torch.where(t > 0.3, torch.nan, 0.0), lambda t: 0 * t),
}


@pytest.mark.parametrize("name", CHANGES)
def test_gaps_that_cancel_are_refined_up_to_the_maximum_number_of_points(name):
    """The total gap of the first 18 points of the waves is 0, the gaps of the intervals are not."""
    score, slope = CHANGES[name]
    seen = []

    def probe(image, points):
        seen.extend(points.tolist())
        return score(points), slope(points)[:, None]

    bisect([Bisection()], Loop(), 16, probe, lambda found: found)
    assert len(seen) <= MAX_POINTS and (len(seen) > 18 or name == "not a number")


def late():
    """The score rises within the first hundredth of the path from zero, as in networks with saturating units."""

    def forward(self, x):
        return self.fc(nn.functional.relu6(100 * self.conv(x)).mean((2, 3)))

    torch.manual_seed(0)
    return Written(forward, conv=nn.Conv2d(3, 8, 3, padding=1), fc=nn.Linear(8, 6)).double().eval()


X = random_images()


def test_integrated_gradients_choose_steps_that_close_the_completeness_gap(monkeypatch):
    def gap(found):
        rise = (net(X) - net(torch.zeros_like(X))).detach()[range(len(X)), CLASSES]
        return float(((found.flatten(1).sum(1) - rise) / rise).abs().max())

    def incomplete():
        return [f for f in explain("integrated_gradients", net, X, CLASSES).findings[0] if f.code == "incomplete"]

    net = late()
    assert gap(integrated_gradients(net, X, CLASSES, steps=50)) > 0.02
    assert gap(integrated_gradients(net, X, CLASSES)) < GAP and not incomplete()
    monkeypatch.setattr(bisection, "MAX_POINTS", 16)
    assert [finding.remedy for finding in incomplete()] == [{"steps": 1000}]


def test_through_some_channels_the_number_of_steps_is_fixed():
    """The gradient is restricted to some channels, so no completeness gap is defined."""
    net, through = settle(late()), ("conv", [0, 3])
    fixed = integrated_gradients(net, X[:1], 1, steps=50, through=through)
    torch.testing.assert_close(integrated_gradients(net, X[:1], 1, through=through), fixed)


# XRAI


def image_extremes(x):
    return x.amin((2, 3), keepdim=True).expand_as(x), x.amax((2, 3), keepdim=True).expand_as(x)


def mean_attribution(net, x):
    return sum(integrated_gradients(net, x, CLASSES, steps=25, baseline=end) for end in image_extremes(x)) / 2


def test_overlapping_regions_merge_as_in_a_slow_implementation():
    """Without dilation, the regions of 12 x 16 pixels are superpixels of two scales."""
    net, x = curved(), random_images()
    labels = [superpixels(x, count) for count in (8, 4)]
    attribution = mean_attribution(net, x).amax(1)
    for least in (1, 3, 20, 150):
        found = xrai(net, x, CLASSES, least=least, dilation=0)
        for n in range(3):
            regions = [each[n] == label for each in labels for label in each[n].unique()]
            expected = merge_by_hand(attribution[n], regions, least)
            torch.testing.assert_close(found[n], expected, rtol=1e-6, atol=1e-9)


def test_the_minimum_size_grows_with_the_image_and_does_not_apply_to_given_segments():
    net, x = curved(), nn.functional.interpolate(random_images(1), (40, 52), mode="bilinear")
    same = {"batch_size": 8, "steps": 4}  # a busy machine divides batches, and rounding, otherwise
    own, two, one = (xrai(net, x, 1, least=least, **same) for least in (None, 2, 1))
    assert torch.equal(own, two) and not torch.equal(own, one), "2,080 pixels"
    single = torch.arange(40 * 52).view(40, 52)
    given, one, two = (xrai(net, x, 1, segments=single, least=least, **same) for least in (None, 1, 2))
    assert torch.equal(given, one) and not torch.equal(given, two)


def test_regions_cover_images_of_every_size():
    """Every pixel is in a region, so the map has the whole sum."""
    net = settle(nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 6)).double())
    for size in ((1, 1), (3, 5), (12, 16), (60, 125)):
        x = nn.functional.interpolate(random_images(1, 3, 6, 8), size, mode="bilinear")
        black, white = image_extremes(x)
        expected = (net(x) - (net(black) + net(white)) / 2)[:, 2].detach()
        found = xrai(net, x, 2, channels="sum")
        assert found.shape[1:] == size
        torch.testing.assert_close(found.sum((1, 2)), expected, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize(
    "segments", [torch.zeros(4, 4, dtype=torch.long), torch.zeros(12, 16), torch.zeros(2, 12, 16, dtype=torch.long)]
)
def test_segments_of_another_shape_or_kind_are_refused(segments):
    with pytest.raises(explainers.BadOption, match="segments"):
        xrai(curved(), random_images(), 1, segments=segments)
