"""Path integrals at a layer: captum, completeness, identities between them."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from explainers import (
    explain,
    internal_influence,
    layer_conductance,
    layer_integrated_gradients,
)
from explainers.perturbation.baselines import baseline_of
from tests.support.nets import ClassToken, curved, random_images, rel, residual, settle

CLASSES = [2, 0, 5]
ALL = [layer_integrated_gradients, layer_conductance, internal_influence]


class Skip(nn.Module):
    """Smooth, with a skip connection around `inner`."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.inner = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 7)

    def forward(self, x):
        x = torch.tanh(self.stem(x))
        return self.head(torch.tanh(x + self.inner(x)).mean((2, 3)))


def skip():
    return settle(Skip().double())


def test_layer_integral_and_conductance_are_complete_without_a_bypass():
    net, x = curved(), random_images()
    for layer, baseline in (("conv1", "zeros"), ("act1", 0.3), ("conv2", "blur"), ("act2", "mean")):
        given = {"layer": layer, "baseline": baseline}
        expected = (net(x) - net(baseline_of(x, baseline)))[range(3), CLASSES].detach()
        straight = layer_integrated_gradients(net, x, CLASSES, steps=60, **given)
        torch.testing.assert_close(straight.sum((1, 2, 3)), expected, rtol=1e-8, atol=1e-10)
        conductance = layer_conductance(net, x, CLASSES, steps=500, **given)
        torch.testing.assert_close(conductance.sum((1, 2, 3)), expected, rtol=1e-3, atol=1e-6)


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
    assert drawn.layer == "pause1" and drawn.options["reduce"] == "norm"
    asked = internal_influence(net, x, CLASSES, layer="pause1", steps=4)
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
    if method is layer_conductance:
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
    for network, images, layer in ((net, x, "inner"), (curved(), random_images(), "act2")):
        enough = explain("internal_influence", network, images, 0, layer=layer, steps=301)
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
