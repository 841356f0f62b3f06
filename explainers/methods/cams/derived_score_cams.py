"""Grad-CAM of scores that are derived from those of several classes.

A  activations of the layer   (n, k, h, w)
G  ∂y / ∂A                    (n, k, h, w), y the derived score
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import activations_and_gradients
from explainers.findings import note_images
from explainers.keywords import LayerCall
from explainers.methods.cams.class_contrast import (
    against_nearest,
    among_scores,
    derive_target,
    probability,
    residual_softmax,
)
from explainers.methods.cams.gradient_cams import FORMULAS
from explainers.methods.cams.second_order import hessian_activations
from explainers.options import Choice, Range, Relu
from explainers.registry import method
from explainers.targets import TargetLike


@method(family="cam", returns="grid", title="ShapleyCAM", paper="Cai 2025, arXiv:2501.06261")
def shapley_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    score: Annotated[
        str, Choice("rest", "logit", "probability", help="score to explain; rest: logit + log-probability")
    ] = "rest",
    relu: Relu = True,
    **call: Unpack[LayerCall],
) -> Tensor:
    """ShapleyCAM: Grad-CAM with a second-order term, the Shapley value of a quadratic model of the score.

        L = ReLU(Σ_k w_k A_k),  w_k = mean_ij (G - ½ H A),  G and H the score's gradient and Hessian at A

    For the logit of a ReLU network H is 0 and the map equals Grad-CAM; the default score ReST, logit plus
    log-probability, has curvature. Targets other than class logits (probabilities, units), and models without class
    scores, are explained unchanged.

    `forward` is as in `explain`. `through` raises an error, because it only supports first derivatives.

    Returns  (n, h, w) at the layer's own size, >= 0, in the score's units
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Cai 2025, ShapleyCAM and the utility ReST, arXiv:2501.06261

    Example
        >>> shapley_cam(model, images, 281, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    if score != "logit" and among_scores(target):
        target = derive_target(target, residual_softmax if score == "rest" else probability, needed=False)
    a, g, curved = hessian_activations(model, images, call.get("layer"), target)
    note_images(
        ~curved.flatten(1).any(1),
        "no_curvature",
        "The Hessian term is zero: the score is piecewise linear in this layer, so the map equals Grad-CAM.",
        {} if score == "rest" else {"score": "rest"},
    )
    return FORMULAS["grad_cam"](a, g - curved / 2)


@method(family="cam", returns="grid", title="Finer-CAM", paper="Zhang et al. 2025, arXiv:2501.11309")
def finer_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    references: Annotated[int, Range(1, 100, help="number of reference classes with the closest scores")] = 3,
    strength: Annotated[float, Range(0, 10, 0.1, help="weight of the reference scores that are subtracted")] = 0.6,
    weighting: Annotated[
        str, Choice("even", "likely", help="weights of the references: equal, or their probabilities")
    ] = "even",
    relu: Relu = True,
    **call: Unpack[LayerCall],
) -> Tensor:
    """Finer-CAM: Grad-CAM of the difference between the class's score and those of the most similar classes.

        y = s - strength × mean_r s_r                       weighting="even"
        y = Σ_r p_r (s - strength × s_r) / Σ_r p_r          weighting="likely", also differentiated through p

    over the `references` classes r whose scores s_r are closest to s, with probabilities p_r. The second form is used
    by pytorch-grad-cam, with strength 1.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   BadTarget for a target that is not one of the scores; LayerNotFound, LayerRanRepeatedly, NoSpatialOutput,
             UnsupportedModel
    Source   Zhang et al. 2025, section 3, arXiv:2501.11309

    Example
        >>> finer_cam(model, images, 281, layer="layer4", references=5).shape
        torch.Size([1, 7, 7])
    """
    against = derive_target(target, against_nearest(strength, references, weighting))
    a, g = activations_and_gradients(model, images, call.get("layer"), against)
    return FORMULAS["grad_cam"](a, g)
