"""How a layer's tensor lies in space: where its channels stand, its grid, the tokens before its patches."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from explainers.hooks.locate import HookPoint
from explainers.layers.axes import Axes, Axis

Grid = tuple[int, int]


@dataclass(frozen=True)
class LayerLayout(HookPoint):
    """A layer that a pass reads: the point where its hook goes, and how its output lies in space.

    `layout` is "NCHW", "NHWC", "tokens" [N, T, K] or "" where there is no grid; `extra_tokens` class and register
    tokens stand before the patches, which fill `grid` row by row; others may stand behind them.
    """

    layout: str = ""
    extra_tokens: int = 0
    grid: Grid | None = None

    @property
    def channel_axis(self) -> int:
        """Where the channels stand in the layer's tensor."""
        return channel_axis(self.layout)

    def to_maps(self, tensor: Tensor) -> Tensor:
        """The layer's tensor as [N, K, h, w]."""
        if self.layout == "NHWC":
            return tensor.permute(0, 3, 1, 2)
        if self.layout == "tokens" and self.grid is not None:
            height, width = self.grid
            patches = tensor[:, self.extra_tokens : self.extra_tokens + height * width].transpose(1, 2)
            return patches.unflatten(2, self.grid)
        return tensor


def channel_axis(layout: str) -> int:
    """Where the channels stand in a layer's tensor of that layout."""
    return {"NHWC": 3, "tokens": 2}.get(layout, 1)


def layout_by_axes(axes: Axes, shape: tuple[int, ...]) -> tuple[str, Grid, int] | None:
    """Layout, grid and number of extra tokens of an output with these axes; None where it is no picture of an image.

    The rows of the grid are the axis with the largest stride down the picture: smaller strides are places inside a
    window or a patch, which may stand among the channels.
    """
    if any(axis.padded for axis in axes):
        return None
    rows, columns = (max(range(len(axes)), key=lambda i: axes[i].stride(kind), default=0) for kind in "HW")
    if len(axes) == 4 and (rows, columns) in ((2, 3), (1, 2)) and _runs(axes[rows], "H") and _runs(axes[columns], "W"):
        layout = "NCHW" if rows == 2 else "NHWC"
        if not axes[0].kinds & {"H", "W"}:
            return layout, (shape[rows], shape[columns]), 0
    if len(axes) == 3 and rows == columns == 1 and not axes[0].kinds & {"H", "W"}:
        kinds = [factor.kind for factor in axes[1].factors]
        if kinds == ["H", "W"]:
            height, width = (factor.steps for factor in axes[1].factors)
            return "tokens", (height, width), axes[1].before
    return None


def _runs(axis: Axis, kind: str) -> bool:
    """Whether the axis runs along `kind` alone, in order; finer places may follow, as after a pixel shuffle."""
    first, *rest = axis.factors
    return first.kind == kind and not axis.before and not axis.after and not any(factor.kind for factor in rest)


def nothing_spatial(name: str, shape: tuple[int, ...]) -> str:
    """The sentence for a layer that has no grid."""
    return (
        f"Layer {name!r} gives {tuple(shape)}: no height and width are left to draw a map on. "
        "Choose a layer from list_layers(model, images, spatial=True)."
    )
