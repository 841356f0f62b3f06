"""Which layers a network has, which of them a method reads by default, and how a layer's tensor becomes maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .errors import LayerRanRepeatedly, NothingSpatial, UnsupportedModel
from .network import ready
from .profiles import (
    EXTRA_TOKENS,
    Grid,
    Layer,
    always_channels_first,
    is_attention,
    is_spatial,
    known_layers,
    profile,
    speaks_of_attention,
)
from .records import ran_repeatedly
from .sites import LayerName, find_site, unwrap, why_no_hooks

__all__ = ["Grid", "Layer", "known_layers", "speaks_of_attention"]
"""Passed on from profiles.py, beside what is written here."""


def list_layers(model: nn.Module, images: Tensor, *, spatial: bool = False) -> list[Layer]:
    """All layers of the model, one entry a call, in the order of the calls; with `spatial` only those with a grid >
    1x1.

    Returns  list of `Layer`, from one forward pass of the first image
    Errors   UnsupportedModel for scripted, traced and exported models, whose inner layers take no hooks
    """
    layers = profile(model, images)
    return [layer for layer in layers if not spatial or is_spatial(layer)]


def default_layer(model: nn.Module, images: Tensor) -> str:
    """The last stage with a grid before pooling or classifier: `layer4`, `features`, `norm`, a ViT's last `ln_1`.

    Returns  its name; where a class token stands before the patches, only that token is read after the last block, so
             there it is the normalised input of that block's attention, the last place where patches still count
    Errors   NothingSpatial when no layer has a grid larger than 1x1; UnsupportedModel as `list_layers`
    """
    layers = profile(model, images)
    behind = _after_the_last_picture(layers)
    tokens = [layer for layer in behind if layer.layout == "tokens"]
    if tokens:
        inputs = _attention_inputs(behind) if tokens[-1].extra_tokens else []
        return (inputs[-1] if inputs else _outermost_name(layers, tokens[-1])).name
    stages = [layer for layer in layers if layer.stage and is_spatial(layer)]
    if not stages:
        raise NothingSpatial(
            f"No layer of this {type(model).__name__} has a grid larger than 1x1 for images of shape "
            f"{tuple(images.shape)}. "
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


def _attention_inputs(layers: list[Layer]) -> list[Layer]:
    """The tokens just before each attention, in order."""
    found = []
    for i, each in enumerate(layers):
        if is_attention(each):
            # What a module of its own runs inside (qkv, projection) comes before it in the order of calls ended.
            before = [one for one in layers[:i] if one.layout == "tokens" and not one.name.startswith(f"{each.name}.")]
            found += before[-1:]
    return found


def token_grid(model: nn.Module, images: Tensor, count: int) -> tuple[Grid, int] | None:
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


def attended_later(model: nn.Module, images: Tensor, name: str) -> bool:
    """Whether an attention over tokens comes after the layer `name`: then every patch there can still count."""
    layers = profile(model, images)
    index = next((i for i, each in enumerate(layers) if each.name == name), len(layers))
    return any(is_attention(each) and not name.startswith(f"{each.name}.") for each in layers[index + 1 :])


def layer_whose_patches_count(model: nn.Module, images: Tensor, name: str) -> str | None:
    """The input of the last attention before the layer `name`: what comes between may read the class token alone."""
    layers = profile(model, images)
    index = next((i for i, each in enumerate(layers) if each.name == name), 0)
    earlier = [each.name for each in _attention_inputs(layers[:index])]
    return next((each for each in reversed(earlier) if each != name), None)


@dataclass(frozen=True)
class Place:
    """A layer that a pass reads: resolved name and layout."""

    name: str
    layout: str
    extra_tokens: int = 0
    grid: Grid | None = None

    def to_maps(self, tensor: Tensor) -> Tensor:
        """The layer's tensor as [N, K, h, w]."""
        if self.layout == "NHWC":
            return tensor.permute(0, 3, 1, 2)
        if self.layout == "tokens" and self.grid is not None:
            patches = tensor[:, self.extra_tokens :].transpose(1, 2)
            return patches.unflatten(2, self.grid)
        return tensor

    def from_maps(self, maps: Tensor, like: Tensor) -> Tensor:
        """Maps [N, K, h, w] in the layer's own layout and dtype; class and register tokens are those of `like`."""
        if self.layout == "NHWC":
            return maps.permute(0, 2, 3, 1).to(like)
        if self.layout == "tokens":
            patches = maps.flatten(2).transpose(1, 2).to(like)
            return torch.cat([like[:, : self.extra_tokens], patches], dim=1)
        return maps.to(like)


def place(
    model: nn.Module,
    images: Tensor,
    layer: LayerName | None,
    *,
    counted: bool = False,
    spatial: bool = True,
    network: nn.Module | None = None,
    channels_first: Callable[[], bool] | None = None,
) -> Place:
    """Find the layer in the user's model and its layout; `None` is the default layer.

    A pass that runs the whole network counts the layer's calls itself; for one that ends at the layer, `counted`
    looks them up in a profile; without `spatial` a layer without a grid will do. `network` is the model as `ready`
    gave it, and `channels_first` gives what `always_channels_first` says of it, where they are known.

    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    """
    model = unwrap(model)
    if reason := why_no_hooks(model):
        raise UnsupportedModel(reason)
    if layer is None:
        layer = default_layer(model, images)
    if isinstance(layer, nn.Module):
        # A compiled inner module is replaced by the module in it when the network runs: so is its name.
        layer = find_site(model, layer).name.replace("_orig_mod.", "").removesuffix("._orig_mod")
    network = ready(model) if network is None else network
    site = find_site(network, layer)
    if not counted and (channels_first() if channels_first else always_channels_first(network)):
        return Place(site.name, "NCHW")
    found = [each for each in profile(model, images) if each.name.partition("#")[0] == site.path]
    named = [each for each in found if each.name == site.name]
    if not named and len(found) > 1 and site.call is None:
        raise LayerRanRepeatedly(ran_repeatedly(site.path, len(found)))
    if not named or not named[0].shape:
        return Place(site.name, "NCHW")  # it did not run, or gives no tensor: the pass says so
    if named[0].grid is None:
        if spatial:
            raise NothingSpatial(nothing_spatial(site.name, named[0].shape))
        return Place(site.name, "")
    return Place(site.name, named[0].layout, named[0].extra_tokens, named[0].grid)


def channel_axis(layout: str) -> int:
    """Where the channels stand in a layer's tensor of that layout."""
    return {"NHWC": 3, "tokens": 2}.get(layout, 1)


def nothing_spatial(name: str, shape: tuple[int, ...]) -> str:
    """The sentence for a layer that has no grid."""
    return (
        f"Layer {name!r} gives {tuple(shape)}: no height and width are left to draw a map on. "
        "Choose a layer from list_layers(model, images, spatial=True)."
    )
