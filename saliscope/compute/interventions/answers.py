"""A change of channels, and the data classes of its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image

import explainers
from saliscope.compute.answers import Settings


@dataclass(frozen=True)
class Change:
    """A change of channels: `channels` as text ("3, 17-24"), the `kind`, and its numbers.

    For "swap", `other` is the path of the second image. With `positions`, one position is swapped after another, and
    then only the `cell` (row, column), or the one with the largest effect if it is None.
    """

    channels: str
    kind: str
    numbers: dict[str, float] = field(default_factory=dict)
    other: str = ""
    positions: bool = False
    cell: tuple[int, int] | None = None

    def value(self, swapped: torch.Tensor | None) -> Any:
        """Return `value` of `explainers.intervene`; `swapped` is the input made from the second image."""
        if self.kind == "swap":
            assert swapped is not None, "the engine loads the second image"
            return explainers.Swap(swapped)
        makers = {"scale": explainers.Scale, "clamp": explainers.Clamp, "noise": explainers.AddNoise}
        return makers[self.kind](**self.numbers) if self.kind in makers else self.kind


@dataclass(frozen=True)
class Place:
    """What is changed: channels of a layer, at all positions or at one `cell` of its grid."""

    layer: str
    channels: list[int]
    cell: tuple[int, int] | None = None


@dataclass(frozen=True)
class ClassChange:
    """A class with its probabilities, or its scores if the network has no probabilities, before and after."""

    name: str
    before: float
    after: float


@dataclass(frozen=True)
class Maps:
    """The maps [h, w] of one target before and after the change."""

    before: torch.Tensor
    after: torch.Tensor
    share: float
    """Below 1 if the run of a long method was stopped."""


@dataclass(frozen=True, kw_only=True)
class BeforeAfter:
    """The classes before and after a change, and the maps of the subject unless they are still computed."""

    settings: Settings
    crop: Image.Image
    classes: list[ClassChange]
    subject: str
    maps: Maps | None = None


@dataclass(frozen=True, kw_only=True)
class Changed(BeforeAfter):
    """The answer to a change of channels."""

    change: Change
    place: Place
    total: int
    """Number of channels of the layer."""
    effects: torch.Tensor | None = None
    """For a change position by position: the change of the target's score by position, [h, w] as on the maps."""
    shown_cell: tuple[int, int] | None = None
    """The changed position as row and column of `effects`."""
