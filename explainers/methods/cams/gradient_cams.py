"""Class-activation maps from one forward and one backward down to the layer.

All functions here read the same two tensors and differ in one expression:

    A  activations of the layer   (n, k, h, w)
    G  d score / d A              (n, k, h, w), score in logits unless the target says otherwise

With `relu=False` they give the signed sum before the final ReLU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from explainers.findings import note_finding, note_gradient, note_layer
from explainers.methods.cams.class_contrast import (
    against_likely,
    against_mean,
    among_scores,
    derived,
    probability,
    residual_softmax,
)
from explainers.methods.cams.second_order import curved_activations
from explainers.options import Choice, LayerName, Precision, Range, Seed
from explainers.passes.at_layer import activations_and_gradients, layer_with_patch_gradients
from explainers.passes.loop import Loop, Progress
from explainers.passes.run import maps_of, open_run
from explainers.perturbation.baselines import extremes
from explainers.perturbation.rng import PerImageGenerators
from explainers.registry import method
from explainers.targets import TargetLike

Relu = Annotated[bool, "Keep only what speaks for the class"]


def _grad_cam(a: Tensor, g: Tensor) -> Tensor:
    return (g.mean(dim=(2, 3), keepdim=True) * a).sum(dim=1)


def _grad_cam_pp(a: Tensor, g: Tensor) -> Tensor:
    g = g.double()  # third powers of small gradients leave float32
    return _plus_plus(a, g, g**2, g**3)


def _plus_plus(a: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """Equation 19 from the first, second and third powers of the gradient, or their means; no weight where a
    denominator is 0.
    """
    a64 = a.double()
    denominator = 2 * second + a64.sum(dim=(2, 3), keepdim=True) * third
    alpha = (second / denominator).where(denominator != 0, 0)
    weights = (alpha * first.relu()).sum(dim=(2, 3), keepdim=True)
    return (weights * a64).sum(dim=1).to(a.dtype)


def _hires_cam(a: Tensor, g: Tensor) -> Tensor:
    return (g * a).sum(dim=1)


def _element_wise_grad_cam(a: Tensor, g: Tensor) -> Tensor:
    return (g * a).relu().sum(dim=1)


def _layer_cam(a: Tensor, g: Tensor) -> Tensor:
    return (g.relu() * a).sum(dim=1)


def _xgrad_cam(a: Tensor, g: Tensor) -> Tensor:
    total = a.sum(dim=(2, 3), keepdim=True)
    weights = ((g * a).sum(dim=(2, 3), keepdim=True) / total).where(total != 0, 0)  # a silent channel has no weight
    return (weights * a).sum(dim=1)


FORMULAS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "grad_cam": _grad_cam,
    "grad_cam_pp": _grad_cam_pp,
    "hires_cam": _hires_cam,
    "element_wise_grad_cam": _element_wise_grad_cam,
    "layer_cam": _layer_cam,
    "xgrad_cam": _xgrad_cam,
}
"""The expressions in A and G, before the final ReLU: several layers at once need the passes only once."""


def _rectified(maps: Tensor, relu: bool) -> Tensor:
    return maps.relu() if relu else maps


@method(family="cam", returns="grid", title="Grad-CAM", paper="Selvaraju et al. 2017, arXiv:1610.02391")
def grad_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, layer: LayerName | None = None, relu: Relu = True
) -> Tensor:
    """Grad-CAM: each channel weighted by its mean gradient; only support is kept.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits; before the ReLU it sums to logit - bias where
             nothing but average pooling and a linear head follows the layer
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Selvaraju et al. 2017, eqs. 1 and 2, arXiv:1610.02391
    """
    a, g = activations_and_gradients(model, images, layer, target)
    return _rectified(_grad_cam(a, g), relu)


@method(family="cam", returns="grid", title="Grad-CAM++", paper="Chattopadhay et al. 2018, arXiv:1710.11063")
def grad_cam_pp(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, layer: LayerName | None = None, relu: Relu = True
) -> Tensor:
    """Grad-CAM++: positive gradients, weighted so that each of several objects counts.

    The derivatives are those of exp(score), whose common factor exp(score) is left out; there is no epsilon: a cell
    whose denominator is 0 has no weight.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Chattopadhay et al. 2018, eqs. 5 and 19, arXiv:1710.11063
    """
    a, g = activations_and_gradients(model, images, layer, target)
    return _rectified(_grad_cam_pp(a, g), relu)


@method(family="cam", returns="grid", title="HiResCAM", paper="Draelos & Carin 2020, arXiv:2011.08891")
def hires_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, layer: LayerName | None = None, relu: Relu = False
) -> Tensor:
    """HiResCAM: gradient times activation, cell by cell, so that the map shows only what the score was computed from.

    Returns  (n, h, w) at the layer's own size, signed (the paper has no ReLU), in logits; it sums to logit - bias
             where a linear head follows the layer
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Draelos & Carin 2020, eq. 3, arXiv:2011.08891
    """
    a, g = activations_and_gradients(model, images, layer, target)
    return _rectified(_hires_cam(a, g), relu)


@method(
    family="cam",
    returns="grid",
    title="Element-wise Grad-CAM",
    signed=False,
    paper="Gildenblat 2021, pytorch-grad-cam; Draelos & Carin 2020, arXiv:2011.08891",
)
def element_wise_grad_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, layer: LayerName | None = None
) -> Tensor:
    """Element-wise Grad-CAM: gradient times activation, cell by cell, rectified in each channel before the sum.

    What one channel says for the class is not taken back by another; without the inner ReLU it is HiResCAM.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Gildenblat 2021, GradCAMElementWise of pytorch-grad-cam, after Draelos & Carin 2020, eq. 3
    """
    return _element_wise_grad_cam(*activations_and_gradients(model, images, layer, target))


@method(family="cam", returns="grid", title="LayerCAM", paper="Jiang et al. 2021, IEEE TIP 30")
def layer_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, layer: LayerName | None = None, relu: Relu = True
) -> Tensor:
    """LayerCAM: each cell weighted by its own positive gradient; also good at early layers.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Jiang et al. 2021, eqs. 6 to 8, doi:10.1109/TIP.2021.3089943
    """
    a, g = activations_and_gradients(model, images, layer, target)
    return _rectified(_layer_cam(a, g), relu)


@method(family="cam", returns="grid", title="XGrad-CAM", paper="Fu et al. 2020, arXiv:2008.02312")
def xgrad_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, layer: LayerName | None = None, relu: Relu = True
) -> Tensor:
    """XGrad-CAM: each channel weighted by its gradients, averaged in proportion to its activations.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits; before the ReLU it sums to the sum of gradient times
             activation
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Fu et al. 2020, eq. 8, arXiv:2008.02312
    """
    a, g = activations_and_gradients(model, images, layer, target)
    return _rectified(_xgrad_cam(a, g), relu)


@method(family="cam", returns="grid", title="Smooth Grad-CAM++", paper="Omeiza et al. 2019, arXiv:1908.01224")
def smooth_grad_cam_pp(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    samples: Annotated[int, Range(1, 1000, help="noisy copies of the picture")] = 25,
    sigma: Annotated[float, Range(0, 1, 0.01, help="noise, as a share of the picture's range")] = 0.15,
    seed: Seed = 0,
    relu: Relu = True,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Smooth Grad-CAM++: Grad-CAM++ with its gradients averaged over noisy copies of the picture.

    First the powers, then the means: with M1, M2, M3 the means of G, G², G³ over the copies and A the clean picture's
    activations, alpha = M2 / (2 M2 + sum(A) M3), the weight of a channel is the sum of alpha relu(M1), and the map the
    weighted sum of A. Classes are those of the clean picture. Stopped early, the means are over the copies done.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel, BadOption
    Source   Omeiza et al. 2019, section 3, with M2 in the numerator as in Grad-CAM++, arXiv:1908.01224
    """
    loop = Loop(batch_size, progress, budget)
    with open_run(model, images, target, many=True, precision=precision) as run:
        run.score_inputs()
        x, layout = run.images, layer_with_patch_gradients(run, layer)
        raw, g = run.at([layout], x, range(len(x)))[layout.name]
        a = maps_of(layout, raw)
        note_gradient(maps_of(layout, g))
        note_layer(layout.name)
        scale = sigma * extremes(x)[1]
        draws, done = PerImageGenerators(len(x), seed), 0
        powers = torch.zeros(3, *a.shape, dtype=torch.float64, device=a.device)

        def work(chunk: range) -> None:
            nonlocal done
            for n in range(len(x)):
                noisy = x[n] + scale[n] * draws.normal(n, len(chunk), *x.shape[1:]).to(x)
                found = maps_of(layout, run.at([layout], noisy, [n] * len(chunk))[layout.name][1]).double()
                powers[:, n] += torch.stack([(found**p).sum(0) for p in (1, 2, 3)])
            done = chunk.stop

        def best() -> Tensor:
            return _rectified(_plus_plus(a, *(powers / done)), relu)

        loop.run(samples, loop.rows(x, cost=2), work, best)
        if samples > 1 and sigma > 0:
            _tell_unmoved(*powers[:2] / done)
        return best()


def _tell_unmoved(first: Tensor, second: Tensor) -> None:
    """Say where the gradient is the same for every noisy copy, as it is before pooling and a linear head."""
    spread = (second - first**2).flatten(1).amax(1)
    for n in (spread <= 1e-9 * second.flatten(1).amax(1)).nonzero()[:, 0].tolist():
        note_finding(
            "unmoved_by_noise",
            "The gradient at this layer is the same for every noisy copy, so the map is Grad-CAM++'s. Noise makes a "
            "difference at earlier layers.",
            {},
            n,
        )


@method(family="cam", returns="grid", title="ShapleyCAM", paper="Cai 2025, arXiv:2501.06261")
def shapley_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    score: Annotated[str, Choice("rest", "logit", "probability", help="what is explained about the class")] = "rest",
    relu: Relu = True,
) -> Tensor:
    """ShapleyCAM: Grad-CAM with a second-order term, the Shapley value of a quadratic model of the score.

    A channel's weight is the mean of G - ½ H A with the score's gradient G and Hessian H. For the logit of a network
    of ReLUs H is zero and the map is Grad-CAM's; the default score ReST, logit plus log-probability, has curvature.
    Targets that are no class score (probabilities, units) and models without class scores are explained as they are.

    Returns  (n, h, w) at the layer's own size, >= 0, in the score's units
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Cai 2025, ShapleyCAM and the utility ReST, arXiv:2501.06261
    """
    if score != "logit" and among_scores(target):
        target = derived(target, residual_softmax if score == "rest" else probability, needed=False)
    a, g, curved = curved_activations(model, images, layer, target)
    for n in (~curved.flatten(1).any(1)).nonzero()[:, 0].tolist():
        note_finding(
            "no_curvature",
            "The Hessian term is exactly zero: the score is piecewise linear in this layer, so the map is Grad-CAM's.",
            {} if score == "rest" else {"score": "rest"},
            n,
        )
    return _rectified(_grad_cam(a, g - curved / 2), relu)


@method(family="cam", returns="grid", title="Finer-CAM", paper="Zhang et al. 2025, arXiv:2501.11309")
def finer_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    references: Annotated[int, Range(1, 100, help="classes with the nearest scores to compare with")] = 3,
    strength: Annotated[float, Range(0, 10, 0.1, help="how much of their score is taken off")] = 0.6,
    weighting: Annotated[str, Choice("even", "likely", help="references alike, or by their probability")] = "even",
    relu: Relu = True,
) -> Tensor:
    """Finer-CAM: Grad-CAM of what sets the class apart from those with the nearest scores.

    The score is s - strength × mean of the references' scores. With weighting="likely" it is the sum of
    p (s - strength × reference) over the sum of p, p being the references' probabilities, through which the gradient
    goes as well (pytorch-grad-cam's form, there with strength 1).

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   BadTarget for a target that is not among the scores; LayerNotFound, LayerRanRepeatedly, NothingSpatial,
             UnsupportedModel
    Source   Zhang et al. 2025, section 3, arXiv:2501.11309
    """
    against = (against_mean if weighting == "even" else against_likely)(strength, references)
    a, g = activations_and_gradients(model, images, layer, derived(target, against))
    return _rectified(_grad_cam(a, g), relu)
