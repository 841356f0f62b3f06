"""Adaptive quadrature of a gradient along a path, with points added where the integral is least complete.

f(t)   the score at the path's point t in [0, 1]       known wherever the gradient is
g(t)   the integrand, [...]                            its sum is df / dt

On an interval, the trapezoid of g differs from the rise of f by a defect. In real networks most of it is near the start
of the path, in a few narrow intervals that evenly spaced points miss. Therefore the intervals with the largest defects
are halved, and every point is used. The first points are those of Gauss-Legendre quadrature: if the score is smooth
along the path they suffice, and are exact to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from operator import methodcaller, mul

import torch
from torch import Tensor

from explainers.call.loop import Loop, Rows
from explainers.call.scores import at_least_float32
from explainers.dtypes import to_float64


def gauss_legendre(steps: int) -> tuple[Tensor, Tensor]:
    """Return points and weights of Gauss-Legendre quadrature on [0, 1], float64, [steps] each.

    Source   Golub & Welsch 1969: eigenvalues of the Jacobi matrix of the Legendre polynomials
    """
    k = torch.arange(1, steps, dtype=torch.float64)
    off_diagonal = k / (4 * k**2 - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1))
    return (values + 1) / 2, vectors[0] ** 2


def spread(count: int) -> Tensor:
    """Return the numbers 0 to count - 1 in van der Corput order, so that any prefix is evenly spread."""
    digits = max(1, (count - 1).bit_length())
    reversed_bits = [int(f"{number:0{digits}b}"[::-1], 2) for number in range(2**digits)]
    return torch.tensor([number for number in reversed_bits if number < count])


MAX_POINTS = 256
"""Maximum number of points."""
GAP, VARIATION_GAP = 0.01, 0.05
"""Convergence criteria.

The sum of the defects, i.e. the gap of the map, must be below `GAP` times the rise of the score. The sum of their
magnitudes must be below `VARIATION_GAP` times the total variation of the score, to exclude accidental cancellation.
"""
# Number of points of the quadrature, and maximum number in each later round; minimum width of an interval to halve; and
# the fraction of the largest defect below which an interval is not halved in this round.
_FIRST, _ROUND, _NARROWEST, _NEGLIGIBLE = 16, 16, 2.0**-20, 0.02


@cache
def _first_points() -> tuple[list[float], list[float]]:
    """Return points and weights of the first round, in an order in which any prefix is evenly spread."""
    points, weights = gauss_legendre(_FIRST)
    order = spread(_FIRST)
    return points[order].tolist(), weights[order].tolist()


Probe = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(image index, points [R] in float64) -> scores [R], and the integrand there [R, ...], float32 or float64."""


class Bisection:
    """The integral of one image: the next points to evaluate, and the estimate from those evaluated so far."""

    def __init__(self) -> None:
        self.done = False
        self.limit = MAX_POINTS
        self.pending: list[float] = []
        """The points to evaluate next."""
        self._order: list[int] = []
        """Indices of the evaluated points from the start of the path to its end."""
        self._points: list[float] = []
        self._scores: list[float] = []
        self._slopes: list[float] = []
        self._parts: list[Tensor] = []
        points, weights = _first_points()
        self.pending, self._weights = [0.0, 1.0, *points], [0.0, 0.0, *weights]
        self._integral: Tensor | None = None

    def add(self, scores: Tensor, parts: Tensor) -> None:
        """Add scores and integrands at the first pending points. Convergence is checked once per round."""
        count = len(scores)
        self._points += self.pending[:count]
        self._scores += scores.tolist()
        self._slopes += to_float64(parts.flatten(1)).sum(1).tolist()
        self._parts += list(parts)
        self._order = sorted(range(len(self._points)), key=self._points.__getitem__)
        del self.pending[:count]
        if not self.pending:
            self._check_convergence()
            if self.done:
                self._integral = self.integral()
                self._parts.clear()

    def _check_convergence(self) -> None:
        values = torch.tensor((self._points, self._scores, self._slopes), dtype=torch.float64)
        at, scores, slopes = values[:, self._order]
        defects = scores.diff() - (slopes[1:] + slopes[:-1]) / 2 * at.diff()
        smooth = len(at) == len(self._weights)  # the first round uses the quadrature's sum instead of the trapezoids
        gap = float(scores[-1] - scores[0]) - sum(map(mul, self._weights, self._slopes)) if smooth else None
        if self._refine(at, scores, defects, gap=gap) and smooth:
            shares = torch.tensor(self._weights).to(self._parts[0])
            self._integral = torch.einsum("r,r...->...", shares, torch.stack(self._parts))

    def _refine(
        self,
        at: Tensor,
        scores: Tensor,
        defects: Tensor,
        *,
        gap: float | None = None,
        magnitudes: Tensor | None = None,
        allowed: bool = True,
    ) -> bool:
        """Return whether the integral is close enough to the rise of the scores; if not, bisect intervals.

        These are the ones with the largest magnitudes, by default those of the defects. The integral is done if there
        are none. `gap` is that of the integral, if it is not the sum of the defects; an integral that is not `allowed`
        is not close enough.
        """
        rounding = torch.finfo(self._parts[0].dtype).eps * float(scores.abs().max()) * len(scores)
        gap = abs(float(defects.sum()) if gap is None else gap)
        is_complete = (
            allowed
            and gap <= max(GAP * abs(float(scores[-1] - scores[0])), rounding)
            and float(defects.abs().sum()) <= max(VARIATION_GAP * float(scores.diff().abs().sum()), rounding)
        )
        magnitudes = defects.abs() if magnitudes is None else magnitudes
        limit = min(_ROUND, self.limit - len(at))
        if not is_complete and limit > 0:
            # A NaN score has no defect to compare: no points are added, and NaN propagates to the map.
            magnitudes = torch.where((at.diff() > _NARROWEST) & magnitudes.isfinite(), magnitudes, 0)
            least = float(magnitudes.max()) * _NEGLIGIBLE
            largest = magnitudes.argsort(descending=True, stable=True)[:limit].tolist()
            self.pending = [float(at[i] + at[i + 1]) / 2 for i in largest if magnitudes[i] > least]
        self.done = not self.pending
        return is_complete

    def integral(self) -> Tensor:
        """Return the sum of trapezoids over the evaluated points; the first and last extend to the ends of the path."""
        if self._integral is not None:
            return self._integral
        at = [self._points[i] for i in self._order]
        edges = [0.0, *[(a + b) / 2 for a, b in pairwise(at)], 1.0]
        total = torch.zeros_like(self._parts[0])
        for i, (low, high) in zip(self._order, pairwise(edges), strict=True):
            total.add_(self._parts[i], alpha=high - low)
        return total


def weighted_mean(
    count: int,
    loop: Loop,
    rows: int | Rows,
    weights: Tensor,
    values: Callable[[int, Tensor], Tensor],
    shown: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the mean [count, ...] of `values(index, points)` [R, ...] at the points of a path, by their weights.

    Points are visited in van der Corput order. If stopped early, the weights of the visited points are renormalized.
    """
    total: list[Tensor] = []
    reached, order = 0.0, spread(len(weights))

    def work(chunk: range) -> None:
        nonlocal reached
        chosen = order[chunk.start : chunk.stop]
        for index in range(count):
            each = at_least_float32(values(index, chosen))
            if not total:
                total.append(each.new_zeros(count, *each.shape[1:]))
            total[0][index] += torch.tensordot(weights[chosen].to(each), each, 1)
        reached += float(weights[chosen].sum())

    loop.run(len(weights), rows, work, lambda: shown(total[0] / reached))
    return total[0] / reached


def bisect(
    bisections: Sequence[Bisection], loop: Loop, rows: int | Rows, probe: Probe, shown: Callable[[Tensor], Tensor]
) -> Tensor:
    """Evaluate the points of one bisection per image until all are done; return the integrals, one row per image.

    At most `MAX_POINTS` points are used. The gradients at the points are kept until an image is done: 0.6 MB each at
    224 x 224 pixels.
    """

    def work(chunk: range) -> bool:
        is_done = True
        for index, bisection in enumerate(bisections):
            left = len(chunk)
            while left and not bisection.done:
                points = torch.tensor(bisection.pending[:left], dtype=torch.float64)
                bisection.add(*probe(index, points))
                left -= len(points)
            is_done &= bisection.done
        return is_done

    def best() -> Tensor:
        return torch.stack(list(map(methodcaller("integral"), bisections)))

    loop.run(MAX_POINTS, rows, work, lambda: shown(best()))
    return best()
