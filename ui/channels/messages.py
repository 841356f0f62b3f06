"""What the engine of channels answers, step by step. Nothing here computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image

from ui.channels import network
from ui.engine.messages import Settings, Subject

if TYPE_CHECKING:
    import torch

CLOSE = 32  # pixels of the network's input that a closer look at the gradient shows at least


@dataclass(frozen=True)
class About:
    """What an answer is about: `channels` are equal where the tiles are, `whom` where what is explained is."""

    channels: str
    whom: str


@dataclass(frozen=True)
class Same:
    """The channels that the page shows already are the request's."""

    about: About


@dataclass(frozen=True)
class Sheet:
    """A layer's channels for one picture: figures of all `total`, and the maps [k, h, w] of those in `numbers`."""

    settings: Settings
    seen: Image.Image
    about: About
    numbers: list[int]
    maps: torch.Tensor
    means: torch.Tensor
    highest: torch.Tensor
    lowest: torch.Tensor
    sparsity: torch.Tensor
    dead: torch.Tensor
    pages: int

    @property
    def total(self) -> int:
        return len(self.means)


@dataclass(frozen=True)
class Measures:
    """A measure of all channels, [K], and what it is about."""

    settings: Settings
    about: About
    kind: str
    values: torch.Tensor
    subject: Subject


@dataclass(frozen=True)
class Channels:
    """A layer's channels in the order that a program asked for, with their means and effects."""

    settings: Settings
    numbers: list[int]
    maps: torch.Tensor
    means: list[float]
    effects: list[float] | None
    subject: Subject | None

    @property
    def total(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class Channel:
    """One channel."""

    settings: Settings
    seen: Image.Image
    about: About
    number: int
    total: int
    map: torch.Tensor


@dataclass(frozen=True)
class Share:
    """What a channel does for the class: its part by gradient times activation, [K] in `parts`, and its effect."""

    settings: Settings
    number: int
    subject: Subject | None
    parts: torch.Tensor | None
    effect: float | None
    reason: str = ""
    """Why there are no parts, where that is so."""


@dataclass(frozen=True)
class Why:
    """The gradient of a channel's cell at the pixels, [H, W]; None where there is none, for `reason`."""

    settings: Settings
    seen: Image.Image
    number: int
    grid: tuple[int, ...]
    cell: tuple[int, int]
    strongest: bool
    of_mean: bool
    """Whether it is the gradient of the channel's mean: that of its strongest cell is zero, as ReLU6 at 6 has it."""
    value: float
    map: torch.Tensor | None
    reason: str = ""

    @property
    def window(self) -> tuple[int, int, int, int] | None:
        """Left, top, right and bottom of a square around the pixels with a gradient, where they are a small part."""
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
class Fields:
    """The receptive fields of all cells, where they are known, and the width and height of the network's input."""

    spans: network.Spans | None
    size: tuple[int, int]


Step = Any
"""A `Waiting`, `Settings`, or one of the classes above."""
