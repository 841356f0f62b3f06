"""Class-activation maps from one forward and one backward down to the layer.

All functions here read the same two tensors and differ in one expression:

    A  activations of the layer   (n, k, h, w)
    G  d score / d A              (n, k, h, w), score in logits unless the target says otherwise

With `relu=False` they give the signed sum before the final ReLU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from torch import Tensor, nn

from ..layers import list_layers
from ..passes import activations_and_gradients, activations_and_gradients_of
from ..registry import check_images, method
from ..sites import LayerName
from ..targets import TargetLike

Relu = Annotated[bool, "Keep only what speaks for the class"]


def _grad_cam(a: Tensor, g: Tensor) -> Tensor:
    return (g.mean(dim=(2, 3), keepdim=True) * a).sum(dim=1)


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
    a64, g64 = a.double(), g.double()  # third powers of small gradients leave float32
    denominator = 2 * g64**2 + a64.sum(dim=(2, 3), keepdim=True) * g64**3
    alpha = (g64**2 / denominator).where(denominator != 0, 0)
    weights = (alpha * g64.relu()).sum(dim=(2, 3), keepdim=True)
    return _rectified((weights * a64).sum(dim=1), relu).to(a.dtype)


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
    return _rectified((g * a).sum(dim=1), relu)


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
    return _rectified((g.relu() * a).sum(dim=1), relu)


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
    total = a.sum(dim=(2, 3), keepdim=True)
    weights = ((g * a).sum(dim=(2, 3), keepdim=True) / total).where(total != 0, 0)  # a silent channel has no weight
    return _rectified((weights * a).sum(dim=1), relu)


def grad_cam_sweep(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layers: Sequence[LayerName] | None = None,
    relu: bool = True,
) -> dict[str, Tensor]:
    """Grad-CAM at several layers from one forward and one backward pass; by default at every stage.

    Returns  a map (n, h, w) for each layer, by its name, in the order asked for; values as `grad_cam` gives them
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Selvaraju et al. 2017, eqs. 1 and 2, arXiv:1610.02391
    """
    check_images(model, images)
    names = (
        [each.name for each in list_layers(model, images, spatial=True) if each.stage]
        if layers is None
        else list(layers)
    )
    found = activations_and_gradients_of(model, images, names, target)
    return {name: _rectified(_grad_cam(a, g), relu) for name, (a, g) in found.items()}
