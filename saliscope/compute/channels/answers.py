"""Data classes of the results of the channel engine. Nothing here computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from saliscope.compute.answers import Settings, Subject
from saliscope.compute.channels import network

CLOSE = 32  # minimum side in input pixels of an enlarged gradient map


@dataclass(frozen=True)
class Identifiers:
    """Identifiers of an answer: equal `channels` mean equal tiles, equal `whom` means the same explained target."""

    channels: str
    target: str


@dataclass(frozen=True)
class Unchanged:
    """The page already shows the requested channels."""

    ids: Identifiers


@dataclass(frozen=True)
class Sheet:
    """The channels of a layer for one image: statistics of all `total` channels, and maps [k, h, w] of `numbers`."""

    settings: Settings
    crop: Image.Image
    ids: Identifiers
    numbers: list[int]
    maps: torch.Tensor
    means: torch.Tensor
    highest: torch.Tensor
    lowest: torch.Tensor
    sparsity: torch.Tensor
    dead: torch.Tensor

    @property
    def total(self) -> int:
        """The number of channels."""
        return len(self.means)


@dataclass(frozen=True)
class Measures:
    """A measure of all channels, [K], for the class of `subject` or at a `cell` (row, column)."""

    settings: Settings
    ids: Identifiers
    kind: str
    values: torch.Tensor
    subject: Subject | None
    cell: tuple[int, int] | None = None


@dataclass(frozen=True)
class Channels:
    """The channels of a layer in the requested order, with their means and effects."""

    settings: Settings
    numbers: list[int]
    maps: torch.Tensor
    means: list[float]
    effects: list[float] | None
    subject: Subject | None

    @property
    def total(self) -> int:
        """The number of channels."""
        return len(self.numbers)


@dataclass(frozen=True)
class Channel:
    """One channel."""

    settings: Settings
    crop: Image.Image
    ids: Identifiers
    number: int
    total: int
    map: torch.Tensor


@dataclass(frozen=True)
class Contribution:
    """The contribution of a channel to the class: gradient times activation, [K] in `parts`, and its effect."""

    settings: Settings
    number: int
    subject: Subject | None
    parts: torch.Tensor | None
    effect: float | None
    reason: str = ""
    """Why there are no parts, or an empty string."""


@dataclass(frozen=True)
class InputGradient:
    """The input gradient of a cell of a channel, [H, W]; None if there is none, as `reason` explains."""

    settings: Settings
    crop: Image.Image
    number: int
    grid: tuple[int, ...]
    cell: tuple[int, int]
    strongest: bool
    before: float | None
    """The value before the activation function, if that function cuts it off: the gradient is that of this value."""
    value: float
    map: torch.Tensor | None
    reason: str = ""

    @property
    def window(self) -> tuple[int, int, int, int] | None:
        """A square around the pixels with a gradient (left, top, right, bottom), or None if they fill the image."""
        if self.map is None or not bool(self.map.any()):
            return None
        height, width = self.map.shape
        rows, columns = (self.map > 0).any(1).nonzero()[:, 0].tolist(), (self.map > 0).any(0).nonzero()[:, 0].tolist()
        side = max(rows[-1] - rows[0], columns[-1] - columns[0]) + 1
        side = max(CLOSE, round(1.5 * side))
        if side > 0.6 * min(height, width):
            return None
        left = min(max(0, (columns[0] + columns[-1] + 1 - side) // 2), width - side)
        top = min(max(0, (rows[0] + rows[-1] + 1 - side) // 2), height - side)
        return left, top, left + side, top + side


@dataclass(frozen=True)
class ReceptiveFields:
    """The receptive fields of all cells, if known, and the width and height of the input."""

    spans: network.Spans | None
    size: tuple[int, int]


Step = Any
"""A `Waiting`, `Settings`, or one of the classes above."""
