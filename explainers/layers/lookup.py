"""Layers by name: the list of all, the layout of one, and what stands before or after it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from explainers.errors import LayerRanRepeatedly, NothingSpatial, UnsupportedModel
from explainers.findings import note_finding
from explainers.hooks.locate import HookPoint, find_hook_point, no_inner_hooks
from explainers.hooks.records import ran_repeatedly
from explainers.layers.layer import Layer, is_attention, is_spatial, layout_of
from explainers.layers.layout import Grid, LayerLayout, nothing_spatial
from explainers.layers.profile import Profile, layout_at_any_size, profile
from explainers.network.eval_view import EvalView
from explainers.network.forwarded import Forward, forwarded
from explainers.options import LayerName


def list_layers(
    model: nn.Module, images: Tensor, *, spatial: bool = False, forward: Forward | None = None
) -> list[Layer]:
    """All layers of the model, one entry a call, in the order of the calls; with `spatial` only those with a grid >
    1x1. `forward` is as in `explain`.

    Returns  list of `Layer`, from one forward pass of the first image
    Errors   UnsupportedModel for scripted, traced and exported models, whose inner layers take no hooks

    Example
        >>> layers = {layer.name: layer for layer in list_layers(model, images, spatial=True)}
        >>> layers["layer4"].grid
        (7, 7)
    """
    if forward is not None:
        model = forwarded(model, forward, images)
    layers = profile(model, images)
    chosen = [layer for layer in layers if not spatial or is_spatial(layer)]
    # The model as the function runs it lives as long as the list: receptive fields need it.
    return chosen if forward is None else [replace(layer, _model=lambda: model) for layer in chosen]


def default_layer(model: nn.Module, images: Tensor, *, forward: Forward | None = None) -> str:
    """The last stage with a grid before pooling or classifier: `layer4`, `features`, `norm`, a ViT's last `ln_1`.

    It is the last layer with a grid of at least 4 x 4 (larger than 1 x 1, where there is none) that every path to the
    score passes. Where a class token stands before the patches, only that token is read after the last block: there it
    is the normalised input of that block's attention, the last tensor whose patches affect the score. Where paths leave
    early, as in detectors that read several scales, it is the last stage of the backbone; in segmentation networks that
    of backbone or decoder, not the head, whose map is that of the logits. `forward` is as in `explain`.

    Returns  its name
    Errors   NothingSpatial when no layer has a grid larger than 1x1; UnsupportedModel as `list_layers`

    Example
        >>> default_layer(model, images)
        'layer4'
    """
    return _default_name(profile(forwarded(model, forward, images), images), images)


def _default_name(layers: Profile, images: Tensor) -> str:
    if layers.default is None:
        pictures = [layer for layer in layers if len(layer.shape) in (3, 4) and min(layer.shape[1:]) > 1]
        raise NothingSpatial(_no_default(images, pictures[-1] if pictures else None))
    return layers.default


def _no_default(images: Tensor, unclear: Layer | None) -> str:
    if unclear is None:
        why = "Give larger images, or use"
    else:
        why = (
            f"The last with several axes is {unclear.name!r} with {unclear.shape}, whose axes do not run along the "
            "picture's height and width in order. Use"
        )
    return (
        f"No layer of this network has a grid larger than 1x1 for images of shape {tuple(images.shape)}. {why} an "
        "input-gradient method such as saliency."
    )


def token_grid(model: nn.Module | EvalView, images: Tensor, count: int) -> tuple[Grid, int] | None:
    """The grid of the patches among `count` tokens and how many tokens stand before them; None where they are none."""
    layers = profile(model, images)
    for layer in reversed(layers):
        if layer.grid is not None and layer.layout == "tokens" and layer.shape[1] == count:
            return layer.grid, layer.extra_tokens
    # No module may give tokens out: then they are the cells of the last picture of fitting size.
    for layer in reversed(layers):
        if layer.grid is not None and is_spatial(layer) and 0 <= count - layer.grid[0] * layer.grid[1] <= _EXTRA_TOKENS:
            return layer.grid, count - layer.grid[0] * layer.grid[1]
    return None


# As many class and register tokens as any network is known to put before its patches, and room to spare.
_EXTRA_TOKENS = 16


def is_read(model: nn.Module | EvalView, images: Tensor, name: str) -> bool:
    """Whether the score depends on the positions of the layer `name`, not only on a class token beside them."""
    return next((layer.is_read for layer in profile(model, images) if layer.name == name), True)


def last_layer_with_patch_gradients(model: nn.Module | EvalView, images: Tensor, name: str) -> str | None:
    """The last layer before the layer `name` whose patches another token reads: the default layer, or the tokens just
    before the last attention where the target reads less than the scores do.
    """
    layers = profile(model, images)
    names = [layer.name for layer in layers]
    earlier = layers[: names.index(name)] if name in names else []
    if any(layer.name == layers.default for layer in earlier):
        return layers.default
    return next((each for each in reversed(_attention_inputs(earlier)) if each != name), None)


def _attention_inputs(layers: list[Layer]) -> list[str]:
    """The tokens just before each attention, in order."""
    found = []
    for i, attention in enumerate(layers):
        if is_attention(attention):
            # What a module of its own runs inside (qkv, projection) comes before it in the order of calls ended.
            inside = f"{attention.path}."
            found += [each.name for each in layers[:i] if each.layout == "tokens" and not each.name.startswith(inside)][
                -1:
            ]
    return found


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
        layer = layers.default or _default_name(layers, images)
        if layers.is_bypassed:
            note_finding(
                "bypass",
                f"Not every path to the score passes the default layer {layer!r}: what goes around it is not in the "
                "map. list_layers(model, images) has the others.",
                layer=layer,
            )
    if isinstance(layer, nn.Module):
        # A compiled inner module is replaced by the module in it when the network runs: so is its name.
        layer = find_hook_point(view.model, layer).name.replace("_orig_mod.", "").removesuffix("._orig_mod")
    point = find_hook_point(view.network, layer)
    layout = None if counted else layout_at_any_size(view, point)
    if layout is None:
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
