"""What the score loses when a part of the picture is covered.

The loss is laid evenly over the part's pixels, so that a map is in logits per pixel and parts of all sizes can stand in
one picture.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from explainers.errors import BadOption
from explainers.options import Baseline, Choice, Precision, Range, Seed
from explainers.passes.loop import Loop, Progress
from explainers.passes.run import at_least_float32, open_run
from explainers.perturbation.baselines import NAMES, baseline_of
from explainers.perturbation.coalitions import CoalitionScorer, exact
from explainers.perturbation.segments import PARTS, Masks, parts_of
from explainers.registry import method
from explainers.targets import TargetLike

Pair = int | tuple[int, int]


@method(
    family="perturbation",
    returns="heat",
    unit="logit per pixel",
    title="Occlusion",
    paper="Zeiler & Fergus 2014, arXiv:1311.2901",
)
def occlusion(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    window: Annotated[
        Pair | None, Range(1, 4096, help="side of the covered square in pixels; empty: an eighth of the picture")
    ] = None,
    stride: Annotated[Pair | None, Range(1, 4096, help="step of the square in pixels; empty: half the window")] = None,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what covers; empty: zeros")] = None,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Occlusion: the score lost when a window is covered, spread evenly over the window's pixels.

    A pixel has the mean over the windows that cover it; a window at the border is clipped and counts by the pixels that
    it has. Where stride and window are equal, the map sums to the sum of all losses: score(x) - score(baseline)
    for a linear model. Stopped early, pixels not reached are 0.

    Returns  (n, h, w) at the input's resolution, signed, in logits per pixel
    Errors   BadTarget; BadOption for a stride larger than the window, which would leave pixels out
    Source   Zeiler & Fergus 2014, section 4.2, arXiv:1311.2901
    """
    height, width = images.shape[-2:]
    side = max(1, min(height, width) // 8)
    high, wide = _pair("window", window, (side, side))
    down, right = _pair("stride", stride, ((high + 1) // 2, (wide + 1) // 2))
    if down > high or right > wide:
        raise BadOption(
            f"stride={stride!r} is larger than the window {(high, wide)} and would leave pixels out. Give a stride "
            f"up to the window."
        )
    boxes = [
        (top, left, min(top + high, height), min(left + wide, width))
        for top in _starts(height, high, down)
        for left in _starts(width, wide, right)
    ]
    with open_run(model, images, target, many=True, precision=precision) as run:
        x, full = run.images, run.score_inputs()
        cover = baseline_of(x, baseline, seed)
        total = at_least_float32(torch.zeros_like(x[:, 0]))
        times = torch.zeros_like(total[0])

        def work(chunk: range) -> None:
            for picture in range(len(x)):
                batch = x[picture].expand(len(chunk), -1, -1, -1).clone()
                for row, (top, left, bottom, end) in zip(batch, (boxes[i] for i in chunk), strict=True):
                    row[:, top:bottom, left:end] = cover[picture, :, top:bottom, left:end]
                lost = full[picture] - run.values(batch, [picture] * len(chunk))
                for value, (top, left, bottom, end) in zip(lost, (boxes[i] for i in chunk), strict=True):
                    total[picture, top:bottom, left:end] += value / ((bottom - top) * (end - left))
            for top, left, bottom, end in (boxes[i] for i in chunk):
                times[top:bottom, left:end] += 1

        loop = Loop(batch_size, progress, budget)
        loop.run(len(boxes), loop.rows(x), work, lambda: total / times.clamp(min=1))
        return total / times.clamp(min=1)


def _pair(name: str, given: Pair | None, default: tuple[int, int]) -> tuple[int, int]:
    if given is None:
        return default
    if isinstance(given, int):
        return given, given
    if len(given) != 2:
        raise BadOption(f"{name}={given!r} has {len(given)} numbers. Give one whole number, or two: (height, width).")
    return given[0], given[1]


def _starts(size: int, window: int, stride: int) -> list[int]:
    """Where windows begin: each `stride` on, until one reaches the border."""
    last = max(0, size - window)
    return [*range(0, last, stride), -(-last // stride) * stride]


@method(
    family="perturbation",
    returns="heat",
    unit="logit per pixel",
    title="Feature ablation",
    paper="Kokhlikyan et al. 2020, arXiv:2009.07896",
)
def feature_ablation(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    masks: Annotated[Masks, Choice(*PARTS, help="parts that are covered one after the other")] = "superpixels",
    baseline: Annotated[Baseline, Choice(*NAMES, help="what covers; empty: zeros")] = None,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Feature ablation: the score lost when a part is covered, spread evenly over the part's pixels.

    Where masks overlap, their shares add up. Stopped early, parts not reached are 0.

    Returns  (n, h, w) at the input's resolution, signed, in logits per pixel; sums to the sum of all losses
    Errors   BadTarget, BadOption
    Source   Kokhlikyan et al. 2020, arXiv:2009.07896; Zeiler & Fergus 2014, section 4.2, with parts of any form
    """
    with open_run(model, images, target, many=True, precision=precision) as run:
        game = CoalitionScorer(run, parts_of(masks, run.images), baseline_of(run.images, baseline, seed))
        full = exact(run.score_inputs())
        all_but_one = [~torch.eye(part.count, dtype=torch.bool) for part in game.parts]

        def heat(n: int, scores: Tensor) -> Tensor:
            lost = torch.zeros(game.parts[n].count, dtype=torch.float64)
            lost[: len(scores)] = full[n] - scores
            return game.spread(n, lost)

        maps, _ = game.play(all_but_one, Loop(batch_size, progress, budget), heat)
        return maps
