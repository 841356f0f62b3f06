"""DeepLIFT and the mean of DeepLIFT over many baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import Run, open_run
from explainers.call.scores import at_least_float32
from explainers.errors import BadOption
from explainers.keywords import Call, Cost
from explainers.options import Baseline, Choice, Range, Seed
from explainers.perturbation.baselines import NAMES, baseline_of, noise_baselines, refuse_values
from explainers.registry import method, on_lite0
from explainers.rules.deeplift import deep_lift_of, note_gap
from explainers.rules.operations import why_not
from explainers.targets import TargetLike

_backward_rule = partial(method, family="backward rule", returns="pixels", needs=why_not)


@_backward_rule(
    title="DeepLIFT",
    paper="Shrikumar et al. 2017, arXiv:1704.02685",
    caution=on_lite0("about as good as the image's edges or a centered blob", "LRP instead"),
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


@_backward_rule(
    title="DeepLIFT SHAP",
    paper="Lundberg & Lee 2017, arXiv:1705.07874",
    caution=on_lite0("not significantly better than the image's edges or a centered blob", "LRP instead"),
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
    draw = noise_baselines(x, seed)
    return samples, lambda index, chunk: draw(index, len(chunk))
