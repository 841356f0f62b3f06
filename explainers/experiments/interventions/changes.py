"""What an intervention does to the values of a layer, and which it selects: channels, and cells of the grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadOption, NoSpatialOutput, UnsupportedModel, kind_of, shorten
from explainers.hooks.records import match_quantization, single_tensor
from explainers.layers.layout import LayerLayout, nothing_spatial
from explainers.options import check_finite, check_whole, whole_number, whole_numbers

Function = Callable[[Tensor], Tensor]
"""Receives the selected channels [N, k, ...] and returns their new values in the same shape."""


@dataclass(frozen=True)
class Scale:
    """Multiply the selected values by `factor`."""

    factor: float

    def __post_init__(self) -> None:
        check_finite("factor", self.factor)

    def __call__(self, values: Tensor) -> Tensor:
        return values * self.factor


@dataclass(frozen=True)
class Clamp:
    """Limit the selected values to the range from `low` to `high`, in the layer's units; None does not limit."""

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise BadOption("Clamp() has no limit. Give low, high or both: Clamp(0, 1).")
        for name, value in vars(self).items():
            if value is not None:
                check_finite(name, value)
        if self.low is not None and self.high is not None and self.low > self.high:
            raise BadOption(f"Clamp({self.low}, {self.high}) is empty. Give a low that is at most high.")

    def __call__(self, values: Tensor) -> Tensor:
        return values.clamp(self.low, self.high)


@dataclass(frozen=True)
class AddNoise:
    """Add Gaussian noise with `std` times the standard deviation of the selected values of each image.

    All images, and all variants of an image that a method runs, get the same noise pattern.
    """

    std: float
    seed: int = 0

    def __post_init__(self) -> None:
        check_finite("std", self.std, "a number of at least 0", least=0)
        check_whole(0, seed=self.seed)

    def __call__(self, values: Tensor) -> Tensor:
        # Drawn on the CPU, so that a seed has the same noise on every device.
        noise = torch.randn(values.shape[1:], generator=torch.Generator().manual_seed(self.seed))
        spread = values.flatten(1).std(1, correction=0).reshape(-1, *[1] * (values.ndim - 1))
        return values + self.std * spread * noise.to(values)


@dataclass(frozen=True)
class Swap:
    """Replace the selected values by those of other images at the same positions (activation patching).

    `images` has the size of the explained images: one image for all of them, or one for each.
    """

    images: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.images, Tensor):
            raise BadOption(f"Swap needs a tensor of images [N, C, H, W], not {kind_of(self.images)}.")

    def check(self, images: Tensor) -> None:
        """Check that the other images suit the explained images.

        Errors   BadOption
        """
        other = self.images
        if other.ndim != images.ndim or other.shape[1:] != images.shape[1:]:
            raise BadOption(
                f"The images of Swap have shape {tuple(other.shape)}, but the explained images have "
                f"{tuple(images.shape)}. Resize them to the same size."
            )
        if len(other) not in (1, len(images)):
            raise BadOption(
                f"Swap has {len(other)} images for {len(images)} explained images. Give one, or one for each."
            )
        if other.device != images.device or not other.is_floating_point() or not bool(other.isfinite().all()):
            raise BadOption(
                f"The images of Swap must be finite floating-point numbers on {images.device}. They are {other.dtype} "
                f"on {other.device}."
            )


Change = float | str | Tensor | Scale | Clamp | AddNoise | Swap | Function
"""A number, "zeros", "mean", a tensor, one of the classes above, or a function."""


def as_function(value: Any) -> Function:
    """Return the function that computes new values from the selected ones; `Swap` is resolved by the caller.

    Errors   BadOption
    """
    if isinstance(value, str):
        if value not in _NAMED:
            raise BadOption(
                f"value={value!r} is not valid. Give a number, 'zeros', 'mean', Scale, Clamp, AddNoise or Swap."
            )
        return _NAMED[value]
    if isinstance(value, Tensor):
        if not bool(value.isfinite().all()):
            raise BadOption("value has numbers that are not finite (NaN or infinity). Give finite numbers.")
        return Constant(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        check_finite("value", value)
        return lambda values: torch.full_like(values, value)
    if callable(value) and not isinstance(value, type):
        return lambda values: _check_result(value(values), values)
    raise BadOption(
        f"value={shorten(value)} is not valid. Give a number, a tensor, 'zeros', 'mean', a function, Scale(2), "
        "Clamp(0, 1), AddNoise(0.5) or Swap(images)."
    )


def _mean(values: Tensor) -> Tensor:
    """Replace each channel by its mean over the positions of the image."""
    return values.mean(tuple(range(2, values.ndim)), keepdim=True).expand_as(values) if values.ndim > 2 else values


_NAMED: dict[str, Function] = {"zeros": torch.zeros_like, "mean": _mean}


@dataclass(frozen=True)
class Constant:
    """Replace the selected values by `values`, which broadcast to them; with several rows, one for each image."""

    values: Tensor

    def __call__(self, old: Tensor) -> Tensor:
        if self.values.ndim == old.ndim and len(self.values) not in (1, len(old)):
            raise BadOption(
                f"The intervention has values for {len(self.values)} images, but the forward pass has {len(old)} rows, "
                "for example variants of one image. Use one image for each intervention."
            )
        try:
            return self.values.detach().to(old).expand_as(old)
        except RuntimeError as reason:
            raise BadOption(
                f"value has shape {tuple(self.values.shape)}, which does not broadcast to the selected values "
                f"{tuple(old.shape)}. Give one value for each channel: {(old.shape[1], *[1] * (old.ndim - 2))}."
            ) from reason

    def rows(self, start: int, stop: int, axes: int) -> Constant:
        """Return the change of the images from `start` to `stop`, whose selected values have `axes` axes."""
        by_image = self.values.ndim == axes and len(self.values) > 1
        return Constant(self.values[start:stop]) if by_image else self


def _check_result(changed: Any, values: Tensor) -> Tensor:
    if not isinstance(changed, Tensor) or changed.shape != values.shape:
        found = tuple(changed.shape) if isinstance(changed, Tensor) else kind_of(changed)
        raise BadOption(
            f"The function returned {found}. It must return a tensor of the same shape, {tuple(values.shape)}."
        )
    return changed.to(values)


def describe_change(value: Any) -> str:
    """Return what was done, for results and captions: "replaced by 0", "replaced by the mean", "Scale(factor=2)"."""
    if isinstance(value, str):
        return "replaced by the mean" if value == "mean" else "replaced by 0"
    if isinstance(value, (int, float)):
        return f"replaced by {value:g}"
    if isinstance(value, Swap):
        return "replaced by those of other images"
    return f"replaced by a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else shorten(value)


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
    elif isinstance(cells, (list, tuple)) or (isinstance(cells, Tensor) and cells.ndim):
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
