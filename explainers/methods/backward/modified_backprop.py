"""Gradients at the input with a modified rule at every ReLU, and excitation backprop's probabilities."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import open_run
from explainers.keywords import Call
from explainers.registry import method, on_lite0
from explainers.rules import operations
from explainers.rules.lrp import winning_probability
from explainers.rules.rectifiers.relu_rules import deconv, guided, rectified_gradient, why_not
from explainers.targets import TargetLike

_relu_rule = partial(
    method,
    family="backward rule",
    returns="pixels",
    unit="logit per unit of input",
    reduce="abs_max",
    needs=why_not,
)


@_relu_rule(
    title="Guided backpropagation",
    paper="Springenberg et al. 2014, arXiv:1412.6806",
    caution=on_lite0("not significantly better than the image's edges or a centered blob", "Grad-CAM instead"),
)
def guided_backprop(model: nn.Module, images: Tensor, target: TargetLike = None, **call: Unpack[Call]) -> Tensor:
    """Guided backpropagation: at every ReLU the backward pass keeps positive gradients at positive inputs.

        R_in = [x > 0] ∘ ReLU(R_out)

    ReLUs are found in the backward graph, whether modules or functions, in-place or shared; ReLU6 counts as a ReLU.
    Selections such as x * (x > 0), which compute a ReLU, count too.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), signed at the input, in logits per unit of the model's input
    Errors   UnsupportedOperation for other activations (SiLU, GELU, ...), for which the paper defines no rule
    Source   Springenberg et al. 2014, section 3.4, arXiv:1412.6806

    Example
        >>> guided_backprop(model, images, 281).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target) as run:
        return rectified_gradient(run, model, guided)


@_relu_rule(
    title="Deconvnet",
    paper="Zeiler & Fergus 2014, arXiv:1311.2901",
    caution=on_lite0(
        "hardly better than random cells and show the network's strides more than the image", "guided Grad-CAM instead"
    ),
)
def deconvnet(model: nn.Module, images: Tensor, target: TargetLike = None, **call: Unpack[Call]) -> Tensor:
    """Deconvnet: at every ReLU the backward pass keeps positive gradients, regardless of the input.

        R_in = ReLU(R_out)

    On EfficientNet-Lite0 it was no better than the controls in deletion and insertion: the result does not depend on
    which ReLUs were active, and the network's strides leave a pattern in every map.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), signed at the input, in logits per unit of the model's input
    Errors   UnsupportedOperation for other activations (SiLU, GELU, ...), for which the paper defines no rule
    Source   Zeiler & Fergus 2014, section 2.1, arXiv:1311.2901

    Example
        >>> deconvnet(model, images, 281).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target) as run:
        return rectified_gradient(run, model, deconv)


@method(
    family="backward rule",
    returns="pixels",
    title="Excitation backprop",
    signed=False,
    scale_free="Values are probabilities, which sum to 1 regardless of the score.",
    needs=operations.why_not,
    paper="Zhang et al. 2016, arXiv:1608.00507",
)
def excitation_backprop(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    contrast: Annotated[
        bool, "Contrastive: evidence for the class minus evidence against it in the last layer"
    ] = False,
    **call: Unpack[Call],
) -> Tensor:
    """Excitation backprop: the probability that a top-down winner-take-all search ends at an input value.

        P(i) = Σ_j P(j) a_i w_ij⁺ / Σ_k a_k w_kj⁺

    Only excitatory connections receive probability: inhibitory ones get none, and biases are ignored. If activations
    can be negative (the image itself, SiLU, GELU), a connection is excitatory if the product of activation and weight
    is positive. Batch norm is merged into its convolution.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), >= 0, a probability: sums to 1 unless some neuron has no excitatory input. With `contrast`,
             values are signed and sum to 0.
    Errors   UnsupportedOperation naming operation and layer: attention, layer norm and activations with large negative
             values (tanh, ELU) violate the paper's first assumption
    Source   Zhang et al. 2016, eqs. 2 to 5; contrastive: section 3.4, arXiv:1608.00507

    Example
        >>> excitation_backprop(model, images, 281).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target) as run:
        return winning_probability(run, contrast)
