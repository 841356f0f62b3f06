"""The values of a layer that an intervention changes: channels, and cells of the grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadOption, NoSpatialOutput, UnsupportedModel, shorten
from explainers.experiments.interventions.changes import Function
from explainers.layers.layout import LayerLayout, nothing_spatial
from explainers.options import whole_number, whole_numbers
from explainers.passes.tensors import match_quantization, single_tensor


@dataclass(frozen=True)
class Selection:
    """Channels of a layer, at all positions, or at the cells for which `mask` (the layer's positions) is True."""

    layout: LayerLayout
    channels: tuple[int, ...]
    mask: Tensor | None

    def edit(self, function: Function) -> Callable[[Any], Tensor]:
        """Return the edit of the layer's output that replaces the selected values by `function` of them."""
        axis, chosen = self.layout.channel_axis, list(self.channels)

        def edit(output: Any) -> Tensor:
            values = single_tensor(self.layout.name, output).clone().movedim(axis, 1)
            old = values[:, chosen]
            new = function(old)
            values[:, chosen] = new if self.mask is None else torch.where(self.mask.to(values.device), new, old)
            return match_quantization(output, values.movedim(1, axis))

        return edit


def select(
    layout: LayerLayout,
    shape: Sequence[int],
    channels: int | Sequence[int] | Tensor | None,
    cells: Tensor | Sequence[tuple[int, ...]] | None,
) -> Selection:
    """Select channels and cells of a layer whose output has `shape`.

    `channels` None are all; `cells` None are all positions, also class tokens; else a mask of the grid or a list of
    cells (row, column).

    Errors   BadOption for channels or cells that do not exist, or none; NoSpatialOutput; UnsupportedModel
    """
    if len(shape) < 2 or (layout.grid is None and len(shape) > 2):
        raise UnsupportedModel(
            f"Layer {layout.name!r} has an output of shape {tuple(shape)}, in which the channels are not known. Choose "
            "a layer from list_layers(model, images, spatial=True), or one with an output [N, K]."
        )
    count = shape[layout.channel_axis]
    return Selection(layout, chosen_channels(channels, count, layout.name), _mask(layout, shape, cells))


def chosen_channels(given: int | Sequence[int] | Tensor | None, count: int, layer: str) -> tuple[int, ...]:
    """Return the numbers of the given channels of a layer with `count` channels; None are all.

    Errors   BadOption
    """
    if given is None:
        return tuple(range(count))
    one = whole_number(given)
    chosen = whole_numbers(given) if one is None else (one,)
    if chosen is None:
        raise BadOption(
            f"channels={shorten(given)} is not valid. Give a channel, a list or range of channels, or None for all."
        )
    if not chosen:
        raise BadOption("channels is empty. Give at least one channel, or None for all.")
    for channel in chosen:
        if not 0 <= channel < count:
            raise BadOption(f"Channel {channel} does not exist: layer {layer!r} has channels 0 to {count - 1}.")
    return tuple(dict.fromkeys(chosen))


def _mask(layout: LayerLayout, shape: Sequence[int], cells: Tensor | Sequence[tuple[int, ...]] | None) -> Tensor | None:
    """Return which positions of the layer, without its rows and channels, belong to the chosen cells."""
    if cells is None:
        return None
    numbers = position_numbers(layout, shape)
    grid = tuple(numbers.shape)
    chosen = torch.zeros(grid, dtype=torch.bool)
    if isinstance(cells, Tensor) and cells.dtype == torch.bool:
        if tuple(cells.shape) != grid:
            raise BadOption(f"The mask of cells has shape {tuple(cells.shape)}; the layer has a grid of {grid}.")
        chosen = cells.cpu()
    elif isinstance(cells, (Tensor, list, tuple)):
        for cell in cells.tolist() if isinstance(cells, Tensor) else cells:
            chosen[check_cell(cell, grid, layout.name)] = True
    else:
        raise BadOption(
            f"cells={shorten(cells)} is not valid. Give a list of cells (row, column), or a mask of the grid."
        )
    if not bool(chosen.any()):
        raise BadOption("cells is empty, so nothing would change. Select at least one cell, or give None for all.")
    rest = _positions(layout, shape)
    mask = torch.zeros(math.prod(rest), dtype=torch.bool)
    mask[numbers[chosen]] = True
    return mask.reshape(rest)


def check_cell(cell: Any, grid: tuple[int, ...], layer: str) -> tuple[int, ...]:
    """Return the cell of a layer's grid as a tuple.

    Errors   BadOption if it does not exist
    """
    at = whole_numbers(cell)
    if at is None or len(at) != len(grid) or not all(0 <= i < n for i, n in zip(at, grid, strict=True)):
        raise BadOption(
            f"Cell {shorten(cell)} does not exist: layer {layer!r} has a grid of {grid}, with cells from "
            f"{(0,) * len(grid)} to {tuple(side - 1 for side in grid)}."
        )
    return at


def position_numbers(layout: LayerLayout, shape: Sequence[int]) -> Tensor:
    """Return for each cell of the layer's grid the number of its position in an output of `shape`, in reading order.

    Errors   NoSpatialOutput for a layer without a grid; UnsupportedModel if it runs on single frames of a video
    """
    if layout.grid is None:
        raise NoSpatialOutput(nothing_spatial(layout.name, tuple(shape)))
    if layout.frames > 1:
        raise UnsupportedModel(
            f"Layer {layout.name!r} runs on the frames of a video one by one, so single cells cannot be changed. "
            "Omit cells, or choose a later layer."
        )
    rest = _positions(layout, shape)
    # The number of each position in the layer's tensor, moved to the grid as the tensor is.
    numbers = torch.arange(math.prod(rest)).reshape(1, 1, *rest).movedim(1, layout.channel_axis)
    return layout.to_maps(numbers)[0, 0]


def _positions(layout: LayerLayout, shape: Sequence[int]) -> list[int]:
    return [size for axis, size in enumerate(shape) if axis not in (0, layout.channel_axis)]
