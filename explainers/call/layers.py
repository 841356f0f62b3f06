"""Find layers by name: list all layers, return the layout of one, and find earlier layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.current import eval_view
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.images import validate_images
from explainers.call.inputs import OneInput, check_inputs, inputs_of, with_inputs
from explainers.call.profile import profile
from explainers.call.view import EvalView
from explainers.errors import LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel, no_module
from explainers.findings import note_finding
from explainers.hooks.locate import HookPoint, find_hook_point, no_inner_hooks, one_layer, unwrap
from explainers.hooks.records import ran_repeatedly
from explainers.layers.layer import Layer, is_attention, is_spatial, layout_of
from explainers.layers.layout import Grid, LayerLayout, nothing_spatial
from explainers.layers.profile import Profile
from explainers.options import LayerName, check_keywords
from explainers.placement import Placement


@check_keywords
@torch.inference_mode(False)
def list_layers(
    model: nn.Module, images: Tensor, *, spatial: bool = False, forward: Forward | None = None
) -> list[Layer]:
    """List all layers of the model in running order, one entry per call.

    With `spatial`, only layers with a grid larger than 1x1 are listed. `forward` is as in `explain`.

    Returns  list of `Layer`, from one forward pass of the first image
    Errors   UnsupportedModel for scripted, traced and exported models, whose inner layers do not support hooks

    Example
        >>> layers = {layer.name: layer for layer in list_layers(model, images, spatial=True)}
        >>> layers["layer4"].grid
        (7, 7)
    """
    if (inputs := inputs_of(images)) is not None:
        layers = _layers_of_inputs(model, inputs, forward)
    else:
        _check(model, images)
        wrapped = wrap_forward(model, forward, images)
        layers = list(profile(wrapped, images, hooks=True))
        if forward is not None:  # receptive fields need the wrapped model, so the list keeps it alive
            layers = [replace(layer, _network=lambda: eval_view(wrapped).network) for layer in layers]
    return [layer for layer in layers if not spatial or is_spatial(layer)]


@check_keywords
@torch.inference_mode(False)
def default_layer(model: nn.Module, images: Tensor, *, forward: Forward | None = None) -> str:
    """Return the last stage with a grid before pooling or classifier: `layer4`, `features`, `norm`, `ln_1` of a ViT.

    It is the last layer with a grid of at least 4 x 4 (or, if there is none nearby, larger than 1 x 1) through which
    every path to the score passes. In networks with a class token, only that token is read after the last block; the
    default is then the normalized input of the last attention, the last tensor whose patches affect the score. If some
    paths leave early, as in detectors that read several scales, it is the last stage of the backbone. In segmentation
    networks it is the last stage of backbone or decoder, not the head, whose map would be that of the logits. `forward`
    is as in `explain`.

    Returns  the name of the layer
    Errors   NoSpatialOutput if no layer has a grid larger than 1x1; UnsupportedModel as `list_layers`

    Example
        >>> default_layer(model, images)
        'layer4'
    """
    if (inputs := inputs_of(images)) is not None:
        found = [(profile(*each, hooks=True), each[1]) for each in _each_input(model, inputs, forward)]
        return _default_name(*next((each for each in found if each[0].default is not None), found[0]))
    _check(model, images)
    return _default_name(profile(wrap_forward(model, forward, images), images, hooks=True), images)


def _each_input(
    model: nn.Module, inputs: tuple[Tensor, ...], forward: Forward | None
) -> list[tuple[nn.Module, Tensor]]:
    """Return the model as a function of each of its inputs, while the others are constant, and the input's first image.

    Errors   WrongType, BadImages, BadOption
    """
    check_inputs(model, inputs, forward)
    rows = [each[:1].detach() for each in inputs]
    others = [tuple(row for k, row in enumerate(rows) if k != index) for index in range(len(rows))]
    return [(with_inputs(model, forward, 1, OneInput(k, others[k])), row) for k, row in enumerate(rows)]


def _layers_of_inputs(model: nn.Module, inputs: tuple[Tensor, ...], forward: Forward | None) -> list[Layer]:
    """Return all layers, each as it is for the first input for which it has a grid."""
    found = []
    for wrapped, image in _each_input(model, inputs, forward):
        layers = profile(wrapped, image, hooks=True)
        found.append([replace(layer, _network=lambda wrapped=wrapped: eval_view(wrapped).network) for layer in layers])
    return [next((each for each in calls if each.grid is not None), calls[0]) for calls in zip(*found, strict=True)]


def _check(model: nn.Module, images: Tensor) -> None:
    """Check that the model is a module, and the images a batch; their values do not matter to the layers.

    Errors   WrongType, BadImages
    """
    if not isinstance(model, nn.Module):
        raise no_module(model)
    if not isinstance(images, Tensor) or images.ndim not in (4, 5) or 0 in images.shape:
        validate_images(model, images)


def _default_name(layers: Profile, images: Tensor) -> str:
    if layers.default is None:
        unclear = [layer for layer in layers if 3 <= len(layer.shape) <= images.ndim and min(layer.shape[1:]) > 1]
        raise NoSpatialOutput(_no_default(images, unclear[-1] if unclear else None))
    return layers.default


def _no_default(images: Tensor, unclear: Layer | None) -> str:
    if unclear is None:
        advice = "Use larger images, or"
    elif unclear._lost:
        advice = (
            f"The cells of {unclear.name!r} have no fixed position in the image, because the network applies "
            f"{unclear._lost} before it. Use"
        )
    else:
        advice = (
            f"The last candidate is {unclear.name!r} with shape {unclear.shape}, but its axes do not run along the "
            "image's height and width in order. Use"
        )
    return (
        f"No layer of this network has a grid larger than 1x1 for images of shape {tuple(images.shape)}. {advice} an "
        "input-gradient method such as saliency."
    )


def token_grid(model: nn.Module | EvalView, images: Tensor, count: int) -> tuple[Grid, int, Placement | None] | None:
    """Return grid and placement of the patches of `count` tokens and the number of tokens before them, if any."""
    layers = [layer for layer in profile(model, images) if layer.frames == 1 and not layer._order]
    for layer in reversed(layers):
        if layer.grid is not None and layer.layout == "tokens" and layer.shape[1] == count:
            return layer.grid, layer.extra_tokens, layer.placement
    # If no module returns the tokens, they are the cells of the last spatial layer of matching size.
    for layer in reversed(layers):
        if layer.grid is not None and is_spatial(layer) and 0 <= count - math.prod(layer.grid) <= _EXTRA_TOKENS:
            return layer.grid, count - math.prod(layer.grid), layer.placement
    return None


# Upper bound on the number of class and register tokens, above that of all known networks.
_EXTRA_TOKENS = 16


def is_read(model: nn.Module | EvalView, images: Tensor, name: str) -> bool:
    """Return whether the score depends on the positions of the layer `name`, not only on its class token."""
    return next((layer.is_read for layer in profile(model, images) if layer.name == name), True)


def last_layer_with_patch_gradients(model: nn.Module | EvalView, images: Tensor, name: str) -> str | None:
    """Return the last layer before the layer `name` whose patches affect the score, or None.

    It is the default layer, or the input of the last attention if the target depends on fewer tokens than the scores.
    """
    layers = profile(model, images)
    names = [layer.name for layer in layers]
    earlier = layers[: names.index(name)] if name in names else []
    if any(layer.name == layers.default for layer in earlier):
        return layers.default
    return next((each for each in reversed(_attention_inputs(earlier)) if each != name), None)


def _attention_inputs(layers: list[Layer]) -> list[str]:
    """Return the layer whose tokens are the input of each attention, in order."""
    found = []
    for i, attention in enumerate(layers):
        if is_attention(attention):
            # Inner modules of an attention (qkv, projection) return before it, so they precede it in the list.
            inside = f"{attention.path}."
            found += [each.name for each in layers[:i] if each.layout == "tokens" and not each.name.startswith(inside)][
                -1:
            ]
    return found


def layer_layout(
    view: EvalView,
    images: Tensor,
    layer: LayerName | None,
    *,
    spatial: bool = True,
    frames: bool = False,
) -> LayerLayout:
    """Find a layer and its layout, once for all passes of a call; None is the default layer.

    Without `spatial`, a layer without a grid is accepted; with `frames`, one that runs on
    the frames of a video one by one, whose rows are not those of the batch.

    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    """
    asked = layer = layer if layer is None or isinstance(layer, (str, nn.Module)) else one_layer(layer)
    if view.decides and len(images) > 1:
        options = {"spatial": spatial, "frames": frames}
        return _same_layout([layer_layout(view, image, layer, **options) for image in images.split(1)])
    key = layer, images.shape[1:], spatial, frames
    if not view.decides and (known := view.known.get(key)) is not None:
        return known
    if view.kind is not None:
        raise UnsupportedModel(no_inner_hooks(view.kind))
    if layer is None:
        layers = profile(view, images)
        layer = layers.default or _default_name(layers, images)
        if layers.is_bypassed:
            note_finding(
                "bypass",
                f"Not every path to the score passes through the default layer {layer!r}, and the map does not include "
                "the paths around it. Call list_layers(model, images) for other layers.",
                layer=layer,
            )
    if isinstance(layer, nn.Module):
        # The network runs a compiled inner module uncompiled, so the wrapper is removed from its name too.
        layer = find_hook_point(unwrap(view.given), layer).name.replace("_orig_mod.", "").removesuffix("._orig_mod")
    point = find_hook_point(view.network, layer)
    layout = _layout_from_profile(view, images, point, spatial)
    if layout.frames > 1 and not frames:
        raise UnsupportedModel(
            f"Layer {layout.name!r} runs on the {layout.frames} frames of a video one by one, so its batch has more "
            "rows than videos, which this method does not support. Choose a later layer from list_layers(model, "
            "images, spatial=True), or a method such as grad_cam or saliency."
        )
    view.known[key] = layout
    _remember(view, images, layout, (asked, images.shape[1:], spatial, frames))
    return layout


def _remember(view: EvalView, images: Tensor, layout: LayerLayout, key: tuple[Any, ...]) -> None:
    """Keep a layout for later calls of an unchanged network, if it does not depend on values of tensors."""
    layers = profile(view, images)
    is_named = isinstance(key[0], str) or (key[0] is None and not layers.is_bypassed)
    if view.snapshot is not None and is_named and not layers.reads_values and layout.module in view.listed:
        # With the module's index, since the layout must not keep the network itself alive.
        view.snapshot.layouts[key] = view.listed.index(layout.module), replace(layout, module=None)  # type: ignore[arg-type]


def _same_layout(layouts: Sequence[LayerLayout]) -> LayerLayout:
    """Return the layout of a layer, if it is the same for all images.

    Errors   UnsupportedModel
    """
    for each in layouts:
        if each != layouts[0]:
            names = " and ".join(dict.fromkeys(repr(layout.name) for layout in (layouts[0], each)))
            raise UnsupportedModel(
                f"The network decides by the image, so the images have different layers here ({names}), or the cells "
                "of the layer have different positions. Give one image at a time."
            )
    return layouts[0]


def _layout_from_profile(view: EvalView, images: Tensor, point: HookPoint, spatial: bool) -> LayerLayout:
    layers = profile(view, images)
    named = next((call for call in layers if call.name == point.name), None)
    if named is None and point.call is None:
        calls = [call for call in layers if call.path == point.path]
        if len(calls) > 1:
            raise LayerRanRepeatedly(ran_repeatedly(point.path, len(calls)))
    if named is None or not named.shape:
        # It did not run, or does not return a tensor; the pass raises the error.
        return LayerLayout(point.name, point.module, point.call, "NCHW")
    if named.grid is None and spatial:
        raise NoSpatialOutput(nothing_spatial(point.name, named.shape, named._lost))
    return layout_of(named, point) if named.grid else LayerLayout(point.name, point.module, point.call)


def stages(model: nn.Module, images: Tensor) -> list[LayerName]:
    """Return the names of all stages with a grid, in running order."""
    return [each.name for each in list_layers(model, images, spatial=True) if each.stage]
