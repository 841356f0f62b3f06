"""Reduce images that are too large to be decoded as a whole, strip by strip.

Pillow decodes PNG and TIFF files as a whole. Therefore, each strip is passed to it as a separate small file:

- PNG: the filters of a row use the row above, so a strip starts with the last decoded row of the previous one. Pillow
  gets the bytes of a row as 8-bit samples, which have the same filters, and then converts them.
- interlaced PNG: the seven passes are decoded in strips, and the pixels of each cell of the reduced image are summed.
- TIFF: the blocks of the strip with the tags of the file.

Other images are decoded as a whole if their mode has few bytes per pixel, such as 1-bit scans.

libvips, measured with 12,000 x 12,000 pixels, reads a PNG in 75 MB (here: 190 MB), but an interlaced one in 475 MB
and a progressive JPEG in 430 MB. Its operations start threads, with which the sandbox ends the process (pyvips 3.2 with
libvips 8.18, 18 MB). Only rows can be fetched without threads, which would replace `_decoded` of plain PNG files alone.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from saliscope import limits
from saliscope.errors import Refused
from saliscope.images import parts, pixels, tiff

Check = Callable[[], None]
"""Raises an error if decoding takes too long."""

NO_PARTS, TOO_LONG = "such a file cannot be read in parts", "decoding it takes too long"
STRIP = 4_000_000
"""Approximate pixels of a strip."""
_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}
"""Bytes per pixel of a decoded image; 4 in other modes."""
_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
"""Color type of a PNG with 8-bit samples, by the distance in bytes that its filters use."""
_NOT_IN_STRIPS = {
    "PNG": ("a PNG with animation or 16-bit colors", "a plain PNG with 8 bits"),
    "TIFF": ("a TIFF with large blocks", "a TIFF with tiles, or as JPEG or PNG"),
}
"""Formats that can be read in strips: the files that cannot, and what to do."""
_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DIRECTORY_TAGS = {256, 258, 259, 262, 266, 277, 284, 292, 293, 317, 320, 322, 323, 338, 339, 347, 530}


def is_too_large(image: Image.Image) -> bool:
    """Return whether an opened image, or its conversion to colors, is too large to be decoded as a whole."""
    return image.width * image.height > limits.WHOLE


def reduce_image(
    image: Image.Image, data: bytes, size: tuple[int, int], check: Check
) -> tuple[Image.Image, Image.Transpose | None]:
    """Return an opened image as 8 bits per channel, reduced to `size`: by a whole factor in strips, and then as usual.

    Returns  the image, and its orientation unless it is applied already
    Errors   Refused for a file that must be decoded as a whole; errors of Pillow
    """
    factor = max(2, int(min(image.width / size[0], image.height / size[1]) / 2))
    sides, upright, orientation = image.size, None, None
    whole = 4 * limits.WHOLE // _BYTES.get(image.mode, 4)
    if image.width * image.height <= whole:
        image.load()
        orientation = pixels.orientation(image)
        reduced = _reduce_strips(image, lambda: _crops(image), sides, factor, check)
    elif isinstance(image, PngImageFile) and _filter_distance(data) in _COLOR_TYPES and not image.is_animated:
        orientation = _png_orientation(data)
        if image.info.get("interlace"):
            # With a power of two, a cell has whole groups of pixels of each pass.
            factor = min(MOST_REDUCED, 1 << (factor.bit_length() - 1))
            reduced = _reduce_passes(image, data, factor, check)
        else:
            reduced = _reduce_strips(image, lambda: _decoded(image, data, _parts(*sides), check), sides, factor, check)
    elif isinstance(image, TiffImageFile) and (page := next(tiff.pages(data))).block[1] * page.width <= 4 * STRIP:
        sides, upright = (page.width, page.height), pixels.ORIENTATIONS.get(page.orientation)
        reduced = _reduce_strips(image, lambda: _tiff_strips(image, data), sides, factor, check)
    else:
        kind = str(image.format).replace("WEBP", "WebP")
        raise _refusal(image, whole, *_NOT_IN_STRIPS.get(kind, (kind, "JPEG or PNG")))
    covered = (0.0, 0.0, sides[0] / factor, sides[1] / factor)  # the last cells may be larger than the image
    size = size if sides == image.size else size[::-1]
    found = reduced.resize(size, Image.Resampling.LANCZOS, covered)
    return found.transpose(upright) if upright is not None else found, orientation  # Pillow applies that of a TIFF


def _reduce_strips(
    image: Image.Image, read: Callable[[], Iterator[Image.Image]], sides: tuple[int, int], factor: int, check: Check
) -> Image.Image:
    """Return the strips, reduced by `factor`."""
    shown = pixels.range_of(read()) if pixels.is_deep(image) else None
    reduced, rest, top = None, None, 0
    for strip in read():
        check()
        plain = pixels.eight_bits(strip, shown)
        strip = plain if rest is None else _join(rest, plain)
        rows, rest = strip.height, None
        if top * factor + rows < sides[1]:  # the rows of a cell may be in two strips
            rows = rows // factor * factor
            rest = strip.crop((0, rows, strip.width, strip.height)) if rows < strip.height else None
        if reduced is None:
            reduced = Image.new(plain.mode, (math.ceil(sides[0] / factor), math.ceil(sides[1] / factor)))
        if rows:
            part = strip.crop((0, 0, strip.width, rows)).reduce(factor)
            reduced.paste(part, (0, top))
            top += part.height
    if reduced is None or top < reduced.height:
        raise ValueError("the file has fewer rows than it declares")
    return reduced


def _refusal(image: Image.Image, most: float, kind: str, remedy: str, reason: str = NO_PARTS) -> Refused:
    """Return the error for an image with more pixels than the limit of its kind."""
    return Refused(
        f"The image has {image.width} x {image.height} pixels. The maximum for {kind} is {int(most) // 10**6} million, "
        f"because {reason}. Save it as {remedy}."
    )


def check_whole(image: Image.Image) -> None:
    """Refuse a WebP that is too large, because it is decoded as a whole, with copies of all its pixels.

    Errors   Refused
    """
    if image.format == "WEBP" and image.width * image.height > limits.WEBP:
        raise _refusal(image, limits.WEBP, "WebP", "JPEG or PNG")


def check_expansion(image: Image.Image, data: bytes) -> None:
    """Refuse a PNG or TIFF that takes seconds to decode although its file is small, as no photo is.

    Errors   Refused
    """
    if not isinstance(image, (PngImageFile, TiffImageFile)):
        return
    size = _filter_distance(data) if isinstance(image, PngImageFile) else _BYTES.get(image.mode, 4)
    # The range of deep values is found first, and transparency is blended with white.
    cost = size * (2.0 if pixels.is_deep(image) else 1.5 if image.mode in ("LA", "RGBA") else 1.0)
    if limits.EXPANSION * len(data) < image.width * image.height * cost > limits.RAW:
        kind, remedy = f"such a small {image.format} file", "JPEG, or with half of the width and height"
        raise _refusal(image, limits.RAW / cost, kind, remedy, TOO_LONG)


def _join(upper: Image.Image, lower: Image.Image) -> Image.Image:
    joined = Image.new(lower.mode, (lower.width, upper.height + lower.height))
    joined.paste(upper, (0, 0))
    joined.paste(lower, (0, upper.height))
    return joined


def _crops(image: Image.Image) -> Iterator[Image.Image]:
    """Yield the strips of a loaded image."""
    for width, top, rows in _parts(*image.size):
        strip = image.crop((0, top, width, top + rows))
        strip.info = image.info  # the transparent color
        yield strip


def check_scans(image: Image.Image, data: bytes) -> None:
    """Refuse a JPEG with several scans whose coefficients, which are all decoded, need too much memory.

    Errors   Refused
    """
    samples, frame = 0.0, b""
    for marker, _, at, end in parts.jpeg_segments(data):
        body = data[at + 2 : end]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and len(body) > 5:
            frame = body
            across, down = ([factors >> 4 for factors in body[7::3]], [factors & 15 for factors in body[7::3]])
            largest = max(across, default=1) * max(down, default=1)
            samples = sum(x * y for x, y in zip(across, down, strict=True)) / max(1, largest)
            if marker not in (0xC0, 0xC1):
                break
        elif marker == parts.START_OF_SCAN:
            if frame and body and body[0] == frame[5]:
                return  # one scan with all components
            break
    if 2 * samples * image.width * image.height > limits.COEFFICIENTS:
        kind, remedy = "a progressive JPEG with these colors", "a JPEG without progressive scans"
        raise _refusal(image, limits.COEFFICIENTS / (2 * samples), kind, remedy)


# PNG


def _filter_distance(data: bytes) -> int:
    """Return the number of bytes of a pixel."""
    depth, color = data[24], data[25]
    return max(1, _SAMPLES.get(color, 0) * depth // 8)


def _parts(width: int, height: int, multiple: int = 1) -> Iterator[tuple[int, int, int]]:
    """Yield the width, first row and number of rows of every strip; the first row is a multiple of `multiple`."""
    rows = max(1, STRIP // width // multiple) * multiple
    yield from ((width, top, min(rows, height - top)) for top in range(0, height, rows))


def _decoded(
    image: PngImageFile, data: bytes, parts: Iterable[tuple[int, int, int]], check: Check
) -> Iterator[Image.Image]:
    """Yield consecutive parts of the decompressed rows, as returned by `_parts`, as images."""
    depth, color = data[24], data[25]
    distance, unpack = _filter_distance(data), image.tile[0].args
    inflate, compressed, previous = zlib.decompressobj(), _content(data, b"IDAT"), b""
    for width, top, count in parts:
        check()
        row = (width * _SAMPLES[color] * depth + 7) // 8
        rows = inflate.decompress(compressed, count * (row + 1))
        compressed = inflate.unconsumed_tail
        if len(rows) < count * (row + 1):
            raise ValueError("the file has fewer rows than it declares")
        raw_width = row // distance
        previous = previous if top else bytes(row)
        head = struct.pack(">IIBBBBB", raw_width, count + 1, 8, _COLOR_TYPES[distance], 0, 0, 0)
        body = zlib.compress(b"\0" + previous + rows, 0)
        small = b"".join([data[:8], _chunk(b"IHDR", head), _chunk(b"IDAT", body), _chunk(b"IEND", b"")])
        with Image.open(io.BytesIO(small), formats=("PNG",)) as opened:
            raw = opened.crop((0, 1, raw_width, count + 1)).tobytes()
        previous = raw[-row:]
        strip = Image.frombytes(image.mode, (width, count), raw, "raw", unpack)
        if image.palette:
            strip.putpalette(image.palette.palette, image.palette.rawmode or "RGB")
        strip.info = image.info  # the transparent color
        yield strip


MOST_REDUCED = 16
"""The largest factor for an interlaced image: sums of 16 x 16 bytes have 16 bits."""
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column and row of each pass of an interlaced PNG, and the distances of its columns and rows."""


def _png_passes(
    image: PngImageFile, data: bytes, check: Check
) -> Iterator[tuple[Image.Image, tuple[int, int, int, int]]]:
    """Return the strips of an interlaced PNG with their first column and row, and the distances of both."""
    parts, places = [], []
    for x, y, across, down in _PASSES:
        columns, rows = -(-(image.width - x) // across), -(-(image.height - y) // down)
        for part in _parts(columns, rows, MOST_REDUCED) if columns > 0 and rows > 0 else ():
            parts.append(part)
            places.append((x, y + part[1] * down, across, down))
    return zip(_decoded(image, data, parts, check), places, strict=True)


def _reduce_passes(image: PngImageFile, data: bytes, factor: int, check: Check) -> Image.Image:
    """Return an interlaced PNG, reduced by a power of two: the mean of the pixels in each cell, of all passes."""
    strips = (strip for strip, _ in _png_passes(image, data, check))
    shown = pixels.range_of(strips) if pixels.is_deep(image) else None
    width, height = (math.ceil(side / factor) for side in image.size)
    sums: Any = None
    for strip, (x, y, across, down) in _png_passes(image, data, check):
        plain = np.asarray(pixels.eight_bits(strip, shown))
        part = _sum_groups(_sum_groups(plain.swapaxes(0, 1), factor // across).swapaxes(0, 1), factor // down)
        if sums is None:
            sums = np.zeros((height, width, *plain.shape[2:]), np.uint16)
        top, left = y // factor, x // factor
        lines, columns = max(1, down // factor), max(1, across // factor)
        sums[top::lines, left::columns][: part.shape[0], : part.shape[1]] += part
    assert sums is not None
    rows, cells = (np.minimum(factor, side - factor * np.arange(math.ceil(side / factor))) for side in image.size[::-1])
    reduced = np.empty(sums.shape, np.uint8)
    for top in range(0, height, 256):  # in blocks, to save memory
        count = np.outer(rows[top : top + 256], cells).reshape(-1, width, *[1] * (sums.ndim - 2)).astype(np.uint16)
        reduced[top : top + 256] = (sums[top : top + 256] + count // 2) // count
    return Image.fromarray(reduced)


def _sum_groups(values: Any, count: int) -> Any:
    """Return the sums of groups of `count` consecutive rows; the last group may have fewer."""
    if count <= 1:
        return values
    sums = values[::count].astype("uint16")
    for k in range(1, count):
        part = values[k::count]
        sums[: len(part)] += part
    return sums


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _content(data: bytes, kind: bytes) -> bytes:
    """Return the content of all chunks of a PNG that have this name."""
    return b"".join(data[at + 8 : end - 4] for name, at, end in parts.png_chunks(data) if name == kind)


def _png_orientation(data: bytes) -> Image.Transpose | None:
    """Return the EXIF orientation of a PNG; Pillow decodes the whole image to find it."""
    exif = Image.Exif()
    exif.load(_content(data, b"eXIf"))
    return pixels.ORIENTATIONS.get(exif.get(pixels.ORIENTATION, 1))


# TIFF


def _tiff_strips(image: TiffImageFile, data: bytes) -> Iterator[Image.Image]:
    """Yield the strips of a TIFF, without its orientation."""
    page, tags = next(tiff.pages(data)), image.tag_v2
    rows, planes = page.block[1], page.blocks()
    step = max(1, STRIP // (rows * page.width))
    for first in range(0, page.down, step):
        last = min(page.down, first + step)
        height = min(page.height, last * rows) - first * rows
        kept = {tag: tags[tag] for tag in _DIRECTORY_TAGS & set(tags)} | {tiff.HEIGHT: height}
        if tiff.ROWS in tags:
            kept[tiff.ROWS] = min(rows, height)
        blocks = [data[block] for plane in planes for block in plane[first * page.across : last * page.across]]
        with Image.open(io.BytesIO(tiff.write(kept, blocks, tags.prefix)), formats=("TIFF",)) as opened:
            opened.load()
            yield opened.copy()
