"""Changes of a whole image: position, brightness, contrast, noise and JPEG. Images are [1, C, H, W]."""

from __future__ import annotations

import io
import math

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from saliscope.errors import Refused
from saliscope.images.bands import LUMINANCE
from saliscope.images.edits import messages
from saliscope.images.edits.edit import Whole


def move(pixels: Tensor, change: Whole) -> Tensor:
    """Return the image flipped, rotated and shifted, in any unit.

    Errors   Refused if it is shifted out of view
    """
    axes = [axis for axis, name in ((-1, "x"), (-2, "y")) if name in change.flip]
    moved = pixels.flip(axes) if axes else pixels
    return shift(rotate(moved, change.rotate), *change.shift)


def rotate(pixels: Tensor, degrees: float) -> Tensor:
    """Return the image rotated counterclockwise around its center, in the same size.

    Corners without content get the mean color. Multiples of 180 degrees, and of 90 degrees for a square, move pixels
    without interpolation; other angles are bilinear.

    Example
        >>> pixels = torch.arange(4.0).view(1, 1, 2, 2)
        >>> torch.equal(rotate(pixels, 90), torch.rot90(pixels, 1, (-2, -1)))
        True
    """
    height, width = pixels.shape[-2:]
    turns, rest = divmod(degrees, 90)
    if rest == 0 and (turns % 2 == 0 or height == width):
        return pixels if turns % 4 == 0 else torch.rot90(pixels, int(turns), (-2, -1))
    angle = math.radians(degrees)
    cosine, sine = math.cos(angle), math.sin(angle)
    y = torch.arange(height, dtype=torch.float64)[:, None] + 0.5 - height / 2
    x = torch.arange(width, dtype=torch.float64)[None] + 0.5 - width / 2
    source = torch.stack([(cosine * x - sine * y) * 2 / width, (sine * x + cosine * y) * 2 / height], -1)
    mean = _mean_color(pixels)
    # without the mean, so that zeros outside become the mean
    sampled = functional.grid_sample(pixels - mean, source[None].to(pixels.dtype), align_corners=False)
    return sampled + mean


def shift(pixels: Tensor, right: int, down: int) -> Tensor:
    """Return the image shifted by pixels; the part without content gets the mean color.

    Errors   Refused if nothing of the image is left
    """
    height, width = pixels.shape[-2:]
    for distance, side in ((right, width), (down, height)):
        if abs(distance) >= side:
            raise Refused(messages.out_of_range("shift", distance, 1 - side, side - 1))
    if not (right or down):
        return pixels
    moved = _mean_color(pixels).expand_as(pixels).clone()
    moved[..., _overlap(down, height), _overlap(right, width)] = pixels[
        ..., _overlap(-down, height), _overlap(-right, width)
    ]
    return moved


def _overlap(distance: int, side: int) -> slice:
    """Return the part of an axis that is covered after a shift."""
    return slice(max(0, distance), side + min(0, distance))


def _mean_color(pixels: Tensor) -> Tensor:
    return pixels.mean((-2, -1), keepdim=True)


def recolor(pixels: Tensor, change: Whole) -> Tensor:
    """Return the image with other brightness and contrast, noise, and as JPEG; values and results are in [0, 1]."""
    if change.brightness != 100:
        pixels = (pixels * (change.brightness / 100)).clamp(0, 1)
    if change.contrast != 100:
        mean = _brightness(pixels).mean()
        pixels = (mean + (pixels - mean) * (change.contrast / 100)).clamp(0, 1)
    if change.noise:
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(pixels.shape, generator=generator, dtype=torch.float64).to(pixels)
        pixels = (pixels + noise * (change.noise / 100)).clamp(0, 1)
    return pixels if change.jpeg is None else jpeg(pixels, change.jpeg)


def _brightness(pixels: Tensor) -> Tensor:
    if pixels.shape[1] == 1:
        return pixels
    return sum(weight * pixels[:, channel] for channel, weight in enumerate(LUMINANCE))  # type: ignore[return-value]


def jpeg(pixels: Tensor, quality: int) -> Tensor:
    """Return the image after a JPEG of this quality; 8 bits, [1, 1 or 3, H, W] in [0, 1]."""
    file = io.BytesIO()
    to_image(pixels).save(file, "JPEG", quality=quality)
    with Image.open(file) as decoded:
        data = torch.frombuffer(bytearray(decoded.tobytes()), dtype=torch.uint8)
    height, width = pixels.shape[-2:]
    return (data.view(height, width, -1).permute(2, 0, 1)[None].to(pixels.dtype) / 255).contiguous()


def to_image(pixels: Tensor) -> Image.Image:
    """Return [1, 1 or 3, H, W] in [0, 1] as an 8-bit image."""
    values = (pixels[0].clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    height, width, channels = values.shape
    return Image.frombytes("L" if channels == 1 else "RGB", (width, height), values.numpy().tobytes())


def recolorings(change: Whole) -> list[str]:
    """Return which changes of values, and not only of positions, an edit has."""
    return [
        name for name in ("brightness", "contrast", "noise", "jpeg") if getattr(change, name) != getattr(Whole, name)
    ]


def refuse_recoloring(change: Whole) -> None:
    """Refuse changes of colors for an image whose bands have other units.

    Errors   Refused
    """
    for name in recolorings(change)[:1]:
        raise Refused(messages.ONLY_PHOTOS.format(name=messages.NAMES[name][0]))
