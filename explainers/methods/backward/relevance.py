"""Attributions that a rule of its own hands back through every layer: LRP and DeepLIFT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from explainers.backward.deeplift import deep_lift_of
from explainers.backward.lrp import relevance
from explainers.backward.lrp_rules import COMPOSITES, RULES, RuleLike, RuleMap, RuleParameters
from explainers.backward.operations import why_not
from explainers.errors import BadOption
from explainers.options import Baseline, Choice, Precision, Range, Seed
from explainers.passes.loop import Loop, Progress
from explainers.passes.run import Run, at_least_float32, open_run
from explainers.perturbation.baselines import NAMES, baseline_of, extremes
from explainers.perturbation.rng import PerImageGenerators
from explainers.registry import method
from explainers.targets import TargetLike


@method(
    family="backward rule",
    returns="pixels",
    title="DeepLIFT",
    needs=why_not,
    paper="Shrikumar et al. 2017, arXiv:1704.02685",
)
def deep_lift(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what the picture is compared with; empty: zeros")] = None,
    seed: Seed = 0,
) -> Tensor:
    """DeepLIFT: the change of the score from a baseline, handed back through the change of every activation.

    The rescale rule, for activations of any kind and spelling. Max pools give their change to the winner; a product
    gives each factor its change times the mean of the other; norms, softmax and attention are taken apart into those.

    Returns  (n, c, h, w), in logits; sums to score(x) - score(baseline), and `explain` says so where it does not
    Errors   UnsupportedOperation naming operation and layer
    Source   Shrikumar et al. 2017, eqs. 1 to 3 and section 3.5.1 (rescale), arXiv:1704.02685
    """
    with open_run(model, images, target) as run:
        return deep_lift_of(run, run.images, baseline_of(run.images, baseline, seed))


@method(
    family="backward rule",
    returns="pixels",
    title="DeepLIFT SHAP",
    needs=why_not,
    paper="Lundberg & Lee 2017, arXiv:1705.07874",
)
def deep_lift_shap(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Annotated[int, Range(1, 500, help="random baselines")] = 16,
    baseline: Annotated[
        Baseline, Choice(*NAMES, help="'noise': random ones; a tensor [M, C, H, W]: M of them")
    ] = "noise",
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """DeepLIFT SHAP: the mean of DeepLIFT over many baselines, which approximates Shapley values.

    With "noise" every baseline is drawn between the picture's extremes; a tensor gives M baselines, the same for each
    picture; whatever else is one baseline. Stopped early, the mean is over the baselines done.

    Returns  (n, c, h, w), in logits; sums to score(x) less the mean score of the baselines
    Errors   UnsupportedOperation naming operation and layer; BadOption for baselines of another shape
    Source   Lundberg & Lee 2017, section 4.2, arXiv:1705.07874
    """
    with open_run(model, images, target, precision=precision) as run:
        run.score_inputs()
        count, rows_of = _baselines(run, baseline, samples, seed)
        total, done = at_least_float32(torch.zeros_like(run.images)), 0

        def work(chunk: range) -> None:
            nonlocal done
            for picture in range(len(total)):
                rows = rows_of(picture, chunk)
                batch = run.images[picture].expand_as(rows)
                total[picture] += deep_lift_of(run, batch, rows, [picture] * len(rows)).sum(0)
            done = chunk.stop

        loop = Loop(batch_size, progress, budget)
        loop.run(count, loop.rows(run.images, cost=4), work, lambda: (total / done).sum(1))
        return total / done


def _baselines(run: Run, baseline: Baseline, samples: int, seed: int) -> tuple[int, Callable[[int, range], Tensor]]:
    """How many baselines there are, and the rows of a range of them for one picture."""
    x = run.images
    if isinstance(baseline, Tensor):
        given = baseline.detach().to(x)
        given = given if given.ndim == 4 else given[None]
        sizes = [*zip(given.shape[1:], x.shape[1:], strict=False)]
        if given.ndim != 4 or len(given) == 0 or any(own not in (1, full) for own, full in sizes):
            wanted = ", ".join(map(str, x.shape[1:]))
            raise BadOption(f"baseline has shape {tuple(baseline.shape)}. Give M baselines: [M, {wanted}].")
        return len(given), lambda picture, chunk: given[chunk.start : chunk.stop].expand(-1, *x.shape[1:])
    if baseline != "noise":
        one = baseline_of(x, baseline, seed)
        return 1, lambda picture, chunk: one[picture : picture + 1]
    draws, (low, span) = PerImageGenerators(len(x), seed), extremes(x)

    def rows(picture: int, chunk: range) -> Tensor:
        drawn = draws.uniform(picture, len(chunk), *x.shape[1:]).to(x)
        return low[picture] + span[picture] * drawn

    return samples, rows


@method(
    family="backward rule",
    returns="pixels",
    title="LRP",
    needs=why_not,
    paper="Bach et al. 2015, doi:10.1371/journal.pone.0130140",
)
def lrp(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    rule: Annotated[RuleLike, Choice(*RULES, help="one rule for all layers; empty: as the composite says")] = None,
    composite: Annotated[str, Choice(*COMPOSITES, help="rules by kind of layer")] = "epsilon_plus",
    epsilon: Annotated[float, Range(0, 10, 0.01, help="how much relevance weak sums absorb")] = 0.0,
    gamma: Annotated[float, Range(0, 100, 0.05, help="how much the gamma rule favours what speaks for")] = 0.25,
    alpha: Annotated[float, Range(1, 10, 0.5, help="weight of what speaks for; against: one less")] = 2.0,
    low: Tensor | float | None = None,
    high: Tensor | float | None = None,
) -> Tensor:
    """LRP: the score is shared out, layer by layer, among the inputs that add up to it.

    `rule` may be a dict {pattern: rule} over layer names ("features.0", "layer4.*") or kinds ("Conv2d", "Linear"); the
    first that matches counts, else the composite. Batch norm is merged with the convolution or linear layer beside it.
    `low` and `high` bound the input of the z_box rule, in the model's units; None takes each picture's own extremes.
    Products with a gate, attention weights and the deviations of layer norms count as constants. An `epsilon` of 0
    absorbs nothing: what would be divided by 0 is 0.

    Returns  (n, c, h, w), in logits; sums to the score less what biases and epsilon absorb, which `explain` states
    Errors   UnsupportedOperation naming operation and layer; BadOption for a pattern that matches no layer
    Source   Bach et al. 2015, eqs. 58 and 60; Montavon et al. 2017, 2019; composites: Kohlbrenner et al. 2020
    """
    for name, bound in (("low", low), ("high", high)):
        _check_bound(name, bound, images)
    with open_run(model, images, target) as run:
        settings = RuleParameters(epsilon, gamma, alpha, low, high)
        return relevance(run, RuleMap(rule, composite), settings)


def _check_bound(name: str, bound: Tensor | float | None, images: Tensor) -> None:
    if isinstance(bound, Tensor):
        sizes = zip(reversed(bound.shape), reversed(images.shape), strict=False)
        if bound.ndim > images.ndim or any(own not in (1, full) for own, full in sizes):
            raise BadOption(
                f"{name} has shape {tuple(bound.shape)}, which does not broadcast to images {tuple(images.shape)}. "
                f"Give a number, or one for each channel: [{images.shape[1]}, 1, 1]."
            )
    elif bound is not None and (isinstance(bound, bool) or not isinstance(bound, (int, float))):
        raise BadOption(f"{name}={bound!r} is not possible. Give a number, a tensor, or None for the picture's own.")
