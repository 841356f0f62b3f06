"""The search for the default layer: the last one with a grid whose positions still affect the score."""

from __future__ import annotations

from torch import Tensor, nn

from explainers.errors import NothingSpatial
from explainers.layers.profile import (
    Layer,
    Profile,
    is_attention,
    is_spatial,
    profile,
)


def default_layer(model: nn.Module, images: Tensor) -> str:
    """The last stage with a grid before pooling or classifier: `layer4`, `features`, `norm`, a ViT's last `ln_1`.

    Returns  its name; where a class token stands before the patches, only that token is read after the last block, so
             there it is the normalised input of that block's attention, the last tensor whose patches affect the score
    Errors   NothingSpatial when no layer has a grid larger than 1x1; UnsupportedModel as `list_layers`

    Example
        >>> default_layer(model, images)
        'layer4'
    """
    return default_name(profile(model, images), images)


def default_name(layers: Profile, images: Tensor) -> str:
    if layers.default is None:
        layers.default = _find_default(layers, images)
    return layers.default


def _find_default(layers: Profile, images: Tensor) -> str:
    behind = _after_the_last_picture(layers)
    tokens = [layer for layer in behind if layer.layout == "tokens"]
    if tokens:
        inputs = attention_inputs(behind) if tokens[-1].extra_tokens else []
        return (inputs[-1] if inputs else _outermost_name(layers, tokens[-1])).name
    stages = [layer for layer in layers if layer.stage and is_spatial(layer)]
    if not stages:
        raise NothingSpatial(
            f"No layer of this network has a grid larger than 1x1 for images of shape {tuple(images.shape)}. "
            "Give larger images, or use an input-gradient method such as saliency."
        )
    return _outermost_name(layers, stages[-1]).name


def _outermost_name(layers: list[Layer], last: Layer) -> Layer:
    """`features.7` is the last step of `features`: the same tensor under the name that people use."""
    parents = [
        layer
        for layer in layers
        if last.name.startswith(f"{layer.name}.")
        and layer.name
        and layer.shape == last.shape
        and layer.layout == last.layout
        and "#" not in layer.name
    ]
    return min(parents, key=lambda layer: layer.depth, default=last)


def _after_the_last_picture(layers: list[Layer]) -> list[Layer]:
    pictures = [i for i, each in enumerate(layers) if each.layout in ("NCHW", "NHWC") and is_spatial(each)]
    return layers[pictures[-1] + 1 if pictures else 0 :]


def attention_inputs(layers: list[Layer]) -> list[Layer]:
    """The tokens just before each attention, in order."""
    found = []
    for i, each in enumerate(layers):
        if is_attention(each):
            # What a module of its own runs inside (qkv, projection) comes before it in the order of calls ended.
            before = [one for one in layers[:i] if one.layout == "tokens" and not one.name.startswith(f"{each.name}.")]
            found += before[-1:]
    return found
