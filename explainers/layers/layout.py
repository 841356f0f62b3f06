"""Spatial layout of a layer's tensor: its channel axis, its grid, the tokens before its patches, its frames."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from explainers.errors import UnsupportedModel
from explainers.hooks.locate import HookPoint
from explainers.layers.flow.axes import OTHER, SPATIAL, Axes, Axis, kinds_of
from explainers.layers.flow.positions import even
from explainers.placement import Placement

Grid = tuple[int, ...]
"""Cells along height and width, and before them along time or depth if the images have such an axis."""


class GridChanged(UnsupportedModel):
    """Raised if a layer's output no longer has the grid of the network's profile; the call is then repeated once."""


@dataclass(frozen=True)
class LayerLayout(HookPoint):
    """A layer that a pass reads: its hook point and the spatial layout of its output.

    `layout` is "NCHW", "NHWC", "NCTHW", "NTHWC", "tokens" [N, T, K], or "" without a grid. `extra_tokens` class and
    register tokens precede the patches, which fill `grid` in order; more tokens may follow them. A layer that runs on
    the frames of a video one by one has `frames` rows for each video, in the layout of a frame. `order` are the axes of
    the grid in the order in which tokens run along them, if it is another one: (1, 2, 0) if time is innermost.
    `placement` says where the cells lie if they do not cover the input evenly.
    """

    layout: str = ""
    extra_tokens: int = 0
    grid: Grid | None = None
    placement: Placement | None = None
    frames: int = 1
    order: tuple[int, ...] = ()

    @property
    def channel_axis(self) -> int:
        """The channel axis of the layer's tensor."""
        return channel_axis(self.layout)

    def to_maps(self, tensor: Tensor) -> Tensor:
        """Convert the layer's tensor to [N, K, h, w], or [N, K, t, h, w] if the grid has an axis of time or depth.

        Errors   GridChanged if the tensor has another grid
        """
        maps = tensor if self.layout in ("NCHW", "NCTHW") else self._to_rows(tensor)
        if self.grid is None:
            return maps
        if self.frames > 1:
            if len(maps) % self.frames:
                raise self._changed(tensor)
            maps = maps.unflatten(0, (-1, self.frames)).transpose(1, 2)
        elif len(self.grid) == 3 and maps.ndim == 4:
            maps = maps.unsqueeze(2)  # the network has reduced the axis of time to one cell
        if maps.ndim == len(self.grid) + 2 and maps.shape[2:] != self.grid:
            raise self._changed(tensor)
        return maps

    def _to_rows(self, tensor: Tensor) -> Tensor:
        """Return [rows, K, ...], with the cells of each row of the batch."""
        if self.layout in ("NHWC", "NTHWC"):
            return tensor.movedim(-1, 1)
        if self.layout == "tokens" and self.grid is not None:
            cells = self.grid if self.frames == 1 else self.grid[1:]
            count = math.prod(cells)
            if tensor.ndim != 3 or tensor.shape[1] < self.extra_tokens + count:
                raise self._changed(tensor)
            patches = tensor[:, self.extra_tokens : self.extra_tokens + count].transpose(1, 2)
            if not self.order:
                return patches.unflatten(2, cells)
            inner = patches.unflatten(2, tuple(cells[axis] for axis in self.order))
            return inner.permute(0, 1, *(2 + self.order.index(axis) for axis in range(len(cells))))
        return tensor

    def _changed(self, tensor: Tensor) -> GridChanged:
        return GridChanged(
            f"Layer {self.name!r} returned a tensor of shape {tuple(tensor.shape)}, but had a grid of {self.grid} in "
            "another pass. Its size depends on something else than the size of the images, such as their number, a "
            "hook, a counter, or whether gradients are enabled. Remove the cause, choose an earlier layer, or explain "
            "one image at a time."
        )


def channel_axis(layout: str) -> int:
    """Return the channel axis of a tensor in this layout."""
    return {"NHWC": 3, "NTHWC": 4, "tokens": 2}.get(layout, 1)


class AxesLayout(NamedTuple):
    """The layout of a tensor by the meaning of its axes, as in `LayerLayout`."""

    layout: str
    grid: Grid
    extra_tokens: int = 0
    frames: int = 1
    order: tuple[int, ...] = ()


def layout_by_axes(axes: Axes, shape: tuple[int, ...], kinds: str = "HW") -> AxesLayout | None:
    """Return the layout of an output with these axes, or None if it has no grid.

    `kinds` are the kinds of the images' spatial axes. The rows of the grid are the axis with the largest stride along
    the image's height; smaller strides are positions inside a window or a patch, which may be part of the channels.
    """
    if any(axis.padded for axis in axes):
        return None
    seen = {kind for axis in axes for kind in axis.kinds} & SPATIAL
    if frames := _frames(axes):
        one = layout_by_axes((OTHER, *axes[1:]), shape, kinds[1:])
        return None if one is None else one._replace(grid=(frames, *one.grid), frames=frames)
    found = _channel_layout(axes, shape, kinds, seen) or _token_layout(axes, kinds, seen)
    if found is None and "T" in kinds and "T" not in seen:  # one cell in time, without an axis
        flat = layout_by_axes(axes, shape, kinds[1:])
        return None if flat is None else flat._replace(grid=(1, *flat.grid))
    return found


def _channel_layout(axes: Axes, shape: tuple[int, ...], kinds: str, seen: set[str]) -> AxesLayout | None:
    """Return the layout of an output with one axis for each kind, before or after the channels."""
    count = len(kinds)
    if len(axes) != count + 2 or not seen or axes[0].kinds & SPATIAL:
        return None
    places = [max(range(len(axes)), key=lambda i: axes[i].stride(kind), default=0) for kind in kinds]
    first, last = _CHANNELS[count]
    # An axis of size 1 may not be tracked as a row or column axis.
    for layout, at in ((first, range(2, count + 2)), (last, range(1, count + 1))):
        fits = (i == j if kind in seen else shape[j] == 1 for i, j, kind in zip(places, at, kinds, strict=True))
        if all(fits) and all(_runs(axes[i], kind) for i, kind in zip(at, kinds, strict=True) if kind in seen):
            return AxesLayout(layout, tuple(shape[i] for i in at))
    return None


_CHANNELS = {2: ("NCHW", "NHWC"), 3: ("NCTHW", "NTHWC")}


def _token_layout(axes: Axes, kinds: str, seen: set[str]) -> AxesLayout | None:
    """Return the layout of an output whose second axis runs over the cells in order, [N, T, K]."""
    if len(axes) != 3 or axes[0].kinds & SPATIAL:
        return None
    found = "".join(factor.kind for factor in axes[1].factors)
    in_order = found == "".join(kind for kind in kinds if kind in found)
    # The tokens of a video may run over the frames of a position first; those of an image run row by row.
    if (
        not found
        or any(factor.is_part for factor in axes[1].factors)
        or not (in_order or sorted(found) == sorted("THW") == sorted(kinds))
    ):
        return None
    steps = {factor.kind: factor.steps for factor in axes[1].factors}
    if not all(axes[2].stride(kind) < axes[1].stride(kind) for kind in steps) or seen != steps.keys():
        return None
    order = () if in_order else tuple(map(kinds.index, found))
    return AxesLayout("tokens", tuple(steps.get(kind, 1) for kind in kinds), axes[1].before, order=order)


def _frames(axes: Axes) -> int:
    """Return the number of rows for each video if the rows are its frames in order, else 0."""
    if not axes or "T" not in axes[0].kinds or any("T" in axis.kinds for axis in axes[1:]):
        return 0
    first, last = axes[0], axes[0].factors[-1]
    in_order = "".join(factor.kind for factor in first.factors) in ("T", "NT") and not first.order
    return last.steps if in_order and last.stride == 1 and not (first.before or first.after) else 0


def placement_of(axes: Axes, grid: Grid, size: Grid) -> Placement | None:
    """Return where the cells of a grid lie, from the axes of its layer, or None if they cover the input evenly."""
    kinds = kinds_of(len(size))
    found = [_uneven(axes, kind, cells) for kind, cells in zip(kinds, grid, strict=True)]
    if not any(found):
        return None
    return Placement(tuple(at or even(cells, side).at for at, cells, side in zip(found, grid, size, strict=True)), size)


def _uneven(axes: Axes, kind: str, cells: int) -> tuple[float, ...] | None:
    """Return the centers of the cells along `kind`, or None if they cover the side evenly, or are unknown."""
    found = [factor for axis in axes for factor in axis.factors if factor.kind == kind]
    blocks = max(found, key=lambda each: each.stride).blocks if found else None
    known = None if blocks is None else blocks.spread(cells)  # more cells than blocks after a pixel shuffle
    return None if known is None or known.is_even else known.at


def _runs(axis: Axis, kind: str) -> bool:
    """Return whether the axis runs only along `kind`, in order; other factors may follow, as in a pixel shuffle."""
    if not axis.factors:
        return False
    first, *rest = axis.factors
    if first.is_part:
        return False
    return first.kind == kind and not axis.before and not axis.after and not any(factor.kind for factor in rest)


def nothing_spatial(name: str, shape: tuple[int, ...], lost: str = "") -> str:
    """Return the message for a layer without a grid; `lost` is the operation that its cells lost their positions to."""
    if lost:
        return (
            f"The cells of layer {name!r} have no fixed position in the image, because the network applies {lost} "
            "before it. Choose an earlier layer from list_layers(model, images, spatial=True), or a method without a "
            "layer, such as saliency."
        )
    return (
        f"Layer {name!r} has an output of shape {tuple(shape)}, without height and width for a map. "
        "Choose a layer from list_layers(model, images, spatial=True)."
    )
