"""Attributions from the gradient at the input.

x  images              (n, c, h, w)
G  d score / d x       (n, c, h, w), score in logits unless the target says otherwise
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from ..batching import Loop, Progress
from ..options import Range
from ..passes import opened, precise
from ..registry import method
from ..targets import TargetLike


@method(
    family="gradient",
    returns="pixels",
    title="Saliency",
    reduce="abs_max",
    paper="Simonyan et al. 2013, arXiv:1312.6034",
)
def saliency(model: nn.Module, images: Tensor, target: TargetLike = None) -> Tensor:
    """Saliency: the gradient of the score, signed.

    Returns  (n, c, h, w), in logits per unit of the model's input; the usual picture is its largest magnitude over c
    Errors   BadTarget
    Source   Simonyan et al. 2013, section 3, arXiv:1312.6034
    """
    with opened(model, images, target) as run:
        return run.gradient(run.images)


@method(family="gradient", returns="pixels", title="Input × gradient", paper="Shrikumar et al. 2016, arXiv:1605.01713")
def input_x_gradient(model: nn.Module, images: Tensor, target: TargetLike = None) -> Tensor:
    """Input times gradient: a first-order share of each value in the score.

    Returns  (n, c, h, w), in logits; sums to the logit for a network of ReLUs without biases
    Errors   BadTarget
    Source   Shrikumar et al. 2016, arXiv:1605.01713
    """
    with opened(model, images, target) as run:
        return run.gradient(run.images) * precise(run.images)


@method(
    family="gradient",
    returns="pixels",
    title="SmoothGrad",
    reduce="abs_max",
    paper="Smilkov et al. 2017, arXiv:1706.03825",
)
def smooth_grad(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Annotated[int, Range(1, 1000, help="noisy copies of the picture")] = 25,
    sigma: Annotated[float, Range(0, 1, 0.01, help="noise, as a share of the picture's range")] = 0.15,
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """SmoothGrad: the mean gradient over noisy copies of the picture, signed.

    Each picture has its own random numbers, drawn one sample after the other, so that a map depends neither on
    the pictures beside it nor on the chunk size. The classes are those of the clean pictures.

    Returns  (n, c, h, w), in logits per unit of the model's input
    Errors   BadTarget, BadOption
    Source   Smilkov et al. 2017, section 2, arXiv:1706.03825
    """
    with opened(model, images, target) as run:
        x = run.images
        run.clean()
        low, high = x.flatten(1).min(1).values, x.flatten(1).max(1).values
        scale = (sigma * (high - low)).view(-1, 1, 1, 1)
        generators = [torch.Generator().manual_seed(seed) for _ in x]
        total, done = precise(torch.zeros_like(x)), 0

        def work(chunk: range) -> None:
            nonlocal done
            for picture, generator in enumerate(generators):
                noise = torch.stack([torch.randn(x.shape[1:], generator=generator, dtype=total.dtype) for _ in chunk])
                noisy = x[picture] + scale[picture] * noise.to(x)
                total[picture] += run.gradient(noisy, [picture] * len(chunk)).sum(0)
            done = chunk.stop

        loop = Loop(batch_size, progress, budget)
        loop.run(samples, loop.rows(x), work, lambda: (total / done).abs().amax(1))
        return total / done
