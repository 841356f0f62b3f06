"""A layer: one call of one module in a forward pass, with what its output means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from explainers.errors import LayerNotFound, NothingSpatial
from explainers.hooks.locate import HookPoint, find_hook_point
from explainers.layers.layout import Grid, LayerLayout, nothing_spatial
from explainers.layers.receptive import receptive_field
from explainers.network.eval_view import eval_view


@dataclass(frozen=True)
class Layer:
    """One call of one module in a forward pass.

    `name` is the dotted name (`name#k` for the k-th call of a module that runs repeatedly), `kind` the class name,
    `shape` the output's shape for one image, `grid` its (height, width) or None, `layout` "NCHW", "NHWC", "tokens" or
    "", `extra_tokens` the class and register tokens before the patches, `stride` input pixels per cell (rows, columns),
    `stage` True for the last outermost call at each resolution.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    grid: Grid | None
    layout: str
    extra_tokens: int = 0
    stride: tuple[float, float] | None = None
    stage: bool = False
    is_read: bool = field(default=True, repr=False, compare=False)
    """Whether the score depends on its positions; False where only the class token beside them is read."""
    _model: Any = field(default=None, repr=False, compare=False)
    _input: tuple[int, ...] = field(default=(), repr=False, compare=False)

    @property
    def path(self) -> str:
        """The module's dotted name, without the number of the call."""
        return self.name.partition("#")[0]

    @property
    def depth(self) -> int:
        """How many modules hold this one."""
        return self.name.count(".") + bool(self.name)

    def receptive_field(self, cell: Grid) -> tuple[int, int, int, int]:
        """The box (left, top, right, bottom) in input pixels that the value of `cell` (row, column) can depend on."""
        model = self._model() if self._model else None
        if model is None:
            raise LayerNotFound(f"The model of layer {self.name!r} is gone. Call list_layers(model, images) again.")
        if self.grid is None:
            raise NothingSpatial(nothing_spatial(self.name, self.shape))
        images = next((p for p in model.parameters()), torch.zeros(())).new_zeros(1, *self._input)
        network = eval_view(model).network
        return receptive_field(network, images, layout_of(self, find_hook_point(network, self.name)), cell)


def layout_of(layer: Layer, point: HookPoint) -> LayerLayout:
    """The layer's layout, with the point of the network where its hook goes."""
    return LayerLayout(point.name, point.module, point.call, layer.layout, layer.extra_tokens, layer.grid)


def is_spatial(layer: Layer) -> bool:
    return layer.grid is not None and layer.grid != (1, 1)


_ATTENTION = {"attn", "attention", "self_attn", "self_attention", "mha", "mhsa"}


def is_attention(layer: Layer) -> bool:
    """Whether this call is one of an attention, by the class or the name of its module."""
    return is_named_attention(layer.path, layer.kind)


def is_named_attention(name: str, kind: str) -> bool:
    """Whether a module's dotted name or class calls it attention."""
    own = name.rpartition(".")[2]
    return own in _ATTENTION or any(word in kind.lower() for word in ("attention", "attn"))


def stages_among(layers: list[Layer]) -> list[Layer]:
    """The last outermost call at each resolution; tokens of one resolution throughout are no stages."""
    chosen: dict[Grid, Layer] = {}
    for layer in _outermost(layers, ""):
        if layer.grid is not None and is_spatial(layer) and not is_rearranging(layer) and not is_placeholder(layer):
            chosen[layer.grid] = layer
    grids = {layer.grid for layer in layers if layer.layout == "tokens"}
    return [layer for layer in chosen.values() if layer.layout != "tokens" or len(grids) > 1]


def is_rearranging(layer: Layer) -> bool:
    """Whether the layer only moves or resizes what is there, by its class."""
    return layer.kind.startswith("Adaptive") or layer.kind in ("Permute", "Upsample")


def is_placeholder(layer: Layer) -> bool:
    """Whether the layer hands its input on, by its class."""
    return layer.kind in ("Dropout", "Identity")


def _outermost(layers: list[Layer], prefix: str) -> list[Layer]:
    """Calls that stand directly below `prefix`, in order; containers that span several resolutions are opened."""
    called = {layer.path for layer in layers}

    def is_inside_another(path: str) -> bool:
        parts = path[len(prefix) :].split(".")
        return any(prefix + ".".join(parts[:n]) in called for n in range(1, len(parts)))

    found: list[Layer] = []
    for layer in layers:
        if is_inside_another(layer.path):
            continue
        children = [each for each in layers if each.name.startswith(layer.path + ".")]
        below = _outermost(children, layer.path + ".") if children else []
        grids = {each.grid for each in below if each.grid is not None and is_spatial(each)}
        # A Sequential of stages is a road through several resolutions, a residual block or a down-sampling pair is one
        # step; whatever holds nearly all calls, or gives no tensor, is a wrapper around the network or a part of it.
        nested = len(below) < len(children) or len(children) > 0.5 * len(layers)
        road = layer.kind == "Sequential" and is_spatial(layer) and nested
        wrapper = len(children) > 0.8 * len(layers) or not layer.shape
        found.extend(below if len(grids) > 1 and (road or wrapper) else [layer])
    return found
