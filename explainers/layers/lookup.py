"""Layers by name: the list of all, the layout of one, and what stands before or after it."""

from __future__ import annotations

from torch import Tensor, nn

from explainers.errors import LayerRanRepeatedly, NothingSpatial, UnsupportedModel
from explainers.hooks.locate import HookPoint, find_hook_point, no_inner_hooks
from explainers.hooks.records import ran_repeatedly
from explainers.layers.default_layer import attention_inputs, default_name
from explainers.layers.layout import Grid, LayerLayout, nothing_spatial
from explainers.layers.profile import (
    EXTRA_TOKENS,
    Layer,
    always_channels_first,
    is_attention,
    is_spatial,
    layout_of,
    profile,
)
from explainers.network.eval_view import EvalView
from explainers.options import LayerName


def list_layers(model: nn.Module, images: Tensor, *, spatial: bool = False) -> list[Layer]:
    """All layers of the model, one entry a call, in the order of the calls; with `spatial` only those with a grid >
    1x1.

    Returns  list of `Layer`, from one forward pass of the first image
    Errors   UnsupportedModel for scripted, traced and exported models, whose inner layers take no hooks

    Example
        >>> layers = {layer.name: layer for layer in list_layers(model, images, spatial=True)}
        >>> layers["layer4"].grid
        (7, 7)
    """
    layers = profile(model, images)
    return [layer for layer in layers if not spatial or is_spatial(layer)]


def token_grid(model: nn.Module | EvalView, images: Tensor, count: int) -> tuple[Grid, int] | None:
    """The grid of the patches among `count` tokens and how many tokens stand before them; None where they are none."""
    layers = profile(model, images)
    for each in reversed(layers):
        if each.grid is not None and each.layout == "tokens" and each.shape[1] == count:
            return each.grid, each.extra_tokens
    # No module may give tokens out: then they are the cells of the last picture of fitting size.
    for each in reversed(layers):
        if each.grid is not None and is_spatial(each) and 0 <= count - each.grid[0] * each.grid[1] <= EXTRA_TOKENS:
            return each.grid, count - each.grid[0] * each.grid[1]
    return None


def is_attended_later(model: nn.Module | EvalView, images: Tensor, name: str) -> bool:
    """Whether an attention over tokens follows the layer `name`, so that every patch can still affect the score."""
    layers = profile(model, images)
    index = next((i for i, each in enumerate(layers) if each.name == name), len(layers))
    return any(is_attention(each) and not name.startswith(f"{each.name}.") for each in layers[index + 1 :])


def last_layer_with_patch_gradients(model: nn.Module | EvalView, images: Tensor, name: str) -> str | None:
    """The input of the last attention before the layer `name`: after it, only the class token may be used."""
    layers = profile(model, images)
    index = next((i for i, each in enumerate(layers) if each.name == name), 0)
    earlier = [each.name for each in attention_inputs(layers[:index])]
    return next((each for each in reversed(earlier) if each != name), None)


def layer_layout(
    view: EvalView, images: Tensor, layer: LayerName | None, *, counted: bool = False, spatial: bool = True
) -> LayerLayout:
    """Find the layer and its layout, once for all passes of a call; `None` is the default layer.

    A pass that runs the whole network counts the layer's calls itself; for one that ends at the layer, `counted`
    looks them up in a profile; without `spatial` a layer without a grid will do.

    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    """
    key = layer, images.shape[1:], counted, spatial
    if (known := view.known.get(key)) is not None:
        return known
    if view.kind is not None:
        raise UnsupportedModel(no_inner_hooks(view.kind))
    if layer is None:
        layers = profile(view, images)
        layer = layers.default or default_name(layers, images)
    if isinstance(layer, nn.Module):
        # A compiled inner module is replaced by the module in it when the network runs: so is its name.
        layer = find_hook_point(view.model, layer).name.replace("_orig_mod.", "").removesuffix("._orig_mod")
    point = find_hook_point(view.network, layer)
    if not counted and always_channels_first(view):
        layout = LayerLayout(point.name, point.module, point.call, "NCHW")
    else:
        layout = _profiled_layout(view, images, point, spatial)
    view.known[key] = layout
    return layout


def _profiled_layout(view: EvalView, images: Tensor, point: HookPoint, spatial: bool) -> LayerLayout:
    calls = [call for call in profile(view, images) if call.name.partition("#")[0] == point.path]
    named = next((call for call in calls if call.name == point.name), None)
    if named is None and len(calls) > 1 and point.call is None:
        raise LayerRanRepeatedly(ran_repeatedly(point.path, len(calls)))
    if named is None or not named.shape:
        # It did not run, or gives no tensor: the pass says so.
        return LayerLayout(point.name, point.module, point.call, "NCHW")
    if named.grid is None and spatial:
        raise NothingSpatial(nothing_spatial(point.name, named.shape))
    return layout_of(named, point) if named.grid else LayerLayout(point.name, point.module, point.call)


def stages(model: nn.Module, images: Tensor) -> list[LayerName]:
    """The names of all stages with a grid, in running order."""
    return [each.name for each in list_layers(model, images, spatial=True) if each.stage]
