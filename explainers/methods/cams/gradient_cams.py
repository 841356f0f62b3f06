"""Class-activation maps from one forward and one backward pass down to a layer.

Most of these maps are a single expression (`FORMULAS`) of two tensors:

    A  activations of the layer   (n, k, h, w)
    G  ∂y / ∂A                    (n, k, h, w), y the target's score, in logits unless the target says otherwise

`@method` applies the final ReLU unless `relu=False`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import activations_and_gradients, layer_with_patch_gradients, open_run
from explainers.call.scores import cell_axes, maps_of
from explainers.dtypes import float64_device, to_float64
from explainers.findings import note_gradient, note_images
from explainers.keywords import LayerCall, LayerCost
from explainers.options import Relu, Samples, Seed, Sigma
from explainers.perturbation.baselines import extremes
from explainers.perturbation.rng import PerImageGenerators
from explainers.registry import method
from explainers.targets import TargetLike

F = TypeVar("F", bound=Callable[..., Tensor])

FORMULAS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
"""The expressions in A and G by method, before the final ReLU. `sweep`, RefineCAM and SESS evaluate them."""


def _cam(formula: Callable[[Tensor, Tensor], Tensor], **declaration: Any) -> Callable[[F], F]:
    """Register the map of `formula(A, G)` in both METHODS and FORMULAS."""

    def register(function: F) -> F:
        FORMULAS[function.__name__] = formula
        return method(family="cam", returns="grid", **declaration)(function)

    return register


def _grad_cam(a: Tensor, g: Tensor) -> Tensor:
    return (g.mean(dim=cell_axes(a), keepdim=True) * a).sum(dim=1)


def _grad_cam_pp(a: Tensor, g: Tensor) -> Tensor:
    g = to_float64(g)  # third powers of small gradients underflow in float32
    return _grad_cam_pp_from_powers(a, g, g**2, g**3)


def _grad_cam_pp_from_powers(a: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """Evaluate equation 19 for the first three powers of the gradient or their means; α = 0 for a denominator of 0."""
    a64 = to_float64(a)
    denominator = 2 * second + a64.sum(dim=cell_axes(a), keepdim=True) * third
    alpha = (second / denominator).where(denominator != 0, 0)
    weights = (alpha * first.relu()).sum(dim=cell_axes(a), keepdim=True)
    return (weights * a64).sum(dim=1).to(a)


def _hires_cam(a: Tensor, g: Tensor) -> Tensor:
    return (g * a).sum(dim=1)


def _element_wise_grad_cam(a: Tensor, g: Tensor) -> Tensor:
    return (g * a).relu().sum(dim=1)


def _layer_cam(a: Tensor, g: Tensor) -> Tensor:
    return (g.relu() * a).sum(dim=1)


def _xgrad_cam(a: Tensor, g: Tensor) -> Tensor:
    total = a.sum(dim=cell_axes(a), keepdim=True)
    weights = ((g * a).sum(dim=cell_axes(a), keepdim=True) / total).where(
        total != 0, 0
    )  # inactive channels get weight 0
    return (weights * a).sum(dim=1)


@_cam(_grad_cam, title="Grad-CAM", paper="Selvaraju et al. 2017, arXiv:1610.02391")
def grad_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, relu: Relu = True, **call: Unpack[LayerCall]
) -> Tensor:
    """Grad-CAM: each channel weighted by its mean gradient; positive evidence only.

        L = ReLU(Σ_k w_k A_k),  w_k = mean_ij ∂y/∂A_k,ij

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits; before the ReLU it sums to logit - bias if only
             average pooling and a linear head follow the layer
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Selvaraju et al. 2017, eqs. 1 and 2, arXiv:1610.02391

    Example
        >>> grad_cam(model, images, 281, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    return _grad_cam(*activations_and_gradients(model, images, call.get("layer"), target))


@_cam(_grad_cam_pp, title="Grad-CAM++", paper="Chattopadhay et al. 2018, arXiv:1710.11063")
def grad_cam_pp(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, relu: Relu = True, **call: Unpack[LayerCall]
) -> Tensor:
    """Grad-CAM++: channels weighted by their positive gradients, so that each of several instances of the class counts.

        L = ReLU(Σ_k w_k A_k),  w_k = Σ_ij α ReLU(G),  α = G² / (2 G² + G³ Σ_ij A),  G = ∂y/∂A

    The derivatives are those of exp(y), without their common factor exp(y). No epsilon is added: α is 0 if its
    denominator is 0.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Chattopadhay et al. 2018, eqs. 5 and 19, arXiv:1710.11063

    Example
        >>> grad_cam_pp(model, images, 281, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    return _grad_cam_pp(*activations_and_gradients(model, images, call.get("layer"), target))


@_cam(_hires_cam, title="HiResCAM", paper="Draelos & Carin 2020, arXiv:2011.08891")
def hires_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, relu: Relu = False, **call: Unpack[LayerCall]
) -> Tensor:
    """HiResCAM: gradient times activation, element by element, so that the map shows only what the model used.

        L = Σ_k G_k A_k,  G = ∂y/∂A

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, signed (the paper has no ReLU), in logits; it sums to logit - bias
             if a linear head follows the layer
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Draelos & Carin 2020, eq. 3, arXiv:2011.08891

    Example
        >>> hires_cam(model, images, 281, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    return _hires_cam(*activations_and_gradients(model, images, call.get("layer"), target))


@_cam(
    _element_wise_grad_cam,
    title="Element-wise Grad-CAM",
    signed=False,
    paper="Gildenblat 2021, pytorch-grad-cam; Draelos & Carin 2020, arXiv:2011.08891",
)
def element_wise_grad_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, **call: Unpack[LayerCall]
) -> Tensor:
    """Element-wise Grad-CAM: the positive part of gradient times activation, summed over the channels.

        L = Σ_k ReLU(G_k A_k),  G = ∂y/∂A

    Negative evidence in one channel does not cancel positive evidence in another. Without the inner ReLU, the method
    equals HiResCAM.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Gildenblat 2021, GradCAMElementWise of pytorch-grad-cam, after Draelos & Carin 2020, eq. 3

    Example
        >>> element_wise_grad_cam(model, images, 281, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    return _element_wise_grad_cam(*activations_and_gradients(model, images, call.get("layer"), target))


@_cam(_layer_cam, title="LayerCAM", paper="Jiang et al. 2021, IEEE TIP 30")
def layer_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, relu: Relu = True, **call: Unpack[LayerCall]
) -> Tensor:
    """LayerCAM: each activation weighted by its own positive gradient; also suitable for early layers.

        L = ReLU(Σ_k ReLU(G_k) A_k),  G = ∂y/∂A

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Jiang et al. 2021, eqs. 6 to 8, doi:10.1109/TIP.2021.3089943

    Example
        >>> layer_cam(model, images, 281, layer="layer2").shape
        torch.Size([1, 28, 28])
    """
    return _layer_cam(*activations_and_gradients(model, images, call.get("layer"), target))


@_cam(_xgrad_cam, title="XGrad-CAM", paper="Fu et al. 2020, arXiv:2008.02312")
def xgrad_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, relu: Relu = True, **call: Unpack[LayerCall]
) -> Tensor:
    """XGrad-CAM: each channel weighted by its gradients, averaged in proportion to its activations.

        L = ReLU(Σ_k w_k A_k),  w_k = Σ_ij G_k A_k / Σ_ij A_k (0 if Σ_ij A_k is 0),  G = ∂y/∂A

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits; before the ReLU it sums to the sum of gradient times
             activation
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Fu et al. 2020, eq. 8, arXiv:2008.02312

    Example
        >>> xgrad_cam(model, images, 281, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    return _xgrad_cam(*activations_and_gradients(model, images, call.get("layer"), target))


@method(family="cam", returns="grid", title="Smooth Grad-CAM++", paper="Omeiza et al. 2019, arXiv:1908.01224")
def smooth_grad_cam_pp(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Samples = 25,
    sigma: Sigma = 0.15,
    seed: Seed = 0,
    relu: Relu = True,
    **cost: Unpack[LayerCost],
) -> Tensor:
    """Smooth Grad-CAM++: Grad-CAM++ with its gradients averaged over noisy copies of the image.

        L = ReLU(Σ_k w_k A_k),  w_k = Σ_ij α ReLU(M1),  α = M2 / (2 M2 + M3 Σ_ij A)

    with M1, M2, M3 the means of G, G², G³ over the copies (powers first, then means) and A the activations of the clean
    image. Top classes are those of the clean image. If stopped early, the means cover the copies processed so far.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel, BadOption
    Source   Omeiza et al. 2019, section 3, with M2 in the numerator as in Grad-CAM++, arXiv:1908.01224

    Example
        >>> smooth_grad_cam_pp(model, images, 281, layer="layer4", samples=4).shape
        torch.Size([1, 7, 7])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        run.scoring.score_inputs()
        x, layout = run.images, layer_with_patch_gradients(run, cost.get("layer"), frames=True)
        raw, g = run.backward.at([layout], x, range(len(x)))[layout.name]
        a = maps_of(layout, raw)
        note_gradient(maps_of(layout, g))
        run.use_layer(layout)
        scale = sigma * extremes(x)[1]
        generators, done = PerImageGenerators(len(x), seed, x.device), 0
        powers = torch.zeros(3, *a.shape, dtype=torch.float64, device=float64_device(a.device))

        def work(chunk: range) -> None:
            nonlocal done
            for n in range(len(x)):
                noisy = x[n] + scale[n] * generators.normal_noise(n, len(chunk), *x.shape[1:]).to(x)
                found = run.backward.at([layout], noisy, [n] * len(chunk))[layout.name][1]
                gradients = to_float64(maps_of(layout, found))
                powers[:, n] += torch.stack([(gradients**p).sum(0) for p in (1, 2, 3)])
            done = chunk.stop

        def best() -> Tensor:
            return _grad_cam_pp_from_powers(a, *(powers / done))

        run.loop.run(samples, run.loop.rows(passes=2), work, best)
        if samples > 1 and sigma > 0:
            _note_constant_gradients(*powers[:2] / done)
        return best()


def _note_constant_gradients(first: Tensor, second: Tensor) -> None:
    """Note images whose noisy copies all have the same gradient, as happens before pooling and a linear head."""
    spread = (second - first**2).flatten(1).amax(1)
    note_images(
        "unmoved_by_noise",
        spread <= 1e-9 * second.flatten(1).amax(1),
        "The gradient at this layer is the same for every noisy copy, so the map equals Grad-CAM++. Choose an "
        "earlier layer for noise to have an effect.",
    )
