"""Infidelity, µFidelity and the completeness gap: closed forms, loops, captum, and the sums that methods promise."""

from __future__ import annotations

import pytest
import torch
from nets import curved, pictures, plain, residual

from explainers import explain, full_gradients
from explainers.perturbation.baselines import baseline_of

CLASSES = [0, 1, 2]


def change(net, x, start):
    """y(x) - y(start) of each image's class, by the network alone."""
    return (net(x) - net(start))[range(len(x)), CLASSES].detach().tolist()


def promises(name, net, x, **options):
    e = explain(name, net, x, CLASSES, compare=False, **options)
    return [row["promised_sum"] for row in e.statistics], e.raw.flatten(1).sum(1).tolist()


# What methods promise to sum to


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("integrated_gradients", {"steps": 64, "baseline": "blur"}),
        ("guided_integrated_gradients", {"steps": 400, "baseline": "blur"}),
        ("gradient_shap", {"samples": 64, "baseline": "blur"}),
        ("deep_lift", {"baseline": "blur"}),
        ("deep_lift_shap", {"baseline": "blur"}),
        ("kernel_shap", {"baseline": "blur", "masks": "grid", "samples": 200}),
        ("shapley_sampling", {"baseline": "blur", "masks": "grid", "samples": 2}),
    ],
)
def test_complete_methods_promise_the_change_of_the_score_from_their_baseline(name, options):
    net, x = curved(), pictures()
    promised, sums = promises(name, net, x, **options)
    assert promised == pytest.approx(change(net, x, baseline_of(x, "blur")), rel=1e-9)
    assert sums == pytest.approx(promised, rel=0.05), "and keep it about"


def test_deep_lift_shap_promises_the_change_from_the_mean_score_of_its_baselines():
    net, x, some = curved(), pictures(), pictures(5, seed=2)
    expected = (net(x) - net(some).mean(0))[range(3), CLASSES].tolist()
    for name, keyword in (("deep_lift_shap", "baseline"), ("gradient_shap", "baselines")):
        promised, sums = promises(name, net, x, samples=5, **{keyword: some})
        assert promised == pytest.approx(expected, rel=1e-9)
    promised, sums = promises("deep_lift_shap", net, x, baseline=some, batch_size=2)
    assert sums == pytest.approx(promised, rel=1e-9)


def test_xrai_promises_the_change_from_black_and_white_where_it_sums_the_channels():
    net, x = curved(), pictures()
    ends = [x.amin((2, 3), keepdim=True).expand_as(x), x.amax((2, 3), keepdim=True).expand_as(x)]
    expected = torch.stack([torch.tensor(change(net, x, end)) for end in ends]).mean(0).tolist()
    promised, sums = promises("xrai", net, x, channels="sum")
    assert promised == pytest.approx(expected, rel=1e-5) and sums == pytest.approx(expected, rel=0.05)
    assert "promised_sum" not in explain("xrai", net, x, CLASSES, compare=False).statistics[0]


def test_lrp_and_full_grad_promise_the_score():
    net, x = plain(), pictures()
    scores = net(x)[range(3), CLASSES].detach()
    assert promises("lrp", net, x)[0] == pytest.approx(scores.tolist(), rel=1e-9)
    elsewhere = full_gradients(net, x, CLASSES).elsewhere
    promised, sums = promises("full_grad", net, x, magnitude=False)
    assert promised == pytest.approx((scores - elsewhere).tolist(), rel=1e-9) == sums


@pytest.mark.parametrize("name", ["grad_cam", "saliency", "input_x_gradient", "occlusion", "full_grad", "edge_control"])
def test_other_methods_promise_no_sum(name):
    assert "promised_sum" not in explain(name, plain(), pictures(), CLASSES, compare=False).statistics[0]


def test_the_promise_is_the_methods_own_and_of_the_whole_score():
    """Neither that of a method inside it, nor of a map through some channels."""
    net, x = residual(), pictures()
    inside = explain("forgrad", net, x, 1, base="integrated_gradients", steps=4, compare=False)
    part = explain("lrp", net, x, 1, through=("layer1", [0]), compare=False)
    assert not any("promised_sum" in row for row in inside.statistics + part.statistics)
