"""The contribution of each part of an image to the score: linear surrogates and Shapley values.

z  coalitions          (s, m)   1 if a part is shown, 0 if the baseline replaces it
f  their scores        (s)      in logits unless the target says otherwise

All methods compute one value per part and divide it evenly over the part's pixels: a map is in logits per pixel, like
an occlusion map, and its sum over a part is the value of the part.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import open_run
from explainers.dtypes import to_cpu_float64
from explainers.findings import note_finding, note_promised_sum
from explainers.keywords import Cost
from explainers.options import Baseline, Choice, Range, Seed
from explainers.perturbation.baselines import NAMES, baseline_of
from explainers.perturbation.coalitions import CoalitionScorer, every_coalition
from explainers.perturbation.rng import PerImageGenerators
from explainers.perturbation.segments import PARTS, Masks, parts_of
from explainers.registry import method
from explainers.targets import TargetLike

_per_pixel = partial(method, family="perturbation", returns="heat", unit="logit per pixel")


@_per_pixel(title="LIME", paper="Ribeiro et al. 2016, arXiv:1602.04938")
def lime(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    masks: Annotated[Masks, Choice(*PARTS, help="parts to show or replace")] = "superpixels",
    samples: Annotated[int, Range(2, 20000, 1, help="coalitions: images with some parts replaced")] = 1000,
    kernel_width: Annotated[float, Range(0.05, 10, 0.05, help="width of the locality kernel")] = 0.25,
    ridge: Annotated[float, Range(0, 10, 0.01, help="ridge (L2) penalty, relative to the data's mean square")] = 1e-4,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces a part")] = "zeros",
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """LIME: coefficients of a local linear model of the score as a function of the parts shown.

        min_w Σ_s π(z_s) (f_s - w_0 - w · z_s)² + ridge ‖w‖²,  π(z) = exp(-(1 - √(mean z))² / kernel_width²)

    Uses weighted ridge regression with an intercept on all parts, without feature selection. If there are no more
    coalitions than samples, each one is evaluated once.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the input's resolution, signed, in logits per pixel: a part's coefficient over its area
    Errors   BadTarget, BadOption
    Source   Ribeiro et al. 2016, eq. 2 and algorithm 1, arXiv:1602.04938; ridge regression instead of K-LASSO

    Example
        >>> lime(model, images, 281, masks="grid", samples=32).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        scorer = CoalitionScorer(run, parts_of(masks, run.images), baseline_of(run.images, baseline, seed))
        full = to_cpu_float64(run.scoring.score_inputs())
        generators = PerImageGenerators(len(images), seed)
        z = [
            _shuffle(every_coalition(part.count))
            if 2**part.count <= samples
            else generators.uniform(n, samples, part.count) < 0.5
            for n, part in enumerate(scorer.parts)
        ]

        def coefficients(n: int, scores: Tensor) -> Tensor:
            # The full image is also a sample; its score is known.
            shown = torch.cat([torch.ones_like(z[n][:1]), z[n][: len(scores)]]).double()
            lost = torch.cat([scores.new_zeros(1), scores - full[n]])
            distance = 1 - shown.mean(1).sqrt()
            return _weighted_fit(shown, lost, torch.exp(-((distance / kernel_width) ** 2)), ridge)

        def heat(n: int, scores: Tensor) -> Tensor:
            return scorer.spread(n, coefficients(n, scores))

        maps, reached = scorer.evaluate(z, heat)
        for n, scores in enumerate(reached):
            if not coefficients(n, scores).any():
                note_finding(
                    "no_effect",
                    f"All coefficients are 0: the score did not change in any of {len(scores)} coalitions. Either "
                    "the target does not depend on these parts, or they equal the baseline. Try another baseline or "
                    "target.",
                    image=n,
                )
        return maps


def _weighted_fit(z: Tensor, y: Tensor, weights: Tensor, ridge: float) -> Tensor:
    """Fit a ridge regression of y on z with intercept; `ridge` is relative to the mean square of the columns."""
    share = weights / weights.sum()
    centered, values = z - share @ z, y - share @ y
    square = centered.T @ (share[:, None] * centered)
    penalty = ridge * square.diagonal().mean() * torch.eye(len(square), dtype=z.dtype)
    return torch.linalg.pinv(square + penalty, hermitian=True) @ (centered.T @ (share * values))


def _shuffle(rows: Tensor) -> Tensor:
    """Shuffle rows in a fixed random order, so that any prefix is a representative sample."""
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]


@_per_pixel(title="Kernel SHAP", paper="Lundberg & Lee 2017, arXiv:1705.07874")
def kernel_shap(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    masks: Annotated[Masks, Choice(*PARTS, help="parts to show or replace")] = "superpixels",
    samples: Annotated[int, Range(2, 20000, 1, help="coalitions: images with some parts replaced")] = 1400,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces a part")] = "zeros",
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """Kernel SHAP: Shapley values of the parts by weighted linear regression on coalitions.

        min_φ Σ_z π(z) (f(z) - f(∅) - φ · z)²  with  Σ φ = f(x) - f(∅),  π(z) = (m - 1) / (C(m, |z|) |z| (m - |z|))

    Exact if there are no more coalitions than samples. Otherwise coalitions are sampled from the Shapley kernel π, each
    with its complement, and at least two per part.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the input's resolution, signed, in logits per pixel; sums to y(x) - y(baseline)
    Errors   BadTarget, BadOption
    Source   Lundberg & Lee 2017, theorem 2, arXiv:1705.07874; pairs by Covert & Lee 2021, arXiv:2012.01536

    Example
        >>> kernel_shap(model, images, 281, masks="grid", samples=32).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        scorer = CoalitionScorer(run, parts_of(masks, run.images), baseline_of(run.images, baseline, seed))
        none, full = scorer.empty_and_full()
        generators = PerImageGenerators(len(images), seed)
        # With fewer equations than unknowns, the minimum-norm solution would have nearly equal values.
        rows = [max(samples, 2 * part.count) for part in scorer.parts]
        rounds = [_kernel_coalitions(part.count, rows[n], generators, n) for n, part in enumerate(scorer.parts)]

        def heat(n: int, scores: Tensor) -> Tensor:
            z, weights = rounds[n]
            values = _efficient_fit(z[: len(scores)], scores - none[n], weights[: len(scores)], full[n] - none[n])
            return scorer.spread(n, values)

        maps, _ = scorer.evaluate([z for z, _ in rounds], heat)
        note_promised_sum(full - none)
        return maps


def _kernel_coalitions(count: int, samples: int, generators: PerImageGenerators, index: int) -> tuple[Tensor, Tensor]:
    """Return coalitions [s, m], neither empty nor full, and their weights [s]: all, or random pairs."""
    sizes = torch.arange(1, count, dtype=torch.float64)
    kernel = 1 / (sizes * (count - sizes))
    if 2**count <= samples:
        rows = every_coalition(count)[1:-1]
        size = rows.sum(1)
        # The weight of a size is divided among its coalitions; the largest come first, for good early estimates.
        weights = (kernel / torch.bincount(size, minlength=count)[1:])[size - 1] if count > 1 else kernel
        order = weights.argsort(descending=True, stable=True)
        return rows[order], weights[order]
    pairs = (samples + 1) // 2
    numbers = generators.uniform(index, pairs, count + 1).double()
    edges = (kernel / kernel.sum()).cumsum(0)
    size = torch.searchsorted(edges[:-1], numbers[:, :1].contiguous()) + 1
    rows = numbers[:, 1:].argsort(1).argsort(1) < size
    both = torch.stack([rows, ~rows], 1).flatten(0, 1)[:samples]
    return both, torch.ones(len(both), dtype=torch.float64)


def _efficient_fit(z: Tensor, y: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """Fit y on z by least squares without intercept, with Σ values = `total`; minimum-norm around equal values."""
    count = z.shape[1]
    even = total / count
    free = z.double() - z.double().mean(1, keepdim=True)
    square = free.T @ (weights[:, None] * free)
    rest = weights * (y - z.double().sum(1) * even)
    # The rows of `free` sum to 0. The default tolerance is near rounding, so this null direction could pass it.
    return even + torch.linalg.pinv(square, rtol=1e-10, hermitian=True) @ (free.T @ rest)


@_per_pixel(title="Shapley sampling", paper="Castro et al. 2009, doi:10.1016/j.cor.2008.04.004")
def shapley_sampling(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    masks: Annotated[Masks, Choice(*PARTS, help="parts to show or replace")] = "superpixels",
    samples: Annotated[int, Range(1, 1000, help="permutations of the parts")] = 30,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces a part")] = "zeros",
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """Shapley sampling: the mean marginal contribution of each part over random permutations.

        φ_i = mean over permutations of f(parts before i, and i) - f(parts before i)

    Permutations are antithetic: every second one is the reverse of the previous one. If evaluating all coalitions is
    not more expensive than the permutations, the values are exact. The contributions of each complete permutation sum
    to y(x) - y(baseline), and so do their means.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the input's resolution, signed, in logits per pixel; sums to y(x) - y(baseline)
    Errors   BadTarget, BadOption
    Source   Castro et al. 2009, doi:10.1016/j.cor.2008.04.004; pairs by Mitchell et al. 2022, JMLR 23(43)

    Example
        >>> shapley_sampling(model, images, 281, masks="grid", samples=2).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        scorer = CoalitionScorer(run, parts_of(masks, run.images), baseline_of(run.images, baseline, seed))
        none, full = scorer.empty_and_full()
        generators = PerImageGenerators(len(images), seed)
        exhaustive = [2**part.count - 2 <= samples * (part.count - 1) for part in scorer.parts]
        rounds, orders = [], []
        for n, part in enumerate(scorer.parts):
            orders.append(_antithetic_permutations(generators, n, samples, part.count))
            steps = _prefix_coalitions(orders[n]), torch.ones(0)
            rounds.append(_kernel_coalitions(part.count, 2**part.count, generators, n) if exhaustive[n] else steps)

        def heat(n: int, scores: Tensor) -> Tensor:
            z, weights = rounds[n]
            if exhaustive[n]:
                total = full[n] - none[n]
                values = _efficient_fit(z[: len(scores)], scores - none[n], weights[: len(scores)], total)
            else:
                values = _mean_contributions(orders[n], scores, none[n], full[n])
            return scorer.spread(n, values)

        maps, _ = scorer.evaluate([z for z, _ in rounds], heat)
        note_promised_sum(full - none)
        return maps


def _antithetic_permutations(generators: PerImageGenerators, index: int, samples: int, count: int) -> Tensor:
    """Sample permutations [samples, m] of the parts, each followed by its reverse."""
    orders = generators.permutations(index, (samples + 1) // 2, count)
    return torch.stack([orders, orders.flip(1)], 1).flatten(0, 1)[:samples]


def _prefix_coalitions(orders: Tensor) -> Tensor:
    """Return the coalitions of the first 1, 2, … m - 1 parts of each permutation, [samples * (m - 1), m]."""
    position = orders.argsort(1)
    steps = torch.arange(1, orders.shape[1])
    return (position[:, None] < steps[:, None]).flatten(0, 1)


def _mean_contributions(orders: Tensor, scores: Tensor, none: Tensor, full: Tensor) -> Tensor:
    """Average the marginal contributions of each part over the permutations in which they are known."""
    count = orders.shape[1]
    total, counts = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    for order, steps in zip(orders, scores.split(count - 1), strict=False):
        end = [full[None]] if len(steps) == count - 1 else []
        gains = torch.cat([none[None], steps, *end]).diff()
        total[order[: len(gains)]] += gains
        counts[order[: len(gains)]] += 1
    return total / counts.clamp(min=1)
