"""The drop of the score when a part of the image is occluded.

The drop is divided evenly over the pixels of the part, so that maps are in logits per pixel and parts of different
sizes are comparable.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import open_run
from explainers.call.scores import at_least_float32
from explainers.dtypes import to_cpu_float64
from explainers.errors import BadOption, shorten
from explainers.keywords import Cost
from explainers.options import Baseline, Choice, Range, Seed
from explainers.perturbation.baselines import NAMES, baseline_of
from explainers.perturbation.coalitions import CoalitionScorer
from explainers.perturbation.segments import PARTS, Masks, parts_of
from explainers.registry import method
from explainers.targets import TargetLike

_per_pixel = partial(method, family="perturbation", returns="heat", unit="logit per pixel")
Sides = int | tuple[int, ...]


@_per_pixel(title="Occlusion", paper="Zeiler & Fergus 2014, arXiv:1311.2901")
def occlusion(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    window: Annotated[Sides | None, Range(1, 4096, help="side in pixels; empty: an eighth of the shorter side")] = None,
    stride: Annotated[Sides | None, Range(1, 4096, help="step in pixels; empty: half the window")] = None,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces the part")] = "zeros",
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """Occlusion: the drop of the score when a window is occluded, divided evenly over the window's pixels.

    The value of a pixel is the mean over the windows that cover it; windows are clipped at the border. If stride equals
    window, the map sums to the sum of all drops, which is y(x) - y(baseline) for a linear model. If stopped early, the
    remaining pixels are 0. Windows of videos and volumes are (frames, height, width), by default an eighth of the
    frames.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the input's resolution, signed, in logits per pixel
    Errors   BadTarget; BadOption for a stride larger than the window, which would skip pixels
    Source   Zeiler & Fergus 2014, section 4.2, arXiv:1311.2901

    Example
        >>> occlusion(model, images, 281, window=112).shape
        torch.Size([1, 224, 224])
    """
    sizes = tuple(images.shape[2:])
    side = max(1, min(sizes[-2:]) // 8)
    frames = (max(1, count // 8) for count in sizes[:-2])
    extent = _sides("window", window, (*frames, side, side))
    steps = _sides("stride", stride, tuple((length + 1) // 2 for length in extent))
    if any(step > length for step, length in zip(steps, extent, strict=True)):
        raise BadOption(
            f"stride={shorten(stride)} is larger than the window {extent} and would skip pixels. Give a stride of at "
            "most the window."
        )
    boxes = [*product(*map(_spans, sizes, extent, steps))]
    with open_run(model, images, target, many=True, cost=cost) as run:
        x, full = run.images, run.scoring.score_inputs()
        cover = baseline_of(x, baseline, seed)
        total = at_least_float32(torch.zeros_like(x[:, 0]))
        counts = torch.zeros_like(total[0])

        def work(chunk: range) -> None:
            for index in range(len(x)):
                batch = x[index].expand(len(chunk), *x[index].shape).clone()
                for row, box in zip(batch, (boxes[i] for i in chunk), strict=True):
                    inside = (slice(None), *box)
                    row[inside] = cover[index][inside]
                drop = full[index] - run.scoring.values(batch, [index] * len(chunk))
                for value, box in zip(drop, (boxes[i] for i in chunk), strict=True):
                    total[index][box] += value / math.prod(span.stop - span.start for span in box)
            for box in (boxes[i] for i in chunk):
                counts[box] += 1

        run.loop.run(len(boxes), run.loop.rows(), work, lambda: total / counts.clamp(min=1))
        return total / counts.clamp(min=1)


def _sides(name: str, value: Sides | None, default: tuple[int, ...]) -> tuple[int, ...]:
    if value is None:
        return default
    if isinstance(value, int):
        return (value,) * len(default)
    if len(value) != len(default):
        several = "two: (height, width)" if len(default) == 2 else "three: (frames, height, width)"
        raise BadOption(f"{name}={shorten(value)} has {len(value)} numbers. Give one integer, or {several}.")
    return tuple(value)


def _spans(size: int, window: int, stride: int) -> list[slice]:
    """Return the windows along one axis, every `stride` until one reaches the end, clipped there."""
    last = max(0, size - window)
    starts = [*range(0, last, stride), -(-last // stride) * stride]
    return [slice(start, min(start + window, size)) for start in starts]


@_per_pixel(title="Feature ablation", paper="Kokhlikyan et al. 2020, arXiv:2009.07896")
def feature_ablation(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    masks: Annotated[Masks, Choice(*PARTS, help="features to occlude one at a time")] = "superpixels",
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces the part")] = "zeros",
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """Feature ablation: the drop of the score when a superpixel, cell or mask is occluded, spread over its pixels.

    The drop is divided evenly over the pixels. Values of overlapping masks are added. If stopped early, the remaining
    features are 0.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the input's resolution, signed, in logits per pixel; sums to the sum of all drops
    Errors   BadTarget, BadOption
    Source   Kokhlikyan et al. 2020, arXiv:2009.07896; Zeiler & Fergus 2014, section 4.2, with parts of any shape

    Example
        >>> feature_ablation(model, images, 281, masks="grid").shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        scorer = CoalitionScorer(run, parts_of(masks, run.images), baseline_of(run.images, baseline, seed))
        full = to_cpu_float64(run.scoring.score_inputs())
        all_but_one = [~torch.eye(part.count, dtype=torch.bool) for part in scorer.parts]

        def heat(n: int, scores: Tensor) -> Tensor:
            drop = torch.zeros(scorer.parts[n].count, dtype=torch.float64)
            drop[: len(scores)] = full[n] - scores
            return scorer.spread(n, drop)

        maps, _ = scorer.evaluate(all_but_one, heat)
        return maps
