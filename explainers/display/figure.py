"""A map over its image, as notebooks show it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from explainers.maps.overlays import color_bar, overlay, view
from explainers.maps.pixels import to_pillow

if TYPE_CHECKING:
    from PIL import Image

LARGEST = 384
"""The longest side of a shown image in pixels."""
SIDE = 224
"""The longest side of a shown image is at least this number of pixels."""


@dataclass(frozen=True, eq=False)
class MapFigure:
    """One map [h, w] with the pixels [H, W, 3] of its image, and what is said about it.

    `title` is the target with its score, `lines` are smaller remarks, and `quantity` is the quantity and unit of the
    values. `signed`, `colors` and `limits` are as in `overlay`.
    """

    map: Tensor
    pixels: Tensor
    title: str
    lines: tuple[str, ...]
    findings: tuple[str, ...]
    quantity: str
    signed: bool
    colors: str | None = None
    limits: tuple[float, float] | None = None

    @cached_property
    def photo(self) -> Image.Image:
        """The image, at most `LARGEST` pixels wide and high."""
        image = to_pillow(self.pixels)
        image.thumbnail((LARGEST, LARGEST))
        return image

    @cached_property
    def drawn(self) -> Image.Image:
        """The map over the image, with its color bar below."""
        from PIL import Image  # optional: the library requires only torch

        drawing = view(self.map, colors=self.colors, limits=self.limits, signed=self.signed)
        photo = self.photo.resize(_enlarged(self.photo.size))
        shown = overlay(photo, self.map, colors=self.colors, limits=self.limits, signed=self.signed)
        bar = color_bar(
            drawing.low,
            drawing.high,
            colors=drawing.colors,
            unit=self.quantity,
            size=(max(160, shown.width), 52 if len(self.quantity) > 12 else 40),
            fine=drawing.fine,
            clipped=drawing.clipped,
        )
        both = Image.new("RGB", (max(shown.width, bar.width), shown.height + bar.height), "white")
        both.paste(shown, (0, 0))
        both.paste(bar, (0, shown.height))
        return both


def _enlarged(size: tuple[int, int]) -> tuple[int, int]:
    """Return a size with the same shape, of at least `SIDE` pixels, so that contours and the color bar have room."""
    factor = max(1.0, SIDE / max(size))
    return round(size[0] * factor), round(size[1] * factor)
