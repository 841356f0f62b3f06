"""Sensitivity analysis: how much of the score's variance or dependence is due to each cell of a grid.

u  visibility of each cell        (s, d)   in [0, 1], or 0 and 1; the remainder is the baseline
f  scores                         (s)      in logits unless the target says otherwise

Both indices are normalized: they do not depend on the scale of the score, and are never negative.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import Run, open_run
from explainers.findings import note_finding
from explainers.keywords import Cost
from explainers.options import Baseline, Choice, Range, Seed
from explainers.perturbation.baselines import NAMES, baseline_of
from explainers.perturbation.coalitions import CoalitionScorer, every_coalition, within_rounding
from explainers.perturbation.rng import PerImageGenerators
from explainers.perturbation.segments import parts_of
from explainers.registry import method
from explainers.targets import TargetLike

_index = partial(method, family="perturbation", returns="heat", signed=False)


@_index(
    title="Sobol indices",
    paper="Fel et al. 2021, arXiv:2111.04138",
    scale_free="Values are fractions of the score's variance.",
)
def sobol(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    cells: Annotated[int, Range(2, 32, help="grid cells along each side")] = 7,
    samples: Annotated[int, Range(2, 1024, help="Sobol base samples; (cells² + 1) evaluations each")] = 12,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces a cell")] = "zeros",
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """Sobol indices: the fraction of the score's variance due to a cell and all its interactions (total order).

        S_i = E[Var(f | u_~i)] / Var(f)

    The indices sum to 1 if cells contribute additively, and to more if they interact. Masks come from a scrambled Sobol
    sequence, the same for every image; the variance is over all masks. The default needs 600 forward passes; the
    authors' code uses 32 base samples.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the input's resolution, >= 0: the index of the pixel's cell; 0 if the score does not change
             beyond rounding
    Errors   BadTarget, BadOption
    Source   Fel et al. 2021, section 3, arXiv:2111.04138: total-order indices by the estimator of Jansen 1999

    Example
        >>> sobol(model, images, 281, cells=3, samples=4).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        scorer = _cells(run, cells, baseline, seed)
        count = scorer.parts[0].count
        return _maps(scorer, sobol_designs(samples, count, seed), lambda scores: total_indices(scores, count))


def _cells(run: Run, cells: int, baseline: Baseline, seed: int) -> CoalitionScorer:
    """Return the scorer of a grid; videos and volumes have as many cells along the third axis, or one per frame."""
    run.scoring.score_inputs()
    size = (*(min(cells, count) for count in run.images.shape[2:-2]), cells, cells)
    return CoalitionScorer(run, parts_of(size, run.images), baseline_of(run.images, baseline, seed))


def sobol_designs(samples: int, count: int, seed: int) -> Tensor:
    """Return, for each of `samples` points A, A itself and A with one coordinate at a time from B, [s (d + 1), d]."""
    points = torch.quasirandom.SobolEngine(2 * count, scramble=True, seed=seed).draw(samples)
    a, b = points[:, None, :count], points[:, None, count:]
    changed = torch.where(torch.eye(count, dtype=torch.bool), b, a)
    return torch.cat([a, changed], 1).flatten(0, 1)


def total_indices(scores: Tensor, count: int) -> Tensor:
    """Estimate total-order indices by Jansen's formula: mean (f(A) - f(A with B's coordinate i))² / (2 Var f), [d]."""
    padded = torch.full((-(-len(scores) // (count + 1)) * (count + 1),), torch.nan, dtype=scores.dtype)
    padded[: len(scores)] = scores
    base, changed = padded.view(-1, count + 1).split([1, count], 1)
    return ((base - changed) ** 2).nanmean(0).nan_to_num() / 2 / scores.var(unbiased=False)


def _maps(scorer: CoalitionScorer, coalitions: Tensor, indices: Callable[[Tensor], Tensor]) -> Tensor:
    """Give each pixel the index of its cell, or 0, with a finding, if the scores differ only by rounding."""
    dtype = scorer.run.images.dtype

    def heat(n: int, scores: Tensor) -> Tensor:
        values = indices(scores)
        return scorer.paint(n, torch.zeros_like(values) if within_rounding(scores, dtype) else values)

    maps, reached = scorer.evaluate([coalitions] * len(scorer.parts), heat)
    for index, scores in enumerate(reached):
        if within_rounding(scores, dtype):
            note_finding(
                "no_effect",
                "The score does not change beyond rounding for any occlusion. Either the target does not depend on "
                "the image, or the image equals the baseline. Try another baseline or target.",
                image=index,
            )
    return maps


@_index(
    title="HSIC",
    paper="Novello et al. 2022, arXiv:2206.06219",
    scale_free="Values measure dependence; the bandwidth of the score's kernel adapts to the scale of the score.",
)
def hsic(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    cells: Annotated[int, Range(2, 32, help="grid cells along each side")] = 7,
    samples: Annotated[int, Range(2, 4000, 1, help="random masks")] = 600,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces a cell")] = "zeros",
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """HSIC: any statistical dependence of the score on whether a cell is shown, not only its mean effect.

        trace(K H L H) / (s - 1)²,  K the cell's kernel, L the score's, H = I - 11ᵀ/s

    Cells are shown with probability 1/2, or in each combination once if there are no more combinations than samples.
    The kernel of cells is 1/2 - (z - z')², that of scores is Gaussian with the median distance as bandwidth. The
    paper's code uses the median score, which changes if a constant is added to the score.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the input's resolution, >= 0: the value of the pixel's cell; 0 if the score does not change
             beyond rounding
    Errors   BadTarget, BadOption
    Source   Novello et al. 2022, section 3, arXiv:2206.06219

    Example
        >>> hsic(model, images, 281, cells=3, samples=32).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        scorer = _cells(run, cells, baseline, seed)
        count = scorer.parts[0].count
        # A single generator, because masks are the same for every image.
        z = (
            every_coalition(count)
            if 2**count <= samples
            else PerImageGenerators(1, seed).uniform(0, samples, count) < 0.5
        )
        return _maps(scorer, z, lambda scores: _hsic(z[: len(scores)], scores))


def _hsic(z: Tensor, scores: Tensor) -> Tensor:
    """Compute HSIC of each column of z with the scores, [d].

    The centered kernel of a cell is 2 c cᵀ with its centered column c, so that trace(K H L H) is 2 cᵀ L c.
    """
    count = len(scores)
    if count < 2:
        return torch.zeros(z.shape[1], dtype=torch.float64)
    if not bool(scores.isfinite().all()):
        return torch.full((z.shape[1],), torch.nan, dtype=torch.float64)
    distances = (scores[:, None] - scores).abs()
    positive = distances[distances > 0]
    gram = torch.exp(-((distances / positive.median()) ** 2) / 2) if len(positive) else torch.ones_like(distances)
    centered = z.double() - z.double().mean(0)
    return 2 * (centered * (gram @ centered)).sum(0) / (count - 1) ** 2
