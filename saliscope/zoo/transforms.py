"""The preprocessing of another package as a `Preparation`: its values are computed by calling it, and its crop, mean
and std are measured.

Any function from a PIL image to a tensor works. Its output for a ramp of gray values determines which part of the image
the network receives; its output for black and white determines mean and standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from PIL import Image
from torch import Tensor

from saliscope.zoo.model import MODES, Preparation, limit_aspect
from saliscope.zoo.operations import crop, normalize, resize

LOW, HIGH = 20, 235
"""Gray values at both ends of a ramp: a bicubic filter overshoots, and 0 may be padding."""
NEAR = 3.0
"""Gray levels within which a value belongs to the ramp; padding is farther away."""
SNAP = 0.15
"""Pixels of the input: an edge closer than this to the edge of the image is the edge of the image."""


class BadTransform(ValueError):
    """A preprocessing function whose output is not a network input."""


@dataclass(frozen=True, eq=False)
class MeasuredTransform(Preparation):
    """Preprocessing by `transform`, a function from an image to [C, h, w]; the rest is measured by `measure`."""

    transform: Callable[[Image.Image], Tensor] = field(kw_only=True, repr=False)
    measured: tuple[tuple[float, ...], tuple[float, ...]] = field(kw_only=True, repr=False)
    """Mean and std of the transform itself; the user may have given others."""

    def tensor(self, image: Image.Image | Tensor) -> Tensor:
        """Return the network input of an image; for a PIL image, the output of the package's own preprocessing."""
        image = limit_aspect(self._checked(image))
        if isinstance(image, Tensor):
            return self._bands(image)
        values = self.transform(image)
        if (self.mean, self.std) != self.measured:
            mean, std = (torch.tensor(part)[:, None, None] for part in self.measured)
            values = normalize((values * std + mean) * (255 if self.raw else 1), self.mean, self.std)
        return values[None]

    def _bands(self, image: Tensor) -> Tensor:
        """Return the resized region of a tensor; the preprocessing of packages only takes PIL images."""
        height, width = image.shape[1:]
        left, top, right, bottom = (round(edge) for edge in self.region(width, height))
        cropped = crop(image, top, left, max(1, bottom - top), max(1, right - left))
        return normalize(resize(cropped, *self.size, self.interpolation), self.mean, self.std)[None]

    def region(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of the part that the network receives, in pixels of the original image."""
        mean, std = self.measured
        return _region(self.transform, MODES[self.channels], mean[0], std[0], width, height)


def measure(transform: Callable[[Image.Image], Tensor], channels: int, side: int = 256) -> MeasuredTransform:
    """Return the preprocessing of a package's transform, measured with a square image of this side.

    Errors   BadTransform if its output is not [channels, height, width]
    """
    mode = MODES[channels]
    black, white = (transform(Image.new("RGB", (side, side), (level,) * 3).convert(mode)) for level in (0, 255))
    if not isinstance(black, Tensor) or black.ndim != 3 or len(black) != channels:
        returned = f"{list(black.shape)}" if isinstance(black, Tensor) else type(black).__name__
        raise BadTransform(f"its preprocessing returns {returned} instead of [{channels}, height, width]")
    # Use the center, because a margin may be padding.
    low, high = (levels[:, levels.shape[1] // 2, levels.shape[2] // 2].double() for levels in (black, white))
    if not bool((high - low).abs().min() > 0):
        raise BadTransform("its preprocessing returns the same values for black and white")
    std = 1 / (high - low)
    own = _short(-low * std), _short(std)
    size = (black.shape[1], black.shape[2])
    square = size[0] if size[0] == size[1] else size
    return MeasuredTransform(square, size, *own, transform=transform, measured=own)


def _short(values: Tensor) -> tuple[float, ...]:
    """Return the values without the rounding errors of float32."""
    return tuple(float(f"{value:.6g}") + 0.0 for value in values.tolist())  # -0.0 + 0.0 is 0.0


@lru_cache(maxsize=64)
def _region(
    transform: Callable[[Image.Image], Tensor], mode: str, mean: float, std: float, width: int, height: int
) -> tuple[float, float, float, float]:
    """Return the region that the transform keeps of an image of this size, measured with two ramps.

    It is accurate to a third of a pixel of the input, because gray values are rounded to integers.
    """
    ends = []
    for upright, length in enumerate((width, height)):
        ramp = (LOW + (HIGH - LOW) * (torch.arange(length) + 0.5) / length).round().byte()
        gray = (ramp[:, None] if upright else ramp).expand(height, width).contiguous()
        values = (transform(Image.fromarray(gray.numpy()).convert(mode))[0].double() * std + mean) * 255
        lines = values.T if upright else values
        third = len(lines) // 3  # the margins may be padding
        ends.append(_ends(lines[third : len(lines) - third].mean(0), length))
    (left, right), (top, bottom) = ends
    return left, top, right, bottom


def _ends(line: Tensor, length: int) -> tuple[float, float]:
    """Return the positions of both input edges in the image, by fitting a line to the gray values along the input."""
    count = len(line)
    centers = torch.arange(count, dtype=torch.float64) + 0.5
    position = (line - LOW) / (HIGH - LOW) * length
    inner = (centers > count / 3) & (centers < count * 2 / 3)
    for _ in range(3):
        slope, start = _fit_line(centers[inner], position[inner])
        off = (position - start - slope * centers).abs() * (HIGH - LOW) / length
        inner = (off < NEAR) & (position > 0.02 * length) & (position < 0.98 * length)
    first, last = start, start + slope * count
    step = abs(slope) * SNAP
    return (0.0 if abs(first) < step else first), (float(length) if abs(last - length) < step else last)


def _fit_line(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return slope and intercept of the line through the points."""
    dx = x - x.mean()
    slope = float((dx * (y - y.mean())).sum() / (dx * dx).sum())
    return slope, float(y.mean() - slope * x.mean())
