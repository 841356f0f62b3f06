"""A layer: one call of one module in a forward pass, with the layout of its output."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import LayerNotFound, NoSpatialOutput
from explainers.hooks.locate import HookPoint, find_hook_point
from explainers.layers.flow.positions import even
from explainers.layers.layout import Grid, LayerLayout, channel_axis, nothing_spatial
from explainers.layers.receptive import Span, receptive_field, receptive_fields
from explainers.placement import Placement


@dataclass(frozen=True)
class Layer:
    """One call of one module in a forward pass.

    `name` is the dotted name (`name#k` for the k-th call of a module that runs repeatedly), `kind` the class name,
    `shape` the output's shape for one image, `grid` its (height, width) or None, `layout` "NCHW", "NHWC", "tokens" or
    "", `extra_tokens` the number of class and register tokens before the patches, `stride` the input pixels per cell
    (rows, columns), and `stage` is True for the last outermost call at each resolution. `placement` says where the
    cells lie if they do not cover the input evenly, because the network crops, pads, flips, shifts or zooms it first.

    For videos and volumes [N, C, T, H, W], the grid is (time, height, width), `stride`, `centers`, `offset`,
    `direction` and cells have three entries in this order, and layouts are "NCTHW" and "NTHWC". A layer that runs on
    single frames has the layout of a frame, and `frames` rows for each video.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    grid: Grid | None
    layout: str
    extra_tokens: int = 0
    stride: tuple[float, ...] | None = None
    stage: bool = False
    placement: Placement | None = field(default=None, repr=False)
    is_read: bool = field(default=True, repr=False, compare=False)
    """Whether the score depends on its positions; False if it only depends on the class token."""
    frames: int = field(default=1, repr=False)
    _order: tuple[int, ...] = field(default=(), repr=False)
    _network: Any = field(default=None, repr=False, compare=False)
    _input: tuple[int, ...] = field(default=(), repr=False, compare=False)
    _lost: str = field(default="", repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the model, to which a pickled layer does not refer."""
        return {**self.__dict__, "_network": None}

    def __deepcopy__(self, memo: Any) -> Layer:
        return self  # nothing in it can change

    @property
    def path(self) -> str:
        """The module's dotted name, without the number of the call."""
        return self.name.partition("#")[0]

    @property
    def depth(self) -> int:
        """The number of modules that contain this one, counting the network."""
        return self.name.count(".") + bool(self.name)

    @property
    def channel_axis(self) -> int:
        """The axis of `shape` along which the channels lie: 1, or the last one for tokens and channels-last layouts."""
        return channel_axis(self.layout)

    @property
    def centers(self) -> tuple[tuple[float, ...], ...] | None:
        """The centers of the rows and of the columns of cells in input pixels, or None without a grid."""
        if self.grid is None:
            return None
        if self.placement is not None:
            return self.placement.centers
        return tuple(even(cells, side).at for cells, side in zip(self.grid, self._input[1:], strict=True))

    @property
    def offset(self) -> tuple[float, ...] | None:
        """The center of the first cell in input pixels (from the top, from the left), or None without a grid."""
        centers = self.centers
        return None if centers is None else tuple(at[0] for at in centers)

    @property
    def direction(self) -> tuple[int, ...] | None:
        """1 if the rows (columns) run down (right) as in the input, -1 if they are flipped, or None without a grid."""
        centers = self.centers
        if centers is None:
            return None
        return tuple(1 - 2 * (sum(b < a for a, b in pairwise(at)) > len(at) / 2) for at in centers)

    @torch.inference_mode(False)
    def receptive_field(self, cell: Grid) -> tuple[int, ...]:
        """Return the box (left, top, right, bottom) of input pixels on which `cell` (row, column) can depend.

        For a video or volume, it is (left, top, start, right, bottom, end) of a cell (frame, row, column).
        """
        return receptive_field(*open_layer(self), cell)

    @torch.inference_mode(False)
    def receptive_fields(self, seconds: float = math.inf) -> tuple[list[Span], list[Span]] | None:
        """Return the receptive fields of all cells: (top, bottom) of each row and (left, right) of each column.

        Returns  None if the columns of a field depend on its row, or if it takes more than `seconds` of processor time
        """
        return receptive_fields(*open_layer(self), seconds)


def open_layer(layer: Layer) -> tuple[nn.Module, Tensor, LayerLayout]:
    """Return the network, images of the size that the layer was listed for, and the layer's layout."""
    network = layer._network() if layer._network else None
    if network is None:
        raise LayerNotFound(
            f"The model of layer {layer.name!r} no longer exists, or the layer was pickled, which does not include "
            "the model. Call list_layers(model, images) again."
        )
    if layer.grid is None:
        raise NoSpatialOutput(nothing_spatial(layer.name, layer.shape, layer._lost))
    images = next((p for p in network.parameters()), torch.zeros(())).new_zeros(1, *layer._input)
    return network, images, layout_of(layer, find_hook_point(network, layer.name))


def layout_of(layer: Layer, point: HookPoint) -> LayerLayout:
    """Return the layer's layout with its hook point."""
    own = point.name, point.module, point.call, layer.layout, layer.extra_tokens, layer.grid
    return LayerLayout(*own, layer.placement, layer.frames, layer._order)


def is_spatial(layer: Layer) -> bool:
    return layer.grid is not None and math.prod(layer.grid) > 1


_ATTENTION = {"attn", "attention", "self_attn", "self_attention", "mha", "mhsa"}


def is_attention(layer: Layer) -> bool:
    """Return whether the layer is an attention, by the class or name of its module."""
    return is_named_attention(layer.path, layer.kind)


def is_named_attention(name: str, kind: str) -> bool:
    """Return whether a module's dotted name or class name says attention."""
    own = name.rpartition(".")[2]
    return own in _ATTENTION or any(word in kind.lower() for word in ("attention", "attn"))


def stages_among(layers: list[Layer]) -> list[Layer]:
    """Return the last outermost call at each resolution, without token layers if all have the same resolution."""
    chosen: dict[Grid, Layer] = {}
    for layer in _outermost(layers, ""):
        if layer.grid is not None and is_spatial(layer) and not is_rearranging(layer) and not is_placeholder(layer):
            chosen[layer.grid] = layer
    grids = {layer.grid for layer in layers if layer.layout == "tokens"}
    return [layer for layer in chosen.values() if layer.layout != "tokens" or len(grids) > 1]


def is_rearranging(layer: Layer) -> bool:
    """Return whether the layer only rearranges or resizes its input, by its class."""
    return layer.kind.startswith("Adaptive") or layer.kind in ("Permute", "PixelShuffle", "PixelUnshuffle", "Upsample")


def is_placeholder(layer: Layer) -> bool:
    """Return whether the layer returns its input unchanged, by its class."""
    return layer.kind in ("Dropout", "Identity")


def _outermost(layers: list[Layer], prefix: str) -> list[Layer]:
    """Return the calls directly below `prefix`, in order; containers of several resolutions are expanded."""
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
        # A Sequential of stages spans several resolutions, while a residual block or a downsampling pair is one step. A
        # module that contains nearly all calls, or returns no tensor, is a wrapper around the network or a part of it.
        nested = len(below) < len(children) or len(children) > 0.5 * len(layers)
        is_sequence = layer.kind == "Sequential" and is_spatial(layer) and nested
        is_wrapper = len(children) > 0.8 * len(layers) or not layer.shape
        found.extend(below if len(grids) > 1 and (is_sequence or is_wrapper) else [layer])
    return found
