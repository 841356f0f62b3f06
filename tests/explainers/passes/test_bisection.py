"""Adaptive quadrature by the completeness gap: closed forms, chunks, non-convergence; and the methods that use it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import explainers.methods.gradients.quadrature as bisection
from explainers import explain, integrated_gradients, layer_integrated_gradients
from explainers.methods.gradients.quadrature import GAP, MAX_POINTS, integrate_by_gap
from explainers.passes.loop import Loop
from tests.support.nets import curved, random_images, settle

FIRST = 18
"""The quadrature's points and both ends."""
CHANGES = {
    "straight": (lambda t: 3 * t + 1, lambda t: 0 * t + 3),
    "bent": (lambda t: t**3 - t / 2, lambda t: 3 * t**2 - 0.5),
    "early": (lambda t: 2 * (1 - torch.exp(-500 * t)), lambda t: 1000 * torch.exp(-500 * t)),
    "kinked": (lambda t: (t - 0.37).clamp(min=0), lambda t: (t > 0.37).double()),
}


def integral(name, rows=16, progress=None):
    """The integral for three cells with gradients 0.5, 1 and -0.5 times the slope; and the points evaluated."""
    score, slope = CHANGES[name]
    seen = []

    def probe(image, points):
        seen.extend(points.tolist())
        return score(points), slope(points)[:, None] * torch.tensor([0.5, 1.0, -0.5]).double()

    return integrate_by_gap(1, Loop(progress=progress), rows, probe, lambda found: found)[0], seen


@pytest.mark.parametrize("name", CHANGES)
def test_the_integral_is_the_difference_of_the_end_points(name):
    score, _ = CHANGES[name]
    found, seen = integral(name)
    rise = float(score(torch.tensor(1.0).double()) - score(torch.tensor(0.0).double()))
    assert float(found.sum()) == pytest.approx(rise, rel=GAP, abs=1e-4)
    torch.testing.assert_close(found, torch.tensor([0.5, 1.0, -0.5]).double() * found.sum())
    assert len(set(seen)) == len(seen) < MAX_POINTS and min(seen) == 0 and max(seen) == 1


def test_points_lie_where_the_function_changes():
    """A rise in the first hundredth of the path: uniform points would need thousands, adaptive ones cluster there."""
    _, seen = integral("early")
    assert sum(t < 0.05 for t in seen) > len(seen) / 2
    even = torch.linspace(0, 1, len(seen), dtype=torch.float64)
    _, slope = CHANGES["early"]
    assert abs(float(torch.trapezoid(slope(even), even)) - 2) > 10 * GAP * 2


@pytest.mark.parametrize("rows", [1, 5, 7, 64, 1000])
def test_chunk_size_does_not_change_the_points(rows):
    found, seen = integral("kinked", rows)
    expected, other = integral("kinked", 16)
    assert seen == other and torch.equal(found, expected)


def test_errors_that_cancel_in_the_sum_are_refined():
    """Two bumps of opposite slope between the initial points: the total gap is 0, the gaps of the intervals are not."""
    width = 1 / 15

    def slope(t):
        return 1 + 40 * torch.sin(math.pi * t / width) ** 2 * ((t < width).double() - (t > 1 - width).double())

    def score(t):
        early, late = t.clamp(max=width), (t - 1 + width).clamp(min=0)
        return t + 40 * (_squared_sine(early, width) - _squared_sine(late, width))

    seen = []

    def probe(image, points):
        seen.extend(points.tolist())
        return score(points), slope(points)[:, None]

    integrate_by_gap(1, Loop(), 16, probe, lambda found: found)
    assert len(seen) > FIRST and sum(t < width or t > 1 - width for t in seen[FIRST:]) > 0.7 * len(seen[FIRST:])


def _squared_sine(t, width):
    """The integral of sin(pi s / width)^2 from 0 to t."""
    return t / 2 - width / (4 * math.pi) * torch.sin(2 * math.pi * t / width)


def test_refinement_stops_at_the_maximum_number_of_points():
    """A score with a jump and zero gradient."""
    for jump in (lambda t: (t > 0.3).double(), lambda t: torch.where(t > 0.3, torch.nan, 0.0)):
        seen = []

        def probe(image, points, jump=jump, seen=seen):
            seen.extend(points.tolist())
            return jump(points), torch.zeros(len(points), 1).double()

        integrate_by_gap(1, Loop(), 16, probe, lambda found: found)
        assert len(seen) <= MAX_POINTS


# The methods


class Late(nn.Module):
    """The score rises within the first hundredth of the path from zero, as in networks with saturating units."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 6)

    def forward(self, x):
        return self.fc(torch.nn.functional.relu6(100 * self.conv(x)).mean((2, 3)))


def saturating():
    torch.manual_seed(0)
    return Late().double().eval()


def gap(found, net, x, classes, start):
    whole = (net(x) - net(start)).detach()[range(len(x)), classes]
    return float(((found.flatten(1).sum(1) - whole) / whole).abs().max())


def test_integrated_gradients_choose_steps_that_close_the_completeness_gap():
    net, x, classes = saturating(), random_images(), [2, 0, 5]
    start = torch.zeros_like(x)
    assert gap(integrated_gradients(net, x, classes, steps=50), net, x, classes, start) > 0.02
    found = integrated_gradients(net, x, classes)
    assert gap(found, net, x, classes, start) < GAP
    told = explain("integrated_gradients", net, x, classes)
    assert not any(each.code == "incomplete" for row in told.findings for each in row)


def test_a_batch_equals_its_images_one_by_one_with_points_per_image():
    net, x, classes = saturating(), random_images(), [2, 0, 5]
    for method, options in ((integrated_gradients, {}), (layer_integrated_gradients, {"layer": "conv"})):
        whole = method(net, x, classes, **options)
        for n, c in enumerate(classes):
            torch.testing.assert_close(method(net, x[n : n + 1], c, **options)[0], whole[n], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(method(net, x, classes, batch_size=3, **options), whole, rtol=1e-9, atol=1e-12)


def test_a_fixed_number_of_steps_uses_gauss_legendre():
    """On a smooth network 40 Gauss-Legendre points are exact to 1e-6; 40 trapezoids are not."""
    net, x = curved(), random_images(1)
    fine = integrated_gradients(net, x, 1, steps=200)
    torch.testing.assert_close(integrated_gradients(net, x, 1, steps=40), fine, rtol=1e-6, atol=1e-9)


def test_through_chosen_channels_the_points_are_fixed():
    """The gradient is restricted to some channels, so no completeness gap is defined."""
    net, x = settle(saturating()), random_images(1)
    fixed = integrated_gradients(net, x, 1, steps=50, through=("conv", [0, 3]))
    torch.testing.assert_close(integrated_gradients(net, x, 1, through=("conv", [0, 3])), fixed)


def test_a_remaining_completeness_gap_is_a_finding(monkeypatch):
    monkeypatch.setattr(bisection, "MAX_POINTS", 16)
    told = explain("integrated_gradients", saturating(), random_images(), [2, 0, 5]).findings
    (found,) = [each for each in told[0] if each.code == "incomplete"]
    assert found.remedy == {"steps": 1000}
