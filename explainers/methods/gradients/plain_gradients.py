"""Attributions from the gradient at the input.

x  images              (n, c, h, w)
G  ∂y / ∂x             (n, c, h, w), y the target's score, in logits unless the target says otherwise
"""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import open_run
from explainers.call.scores import at_least_float32
from explainers.keywords import Call
from explainers.registry import method, on_lite0
from explainers.targets import TargetLike


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
