"""TIFF files with bands: this module reads the tags, Pillow decompresses the blocks.

Pillow only opens TIFF files whose samples form a color, so it does not open five bands of 16 bits. Therefore, the
strips or tiles of a page are passed to it as a grayscale image of bytes, which every decompressor supports. The bytes
are then converted here (type, byte order, interleaved or separate bands, predictor). Sizes are checked before anything
is decoded.

`tifffile` is not used because limits do not hold: it reads descriptions and the tags of microscopes before a page can
be checked (minutes for a file of 10 MB), and without `imagecodecs`, it decompresses a block of any size with Deflate,
and no LZW, Zstandard or floating-point predictor.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from saliscope import limits
from saliscope.images import npy

STARTS = (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")
COMPRESSIONS = {1, 5, 8, 32773, 32946, 34925, 50000}
"""None, LZW, Deflate (two codes), PackBits, LZMA, Zstandard: compressions of bytes, not of pixels."""
MOST_BLOCKS = 100_000
MOST_TAGS = 1000
_INTEGERS = {1: "u1", 3: "u2", 4: "u4", 16: "u8"}
_LETTERS = {1: "u", 2: "i", 3: "f"}
WIDTH, HEIGHT, BITS, COMPRESSION, COLORS, BIT_ORDER = 256, 257, 258, 259, 262, 266
STRIPS, SAMPLES, ROWS = 273, 277, 278
STRIP_SIZES, LAYOUT, TILE_WIDTH, TILE_HEIGHT, TILES, TILE_SIZES, FORMAT = 279, 284, 322, 323, 324, 325, 339


class Damaged(ValueError):
    """A file whose tags do not match its data."""


class Page:
    """One image in a file, as declared by its tags."""

    def __init__(self, data: bytes, order: str, tags: dict[int, tuple[str, int, int]]) -> None:
        """`tags` are the type of their numbers, the count, and the position in `data`; `order` is that of the bytes."""
        self._data, self._tags = data, tags
        self.width, self.height, self.samples = self._first(WIDTH, 0), self._first(HEIGHT, 0), self._first(SAMPLES, 1)
        self.compression, self.predictor = self._first(COMPRESSION, 1), self._first(317, 1)
        self.colors = self._first(COLORS, 1)
        """Photometric interpretation: 0 and 1 grayscale, 2 RGB, 3 palette, 5 CMYK, 6 YCbCr, 8 Lab."""
        self.alpha = self._first(338, 0) in (1, 2)
        self.separate = self._first(LAYOUT, 1) == 2 and self.samples > 1
        """Whether each band has its own blocks."""
        self.orientation = self._first(274, 1)
        self.overview = bool(self._first(254, 0) & 5)
        """A smaller copy of another page, or a mask."""
        self.tiled = TILES in tags
        rows = min(self.height, self._first(ROWS, self.height)) or self.height
        self.block = (self._first(TILE_WIDTH, 0), self._first(TILE_HEIGHT, 0)) if self.tiled else (self.width, rows)
        """Width and height of a tile; the width of a strip is that of the image."""
        if min(self.width, self.height, self.samples, *self.block) < 1 or max(self.block) > 1 << 20:
            raise Damaged
        self.across, self.down = -(-self.width // self.block[0]), -(-self.height // self.block[1])
        """The number of blocks in a row, and of rows of blocks."""
        formats, bits = (self._numbers(tag, limits.BANDS).tolist() or [1] for tag in (FORMAT, BITS))
        names = {f"{_LETTERS.get(kind)}{length / 8:g}" for kind, length in itertools.product({*formats}, {*bits})}
        name = names.pop() if len(names) == 1 and self._first(BIT_ORDER, 1) == 1 else ""
        self.dtype = np.dtype(order + name) if name in npy.KINDS else None
        """None for samples that cannot be an array: 1, 10 or 12 bits, or several types."""
        self.readable = self.dtype is not None and self.compression in COMPRESSIONS and self.predictor in (1, 2, 3)
        """Whether `read_bands` supports the page."""
        self.shape = self.samples, self.height, self.width
        self.kind = self.shape, self.dtype, self.orientation
        """What pages have in common whose bands are one image."""

    def _numbers(self, tag: int, most: int) -> np.ndarray:
        """Return the first numbers of a tag, or none if the file does not have it."""
        kind, count, position = self._tags.get(tag, ("u1", 0, 0))
        return np.frombuffer(self._data, kind, count, position)[:most].astype("i8")

    def _first(self, tag: int, default: int) -> int:
        return int(next(iter(self._numbers(tag, 1)), default))

    def blocks(self) -> list[list[slice]]:
        """Return where the strips or tiles are, from left to right and from top to bottom; a list for each plane.

        Errors   Damaged for blocks outside the file, and for another number of them
        """
        names = (TILES, TILE_SIZES) if self.tiled else (STRIPS, STRIP_SIZES)
        count, planes, size = self.across * self.down, self.samples if self.separate else 1, len(self._data)
        starts, sizes = (self._numbers(tag, count * planes + 1) for tag in names)
        if not len(starts) == len(sizes) == count * planes:
            raise Damaged
        ends = starts + sizes
        if ((starts < 0) | (starts > size) | (sizes < 1) | (sizes > size) | (ends > size)).any():
            raise Damaged
        found = [*map(slice, starts.tolist(), ends.tolist())]
        return [found[first : first + count] for first in range(0, len(found), count)]


def pages(data: bytes) -> Iterator[Page]:
    """Yield the pages of a TIFF or BigTIFF file, at most one more than `limits.BANDS`, without reading pixels.

    Errors   Damaged, ValueError
    """
    order, big = "<>"[data[:2] == b"MM"], b"+" in data[2:4]
    count, word = np.dtype(order + ("u8" if big else "u2")), np.dtype(order + ("u8" if big else "u4"))
    entry = np.dtype([("tag", order + "u2"), ("kind", order + "u2"), ("count", word), ("value", word)])

    def number(kind: np.dtype[Any], position: int) -> int:
        return int(np.frombuffer(data, kind, 1, position)[0])

    visited: set[int] = set()
    position = number(word, 8 if big else 4)
    if not position:
        raise Damaged
    while position and position not in visited and len(visited) <= limits.BANDS:
        visited.add(position)
        start, length = position + count.itemsize, number(count, position)
        if length > MOST_TAGS:
            raise Damaged
        position = start + length * entry.itemsize
        tags = {}
        for tag, kind, numbers, value in np.frombuffer(data, entry, length, start).tolist():
            start += entry.itemsize
            if kind in _INTEGERS:
                inside = np.dtype(_INTEGERS[kind]).itemsize * numbers <= word.itemsize
                tags[tag] = order + _INTEGERS[kind], numbers, start - word.itemsize if inside else value
        yield Page(data, order, tags)
        position = number(word, position)


def write(tags: Mapping[int, Any], blocks: Sequence[bytes], order: bytes = b"II") -> bytes:
    """Return a TIFF file of these strips or tiles; `tags` are all others than those of the blocks."""
    head = order + struct.pack("<HI" if order == b"II" else ">HI", 42, 8)
    directory = ImageFileDirectory_v2(head)
    for tag, value in tags.items():
        directory[tag] = value
    starts, sizes = (TILES, TILE_SIZES) if TILE_WIDTH in tags else (STRIPS, STRIP_SIZES)
    directory[sizes] = lengths = tuple(map(len, blocks))
    directory[starts] = places = tuple(itertools.accumulate(lengths[:-1], initial=0))
    if starts == TILES:  # Pillow moves strips only
        shift = len(head) + len(directory.tobytes(len(head)))
        directory[starts] = tuple(place + shift for place in places)
    return b"".join([head, directory.tobytes(len(head)), *blocks])


def read_bands(data: bytes, page: Page, decode: Callable[[bytes], Image.Image]) -> np.ndarray:
    """Return the values of a page [samples, height, width] in native byte order, with its orientation applied.

    `decode` decodes an image with the limits of uploads.

    Errors   Damaged, and errors of Pillow
    """
    assert page.dtype is not None
    samples = 1 if page.separate else page.samples
    row = page.block[0] * samples * page.dtype.itemsize
    size, count = row * page.across * page.height, page.across * page.down * page.samples // samples
    if size > 2 * limits.BAND_BYTES or count > MOST_BLOCKS:  # the former: tiles that are much larger than the image
        raise Damaged
    tags = {WIDTH: row * page.across, HEIGHT: page.height, BITS: 8, COMPRESSION: page.compression, COLORS: 1}
    tags |= {TILE_WIDTH: row, TILE_HEIGHT: page.block[1]} if page.tiled else {ROWS: page.block[1]}
    bands = np.empty(page.shape, page.dtype.newbyteorder("="))
    for plane, blocks in enumerate(page.blocks()):
        if sum(block.stop - block.start for block in blocks) > len(data):
            raise Damaged  # blocks that are used repeatedly
        image = decode(write(tags, [data[block] for block in blocks]))
        raw = np.asarray(image).reshape(page.height, page.across, row)
        values = _values(raw, page, samples).reshape(page.height, -1, samples)[:, : page.width]
        bands[plane * samples : (plane + 1) * samples] = values.transpose(2, 0, 1)
    return _orient(bands, page.orientation)


def _values(raw: np.ndarray, page: Page, samples: int) -> np.ndarray:
    """Convert bytes [height, blocks across, bytes per row] to values [height, blocks across, columns, bands]."""
    assert page.dtype is not None
    height, across, _ = raw.shape
    size, kind = page.dtype.itemsize, page.dtype.newbyteorder("=")
    if page.predictor == 3:
        if kind.kind != "f":
            raise Damaged
        # Bytes are differences; in each row, the highest bytes of all values come first, then the next ones.
        total = np.cumsum(raw.reshape(height, across, -1, samples), axis=2, dtype=np.uint8)
        swapped = total.reshape(height, across, size, -1).transpose(0, 1, 3, 2)
        return np.ascontiguousarray(swapped).view(f">f{size}").astype(kind).reshape(height, across, -1, samples)
    words = np.ascontiguousarray(raw).view(f"{page.dtype.str[0]}u{size}").astype(f"=u{size}")
    words = words.reshape(height, across, -1, samples)
    if page.predictor == 2:  # differences, without their sign
        words = np.cumsum(words, axis=2, dtype=words.dtype)
    return words.view(kind)


def _orient(values: np.ndarray, orientation: int) -> np.ndarray:
    """Apply the orientation tag."""
    if orientation in (5, 6, 7, 8):
        values = values.transpose(0, 2, 1)
    x, y = (-1 if orientation in turned else 1 for turned in ((2, 3, 6, 7), (3, 4, 7, 8)))
    return np.ascontiguousarray(values[:, ::y, ::x])
