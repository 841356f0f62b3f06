"""Integrated gradients along a path that the network itself chooses.

x   images                                  (n, c, h, w)
b   baseline
t   how far each value is on its way        in [0, 1], one a value: a segment's point is  from + t (to - from)
w   |to - from|, the way's length           what is left of the way is  Σ w (1 - t)
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from explainers.methods.gradients.path_integrals import Start, measures_gap, note_gap
from explainers.methods.gradients.quadrature import spread
from explainers.options import Precision, Range
from explainers.passes.loop import Loop, Progress
from explainers.passes.run import at_least_float32, open_run
from explainers.perturbation.baselines import baseline_of
from explainers.registry import method
from explainers.targets import TargetLike


@method(
    family="gradient",
    returns="pixels",
    title="Guided integrated gradients",
    paper="Kapishnikov et al. 2021, arXiv:2106.09788",
)
def guided_integrated_gradients(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    steps: Annotated[int, Range(2, 1000, help="moves on the path")] = 60,
    fraction: Annotated[float, Range(0, 1, 0.01, help="share of the values that move at once")] = 0.1,
    anchors: Annotated[int, Range(0, 100, help="points of the straight path that are kept")] = 9,
    baseline: Start = None,
    seed: Annotated[int, Range(0, 2**31 - 1, help="for the baseline 'noise'")] = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Guided integrated gradients: on its way from the baseline, what the score depends on least moves first.

    The anchors cut the straight path into segments of equal length, and in each one the path is chosen anew; so
    segments run side by side, with at least one of the `steps` each. A move is a straight line, and the integral on it
    is taken by the trapezoidal rule, exact where the gradient changes evenly. Stopped early, the moves done stand for
    all.

    Returns  (n, c, h, w), in logits; sums to score(x) - score(baseline) as the number of steps grows. A finding states
             the gap where it is above 1%; drift in bf16: docs/figures.md
    Errors   BadTarget, BadOption
    Source   Kapishnikov et al. 2021, algorithm 1, with anchor points, arXiv:2106.09788
    """
    with open_run(model, images, target, many=True, precision=precision) as run:
        x, full = run.images, run.score_inputs()
        start = baseline_of(x, baseline, seed)
        total, done = at_least_float32(torch.zeros_like(x)), 0
        loop = Loop(batch_size, progress, budget)
        segments = spread(anchors + 1)
        groups = segments.split(loop.rows(x, cost=2))
        moves = max(1, round(steps / len(segments)))
        states: list[_Segments] = []

        def work(chunk: range) -> None:
            nonlocal done
            group, move = divmod(chunk.start, moves + 1)
            if move == 0:
                states[:] = [_Segments(start[n], x[n], groups[group], len(segments)) for n in range(len(x))]
            for picture, state in enumerate(states):
                gradient = run.gradient(state.points().to(x), [picture] * len(groups[group]))
                total[picture] += state.advance(gradient, move, moves, fraction)
            # The last gradient of a segment closes its last move and makes none.
            done += len(groups[group]) * (move > 0)

        def attribution() -> Tensor:
            return total * (len(segments) * moves / max(1, done))

        loop.run(len(groups) * (moves + 1), 1, work, lambda: attribution().sum(1))
        if measures_gap(target):
            note_gap(attribution(), full - run.values(start, range(len(x))), {"steps": min(1000, 4 * steps)})
        return attribution()


class _Segments:
    """Segments of one picture's path on their way: `advance` takes the gradient where they are and moves them on."""

    def __init__(self, start: Tensor, end: Tensor, index: Tensor, count: int) -> None:
        way = (at_least_float32(end) - at_least_float32(start)) / count
        self.begin = at_least_float32(start) + index.to(way).view(-1, 1, 1, 1) * way
        self.way = way.expand_as(self.begin)
        self.weight = self.way.abs().flatten(1)
        # What has no way to go is there.
        self.at = (self.weight == 0).to(self.weight)
        self.moved = torch.zeros_like(self.begin)

    def points(self) -> Tensor:
        return self.begin + self.at.view_as(self.begin) * self.way

    def advance(self, gradient: Tensor, move: int, moves: int, fraction: float) -> Tensor:
        """Make the next move, and give what this gradient adds to the integral [C, H, W].

        The trapezoidal rule: half of the move that led here, and half of the one that leads on.
        """
        before, came = self.at.clone(), self.moved
        if move + 1 == moves:
            self.at = torch.ones_like(self.at)
        elif move < moves:
            left = self.weight.sum(1, keepdim=True) * (1 - (move + 1) / moves)
            # A gradient that is not a number counts as small: the path goes on, and the map says NaN.
            self._move_least(gradient.flatten(1).abs().nan_to_num(0.0, posinf=torch.inf), left, fraction)
        self.moved = (self.at - before).view_as(self.way) * self.way
        return (gradient * (came + self.moved)).sum(0) / 2

    def _move_least(self, sizes: Tensor, left: Tensor, fraction: float) -> None:
        """Move the values with the smallest gradients, a share at a time, until `left` [R, 1] of the way remains."""
        rank = 1 + int(fraction * (sizes.shape[1] - 1))
        open_rows = torch.ones_like(left, dtype=torch.bool)
        while open_rows.any():
            remaining = self.weight * (1 - self.at)
            excess = remaining.sum(1, keepdim=True) - left
            # What has arrived stands last, so that the share is taken of what still has a way to go.
            waiting = sizes.masked_fill(self.at >= 1, torch.inf)
            chosen = (waiting <= waiting.kthvalue(rank, dim=1, keepdim=True).values) & (self.at < 1)
            length = (remaining * chosen).sum(1, keepdim=True)
            enough = length > excess
            portion = torch.where(enough, excess / torch.where(length > 0, length, 1), 1).clamp(min=0)
            self.at = torch.where(chosen & open_rows, self.at + portion * (1 - self.at), self.at)
            # Arrived is exactly 1, or the value would be chosen again.
            self.at = torch.where(chosen & open_rows & ~enough, 1, self.at)
            open_rows = open_rows & ~enough & (self.at < 1).any(1, keepdim=True)
