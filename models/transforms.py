"""A package's own preprocessing as a `Preparation`: its values by calling it, its geometry and its scale by measuring.

Any function from a photograph to a tensor will do. What it makes of a ramp of grey values tells which part of the
photograph the network sees; what it makes of black and white tells the mean and the standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import functional as F

from models.model import MODES, Preparation, limit_aspect

LOW, HIGH = 20, 235
"""Grey values at the two ends of a ramp: a bicubic filter overshoots, and 0 may be padding."""
NEAR = 3.0
"""Levels of grey within which a value belongs to the ramp; padding does not."""
SNAP = 0.15
"""Pixels of the input: an edge that lies so close to the picture's own is the picture's own."""


class BadTransform(ValueError):
    """A preprocessing whose result is not a picture for a network."""


@dataclass(frozen=True, eq=False)
class OwnTransform(Preparation):
    """`transform` gives the network's input [C, h, w] of a photograph; everything else was measured (`measured`)."""

    transform: Callable[[Image.Image], Tensor] = field(kw_only=True, repr=False)
    measured: tuple[tuple[float, ...], tuple[float, ...]] = field(kw_only=True, repr=False)
    """The transform's own mean and std; the user may have given others."""

    def tensor(self, picture: Image.Image | Tensor) -> Tensor:
        """The picture as the network's input: of a photograph what the package's own preprocessing gives."""
        picture = limit_aspect(self._checked(picture))
        if isinstance(picture, Tensor):
            return self._bands(picture)
        values = self.transform(picture)
        if (self.mean, self.std) != self.measured:
            mean, std = (torch.tensor(part)[:, None, None] for part in self.measured)
            values = F.normalize((values * std + mean) * (255 if self.raw else 1), list(self.mean), list(self.std))
        return values[None]

    def _bands(self, picture: Tensor) -> Tensor:
        """A tensor's region, resized: packages take photographs alone."""
        height, width = picture.shape[1:]
        left, top, right, bottom = (round(edge) for edge in self.region(width, height))
        cropped = F.crop(picture, top, left, max(1, bottom - top), max(1, right - left))
        resized = F.resize(cropped, list(self.size), interpolation=self.interpolation, antialias=True)
        return F.normalize(resized, list(self.mean), list(self.std))[None]

    def region(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of what the network sees, in the picture's own pixels."""
        mean, std = self.measured
        return _region(self.transform, MODES[self.channels], mean[0], std[0], width, height)


def measured(transform: Callable[[Image.Image], Tensor], channels: int, side: int = 256) -> OwnTransform:
    """The preparation of a package's transform; `side` is the square picture that it is measured with.

    Errors   BadTransform where it does not give [channels, height, width]
    """
    mode = MODES[channels]
    black, white = (transform(Image.new("RGB", (side, side), (level,) * 3).convert(mode)) for level in (0, 255))
    if not isinstance(black, Tensor) or black.ndim != 3 or len(black) != channels:
        given = f"{list(black.shape)}" if isinstance(black, Tensor) else type(black).__name__
        raise BadTransform(f"its preprocessing gives {given} where [{channels}, height, width] is needed")
    # The middle: a margin may be padding.
    low, high = (levels[:, levels.shape[1] // 2, levels.shape[2] // 2].double() for levels in (black, white))
    if not bool((high - low).abs().min() > 0):
        raise BadTransform("its preprocessing gives the same values for black and white")
    std = 1 / (high - low)
    own = _short(-low * std), _short(std)
    size = (black.shape[1], black.shape[2])
    square = size[0] if size[0] == size[1] else size
    return OwnTransform(square, size, *own, transform=transform, measured=own)


def _short(values: Tensor) -> tuple[float, ...]:
    """Without the rounding of float32."""
    return tuple(float(f"{value:.6g}") + 0.0 for value in values.tolist())  # -0.0 + 0.0 is 0.0


@lru_cache(maxsize=64)
def _region(
    transform: Callable[[Image.Image], Tensor], mode: str, mean: float, std: float, width: int, height: int
) -> tuple[float, float, float, float]:
    """What the transform keeps of a picture of this size, from what becomes of two ramps; to a third of a pixel of the
    input, which the rounding of grey values to integers costs.
    """
    ends = []
    for upright, length in enumerate((width, height)):
        ramp = (LOW + (HIGH - LOW) * (torch.arange(length) + 0.5) / length).round().byte()
        grey = (ramp[:, None] if upright else ramp).expand(height, width).contiguous()
        seen = (transform(Image.fromarray(grey.numpy()).convert(mode))[0].double() * std + mean) * 255
        lines = seen.T if upright else seen
        third = len(lines) // 3  # the margins may be padding
        ends.append(_ends(lines[third : len(lines) - third].mean(0), length))
    (left, right), (top, bottom) = ends
    return left, top, right, bottom


def _ends(line: Tensor, length: int) -> tuple[float, float]:
    """Where the input's two edges lie in the picture, from the ramp's grey values along the input: a straight line."""
    count = len(line)
    at = torch.arange(count, dtype=torch.float64) + 0.5
    position = (line - LOW) / (HIGH - LOW) * length
    inner = (at > count / 3) & (at < count * 2 / 3)
    for _ in range(3):
        slope, start = _fitted(at[inner], position[inner])
        off = (position - start - slope * at).abs() * (HIGH - LOW) / length
        inner = (off < NEAR) & (position > 0.02 * length) & (position < 0.98 * length)
    first, last = start, start + slope * count
    step = abs(slope) * SNAP
    return (0.0 if abs(first) < step else first), (float(length) if abs(last - length) < step else last)


def _fitted(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Slope and start of the straight line through the points."""
    dx = x - x.mean()
    slope = float((dx * (y - y.mean())).sum() / (dx * dx).sum())
    return slope, float(y.mean() - slope * x.mean())
