"""Attributions from the gradients at noisy copies of the picture; they differ in how the gradients are folded.

x  images              (n, c, h, w)
G  d score / d x       at one noisy copy, score in logits unless the target says otherwise

Noise is normal with a deviation of `sigma` times the picture's own range. Each picture has its own random numbers,
drawn in float32 one sample after the other, so that a map depends neither on the pictures beside it, nor on the chunk
size, nor on the precision that the model runs in. The classes are those of the clean pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from explainers.options import Precision, Range, Seed
from explainers.passes.loop import Loop, Progress
from explainers.passes.run import Run, at_least_float32, open_run
from explainers.perturbation.baselines import extremes
from explainers.perturbation.rng import PerImageGenerators
from explainers.registry import method
from explainers.targets import TargetLike

Samples = Annotated[int, Range(1, 1000, help="noisy copies of the picture")]
Sigma = Annotated[float, Range(0, 1, 0.01, help="noise, as a share of the picture's range")]


@method(
    family="gradient",
    returns="pixels",
    unit="logit per unit of input",
    title="SmoothGrad",
    reduce="abs_max",
    paper="Smilkov et al. 2017, arXiv:1706.03825",
)
def smooth_grad(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Samples = 25,
    sigma: Sigma = 0.15,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """SmoothGrad: the mean gradient over noisy copies of the picture, signed.

    Returns  (n, c, h, w), in logits per unit of the model's input; drift in bf16: docs/figures.md
    Errors   BadTarget, BadOption
    Source   Smilkov et al. 2017, section 2, arXiv:1706.03825
    """
    with open_run(model, images, target, many=True, precision=precision) as run:
        total, done = at_least_float32(torch.zeros_like(run.images)), 0

        def fold(picture: int, gradients: Tensor, before: int) -> None:
            nonlocal done
            total[picture] += gradients.sum(0)
            done = before + len(gradients)

        loop = Loop(batch_size, progress, budget)
        _at_noisy_copies(run, samples, sigma, seed, loop, fold, lambda: (total / done).abs().amax(1))
        return total / done


@method(
    family="gradient",
    returns="pixels",
    unit="squared logit per unit of input",
    title="SmoothGrad squared",
    signed=False,
    paper="Hooker et al. 2019, arXiv:1806.10758",
)
def smooth_grad_squared(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Samples = 25,
    sigma: Sigma = 0.15,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """SmoothGrad squared: the mean of the squared gradients over noisy copies of the picture.

    It is the square of SmoothGrad plus the (biased) variance of VarGrad.

    Returns  (n, c, h, w), >= 0, in squared logits per unit of the model's input; drift in bf16: docs/figures.md
    Errors   BadTarget, BadOption
    Source   Hooker et al. 2019, section 3, SG-SQ, arXiv:1806.10758
    """
    with open_run(model, images, target, many=True, precision=precision) as run:
        total, done = at_least_float32(torch.zeros_like(run.images)), 0

        def fold(picture: int, gradients: Tensor, before: int) -> None:
            nonlocal done
            total[picture] += gradients.square().sum(0)
            done = before + len(gradients)

        loop = Loop(batch_size, progress, budget)
        _at_noisy_copies(run, samples, sigma, seed, loop, fold, lambda: (total / done).sum(1))
        return total / done


@method(
    family="gradient",
    returns="pixels",
    unit="squared logit per unit of input",
    title="VarGrad",
    signed=False,
    paper="Adebayo et al. 2018, arXiv:1810.03307",
)
def var_grad(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Samples = 25,
    sigma: Sigma = 0.15,
    unbiased: Annotated[bool, "Divide by samples - 1 (the variance of the noise's law), not by samples"] = False,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """VarGrad: the variance of the gradients over noisy copies of the picture.

    The biased variance, divided by the number of samples, unless `unbiased`; with one sample both are 0.

    Returns  (n, c, h, w), >= 0, in squared logits per unit of the model's input; drift in bf16: docs/figures.md
    Errors   BadTarget, BadOption
    Source   Adebayo et al. 2018, section 2, arXiv:1810.03307; Chan et al. 1983 for the sum of squared deviations
    """
    with open_run(model, images, target, many=True, precision=precision) as run:
        mean, squares, done = (
            at_least_float32(torch.zeros_like(run.images)),
            at_least_float32(torch.zeros_like(run.images)),
            0,
        )

        def fold(picture: int, gradients: Tensor, before: int) -> None:
            nonlocal done
            done = before + len(gradients)
            # The mean of squares less the square of the mean loses all digits where the variance is small.
            own = gradients.mean(0)
            away = own - mean[picture]
            squares[picture] += (gradients - own).square().sum(0) + away.square() * (before * len(gradients) / done)
            mean[picture] += away * (len(gradients) / done)

        def variance() -> Tensor:
            return squares / max(1, done - 1 if unbiased else done)

        loop = Loop(batch_size, progress, budget)
        _at_noisy_copies(run, samples, sigma, seed, loop, fold, lambda: variance().sum(1))
        return variance()


def _at_noisy_copies(
    run: Run,
    samples: int,
    sigma: float,
    seed: int,
    loop: Loop,
    fold: Callable[[int, Tensor, int], None],
    best: Callable[[], Tensor],
) -> None:
    """Call `fold(picture, gradients [rows, c, h, w], samples before)` for each picture and chunk of noisy copies."""
    x = run.images
    run.score_inputs()
    spans = extremes(x)[1]
    draws = PerImageGenerators(len(x), seed)

    def work(chunk: range) -> None:
        for picture in range(len(x)):
            noise = draws.normal(picture, len(chunk), *x.shape[1:]).to(x)
            noisy = x[picture] + sigma * spans[picture] * noise
            fold(picture, run.gradient(noisy, [picture] * len(chunk)), chunk.start)

    loop.run(samples, loop.rows(x, cost=2), work, best)
