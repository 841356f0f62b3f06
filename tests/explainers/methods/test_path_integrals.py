"""Path methods: completeness, closed forms, limits, reported completeness gaps, captum, SciPy."""

from __future__ import annotations

import re

import pytest
import torch

from explainers import (
    BadOption,
    blur_integrated_gradients,
    explain,
    forgrad,
    gradient_shap,
    guided_integrated_gradients,
    integrated_gradients,
    smooth_grad,
)
from tests.support.nets import Cubic, Weighted, curved, random_images, rel, residual, settle
from tests.support.oracles.gradients import blurred, filtered, straight_integral

CLASSES = [2, 0, 5]


def score_difference(net, x, start, classes=CLASSES):
    return (net(x) - net(start))[range(len(x)), classes].detach()


def linear():
    return settle(Weighted((3, 12, 16), 6).double())


# Blur


def test_blur_integrated_gradients_sum_to_the_difference_from_the_blurred_image():
    net, x = curved(), random_images()
    for blur in (0.7, 3.0, None):
        start = torch.stack([blurred(each, 3.0 if blur is None else blur) for each in x])
        found = blur_integrated_gradients(net, x, CLASSES, steps=60, blur=blur)
        torch.testing.assert_close(found.sum((1, 2, 3)), score_difference(net, x, start), rtol=1e-9, atol=1e-11)


# Guided


def test_guided_paths_are_complete_for_quadratic_scores_with_any_steps():
    """On a straight segment the gradient of a quadratic is linear: the trapezoidal rule is exact."""
    net, x = settle(Cubic((3, 12, 16), 6).double()), random_images()
    net.a.data.zero_()
    expected = score_difference(net, x, torch.zeros_like(x))
    for steps, anchors in ((2, 0), (5, 0), (30, 0), (2, 3), (30, 3)):
        found = guided_integrated_gradients(net, x, CLASSES, steps=steps, anchors=anchors)
        torch.testing.assert_close(found.sum((1, 2, 3)), expected, rtol=1e-10, atol=1e-11)


def test_guided_paths_from_another_baseline_and_from_the_image_itself():
    net, x = curved(), random_images()
    start = random_images(seed=3)
    found = guided_integrated_gradients(net, x, CLASSES, steps=400, baseline=start).sum((1, 2, 3))
    torch.testing.assert_close(found, score_difference(net, x, start), rtol=5e-3, atol=1e-4)
    assert not guided_integrated_gradients(net, x, CLASSES, baseline=x).any()


# Gradient SHAP


def test_gradient_shap_of_a_linear_model_is_exact_if_each_baseline_is_sampled_equally_often():
    net, x, some = linear(), random_images(), random_images(4, seed=2)
    expected = net.fc.weight.detach()[CLASSES].view_as(x) * (x - some.mean(0))
    found = gradient_shap(net, x, CLASSES, samples=8, baselines=some)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)


def test_gradient_shap_tends_to_the_mean_of_integrated_gradients_and_is_complete():
    net, x, some = curved(), random_images(1), random_images(3, seed=2)
    limit = torch.stack([straight_integral(net, x[0], 1, start) for start in some]).mean(0)
    errors = [rel(gradient_shap(net, x, 1, samples=n, baselines=some)[0], limit) for n in (30, 3000)]
    assert errors[1] < 0.02 < errors[0]
    found = gradient_shap(net, x, 1, samples=3000, baselines=some)
    expected = (net(x) - net(some).mean(0))[0, 1].detach()
    assert float(found.sum()) == pytest.approx(float(expected), rel=0.02)


def test_p99_the_seed_determines_the_map():
    """Global generators, torch's or NumPy's, have no influence and keep their state."""
    numpy = pytest.importorskip("numpy")
    net, x, maps = residual(), random_images(), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        numpy.random.seed(seed)
        before = torch.get_rng_state(), numpy.random.get_state()[1].copy()
        maps.append(gradient_shap(net, x, 1, samples=6, seed=11, sigma=0.1, baselines=random_images(4, seed=5)))
        assert torch.equal(before[0], torch.get_rng_state()) and (before[1] == numpy.random.get_state()[1]).all()
    assert torch.equal(*maps)


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
        fine = incomplete_findings(explain(name, net, x, 1, steps=150, **options))
        assert reported_gaps(fine) < reported_gaps(told) / 2, name


def test_p100_no_gap_is_reported_for_complete_maps_or_with_through():
    net, x = curved(), random_images()
    for name in ("integrated_gradients", "blur_integrated_gradients", "layer_integrated_gradients", "xrai"):
        assert not any(incomplete_findings(explain(name, net, x, CLASSES))), name
    part = explain("integrated_gradients", net, x, CLASSES, steps=2, through=("conv1", [0]))
    assert not any(incomplete_findings(part)), "through some channels only a part passes"


# Stopping, order, FORGrad, wrong use


@pytest.mark.parametrize("method", [integrated_gradients, blur_integrated_gradients], ids=lambda m: m.__name__)
def test_a_quarter_of_the_steps_approximates_the_map(method):
    net, x = curved(), random_images()
    whole = method(net, x, CLASSES, steps=64)
    stopped = method(net, x, CLASSES, steps=64, batch_size=4, progress=lambda partial: partial.done < 16)
    assert 0 < rel(stopped, whole) < 0.15


def test_forgrad_filters_the_magnitude_of_its_base():
    net, x = curved(), random_images()
    noisy = smooth_grad(net, x, CLASSES, samples=6, seed=3).abs().amax(1)
    told = []
    found = forgrad(net, x, CLASSES, cutoff=4.0, samples=6, seed=3, batch_size=2, progress=told.append)
    torch.testing.assert_close(found, filtered(noisy, 4.0).abs(), rtol=1e-9, atol=1e-12)
    assert len(told) == 3 and torch.equal(told[-1].map, found)
    path = integrated_gradients(net, x, CLASSES, steps=20).sum(1).abs()
    found = forgrad(net, x, CLASSES, base="integrated_gradients", cutoff=4.0, steps=20, progress=told.append)
    torch.testing.assert_close(found, filtered(path, 4.0).abs(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(told[-1].map, found)


def test_baselines_of_another_shape_or_name_are_refused():
    for wrong in ({"baseline": "grey"}, {"baselines": random_images(2, height=4)}):
        with pytest.raises(BadOption, match=next(iter(wrong))):
            gradient_shap(curved(), random_images(), 1, **wrong)
    with pytest.raises(BadOption, match="base"):
        forgrad(curved(), random_images(), 1, base="occlusion")
