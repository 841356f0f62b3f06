"""Placement of maps: from a layer's cells, wherever they lie in the image, to a grid that covers the image evenly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import cast

import torch
from torch import Tensor

from explainers.errors import BadOption, WrongType, kind_of, shorten


@dataclass(frozen=True)
class Placement:
    """The centers of a layer's cells in input pixels, for a network that does not cover its input evenly.

    `centers` has those of the rows and of the columns, and before them those in time or depth if the input has such an
    axis; `size` has the input's size along the same axes.
    """

    centers: tuple[tuple[float, ...], ...]
    size: tuple[int, ...]

    @property
    def stride(self) -> tuple[float, ...]:
        """The distances between neighboring cells along each axis; of a shifted input, away from its seam."""
        return tuple(
            median(abs(b - a) for a, b in pairwise(at)) if len(at) > 1 else float(side)
            for at, side in zip(self.centers, self.size, strict=True)
        )

    def sources(self) -> tuple[list[int | None], ...]:
        """Return the layer's row (column) that contributes most to each row (column) of a placed map, None if none."""
        return tuple(
            [_largest(weights) for weights in place_axis(torch.eye(len(centers)), centers, size).T]
            for centers, size in zip(self.centers, self.size, strict=True)
        )


Placements = Placement | Sequence[Placement | None] | None
"""One for all maps, or one for each of them, for a network that crops or shifts each image by its content."""


def place(maps: Tensor, placement: Placements) -> Tensor:
    """Move maps of a layer's cells to a grid that covers the input evenly; without a placement, return them unchanged.

    Cells move unchanged if they fit such a grid of their own size, as after a flip or a shift by whole cells. Otherwise
    the grid is at least twice as fine, and values are interpolated linearly between the cells' centers. What the layer
    does not cover is 0. Cells outside the input, in its padding, are omitted. `placement` is `Explanation.placement` or
    `Layer.placement`; a list has one for each map. If their grids have different sizes, all maps have the finest one.

    Returns  maps [..., h', w'], or [..., t', h', w'] for videos and volumes, in the units and dtype of `maps`
    Errors   WrongType for another placement, BadOption for one of another grid

    Example
        >>> layer = list_layers(model, images, spatial=True)[0]
        >>> place(torch.rand(2, *layer.grid), layer.placement).shape
        torch.Size([2, 112, 112])
    """
    if placement is None:
        return maps
    if isinstance(placement, (list, tuple)) and isinstance(maps, Tensor) and len(placement) == len(maps):
        return _stack(place_each(maps, placement))
    if not isinstance(placement, Placement):
        raise WrongType(f"placement={shorten(placement)} is not valid. Give `Layer.placement`, or None.")
    cells = tuple(map(len, placement.centers))
    if not isinstance(maps, Tensor) or tuple(maps.shape[-len(cells) :]) != cells:
        given = tuple(maps.shape) if isinstance(maps, Tensor) else kind_of(maps)
        raise BadOption(
            f"The placement is of {cells} cells, and the maps have {given}. Give the placement of their layer."
        )
    for k in range(-1, -1 - len(cells), -1):
        maps = place_axis(maps.transpose(k, -1), placement.centers[k], placement.size[k]).transpose(k, -1)
    return maps


def place_each(maps: Tensor, placement: Placements) -> list[Tensor]:
    """Return each map on its own grid, as `place` returns a single map."""
    if isinstance(placement, Sequence) and len(placement) == len(maps):
        return [place(one, at) for one, at in zip(maps, placement, strict=True)]
    return list(place(maps, placement))


def _stack(maps: list[Tensor]) -> Tensor:
    """Return maps on grids of different size on the finest of them, interpolated linearly as by `resize`."""
    for k, count in enumerate(map(max, zip(*(one.shape for one in maps), strict=True))):
        lines = [one.transpose(k, -1) for one in maps]
        lines = [
            line if (n := line.shape[-1]) == count else _interpolate(line, torch.arange(n).double() + 0.5, count, n, 1)
            for line in lines
        ]
        maps = [line.transpose(k, -1) for line in lines]
    return torch.stack(maps)


def join_placements(parts: Sequence[Placements]) -> Placements:
    """Return the placement of maps of single images as that of their batch."""
    return parts[0] if all(each == parts[0] for each in parts) else tuple(cast("Sequence[Placement | None]", parts))


def spread_placements(placement: Placements, rows: Sequence[int], count: int) -> Placements:
    """Return the placement of the maps of some of `count` images as that of all of them."""
    if placement is None or isinstance(placement, Placement):
        return placement
    known = dict(zip(rows, placement, strict=True))
    return tuple(known.get(row, placement[0]) for row in range(count))


def _largest(weights: Tensor) -> int | None:
    return int(weights.argmax()) if bool(weights.any()) else None


def place_axis(maps: Tensor, centers: tuple[float, ...], size: int) -> Tensor:
    """Place the last dimension."""
    places = sorted(set(centers))  # the mean of the cells that repeat a part of the image
    at = torch.tensor(places, dtype=torch.float64)
    index = {place: i for i, place in enumerate(places)}
    groups = torch.tensor([index[center] for center in centers], device=maps.device)
    ordered = maps.new_zeros(*maps.shape[:-1], len(places)).index_add(-1, groups, maps)
    ordered = ordered / groups.bincount()
    cell = float(at.diff().median()) if len(places) > 1 else float(size)
    count = round(size / cell)
    own = (at / cell - 0.5).round().long()
    is_aligned = count > 0 and bool(((own + 0.5) * size / count - at).abs().max() < cell / 20)
    if is_aligned and len(own.unique()) == len(own):
        inside = (own >= 0) & (own < count)
        placed = maps.new_zeros(*maps.shape[:-1], count)
        placed[..., own[inside].to(maps.device)] = ordered[..., inside.to(maps.device)]
        return placed
    return _interpolate(ordered, at, 2 * math.ceil(size / cell - 1e-6), size, cell)


def _interpolate(maps: Tensor, at: Tensor, count: int, size: int, cell: float) -> Tensor:
    """Interpolate linearly between `at`, up to half a cell beyond its ends; 0 elsewhere, also in gaps of the cells."""
    centers = (torch.arange(count, dtype=torch.float64) + 0.5) * size / count
    after = torch.searchsorted(at, centers).clamp(1, max(len(at) - 1, 1)).clamp(max=len(at) - 1)
    before = (after - 1).clamp(min=0)
    low, high = at[before], at[after]
    weight = ((centers - low) / (high - low).clamp(min=1e-9)).clamp(0, 1)
    weight = torch.where(high - low > 1.5 * cell, weight.round(), weight)  # a gap: the nearest cell
    nearest = torch.minimum((centers - low).abs(), (centers - high).abs())
    covered = (nearest <= cell / 2 + 1e-6) | ((centers >= low) & (centers <= high) & (high - low <= 1.5 * cell))
    device, dtype = maps.device, maps.dtype
    placed = torch.lerp(maps[..., before.to(device)], maps[..., after.to(device)], weight.to(device, dtype))
    return placed.where(covered.to(device), 0)
