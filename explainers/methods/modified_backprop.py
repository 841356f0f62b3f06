"""Gradients at the input with another rule at every ReLU."""

from __future__ import annotations

from torch import Tensor, nn

from ..backward_rules import apply, deconv, guided, why_not
from ..passes import opened
from ..registry import method
from ..targets import TargetLike


@method(
    family="backward rule",
    returns="pixels",
    title="Guided backpropagation",
    reduce="abs_max",
    needs=why_not,
    paper="Springenberg et al. 2014, arXiv:1412.6806",
)
def guided_backprop(model: nn.Module, images: Tensor, target: TargetLike = None) -> Tensor:
    """Guided backpropagation: at every ReLU only positive gradients pass, and only where the input was positive.

    ReLUs are found in the backward graph, as modules or functions, in place or shared; ReLU6 counts as a ReLU.

    Returns  (n, c, h, w), signed at the input, in logits per unit of the model's input
    Errors   UnsupportedOperation for other activations (SiLU, GELU, ...), which the paper does not define
    Source   Springenberg et al. 2014, section 3.4, arXiv:1412.6806
    """
    with opened(model, images, target) as run:
        return run.gradient(run.images, rule=apply(model, guided))


@method(
    family="backward rule",
    returns="pixels",
    title="Deconvnet",
    reduce="abs_max",
    needs=why_not,
    paper="Zeiler & Fergus 2014, arXiv:1311.2901",
)
def deconvnet(model: nn.Module, images: Tensor, target: TargetLike = None) -> Tensor:
    """Deconvnet: at every ReLU only positive gradients pass, whatever the input was.

    Returns  (n, c, h, w), signed at the input, in logits per unit of the model's input
    Errors   UnsupportedOperation for other activations (SiLU, GELU, ...), which the paper does not define
    Source   Zeiler & Fergus 2014, section 2.1, arXiv:1311.2901
    """
    with opened(model, images, target) as run:
        return run.gradient(run.images, rule=apply(model, deconv))
