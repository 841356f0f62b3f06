"""Sobol and HSIC indices: known values of small functions, and the estimator written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import hsic, sobol
from tests.support.nets import curved, random_images
from tests.support.oracles.masks import cells_of


class Cells(nn.Module):
    """A function of the visibility of each of 2 x 2 cells of a white image."""

    def __init__(self, function, scale=1.0, shift=0.0) -> None:
        super().__init__()
        self.function, self.scale, self.shift = function, scale, shift

    def forward(self, x):
        u = x.mean(1).reshape(-1, 2, 2, 2, 2).mean((2, 4)).flatten(1)
        score = self.function(*u.T) * self.scale + self.shift
        return torch.stack([score, -score], 1)


WHITE = torch.ones(1, 1, 4, 4, dtype=torch.float64)


def cells_of_map(found):
    return found[0, ::2, ::2].flatten()


def test_sobol_by_jansens_estimator_on_the_same_points():
    """Oracle: one design and one cell at a time, on a curved network; the variance is that of all masks."""
    net, x, designs = curved(), random_images(), 4
    labels = cells_of(12, 16, 2, 2)
    points = torch.quasirandom.SobolEngine(8, scramble=True, seed=5).draw(designs)
    found = sobol(net, x, [2, 0, 5], cells=2, samples=designs, seed=5)
    for n, c in enumerate([2, 0, 5]):

        def score(u, n=n, c=c):
            with torch.no_grad():
                return float(net((x[n] * u.double()[labels])[None])[0, c])

        everything, moved = [], torch.zeros(4, dtype=torch.float64)
        for point in points:
            everything.append(score(point[:4]))
            whole = everything[-1]
            for cell in range(4):
                changed = point[:4].clone()
                changed[cell] = point[4 + cell]
                everything.append(score(changed))
                moved[cell] += (whole - everything[-1]) ** 2 / 2 / designs
        variance = torch.tensor(everything).double().var(unbiased=False)
        torch.testing.assert_close(found[n], (moved / variance)[labels], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("method", [sobol, hsic])
def test_neither_scale_nor_shift_of_the_score_matters(method):
    """A peer's HSIC takes the median score as the width of its kernel, which moves with the logit's constant."""

    def function(a, b, c, d):
        return a * b + 0.3 * c

    expected = method(Cells(function), WHITE, 0, cells=2, samples=64)
    assert (expected >= 0).all() and expected.max() > 2 * expected.min()
    for scale, shift in ((1000.0, 0.0), (1e-4, 0.0), (-1.0, 0.0), (1.0, 50.0)):
        found = method(Cells(function, scale, shift), WHITE, 0, cells=2, samples=64)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_hsic_detects_dependence_that_the_mean_does_not():
    """Cell a decides the variance of the score; its mean is 0 either way. c and d have no influence."""
    found = cells_of_map(hsic(Cells(lambda a, b, c, d: a * (2 * b - 1)), WHITE, 0, cells=2))
    assert found[0] > 0.01 and found[1] > 0.01
    torch.testing.assert_close(found[2:], torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-12)
