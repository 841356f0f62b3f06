"""Integrated gradients along a path chosen by the network's gradient.

x   images                                  (n, c, h, w)
b   baseline
t   progress of each value                  in [0, 1]: a segment's point is  start + t (end - start)
w   |end - start|, each value's distance    the distance left is  Σ w (1 - t)
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import open_run
from explainers.call.scores import at_least_float32
from explainers.keywords import Cost
from explainers.methods.gradients.path_integrals import Start, measures_gap, note_gap
from explainers.methods.gradients.quadrature import spread
from explainers.options import NoiseSeed, Range
from explainers.perturbation.baselines import baseline_of
from explainers.registry import method, on_lite0
from explainers.targets import TargetLike


@method(
    family="gradient",
    returns="pixels",
    title="Guided integrated gradients",
    paper="Kapishnikov et al. 2021, arXiv:2106.09788",
    caution=on_lite0("not significantly better than the image's edges or a centered blob", "gradient SHAP instead"),
)
def guided_integrated_gradients(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    steps: Annotated[int, Range(2, 1000, help="integration steps")] = 60,
    fraction: Annotated[float, Range(0, 1, 0.01, help="fraction of features changed per step")] = 0.1,
    anchors: Annotated[int, Range(0, 100, help="anchor points on the straight path")] = 9,
    baseline: Start = "zeros",
    seed: NoiseSeed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """Guided integrated gradients: on the path from the baseline, features with the smallest gradients change first.

    The anchors divide the straight path into segments of equal length. The path within each segment is chosen
    separately, so segments run in parallel, each with at least one of the `steps`. A step is a straight line,
    integrated by the trapezoidal rule, which is exact for linear gradients. If stopped early, the integral is estimated
    from the steps completed so far.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), in logits; sums to y(x) - y(baseline) as the number of steps grows. A finding reports
             gaps above 1%; docs/figures.md lists the error in bf16
    Errors   BadTarget, BadOption
    Source   Kapishnikov et al. 2021, algorithm 1, with anchor points, arXiv:2106.09788

    Example
        >>> guided_integrated_gradients(model, images, 281, steps=4, anchors=1).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        x, full = run.images, run.scoring.score_inputs()
        start = baseline_of(x, baseline, seed)
        start_scores = run.scoring.values(start, range(len(x))) if measures_gap(target) else None
        total, done = at_least_float32(torch.zeros_like(x)), 0
        segments = spread(anchors + 1)
        groups = segments.split(run.loop.whole(run.loop.rows(passes=2)))
        moves = max(1, round(steps / len(segments)))
        states: list[_Segments] = []

        def work(chunk: range) -> None:
            nonlocal done
            group, move = divmod(chunk.start, moves + 1)
            if move == 0:
                states[:] = [_Segments(start[n], x[n], groups[group], len(segments)) for n in range(len(x))]
            for image_index, state in enumerate(states):
                gradient = run.backward.gradient(state.points().to(x), [image_index] * len(groups[group]))
                total[image_index] += state.advance(gradient, move, moves, fraction)
            # The last gradient of a segment completes its last step without starting another one.
            done += len(groups[group]) * (move > 0)

        def attribution() -> Tensor:
            return total * (len(segments) * moves / max(1, done))

        run.loop.run(len(groups) * (moves + 1), 1, work, lambda: attribution().sum(1))
        if start_scores is not None:
            note_gap(attribution(), full - start_scores, {"steps": min(1000, 4 * steps)})
        return attribution()


class _Segments:
    """Segments of one image's path: `advance` takes the gradient at their current points and makes the next step."""

    def __init__(self, start: Tensor, end: Tensor, index: Tensor, count: int) -> None:
        span = (at_least_float32(end) - at_least_float32(start)) / count
        self.start = at_least_float32(start) + index.to(span).view(-1, *[1] * span.ndim) * span
        self.span = span.expand_as(self.start)
        self.weight = self.span.abs().flatten(1)
        # Values equal at both ends are already complete.
        self.at = (self.weight == 0).to(self.weight)
        self.last_step = torch.zeros_like(self.start)

    def points(self) -> Tensor:
        return self.start + self.at.view_as(self.start) * self.span

    def advance(self, gradient: Tensor, move: int, moves: int, fraction: float) -> Tensor:
        """Make the next step; return what this gradient adds to the integral, [C, H, W].

        The trapezoidal rule: half of the step that led here, and half of the next one.
        """
        before, last_step = self.at.clone(), self.last_step
        if move + 1 == moves:
            self.at = torch.ones_like(self.at)
        elif move < moves:
            left = self.weight.sum(1, keepdim=True) * (1 - (move + 1) / moves)
            # A NaN gradient counts as small: the path continues, and the map is NaN.
            self._change_smallest(gradient.flatten(1).abs().nan_to_num(0.0, posinf=torch.inf), left, fraction)
        self.last_step = (self.at - before).view_as(self.span) * self.span
        return (gradient * (last_step + self.last_step)).sum(0) / 2

    def _change_smallest(self, magnitudes: Tensor, left: Tensor, fraction: float) -> None:
        """Change the values with the smallest gradients, a fraction at a time, until `left` [R, 1] remains."""
        rank = 1 + int(fraction * (magnitudes.shape[1] - 1))
        unfinished = torch.ones_like(left, dtype=torch.bool)
        while unfinished.any():
            remaining = self.weight * (1 - self.at)
            excess = remaining.sum(1, keepdim=True) - left
            # Complete values rank last, so that the fraction applies to incomplete ones.
            waiting = magnitudes.masked_fill(self.at >= 1, torch.inf)
            chosen = (waiting <= waiting.kthvalue(rank, dim=1, keepdim=True).values) & (self.at < 1)
            length = (remaining * chosen).sum(1, keepdim=True)
            reached = length > excess
            portion = torch.where(reached, excess / torch.where(length > 0, length, 1), 1).clamp(min=0)
            self.at = torch.where(chosen & unfinished, self.at + portion * (1 - self.at), self.at)
            # Set to exactly 1, otherwise the value would be chosen again.
            self.at = torch.where(chosen & unfinished & ~reached, 1, self.at)
            unfinished = unfinished & ~reached & (self.at < 1).any(1, keepdim=True)
