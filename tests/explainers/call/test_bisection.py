"""Adaptive quadrature by the completeness gap: closed forms, chunks, non-convergence; and the methods that use it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import explainers.methods.gradients.quadrature as bisection
from explainers import explain, integrated_gradients
from explainers.call.loop import Loop
from explainers.methods.gradients.quadrature import GAP, MAX_POINTS, Bisection, bisect
from tests.support.nets import Written, curved, random_images, settle

PI = torch.pi
SHARES = torch.tensor([0.5, 1.0, -0.5]).double()
CHANGES = {
    "straight": (lambda t: 3 * t + 1, lambda t: 0 * t + 3),
    "bent": (lambda t: t**3 - t / 2, lambda t: 3 * t**2 - 0.5),
    "early": (lambda t: 2 * (1 - torch.exp(-500 * t)), lambda t: 1000 * torch.exp(-500 * t)),
    "kinked": (lambda t: (t - 0.37).clamp(min=0), lambda t: (t > 0.37).double()),
    "waves": (lambda t: t + 1 - torch.cos(20 * PI * t), lambda t: 1 + 20 * PI * torch.sin(20 * PI * t)),
    "jump": (lambda t: (t > 0.3).double(), lambda t: 0 * t),
    "not a number": (lambda t: torch.where(t > 0.3, torch.nan, 0.0), lambda t: 0 * t),
}


def integral(name, rows=16):
    """The integral for three cells, whose gradients are `SHARES` of the slope; and the points evaluated."""
    score, slope = CHANGES[name]
    seen = []

    def probe(image, points):
        seen.extend(points.tolist())
        return score(points), slope(points)[:, None] * SHARES

    return bisect([Bisection()], Loop(), rows, probe, lambda found: found)[0], seen


@pytest.mark.parametrize("name", ["straight", "bent", "early", "kinked"])
def test_the_integral_is_the_difference_of_the_end_points(name):
    score, _ = CHANGES[name]
    found, seen = integral(name)
    rise = float(score(torch.tensor(1.0).double()) - score(torch.tensor(0.0).double()))
    assert float(found.sum()) == pytest.approx(rise, rel=GAP, abs=1e-4)
    torch.testing.assert_close(found, SHARES * found.sum())
    assert len(set(seen)) == len(seen) < MAX_POINTS and min(seen) == 0 and max(seen) == 1
    for rows in (1, 5, 7, 64, 1000):
        again, other = integral(name, rows)
        assert seen == other and torch.equal(found, again), "the chunk size does not change the points"


def test_gaps_that_cancel_are_refined():
    """The total gap of the first 18 points is 0, the gaps of the intervals are not."""
    assert len(integral("waves")[1]) > 18


def test_refinement_stops_at_the_maximum_number_of_points():
    """A score with a jump and zero gradient."""
    assert all(len(integral(name)[1]) <= MAX_POINTS for name in ("jump", "not a number"))


# The methods


def late():
    """The score rises within the first hundredth of the path from zero, as in networks with saturating units."""

    def forward(self, x):
        return self.fc(nn.functional.relu6(100 * self.conv(x)).mean((2, 3)))

    torch.manual_seed(0)
    return Written(forward, conv=nn.Conv2d(3, 8, 3, padding=1), fc=nn.Linear(8, 6)).double().eval()


X, CLASSES = random_images(), [2, 0, 5]


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


def test_a_fixed_number_of_steps_uses_gauss_legendre():
    """On a smooth network 40 Gauss-Legendre points are exact to 1e-6; 40 trapezoids are not."""
    fine, found = (integrated_gradients(curved(), X[:1], 1, steps=steps) for steps in (200, 40))
    torch.testing.assert_close(found, fine, rtol=1e-6, atol=1e-9)
    # The gradient is restricted to some channels, so no completeness gap is defined and the points are fixed.
    net, through = settle(late()), ("conv", [0, 3])
    fixed = integrated_gradients(net, X[:1], 1, steps=50, through=through)
    torch.testing.assert_close(integrated_gradients(net, X[:1], 1, through=through), fixed)
