"""Attributions from gradients along a path from a baseline to the picture."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from ..baselines import NAMES, baseline_of
from ..batching import Loop, Progress
from ..options import Baseline, Choice, Range
from ..passes import opened, precise
from ..registry import method
from ..targets import TargetLike


@method(
    family="gradient",
    returns="pixels",
    title="Integrated gradients",
    paper="Sundararajan et al. 2017, arXiv:1703.01365",
)
def integrated_gradients(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    steps: Annotated[int, Range(2, 1000, help="points on the path")] = 50,
    baseline: Annotated[Baseline, Choice(*NAMES, help="where the path begins; empty: zeros")] = None,
    seed: Annotated[int, Range(0, 2**31 - 1, help="for the baseline 'noise'")] = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Integrated gradients: the mean gradient on the straight path from a baseline, times the way.

    The integral is taken by Gauss-Legendre quadrature. Stopped early, the mean is over the points done.

    Returns  (n, c, h, w), in logits; sums to score(x) - score(baseline) as the number of steps grows
    Errors   BadTarget, BadOption
    Source   Sundararajan et al. 2017, eq. 1, arXiv:1703.01365
    """
    with opened(model, images, target) as run:
        x = run.images
        run.clean()
        start = baseline_of(x, baseline, seed)
        way = x - start
        points, weights = gauss_legendre(steps)
        total, reached = precise(torch.zeros_like(x)), 0.0

        def work(chunk: range) -> None:
            nonlocal reached
            at = points[chunk.start : chunk.stop].to(x).view(-1, 1, 1, 1)
            share = weights[chunk.start : chunk.stop].to(total).view(-1, 1, 1, 1)
            for picture in range(len(x)):
                gradients = run.gradient(start[picture] + at * way[picture], [picture] * len(chunk))
                total[picture] += (share * gradients).sum(0)
            reached += float(weights[chunk.start : chunk.stop].sum())

        loop = Loop(batch_size, progress, budget)
        loop.run(steps, loop.rows(x), work, lambda: (total / reached * precise(way)).sum(1))
        return total / reached * precise(way)


def gauss_legendre(steps: int) -> tuple[Tensor, Tensor]:
    """Points and weights of Gauss-Legendre quadrature on [0, 1], float64, [steps] each.

    Source   Golub & Welsch 1969: eigenvalues of the Jacobi matrix of the Legendre polynomials
    """
    k = torch.arange(1, steps, dtype=torch.float64)
    beside = k / (4 * k**2 - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return (values + 1) / 2, vectors[0] ** 2
