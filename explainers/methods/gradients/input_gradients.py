"""Attributions from the gradient at the input: that of the image, or a statistic of those of noisy copies.

x  images              (n, c, h, w)
G  ∂y / ∂x             (n, c, h, w), at x or at a noisy copy x + ε, ε ~ N(0, (sigma (max x - min x))²)
y  the target's score  in logits unless the target says otherwise

Each image has its own generator, and noise is sampled in float32, one sample after the other. A map therefore does not
depend on the other images of the batch, the chunk size or the model's precision. Top classes are those of the clean
images.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import Run, open_run
from explainers.call.scores import at_least_float32
from explainers.findings import is_recording, note_halves
from explainers.keywords import Call, Cost
from explainers.options import Samples, Seed, Sigma
from explainers.perturbation.baselines import extremes
from explainers.perturbation.rng import PerImageGenerators
from explainers.registry import method, on_lite0
from explainers.targets import TargetLike

_squared = partial(method, family="gradient", returns="pixels", unit="squared logit per unit of input", signed=False)


@method(
    family="gradient",
    returns="pixels",
    unit="logit per unit of input",
    title="Saliency",
    reduce="abs_max",
    paper="Simonyan et al. 2013, arXiv:1312.6034",
    caution=on_lite0(
        "no better than the image's edges or a centered blob", "SmoothGrad squared or gradient SHAP instead"
    ),
)
def saliency(model: nn.Module, images: Tensor, target: TargetLike = None, **call: Unpack[Call]) -> Tensor:
    """Saliency: the gradient of the score with respect to the input, signed.

        G = ∂y/∂x

    On EfficientNet-Lite0 it was no better than the controls in deletion and insertion: the gradient at the image itself
    is mostly noise, which SmoothGrad averages out.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), in logits per unit of the model's input; usually displayed as the largest magnitude over c
    Errors   BadTarget
    Source   Simonyan et al. 2013, section 3, arXiv:1312.6034

    Example
        >>> saliency(model, images, 281).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target) as run:
        return run.backward.gradient(run.images)


@method(
    family="gradient",
    returns="pixels",
    title="Input × gradient",
    paper="Shrikumar et al. 2016, arXiv:1605.01713",
    caution=on_lite0("no better than the image's edges or a centered blob", "gradient SHAP or LRP instead"),
)
def input_x_gradient(model: nn.Module, images: Tensor, target: TargetLike = None, **call: Unpack[Call]) -> Tensor:
    """Input × gradient: the score's first-order term in each input value.

        x ∘ ∂y/∂x

    On EfficientNet-Lite0 it was no better than the controls in deletion and insertion: a single gradient, at the image
    itself, hardly predicts how the score changes towards a baseline.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), in logits; sums to the logit for a ReLU network without biases
    Errors   BadTarget
    Source   Shrikumar et al. 2016, arXiv:1605.01713

    Example
        >>> input_x_gradient(model, images, 281).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target) as run:
        return run.backward.gradient(run.images) * at_least_float32(run.images)


@method(
    family="gradient",
    returns="pixels",
    unit="logit per unit of input",
    title="SmoothGrad",
    reduce="abs_max",
    paper="Smilkov et al. 2017, arXiv:1706.03825",
    caution=on_lite0("about as good as the image's edges or a centered blob", "SmoothGrad squared or VarGrad instead"),
)
def smooth_grad(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Samples = 25,
    sigma: Sigma = 0.15,
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """SmoothGrad: the mean gradient over noisy copies of the image, signed.

        mean_ε ∂y/∂x (x + ε)

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), in logits per unit of the model's input; docs/figures.md lists the error in bf16
    Errors   BadTarget, BadOption
    Source   Smilkov et al. 2017, section 2, arXiv:1706.03825

    Example
        >>> smooth_grad(model, images, 281, samples=8).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        return _mean_over_noise(run, samples, sigma, seed, lambda gradients: gradients, lambda mean: mean.abs().amax(1))


@_squared(title="SmoothGrad squared", paper="Hooker et al. 2019, arXiv:1806.10758")
def smooth_grad_squared(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Samples = 25,
    sigma: Sigma = 0.15,
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """SmoothGrad squared: the mean of the squared gradients over noisy copies of the image.

        mean_ε G² = (mean_ε G)² + var_ε G: the square of SmoothGrad plus the (biased) VarGrad

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), >= 0, in squared logits per unit of the model's input; docs/figures.md lists the error in
                 bf16
    Errors   BadTarget, BadOption
    Source   Hooker et al. 2019, section 3, SG-SQ, arXiv:1806.10758

    Example
        >>> smooth_grad_squared(model, images, 281, samples=8).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        return _mean_over_noise(run, samples, sigma, seed, Tensor.square, lambda mean: mean.sum(1))


@_squared(title="VarGrad", paper="Adebayo et al. 2018, arXiv:1810.03307")
def var_grad(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Samples = 25,
    sigma: Sigma = 0.15,
    unbiased: Annotated[bool, "Unbiased variance: divide by samples - 1"] = False,
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """VarGrad: the variance of the gradients over noisy copies of the image.

        var_ε G = mean_ε (G - mean_ε G)²

    The sum is divided by the number of samples, or by one less if `unbiased`; with one sample both are 0.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), >= 0, in squared logits per unit of the model's input; docs/figures.md lists the error in
                 bf16
    Errors   BadTarget, BadOption
    Source   Adebayo et al. 2018, section 2, arXiv:1810.03307; Chan et al. 1983 for the sum of squared deviations

    Example
        >>> var_grad(model, images, 281, samples=8).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        mean, done = at_least_float32(torch.zeros_like(run.images)), 0
        squares = torch.zeros_like(mean)

        def fold(index: int, gradients: Tensor, before: int) -> None:
            nonlocal done
            done = before + len(gradients)
            # mean(G²) - mean(G)² would suffer from cancellation if the variance is small.
            own = gradients.mean(0)
            shift = own - mean[index]
            squares[index] += (gradients - own).square().sum(0) + shift.square() * (before * len(gradients) / done)
            mean[index] += shift * (len(gradients) / done)

        def variance() -> Tensor:
            return squares / max(1, done - 1 if unbiased else done)

        _visit_noisy_copies(run, samples, sigma, seed, fold, lambda: variance().sum(1))
        return variance()


def _mean_over_noise(
    run: Run,
    samples: int,
    sigma: float,
    seed: int,
    value: Callable[[Tensor], Tensor],
    shown: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the mean of `value` of the gradients over noisy copies, and note how well its halves agree, as `shown`."""
    total, done = at_least_float32(torch.zeros_like(run.images)), 0
    half = torch.zeros_like(total) if is_recording() else None

    def fold(index: int, gradients: Tensor, before: int) -> None:
        nonlocal done
        values = value(gradients)
        total[index] += values.sum(0)
        if half is not None:  # every second copy
            half[index] += values[before % 2 :: 2].sum(0)
        done = before + len(gradients)

    _visit_noisy_copies(run, samples, sigma, seed, fold, lambda: shown(total / done))
    if half is not None and done > 1:
        first = (done + 1) // 2
        note_halves(shown(half / first), shown((total - half) / (done - first)))
    return total / done


def _visit_noisy_copies(
    run: Run,
    samples: int,
    sigma: float,
    seed: int,
    fold: Callable[[int, Tensor, int], None],
    best: Callable[[], Tensor],
) -> None:
    """Call `fold(image, gradients [rows, c, h, w], samples before)` for each image and chunk of noisy copies."""
    x = run.images
    run.scoring.score_inputs()
    spans = extremes(x)[1]
    generators = PerImageGenerators(len(x), seed, x.device)

    def work(chunk: range) -> None:
        for index in range(len(x)):
            noise = generators.normal_noise(index, len(chunk), *x.shape[1:]).to(x)
            noisy = x[index] + sigma * spans[index] * noise
            fold(index, run.backward.gradient(noisy, [index] * len(chunk)), chunk.start)

    run.loop.run(samples, run.loop.rows(passes=2), work, best)
