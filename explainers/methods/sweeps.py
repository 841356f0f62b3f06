"""A map at each of several layers, by one method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..errors import BadOption
from ..layer_passes import activations_and_gradients_of
from ..layers import list_layers
from ..registry import check_images, find
from ..sites import LayerName, find_site, unwrap
from ..targets import TargetLike
from .gradient_cams import FORMULAS


def sweep(
    method: str,
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layers: Sequence[LayerName] | None = None,
    **options: Any,
) -> dict[str, Tensor]:
    """The maps of any method that reads a layer, at several layers; by default at every stage.

    Grad-CAM, Grad-CAM++, HiResCAM, LayerCAM, XGrad-CAM and element-wise Grad-CAM take one forward and one backward
    pass for all layers together, every other method as many as it needs for each. `fuse` makes one map of them.

    Returns  the method's result for each layer, by the layer's name, in the order asked for
    Errors   BadOption for a method that reads no layer; those of the method
    Source   the method's own
    """
    chosen = find(method)
    if not chosen.takes_layer:
        raise BadOption(f"{method} reads no layer, so it has no map for each of them. Call it once.")
    check_images(model, images)
    names = stages(model, images) if layers is None else list(layers)
    if method not in FORMULAS or set(options) - {"relu"}:
        places = {find_site(unwrap(model), layer).name: layer for layer in names}
        return {name: chosen(model, images, target, layer=layer, **options) for name, layer in places.items()}
    relu = options.get("relu", chosen.relu)
    if "relu" in options:
        if chosen.relu is None:
            raise BadOption(f"{method} has no option 'relu'.")
        chosen.options["relu"].check(relu)
    found = activations_and_gradients_of(model, images, names, target)
    maps = {name: FORMULAS[method](a, g) for name, (a, g) in found.items()}
    return {name: each.relu() if relu else each for name, each in maps.items()}


def stages(model: nn.Module, images: Tensor) -> list[LayerName]:
    """The names of all stages with a grid, in running order."""
    return [each.name for each in list_layers(model, images, spatial=True) if each.stage]


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
    return sweep("grad_cam", model, images, target, layers=layers, relu=relu)
