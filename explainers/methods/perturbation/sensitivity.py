"""The share of the score's variance, or of its dependence, that is due to each cell of a grid.

u  how far each cell is shown     (s, d)   in [0, 1], or 0 and 1; the rest is the baseline's
f  scores                         (s)      in logits unless the target says otherwise

Both indices are normalised: they do not change with the score's scale, and are never negative.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from explainers.findings import note_finding
from explainers.options import Baseline, Choice, Precision, Range, Seed
from explainers.passes.loop import Loop, Progress
from explainers.passes.run import Run, open_run
from explainers.perturbation.baselines import NAMES, baseline_of
from explainers.perturbation.coalitions import CoalitionScorer, every_coalition, within_rounding
from explainers.perturbation.rng import PerImageGenerators
from explainers.perturbation.segments import parts_of
from explainers.registry import method
from explainers.targets import TargetLike


@method(
    family="perturbation",
    returns="heat",
    title="Sobol indices",
    paper="Fel et al. 2021, arXiv:2111.04138",
    scale_free="Values are shares of the score's variance.",
    signed=False,
)
def sobol(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    cells: Annotated[int, Range(2, 32, help="grid cells along each side")] = 7,
    samples: Annotated[int, Range(2, 1024, help="Sobol base samples; (cells² + 1) evaluations each")] = 12,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces a cell; empty: zeros")] = None,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Sobol indices: the share of the score's variance that is due to a cell and all its interactions (total order).

        S_i = E[Var(f | u_~i)] / Var(f)

    The indices sum to 1 where cells contribute additively, and to more where they interact. Masks come from a scrambled
    Sobol sequence, the same for every image; the variance is over all masks. By default 600 forward passes; the
    authors' code takes 32 base samples.

    Returns  (n, h, w) at the input's resolution, >= 0: the index of the pixel's cell; 0 where the score does not change
             beyond rounding
    Errors   BadTarget, BadOption
    Source   Fel et al. 2021, section 3, arXiv:2111.04138: total-order indices by the estimator of Jansen 1999

    Example
        >>> sobol(model, images, 281, cells=3, samples=4).shape
        torch.Size([1, 224, 224])
    """
    loop = Loop(batch_size, progress, budget)
    with open_run(model, images, target, many=True, precision=precision, loop=loop) as run:
        run.score_inputs()
        parts = parts_of((cells, cells), run.images)
        scorer = CoalitionScorer(run, parts, baseline_of(run.images, baseline, seed))
        designs = _designs(samples, parts[0].count, seed)

        def heat(n: int, scores: Tensor) -> Tensor:
            return _paint(scorer, n, scores, _jansen(scores, parts[n].count))

        maps, reached = scorer.evaluate([designs] * len(images), loop, heat)
        _note_no_effect(run, reached)
        return maps


def _designs(samples: int, count: int, seed: int) -> Tensor:
    """For each of `samples` points A: A itself, and A with one coordinate at a time from B, [s (d + 1), d]."""
    points = torch.quasirandom.SobolEngine(2 * count, scramble=True, seed=seed).draw(samples)
    a, b = points[:, None, :count], points[:, None, count:]
    changed = torch.where(torch.eye(count, dtype=torch.bool), b, a)
    return torch.cat([a, changed], 1).flatten(0, 1)


def _jansen(scores: Tensor, count: int) -> Tensor:
    """Jansen's estimator of the total-order index: mean (f(A) - f(A with B's coordinate i))² / (2 Var f), [d]."""
    padded = torch.full((-(-len(scores) // (count + 1)) * (count + 1),), torch.nan, dtype=scores.dtype)
    padded[: len(scores)] = scores
    base, changed = padded.view(-1, count + 1).split([1, count], 1)
    return ((base - changed) ** 2).nanmean(0).nan_to_num() / 2 / scores.var(unbiased=False)


def _paint(scorer: CoalitionScorer, picture: int, scores: Tensor, values: Tensor) -> Tensor:
    """Each pixel has the value of its cell; 0 where the scores differ by rounding alone."""
    constant = within_rounding(scores, scorer.run.images.dtype)
    return scorer.paint(picture, torch.zeros_like(values) if constant else values)


def _note_no_effect(run: Run, reached: list[Tensor]) -> None:
    for picture, scores in enumerate(reached):
        if within_rounding(scores, run.images.dtype):
            note_finding(
                "no_effect",
                "The score does not change beyond rounding, whatever is occluded: the target does not depend on the "
                "image, or the image looks like the baseline. Try another baseline or target.",
                picture=picture,
            )


@method(
    family="perturbation",
    returns="heat",
    title="HSIC",
    paper="Novello et al. 2022, arXiv:2206.06219",
    scale_free="Values measure dependence; the bandwidth of the score's kernel follows the score's own scale.",
    signed=False,
)
def hsic(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    cells: Annotated[int, Range(2, 32, help="grid cells along each side")] = 7,
    samples: Annotated[int, Range(2, 4000, 1, help="random masks")] = 600,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces a cell; empty: zeros")] = None,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """HSIC: any statistical dependence of the score on whether a cell is shown, not its mean effect alone.

        trace(K H L H) / (s - 1)²,  K the cell's kernel, L the score's, H = I - 11ᵀ/s

    Cells are shown with probability 1/2, or in all combinations once where there are no more of these than samples.
    Cells have the kernel 1/2 - (z - z')², scores a Gaussian one with the median distance as bandwidth; the paper's own
    code takes the median score, which a constant added to the score changes.

    Returns  (n, h, w) at the input's resolution, >= 0: the value of the pixel's cell; 0 where the score does not change
             beyond rounding
    Errors   BadTarget, BadOption
    Source   Novello et al. 2022, section 3, arXiv:2206.06219

    Example
        >>> hsic(model, images, 281, cells=3, samples=32).shape
        torch.Size([1, 224, 224])
    """
    loop = Loop(batch_size, progress, budget)
    with open_run(model, images, target, many=True, precision=precision, loop=loop) as run:
        run.score_inputs()
        parts = parts_of((cells, cells), run.images)
        scorer = CoalitionScorer(run, parts, baseline_of(run.images, baseline, seed))
        count = cells * cells
        # One generator: masks are the same for every image.
        z = (
            every_coalition(count)
            if 2**count <= samples
            else PerImageGenerators(1, seed).uniform(0, samples, count) < 0.5
        )

        def heat(n: int, scores: Tensor) -> Tensor:
            return _paint(scorer, n, scores, _dependence(z[: len(scores)], scores))

        maps, reached = scorer.evaluate([z] * len(images), loop, heat)
        _note_no_effect(run, reached)
        return maps


def _dependence(z: Tensor, scores: Tensor) -> Tensor:
    """HSIC of each column of z with the scores, [d].

    The centred kernel of a cell is 2 c cᵀ, c its centred column, so that trace(K H L H) is 2 cᵀ L c.
    """
    count = len(scores)
    if count < 2:
        return torch.zeros(z.shape[1], dtype=torch.float64)
    if not bool(scores.isfinite().all()):
        return torch.full((z.shape[1],), torch.nan, dtype=torch.float64)
    distances = (scores[:, None] - scores).abs()
    apart = distances[distances > 0]
    gram = torch.exp(-((distances / apart.median()) ** 2) / 2) if len(apart) else torch.ones_like(distances)
    centred = z.double() - z.double().mean(0)
    return 2 * (centred * (gram @ centred)).sum(0) / (count - 1) ** 2
