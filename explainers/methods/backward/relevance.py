"""Attributions propagated backward by custom rules, layer by layer: LRP and DeepLIFT."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import Run, open_run
from explainers.call.scores import at_least_float32
from explainers.errors import BadOption, shorten
from explainers.keywords import Call, Cost
from explainers.options import Baseline, Choice, Range, Seed
from explainers.perturbation.baselines import NAMES, baseline_of, extremes, refuse_values
from explainers.perturbation.rng import PerImageGenerators
from explainers.registry import method
from explainers.rules.deeplift import deep_lift_of, note_gap
from explainers.rules.lrp import relevance
from explainers.rules.lrp_operations import Relevance
from explainers.rules.lrp_rules import COMPOSITES, RULES, RuleLike, RuleMap, RuleParameters
from explainers.rules.operations import why_not
from explainers.targets import TargetLike

ZeroBias = Annotated[bool, "Leave biases out of the denominators, so that they absorb no relevance"]


@method(
    family="backward rule",
    returns="pixels",
    title="DeepLIFT",
    needs=why_not,
    paper="Shrikumar et al. 2017, arXiv:1704.02685",
    caution="On EfficientNet-Lite0, its maps were about as good as the image's edges or a centered blob. "
    "Use LRP instead.",
)
def deep_lift(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    baseline: Annotated[Baseline, Choice(*NAMES, help="reference input")] = "zeros",
    seed: Seed = 0,
    **call: Unpack[Call],
) -> Tensor:
    """DeepLIFT: the difference of the score from a baseline, propagated backward through differences of activations.

        m_in = m_out (f(x) - f(b)) / (x - b) at an activation f;  result m ∘ (x - b) at the input

    Uses the rescale rule for any activation, module or function. Max pools pass their difference to the winner. In a
    product, each factor gets its difference times the mean of the other factor; a quotient is treated as the product
    solved for its numerator. Norms, softmax and attention are decomposed into these operations.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), in logits; sums to y(x) - y(baseline), and `explain` reports if it does not
    Errors   UnsupportedOperation naming operation and layer; BadOption for a baseline at which the network returns NaN,
             or whose attributions cancel so much that only rounding errors remain
    Source   Shrikumar et al. 2017, eqs. 1 to 3 and section 3.5.1 (rescale), arXiv:1704.02685

    Example
        >>> deep_lift(model, images, 281, baseline="blur").shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target) as run:
        return deep_lift_of(run, run.images, baseline_of(run.images, baseline, seed))[0]


@method(
    family="backward rule",
    returns="pixels",
    title="DeepLIFT SHAP",
    needs=why_not,
    paper="Lundberg & Lee 2017, arXiv:1705.07874",
    caution="On EfficientNet-Lite0, its maps were not significantly better than the image's edges or a "
    "centered blob. Use LRP instead.",
)
def deep_lift_shap(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Annotated[int, Range(1, 500, help="random baselines")] = 16,
    baseline: Annotated[
        Baseline, Choice(*NAMES, help="reference inputs; noise: a random one for each sample")
    ] = "noise",
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """DeepLIFT SHAP: the mean of DeepLIFT over many baselines, which approximates Shapley values.

    "noise" samples every baseline between the image's extremes. A tensor gives M baselines, the same for each image.
    Any other value is a single baseline. If stopped early, the mean covers the baselines processed so far.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), in logits; sums to y(x) minus the mean score of the baselines
    Errors   UnsupportedOperation naming operation and layer; BadOption for baselines of another shape, or at which the
             network returns NaN
    Source   Lundberg & Lee 2017, section 4.2, arXiv:1705.07874

    Example
        >>> deep_lift_shap(model, images, 281, samples=4).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target, cost=cost) as run:
        run.scoring.score_inputs()
        count, rows_of = _baselines(run, baseline, samples, seed)
        total, done = at_least_float32(torch.zeros_like(run.images)), 0
        differences = torch.zeros_like(total.flatten(1)[:, 0])
        sizes = differences.clone()

        def attribute(index: int, rows: Tensor, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
            return deep_lift_of(run, run.images[index].expand_as(rows), rows, indices)

        def work(chunk: range) -> None:
            nonlocal done
            for index in range(len(total)):
                rows = rows_of(index, chunk)
                attributions, difference = run.loop.run_in_halves(partial(attribute, index), rows, [index] * len(rows))
                total[index] += attributions.sum(0)
                differences[index] += difference.sum()
                sizes[index] += difference.abs().sum()
            done = chunk.stop

        run.loop.run(count, run.loop.rows(passes=4), work, lambda: (total / done).sum(1))
        note_gap(total / done, differences / done, sizes / done)
        return total / done


def _baselines(run: Run, baseline: Baseline, samples: int, seed: int) -> tuple[int, Callable[[int, range], Tensor]]:
    """Return the number of baselines, and a function that returns a range of them for one image, as rows."""
    x = run.images
    if isinstance(baseline, Tensor):
        refuse_values("baseline", baseline, x)
        stack = baseline.detach().to(x)
        stack = stack if stack.ndim == 4 else stack[None]
        sizes = [*zip(stack.shape[1:], x.shape[1:], strict=False)]
        if stack.ndim != 4 or len(stack) == 0 or any(own not in (1, full) for own, full in sizes):
            shape = ", ".join(map(str, x.shape[1:]))
            raise BadOption(f"baseline has shape {tuple(baseline.shape)}. Give M baselines: [M, {shape}].")
        return len(stack), lambda index, chunk: stack[chunk.start : chunk.stop].expand(-1, *x.shape[1:])
    if not (isinstance(baseline, str) and baseline == "noise"):
        one = baseline_of(x, baseline, seed)
        return 1, lambda index, chunk: one[index : index + 1]
    generators, (low, span) = PerImageGenerators(len(x), seed, x.device), extremes(x)

    def rows(index: int, chunk: range) -> Tensor:
        return low[index] + span[index] * generators.uniform_noise(index, len(chunk), *x.shape[1:]).to(x)

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
    rule: Annotated[RuleLike, Choice(*RULES, help="one rule for all layers; empty: rules of the composite")] = None,
    composite: Annotated[str, Choice(*COMPOSITES, help="rules by layer type")] = "epsilon_plus",
    epsilon: Annotated[float, Range(0, 10, 0.01, help="ε: stabilizer added to the denominator")] = 0.0,
    gamma: Annotated[float, Range(0, 100, 0.05, help="γ: extra weight on positive contributions")] = 0.25,
    alpha: Annotated[float, Range(1, 10, 0.5, help="α: weight of positive contributions (β = α − 1)")] = 2.0,
    low: Tensor | float | None = None,
    high: Tensor | float | None = None,
    zero_bias: ZeroBias = False,
    **call: Unpack[Call],
) -> Tensor:
    """LRP: the score is redistributed backward, layer by layer, in proportion to the contributions of the inputs.

        R_i = Σ_j a_i w_ij / (Σ_k a_k w_kj + ε) R_j    the epsilon rule; others weight the contributions differently

    `rule` may be a dict {pattern: rule} over layer names ("features.0", "layer4.*") or types ("Conv2d", "Linear"). The
    first match is used; layers without a match use the composite. Batch norm is merged with the adjacent convolution or
    linear layer. `low` and `high` bound the input of the z_box rule, in the model's units; None uses the extremes of
    each image. Gates, attention weights and the standard deviations of layer norms are treated as constants. If
    `epsilon` is 0, a division by 0 gives 0.

    With `zero_bias`, biases and other constants that are added (shifts of norms, position embeddings) are left out of
    the denominators. Then only class tokens, epsilon, and outputs without a contribution of their sign absorb
    relevance. `explain` also reports relevances that cancel.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), in logits; sums to the score minus what biases and epsilon absorb, which `explain` reports
    Errors   UnsupportedOperation naming operation and layer; BadOption for a pattern that matches no layer, or if
             relevances overflow
    Source   Bach et al. 2015, eqs. 58 and 60; Montavon et al. 2017, 2019; composites: Kohlbrenner et al. 2020

    Example
        >>> lrp(model, images, 281, composite="epsilon_plus").shape
        torch.Size([1, 3, 224, 224])
    """
    for name, bound in (("low", low), ("high", high)):
        _check_bound(name, bound, images)
    with open_run(model, images, target) as run:
        parameters = RuleParameters(epsilon, gamma, alpha, low, high, zero_bias)
        mode = Relevance(run.view.network, "LRP", RuleMap(rule, composite), parameters)
        calmer: dict[str, Any] = ({"rule": None} if rule else {}) | ({"zero_bias": False} if zero_bias else {})
        calmer["composite"] = "epsilon_gamma_box" if rule is None and composite == "epsilon_plus" else "epsilon_plus"
        # Without biases, the epsilon rule divides by values close to 0; the composites hardly do.
        return relevance(run, mode, calmer, {"zero_bias": True} | ({"rule": None} if rule else {}))


def _check_bound(name: str, bound: Tensor | float | None, images: Tensor) -> None:
    if isinstance(bound, Tensor):
        sizes = zip(reversed(bound.shape), reversed(images.shape), strict=False)
        if bound.ndim > images.ndim or any(own not in (1, full) for own, full in sizes):
            raise BadOption(
                f"{name} has shape {tuple(bound.shape)}, which does not broadcast to images {tuple(images.shape)}. "
                f"Give a number, or one per channel: [{images.shape[1]}, 1, 1]."
            )
        refuse_values(name, bound, images)
    elif bound is not None and (
        isinstance(bound, bool) or not isinstance(bound, (int, float)) or not math.isfinite(bound)
    ):
        raise BadOption(
            f"Invalid {name}={shorten(bound)}. Give a number, a tensor, or None for the extreme of each image."
        )
