"""How a layer's tensor lies in space: where its channels stand, its grid, the tokens before its patches."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from explainers.hooks.locate import HookPoint

Grid = tuple[int, int]


@dataclass(frozen=True)
class LayerLayout(HookPoint):
    """A layer that a pass reads: the point where its hook goes, and how its output lies in space.

    `layout` is "NCHW", "NHWC", "tokens" [N, T, K] or "" where there is no grid; `extra_tokens` class and register
    tokens stand before the patches, which fill `grid` row by row.
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
            patches = tensor[:, self.extra_tokens :].transpose(1, 2)
            return patches.unflatten(2, self.grid)
        return tensor


def channel_axis(layout: str) -> int:
    """Where the channels stand in a layer's tensor of that layout."""
    return {"NHWC": 3, "tokens": 2}.get(layout, 1)


def nothing_spatial(name: str, shape: tuple[int, ...]) -> str:
    """The sentence for a layer that has no grid."""
    return (
        f"Layer {name!r} gives {tuple(shape)}: no height and width are left to draw a map on. "
        "Choose a layer from list_layers(model, images, spatial=True)."
    )
