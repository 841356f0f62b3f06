"""Reduce images that are too large to be decoded as a whole, strip by strip.

Pillow decodes PNG and TIFF files as a whole. Therefore, each strip is passed to it separately:

- PNG: the filters of a row use the row above, so a strip starts with the last decoded row of the previous one. Pillow
  gets the bytes of a row as 8-bit samples, which have the same filters, and then converts them.
- interlaced PNG: a strip has rows of all seven passes, which are decompressed side by side.
- TIFF: the blocks of the strip with the tags of the file.

Other images are decoded as a whole if their mode has few bytes per pixel, such as 1-bit scans.

libvips, measured with 12,000 x 12,000 pixels, reads a PNG in 75 MB (here: 190 MB), but an interlaced one in 475 MB
and a progressive JPEG in 430 MB. Its operations start threads, with which the sandbox ends the process (pyvips 3.2 with
libvips 8.18, 18 MB). Only rows can be fetched without threads, which would replace `_png_strips` of plain PNG
files alone.
"""

from __future__ import annotations

import copy
import functools
import io
import math
import time
import zlib
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from saliscope import limits
from saliscope.errors import Refused
from saliscope.images import parts, pixels, tiff

NO_PARTS, TOO_LONG = "such a file cannot be read in parts", "decoding it takes too long"
STRIP = 4_000_000
"""Approximate pixels of a strip."""
_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}
"""Bytes per pixel of a decoded image; 4 in other modes."""
_FILTER_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Mode of an image with 8-bit samples, by the distance in bytes that the filters of a PNG use."""
_NOT_IN_STRIPS = {
    "PNG": ("a PNG with animation or 16-bit colors", "a plain PNG with 8 bits"),
    "TIFF": ("a TIFF with large blocks", "a TIFF with tiles, or as JPEG or PNG"),
}
"""Formats that can be read in strips: the files that cannot, and what to do."""
_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column and row of each pass of an interlaced PNG, and the distances of its columns and rows."""
_DIRECTORY_TAGS = {256, 258, 259, 262, 266, 277, 284, 292, 293, 317, 320, 322, 323, 338, 339, 347, 530}


def is_too_large(image: Image.Image) -> bool:
    """Return whether an opened image, or its conversion to colors, is too large to be decoded as a whole."""
    return image.width * image.height > limits.WHOLE


def reduce_image(image: Image.Image, data: bytes, size: tuple[int, int]) -> tuple[Image.Image, Image.Transpose | None]:
    """Return an opened image as 8 bits per channel, reduced to `size`: by a whole factor in strips, and then as usual.

    Returns  the image, whose sides are exchanged if its orientation does so in a TIFF; and the orientation
    Errors   Refused for a file that must be decoded as a whole; TimeoutError; errors of Pillow
    """
    factor = max(2, int(min(image.width / size[0], image.height / size[1]) / 2))
    sides, whole = image.size, 4 * limits.WHOLE // _BYTES.get(image.mode, 4)
    read: Callable[[], Iterator[Image.Image]]
    if image.width * image.height <= whole:
        image.load()
        orientation = pixels.orientation(image)
        read = functools.partial(_crops, image, factor)
    elif isinstance(image, PngImageFile) and _filter_distance(data) in _FILTER_MODES and not image.is_animated:
        image.info.setdefault("exif", _content(data, b"eXIf"))  # else, Pillow would decode the whole image to find it
        orientation = pixels.orientation(image)
        if image.info.get("interlace"):
            factor = 1 << (factor.bit_length() - 1)  # as in earlier versions, whose pixels are the same
        read = functools.partial(_png_strips, image, data, factor)
    elif isinstance(image, TiffImageFile) and (page := next(tiff.pages(data))).block[1] * page.width <= 4 * STRIP:
        sides, orientation = (page.width, page.height), pixels.ORIENTATIONS.get(page.orientation)
        read = functools.partial(_tiff_strips, image, data, page, factor)
    else:
        kind = str(image.format).replace("WEBP", "WebP")
        raise _refusal(image, whole, *_NOT_IN_STRIPS.get(kind, (kind, "JPEG or PNG")))
    end = time.thread_time() + limits.DECODE_SECONDS  # of this thread: the file is long, and the machine may be busy

    def strips() -> Iterator[Image.Image]:
        for strip in read():
            if time.thread_time() > end:
                raise TimeoutError
            yield strip

    shown = pixels.range_of(strips()) if pixels.is_deep(image) else None
    reduced, top = None, 0
    for strip in strips():
        part = pixels.eight_bits(strip, shown).reduce(factor)
        if reduced is None:
            reduced = Image.new(part.mode, (part.width, math.ceil(sides[1] / factor)))
        reduced.paste(part, (0, top))
        top += part.height
    assert reduced is not None
    covered = (0.0, 0.0, sides[0] / factor, sides[1] / factor)  # the last cells may be larger than the image
    stored = size if sides == image.size else size[::-1]
    return reduced.resize(stored, Image.Resampling.LANCZOS, covered), orientation


def check_pixels(image: Image.Image, data: bytes) -> None:
    """Refuse an image with more pixels than the limit of its kind.

    - WebP: it is decoded as a whole, with copies of all its pixels.
    - JPEG with several scans: its coefficients are all decoded before the pixels.
    - PNG and TIFF: it takes seconds to decode although its file is small, as no photo is.

    Errors   Refused
    """
    count = image.width * image.height
    if image.format == "WEBP" and count > limits.WEBP:
        raise _refusal(image, limits.WEBP, "WebP", "JPEG or PNG")
    if isinstance(image, JpegImageFile) and count * (cost := _coefficients(image, data)) > limits.COEFFICIENTS:
        kind, remedy = "a progressive JPEG with these colors", "a JPEG without progressive scans"
        raise _refusal(image, limits.COEFFICIENTS / cost, kind, remedy)
    if isinstance(image, (PngImageFile, TiffImageFile)):
        size = _filter_distance(data) if isinstance(image, PngImageFile) else _BYTES.get(image.mode, 4)
        # The range of deep values is found first, and transparency is blended with white.
        cost = size * (2.0 if pixels.is_deep(image) else 1.5 if image.mode in ("LA", "RGBA") else 1.0)
        if limits.EXPANSION * len(data) < count * cost > limits.RAW:
            kind, remedy = f"such a small {image.format} file", "JPEG, or with half of the width and height"
            raise _refusal(image, limits.RAW / cost, kind, remedy, TOO_LONG)


def _refusal(image: Image.Image, most: float, kind: str, remedy: str, reason: str = NO_PARTS) -> Refused:
    """Return the error for an image with more pixels than the limit of its kind."""
    return Refused(
        f"The image has {image.width} x {image.height} pixels. The maximum for {kind} is {int(most) // 10**6} million, "
        f"because {reason}. Save it as {remedy}."
    )


def _coefficients(image: JpegImageFile, data: bytes) -> float:
    """Return the bytes per pixel of the coefficients of a JPEG, or 0 if one scan has all its components."""
    scans = (data[at + 2] for marker, _, at, _ in parts.jpeg_segments(data) if marker == parts.START_OF_SCAN)
    if "progressive" not in image.info and next(scans, 0) == image.layers:
        return 0.0
    _, across, down, _ = zip(*image.layer, strict=True)
    return 2 * sum(x * y for x, y in zip(across, down, strict=True)) / (max(across) * max(down))


def _rows(image: Image.Image | tiff.Page, multiple: int) -> Iterator[tuple[int, int]]:
    """Yield the first row of every strip and the row after its last; `multiple` divides all but the last height."""
    rows = max(1, STRIP // image.width // multiple) * multiple
    yield from ((top, min(top + rows, image.height)) for top in range(0, image.height, rows))


def _crops(image: Image.Image, factor: int) -> Iterator[Image.Image]:
    """Yield the strips of a loaded image."""
    yield from (image.crop((0, top, image.width, end)) for top, end in _rows(image, factor))


# PNG


def _filter_distance(data: bytes) -> int:
    """Return the number of bytes of a pixel."""
    depth, color = data[24], data[25]
    return max(1, _SAMPLES.get(color, 0) * depth // 8)


def _png_strips(image: PngImageFile, data: bytes, factor: int) -> Iterator[Image.Image]:
    """Yield the strips of a PNG. A plain one has a single pass with all pixels."""
    places, passes, sizes = [], [], [0]
    strips, stream = [*_rows(image, math.lcm(8, factor))], _Stream(_content(data, b"IDAT"))
    for x, y, across, down in _PASSES if image.info.get("interlace") else [(0, 0, 1, 1)]:
        columns = len(range(x, image.width, across))
        if columns == 0:  # such a pass has no rows
            continue
        for size in sizes:
            stream.read(size)
        counts = [len(range(top + y, end, down)) for top, end in strips]
        row = (columns * _SAMPLES[data[25]] * data[24] + 7) // 8
        sizes = [count * (1 + row) for count in counts]
        places.append((slice(y, None, down), slice(x, None, across)))
        passes.append(_pass_strips(image, _filter_distance(data), copy.deepcopy(stream), columns, row, counts))
    for (top, end), *found in zip(strips, *passes, strict=True):
        values = np.empty((end - top, image.width, *found[0].shape[2:]), found[0].dtype)
        for place, part in zip(places, found, strict=True):
            values[place] = part
        strip = Image.fromarray(values)
        if image.palette:
            strip.putpalette(image.palette.palette, image.palette.rawmode or "RGB")
        strip.info = image.info  # the transparent color
        yield strip


def _pass_strips(
    image: PngImageFile, distance: int, stream: _Stream, columns: int, row: int, counts: list[int]
) -> Iterator[np.ndarray]:
    """Yield the pixels of a pass in strips with these numbers of rows; `row` is the number of bytes of a row."""
    mode, previous = _FILTER_MODES[distance], bytes(row)
    for count in counts:
        filtered = zlib.compress(b"\0" + previous + stream.read(count * (1 + row)), 0)
        raw = Image.frombytes(mode, (row // distance, 1 + count), filtered, "zip", mode).tobytes()[row:]
        previous = raw[-row:]
        yield np.asarray(Image.frombytes(image.mode, (columns, count), raw, "raw", image.tile[0].args))


class _Stream:
    """The decompressed rows of a PNG. A copy continues at the same row."""

    def __init__(self, compressed: bytes) -> None:
        self._compressed, self._at, self._inflate = compressed, 0, zlib.decompressobj()

    def read(self, size: int) -> bytes:
        """Return the next bytes; a ValueError if there are fewer."""
        found = bytearray()
        while len(found) < size:
            block = self._compressed[self._at : self._at + 64 * limits.KB]
            rows = self._inflate.decompress(block, size - len(found))
            if not block and not rows:
                raise ValueError("the file has fewer rows than it declares")
            self._at += len(block) - len(self._inflate.unconsumed_tail)
            found += rows
        return bytes(found)


def _content(data: bytes, kind: bytes) -> bytes:
    """Return the content of all chunks of a PNG that have this name."""
    return b"".join(data[at + 8 : end - 4] for name, at, end in parts.png_chunks(data) if name == kind)


# TIFF


def _tiff_strips(image: TiffImageFile, data: bytes, page: tiff.Page, factor: int) -> Iterator[Image.Image]:
    """Yield the strips of a TIFF, without its orientation."""
    rows, planes = page.block[1], page.blocks()
    tags = {tag: image.tag_v2[tag] for tag in _DIRECTORY_TAGS & set(image.tag_v2)}
    for top, end in _rows(page, math.lcm(rows, factor)):
        first, last = top // rows, -(-end // rows)
        kept = tags | {tiff.HEIGHT: end - top, tiff.ROWS: rows}
        blocks = [data[block] for plane in planes for block in plane[first * page.across : last * page.across]]
        strip = Image.open(io.BytesIO(tiff.write(kept, blocks, image.tag_v2.prefix)), formats=("TIFF",))
        strip.load()
        yield from _crops(strip, factor)  # large blocks are converted in parts, to save memory
