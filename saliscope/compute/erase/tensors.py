"""The computation of edits on tensors; imports torch, so that it is imported when the first edit is applied."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from explainers import baseline_of, impute
from saliscope.compute.erase import edit
from saliscope.compute.erase.edit import Box, Highest, Invert, Operation, Point, Stroke, Whole
from saliscope.errors import Refused
from saliscope.images.bands import LUMINANCE
from saliscope.images.pixels import encode
from saliscope.zoo.operations import to_tensor


def region_mask(operations: Sequence[Operation], size: tuple[int, int], ranks: Tensor | None = None) -> Tensor:
    """Return the pixels of a region: a pixel belongs to a stroke or box if its center does.

    `ranks` [H, W] are the positions of the pixels in the order of the map, from 0; only needed for `Highest`.

    Returns  bool [H, W]; no operations give an empty region
    Errors   Refused if the map has no order

    Example
        >>> region_mask([Box(((0.0, 0.0), (0.5, 1.0)))], (2, 4))
        tensor([[ True,  True, False, False],
                [ True,  True, False, False]])
    """
    mask = torch.zeros(size, dtype=torch.bool)
    for operation in operations:
        if isinstance(operation, Invert):
            mask = ~mask
        elif isinstance(operation, Highest):
            if ranks is None:
                raise Refused(edit.NO_ORDER)
            share, count = operation.share, operation.count or 0
            mask |= ranks < (count if share is None else max(1, round(share * ranks.numel())))
        elif isinstance(operation, Box):
            mask[_box(operation, size)] = operation.add
        else:
            for start, end in zip(operation.points, (*operation.points[1:], operation.points[-1]), strict=True):
                rows, columns, inside = _segment(operation, start, end, size)
                mask[rows, columns][inside] = operation.add
    return mask


def _box(box: Box, size: tuple[int, int]) -> tuple[slice, slice]:
    (x0, y0), (x1, y1) = box.corners
    rows, columns = (
        # the first center at or after the lower edge, and the number of centers up to the upper edge
        slice(math.ceil(min(ends) * side - 0.5), math.floor(max(ends) * side - 0.5) + 1)
        for ends, side in (((y0, y1), size[0]), ((x0, x1), size[1]))
    )
    return rows, columns


def _segment(stroke: Stroke, start: Point, end: Point, size: tuple[int, int]) -> tuple[slice, slice, Tensor]:
    """Return the pixels near a segment of a stroke, in the smallest rectangle that contains them."""
    height, width = size
    radius = stroke.radius * min(size)
    (x0, y0), (x1, y1) = ((x * width, y * height) for x, y in (start, end))
    rows, columns = (
        slice(max(0, math.floor(min(ends) - radius)), max(0, min(side, math.ceil(max(ends) + radius))))
        for ends, side in (((y0, y1), height), ((x0, x1), width))
    )
    y = torch.arange(rows.start, rows.stop)[:, None] + 0.5
    x = torch.arange(columns.start, columns.stop)[None] + 0.5
    length = (x1 - x0) ** 2 + (y1 - y0) ** 2
    along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length if length else torch.zeros(())
    along = along.clamp(0, 1)
    distance = (x - x0 - along * (x1 - x0)) ** 2 + (y - y0 - along * (y1 - y0)) ** 2
    return rows, columns, distance <= radius**2


def cover_image(pixels: Tensor, fill: str, second: Tensor | None = None) -> Tensor:
    """Return the image of which a region shows a part: the blurred image, its mean color, noise, or a second image.

    `pixels` [1, C, H, W], in any unit. "blur" has σ of a sixteenth of the shorter side, "mean" is the mean of each
    channel, and "noise" is uniform from the minimum to the maximum of the image, with a fixed seed.

    Errors   Refused for a second image that is missing or has another shape
    """
    if fill != "image":
        return baseline_of(pixels, fill)
    if second is None:
        raise Refused(edit.NO_SECOND)
    if second.shape != pixels.shape:
        raise Refused(
            f"The second image has {_shape(second)} values (channels, height, width), and the first has "
            f"{_shape(pixels)}. Choose an image of the same size."
        )
    return second


def _shape(image: Tensor) -> str:
    return " × ".join(map(str, image.shape[1:]))


def fill_region(pixels: Tensor, mask: Tensor, fill: str, second: Tensor | None = None) -> Tensor:
    """Return the image [1, C, H, W] with its region `mask` [H, W] filled; all other pixels keep their exact values.

    Errors   Refused as `cover_image` and `inpaint`
    """
    cover = inpaint(pixels, mask) if fill == "inpaint" else cover_image(pixels, fill, second)
    return torch.where(mask, cover, pixels)


def inpaint(pixels: Tensor, mask: Tensor) -> Tensor:
    """Return the image [1, C, H, W] in which each pixel of the region `mask` [H, W] is the mean of its neighbors.

    The neighbors are up to eight pixels, with weights 1/6 (adjacent) and 1/12 (diagonal), as in the metric ROAD
    (`explainers.impute`). This continues the surroundings smoothly: a linear ramp stays a ramp.

    Errors   Refused if the region is the whole image

    Example
        >>> ramp = torch.arange(16.0).expand(1, 1, 16, 16)
        >>> mask = torch.zeros(16, 16, dtype=torch.bool)
        >>> mask[4:9, 4:9] = True
        >>> torch.allclose(inpaint(ramp, mask), ramp, atol=0.01)
        True
    """
    if bool(mask.all()):
        raise Refused(
            "The region is the whole image, so no pixel is left to inpaint from. Make it smaller, or choose another "
            "fill."
        )
    return impute(pixels, mask[None]) if bool(mask.any()) else pixels


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
            raise Refused(edit.out_of_range("shift", distance, 1 - side, side - 1))
    sides = right, -right, down, -down
    inside = functional.pad(torch.ones_like(pixels), sides) > 0
    return torch.where(inside, functional.pad(pixels, sides), _mean_color(pixels))


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
    with Image.open(io.BytesIO(encode(to_image(pixels), "JPEG", quality=quality))) as decoded:
        return to_tensor(decoded)[None]


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
        raise Refused(
            f"{edit.NUMBERS[name][2]} needs a gray or color image, but this one has bands in other units. Change the "
            "region or the position instead."
        )
