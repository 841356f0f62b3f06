"""Spatial layout of a layer's tensor: its channel axis, its grid, the tokens before its patches."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from explainers.errors import UnsupportedModel
from explainers.hooks.locate import HookPoint
from explainers.layers.flow.axes import Axes, Axis
from explainers.layers.flow.positions import even, is_even
from explainers.layers.placement import Placement

Grid = tuple[int, int]


class GridChanged(UnsupportedModel):
    """Raised if a layer's output no longer has the grid of the network's profile; the call is then repeated once."""


@dataclass(frozen=True)
class LayerLayout(HookPoint):
    """A layer that a pass reads: its hook point and the spatial layout of its output.

    `layout` is "NCHW", "NHWC", "tokens" [N, T, K], or "" without a grid. `extra_tokens` class and register tokens
    precede the patches, which fill `grid` row by row; more tokens may follow them. `placement` says where the cells lie
    if they do not cover the input evenly.
    """

    layout: str = ""
    extra_tokens: int = 0
    grid: Grid | None = None
    placement: Placement | None = None

    @property
    def channel_axis(self) -> int:
        """The channel axis of the layer's tensor."""
        return channel_axis(self.layout)

    def to_maps(self, tensor: Tensor) -> Tensor:
        """Convert the layer's tensor to [N, K, h, w].

        Errors   GridChanged if the tensor has another grid
        """
        if self.layout == "NHWC":
            return self._checked(tensor.permute(0, 3, 1, 2))
        if self.layout == "tokens" and self.grid is not None:
            height, width = self.grid
            if tensor.ndim != 3 or tensor.shape[1] < self.extra_tokens + height * width:
                raise self._changed(tensor)
            patches = tensor[:, self.extra_tokens : self.extra_tokens + height * width].transpose(1, 2)
            return patches.unflatten(2, self.grid)
        return self._checked(tensor)

    def _checked(self, maps: Tensor) -> Tensor:
        if self.grid is not None and maps.ndim == 4 and maps.shape[2:] != self.grid:
            raise self._changed(maps)
        return maps

    def _changed(self, tensor: Tensor) -> GridChanged:
        return GridChanged(
            f"Layer {self.name!r} returned a tensor of shape {tuple(tensor.shape)}, which does not have its grid of "
            f"{self.grid}. Its size changes between passes of the same images, for example by a hook. Remove the hook, "
            "or choose an earlier layer."
        )

    def place(self, maps: Tensor) -> Tensor:
        """Return maps [..., h, w] of the layer's cells on a grid that covers the input evenly."""
        return maps if self.placement is None else self.placement.place(maps)


def channel_axis(layout: str) -> int:
    """Return the channel axis of a tensor in this layout."""
    return {"NHWC": 3, "tokens": 2}.get(layout, 1)


def layout_by_axes(axes: Axes, shape: tuple[int, ...]) -> tuple[str, Grid, int] | None:
    """Return layout, grid and number of extra tokens of an output with these axes, or None if it has no grid.

    The rows of the grid are the axis with the largest stride along the image's height; smaller strides are positions
    inside a window or a patch, which may be part of the channels.
    """
    if any(axis.padded for axis in axes):
        return None
    rows, columns = (max(range(len(axes)), key=lambda i: axes[i].stride(kind), default=0) for kind in "HW")
    seen = {kind for axis in axes for kind in axis.kinds} & {"H", "W"}
    if len(axes) == 4 and seen:
        # An axis of size 1 may not be tracked as a row or column axis.
        for layout, at in (("NCHW", (2, 3)), ("NHWC", (1, 2))):
            fits = (
                i == j if kind in seen else shape[j] == 1 for i, j, kind in zip((rows, columns), at, "HW", strict=True)
            )
            runs = all(_runs(axes[i], kind) for i, kind in zip(at, "HW", strict=True) if kind in seen)
            if all(fits) and runs and not axes[0].kinds & {"H", "W"}:
                return layout, (shape[at[0]], shape[at[1]]), 0
    if (
        len(axes) == 3
        and not axes[0].kinds & {"H", "W"}
        and "".join(f.kind for f in axes[1].factors) in ("HW", "H", "W")
        and not any(f.is_part for f in axes[1].factors)
    ):
        steps = {factor.kind: factor.steps for factor in axes[1].factors}
        if all(axes[2].stride(kind) < axes[1].stride(kind) for kind in steps) and seen == steps.keys():
            return "tokens", (steps.get("H", 1), steps.get("W", 1)), axes[1].before
    return None


def placement_of(axes: Axes, grid: Grid, size: Grid) -> Placement | None:
    """Return where the cells of a grid lie, from the axes of its layer, or None if they cover the input evenly."""
    found = [_uneven(axes, kind, cells, side) for kind, cells, side in zip("HW", grid, size, strict=True)]
    if found == [None, None]:
        return None
    rows, columns = (at or even(cells, side).at for at, cells, side in zip(found, grid, size, strict=True))
    return Placement(rows, columns, size)


def _uneven(axes: Axes, kind: str, cells: int, side: int) -> tuple[float, ...] | None:
    """Return the centers of the cells along `kind`, or None if they cover the side evenly, or are unknown."""
    found = [factor for axis in axes for factor in axis.factors if factor.kind == kind and factor.steps == cells]
    factor = max(found, key=lambda each: each.stride, default=None)
    if factor is None or factor.positions is None or len(factor.positions.at) != cells * factor.stride:
        return None
    at, step = factor.positions.at, factor.stride
    centers = tuple(sum(at[i * step : (i + 1) * step]) / step for i in range(cells))
    return None if is_even(centers, side, factor.positions.moved) else centers


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
