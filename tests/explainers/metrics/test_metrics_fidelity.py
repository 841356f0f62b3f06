"""Infidelity, µFidelity and the completeness gap: closed forms, loops, captum, and the sums that methods promise."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from explainers import evaluate, explain, full_gradients, saliency
from explainers.metrics.metric import EvaluationSettings
from explainers.metrics.run import evaluator
from explainers.perturbation.baselines import baseline_of
from explainers.perturbation.rng import PerImageGenerators
from explainers.perturbation.segments import grid, superpixels
from tests.support.nets import LinearScore, Written, curved, plain, random_images, residual

CLASSES = [0, 1, 2]
GENERATOR = torch.Generator().manual_seed(3)
IMAGES, BASELINE = random_images(), random_images(seed=8)
MAPS = torch.rand(3, 12, 16, generator=GENERATOR, dtype=torch.float64)


def measure(metric, net, maps, x=IMAGES, *, baseline=BASELINE, target=0, controls=False, **options):
    """The values of one metric."""
    same = {name: options.pop(name) for name in ("seed", "batch_size", "progress", "precision") if name in options}
    found = evaluate(
        net, x, maps, target=target, metrics=metric, baseline=baseline, controls=controls,
        options={metric: options}, **same,
    )  # fmt: skip
    return found if controls else found.values[metric]


def squares(samples, seed=0, shape=(12, 16)):
    """The squares that infidelity replaces, as masks [samples, h, w]: what a network sees in place of zeros."""
    seen = []
    watch = Written(lambda _, x: seen.extend(x[:, 0].detach()) or x.flatten(1))
    image = torch.zeros(1, 1, *shape, dtype=torch.float64)
    measure("infidelity", watch, image[0], image, baseline=image + 1, samples=samples, seed=seed)
    return torch.stack([each for each in seen if each.any() and not each.all()][-samples:])


def draws(samples, seed=0):
    """Normal numbers of each sample as documented: its generator's seed is the next number of the first generator."""
    first = torch.Generator().manual_seed(seed)
    seeds = [int(torch.randint(2**31 - 1, (), generator=first)) for _ in range(samples)]
    return [PerImageGenerators(1, each).normal_noise(0, 1, 3, 12, 16)[0] for each in seeds]


def promises(name, net, x, **options):
    e = explain(name, net, x, CLASSES, compare=False, **options)
    return [row["promised_sum"] for row in e.statistics], e.raw.flatten(1).sum(1).tolist()


# The sums that methods guarantee


def test_complete_methods_promise_the_change_of_the_score_from_their_baseline():
    """From the mean score of several baselines; of XRAI, these are black and white."""
    net, x, several = curved(), random_images(), random_images(5, seed=2)
    ends = [end.expand_as(x) for end in (x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True))]
    cases = [
        ("integrated_gradients", {"steps": 64, "baseline": "blur"}),
        ("guided_integrated_gradients", {"steps": 400, "baseline": "blur"}),
        ("gradient_shap", {"samples": 64, "baseline": "blur"}),
        ("deep_lift", {"baseline": "blur"}),
        ("kernel_shap", {"baseline": "blur", "masks": "grid", "samples": 200}),
        ("shapley_sampling", {"baseline": "blur", "masks": "grid", "samples": 2}),
        ("deep_lift_shap", {"baseline": several, "batch_size": 2}),
        ("gradient_shap", {"samples": 1000, "baselines": several}),
        ("xrai", {"channels": "sum"}),
    ]
    for name, options in cases:
        some = (
            [each.expand_as(x) for each in several]
            if any(each is several for each in options.values())
            else [baseline_of(x, "blur")]
        )
        scores = torch.stack([net(x) - net(start) for start in (ends if name == "xrai" else some)]).mean(0)
        promised, sums = promises(name, net, x, **options)
        exact = 1e-5 if name == "xrai" else 1e-9
        assert promised == pytest.approx(scores[range(3), CLASSES].tolist(), rel=exact), name
        assert sums == pytest.approx(promised, rel=0.05), f"{name}: and nearly reach it"


def test_lrp_and_full_grad_promise_the_score():
    net, x = plain(), random_images()
    scores = net(x)[range(3), CLASSES].detach()
    assert promises("lrp", net, x)[0] == pytest.approx(scores.tolist(), rel=1e-9)
    elsewhere = full_gradients(net, x, CLASSES).elsewhere
    promised, sums = promises("full_grad", net, x, magnitude=False)
    assert promised == pytest.approx((scores - elsewhere).tolist(), rel=1e-9) == sums


def test_other_methods_promise_no_sum():
    """Neither that of a method inside it, nor of a map through some channels."""
    net, x = residual(), random_images()
    inside = ("forgrad", {"base": "integrated_gradients", "steps": 4}), ("lrp", {"through": ("layer1", [0])})
    names = "grad_cam", "saliency", "input_x_gradient", "occlusion", "full_grad", "edge_control", "xrai"
    for name, options in (*inside, *((name, {}) for name in names)):
        rows = explain(name, net, x, 1, compare=False, **options).statistics
        assert not any("promised_sum" in row for row in rows), name


# Infidelity


def test_m09_squares_are_random_inside_and_of_all_sizes_and_positions():
    masks = squares(4000, shape=(28, 40))
    rows, columns = (masks.any(dim).double() for dim in (2, 1))
    sides = rows.sum(1)
    assert torch.equal(sides, columns.sum(1)) and torch.equal(sides**2, masks.sum((1, 2)))
    assert sides.unique().tolist() == list(range(1, 11))
    assert rows.any(0).all() and columns.any(0).all(), "every row and column is in some square"
    assert not torch.equal(masks, squares(4000, 1, shape=(28, 40)))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_m05_infidelity_is_captums_but_for_maps_against_the_score(normalize, sign):
    """captum scales by a factor of any sign, so a map and its negative have the same infidelity."""
    metrics = pytest.importorskip("captum.metrics")
    net, masks = curved(), squares(20)[:, None].expand(-1, 3, -1, -1)

    def perturb(x, baselines):
        each = masks.repeat(3, 1, 1, 1)
        return each, x * (1 - each) + baselines * each

    attributions = sign * saliency(net, IMAGES, 0) * (IMAGES - BASELINE)
    theirs = metrics.infidelity(
        net, perturb, IMAGES, attributions, baselines=BASELINE, target=0, n_perturb_samples=20, normalize=normalize
    )
    ours = measure("infidelity", net, attributions, samples=20, normalize=normalize)
    if normalize and sign < 0:
        nothing = measure("infidelity", net, torch.zeros_like(MAPS), samples=20)
        torch.testing.assert_close(ours, nothing, rtol=1e-9, atol=0)
        assert bool((theirs < 0.8 * ours).all()), "as low as for the map itself"
    else:
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("normalize", [True, False])
def test_infidelity_under_noise_is_captums(normalize):
    metrics = pytest.importorskip("captum.metrics")
    net, spans = curved(), (IMAGES.amax((1, 2, 3)) - IMAGES.amin((1, 2, 3)))[:, None, None, None, None]
    noise = (0.1 * spans * torch.stack(draws(9)).double()).flatten(0, 1)
    slopes = saliency(net, IMAGES, 0)
    theirs = metrics.infidelity(
        net, lambda x: (noise, x - noise), IMAGES, slopes, target=0, n_perturb_samples=9, normalize=normalize
    )
    options = {"perturbation": "noise", "samples": 9, "sigma": 0.1, "normalize": normalize}
    ours = measure("infidelity", net, slopes, **options)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
    by_name = measure("infidelity", net, "saliency", **options)
    torch.testing.assert_close(by_name, ours, rtol=1e-12, atol=0)


def test_infidelity_under_noise_asks_for_slopes():
    net = curved()
    options = {"infidelity": {"perturbation": "noise", "samples": 3}}
    for maps, why in ((MAPS, "attributions [N, C, H, W]"), ("input_x_gradient", "contributions, not derivatives")):
        found = evaluate(net, IMAGES, maps, target=0, metrics="infidelity", options=options)
        assert bool(found.values["infidelity"].isnan().all()) and why in found.reasons["infidelity"][1]
        assert all(bool(each.isnan().all()) for each in found.controls["infidelity"].values())


# µFidelity


@pytest.mark.parametrize("correlation", ["pearson", "spearman"])
@pytest.mark.parametrize("parts", ["grid", "superpixels"])
def test_mu_fidelity_by_a_loop_over_subsets(parts, correlation):
    """A second, slow implementation: subsets pixel by pixel, correlations from torch; Spearman's of distinct values."""
    net, expected = curved(), []
    for n, x in enumerate(IMAGES):
        labels = grid(12, 16, 4, 4) if parts == "grid" else superpixels(IMAGES)[n]
        generator, count = torch.Generator().manual_seed(0), int(labels.max()) + 1
        sums, losses = [], []
        for _ in range(11):
            hidden = torch.rand(count, generator=generator).argsort().argsort()[labels] < round(0.35 * count)
            sums.append(MAPS[n][hidden].sum())
            losses.append((net(x[None]) - net(torch.where(hidden, BASELINE[n], x)[None]))[0, 0].detach())
        both = torch.stack([torch.stack(sums), torch.stack(losses)])
        both = both if correlation == "pearson" else both.argsort(1).argsort(1).double()
        expected.append(float(torch.corrcoef(both)[0, 1]))
    options = {"parts": parts, "cells": 4, "samples": 11, "correlation": correlation}
    assert measure("mu_fidelity", net, MAPS, **options).tolist() == pytest.approx(expected, rel=1e-9)


def test_m11_every_subset_has_the_same_number_of_parts():
    """Bhatt et al. fix |S|; xplique draws each cell with a probability, so the area causes a correlation."""
    seen = []
    count = Written(lambda _, x: seen.extend((x == 7).flatten(1).sum(1).tolist()) or x.flatten(1))
    measure("mu_fidelity", count, torch.rand(1, 3, 3), torch.rand(1, 1, 20, 20), baseline=7.0, cells=10, samples=30)
    assert set(seen) == {0, 0.35 * 100 * 4}


@pytest.mark.parametrize("metric", ["infidelity", "mu_fidelity"])
def test_no_map_predicts_a_constant_score(metric):
    for change in (0, 1e-15):
        found = measure(metric, curved(), MAPS, controls=True, samples=6, baseline=IMAGES + change)
        assert bool(found.values[metric].isnan().all())
        assert found.reasons[metric] == ["the score does not change under any perturbation"] * 3


# Both


@pytest.mark.parametrize("metric", ["infidelity", "mu_fidelity"])
def test_m12_contributions_of_a_linear_model_win_against_100_random_maps(metric):
    """Closed form: the sum over a part of w (x - baseline) is the score that the part's loss costs."""
    net = LinearScore(3, 12, 16, seed=5).eval()
    exact = (net.weight * (IMAGES - BASELINE)).detach()
    with evaluator(net, IMAGES, EvaluationSettings(target=0, metrics=metric, baseline=BASELINE)) as judge:
        best = judge(exact).values[metric]
        generator = torch.Generator().manual_seed(4)
        others = [judge(torch.rand(3, 12, 16, generator=generator)).values[metric] for _ in range(100)]
        shuffled = judge(exact.flatten(1)[:, torch.randperm(576, generator=generator)].view_as(exact)).values[metric]
    sign = -1 if metric == "infidelity" else 1
    assert best.tolist() == pytest.approx([1.0 if sign > 0 else 0.0] * 3, abs=1e-12)
    assert all(bool((sign * best > sign * each + 0.1).all()) for each in (*others, shuffled))
    assert bool((sign * measure(metric, net, -exact) < sign * torch.stack(others).mean(0)).all()), "signs count"


# Completeness


def test_the_gap_is_that_of_the_raw_values():
    net, x = curved(), IMAGES
    expected = (net(x) - net(BASELINE))[:, 0].detach()
    for reduce in ("sum", "norm"):
        e = explain("integrated_gradients", net, x, 0, steps=3, baseline=BASELINE, reduce=reduce)
        gap = evaluate(net, x, e, metrics="completeness_gap", controls=False).values["completeness_gap"]
        torch.testing.assert_close(gap, (e.raw.sum((1, 2, 3)) - expected).abs() / expected.abs(), rtol=1e-9, atol=0)
        assert bool((gap > 1e-4).all())


def test_m10_exact_methods_have_no_gap_and_lrp_has_what_biases_absorb():
    net = plain()
    gaps = {
        name: evaluate(net, IMAGES, name, target=CLASSES, metrics="completeness_gap").values["completeness_gap"]
        for name in ("deep_lift", "deep_lift_shap", "lrp")
    }
    assert bool((gaps["deep_lift"] < 1e-9).all()) and bool((gaps["deep_lift_shap"] < 1e-9).all())
    scores = net(IMAGES)[range(3), CLASSES].detach()
    sums = explain("lrp", net, IMAGES, CLASSES).raw.sum((1, 2, 3))
    torch.testing.assert_close(gaps["lrp"], (1 - sums / scores).abs(), rtol=1e-9, atol=0)


def test_the_reason_says_that_no_sum_is_guaranteed():
    net, reasons = curved(), {}
    for maps in ("input_x_gradient", MAPS, partial(saliency, net, target=0)):
        found = evaluate(net, IMAGES, maps, target=0, metrics="completeness_gap")
        assert bool(found.values["completeness_gap"].isnan().all())
        reasons[str(maps)[:9]] = found.reasons["completeness_gap"][2]
        assert not found.controls.get("completeness_gap")
    assert reasons.pop("input_x_g") == "input_x_gradient does not guarantee a sum"
    assert all("give the Explanation" in each for each in reasons.values())
    same = explain("deep_lift", net, IMAGES, 0, baseline=IMAGES, compare=False)
    told = evaluate(net, IMAGES, same, metrics="completeness_gap").reasons["completeness_gap"]
    assert told == ["the expected sum is 0: the score does not change"] * 3
