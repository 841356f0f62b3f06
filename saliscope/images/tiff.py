"""TIFF files with bands: this module reads the tags, Pillow decompresses the blocks.

Pillow only opens TIFF files whose samples form a color, so it does not open five bands of 16 bits. Therefore, the
strips or tiles of a page are passed to it as a grayscale image of bytes, which every decompressor supports. The bytes
are then converted here (type, byte order, interleaved or separate bands, predictor). Sizes are checked before anything
is decoded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image

from saliscope import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

STARTS = (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")
COMPRESSIONS = {1, 5, 8, 32773, 32946, 34925, 50000}
"""None, LZW, Deflate (two codes), PackBits, LZMA, Zstandard: compressions of bytes, not of pixels."""
MOST_BLOCKS = 100_000
_INTEGERS = {1: "u1", 3: "u2", 4: "u4", 16: "u8"}
_KINDS = {1: "u", 2: "i", 3: "f"}
_ORIENTATIONS = {1: "", 2: "x", 3: "xy", 4: "y", 5: "t", 6: "tx", 7: "txy", 8: "ty"}
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _COLORS, _ORDER = 256, 257, 258, 259, 262, 266
_STRIPS, _ORIENTATION, _SAMPLES, _ROWS, _STRIP_SIZES, _LAYOUT = 273, 274, 277, 278, 279, 284
_PREDICTOR, _TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_SIZES, _EXTRAS, _FORMAT = 317, 322, 323, 324, 325, 338, 339
_WANTED = {
    254,
    _WIDTH,
    _HEIGHT,
    _BITS,
    _COMPRESSION,
    _COLORS,
    _ORDER,
    _STRIPS,
    _ORIENTATION,
    _SAMPLES,
    _ROWS,
    _STRIP_SIZES,
}
_WANTED |= {_LAYOUT, _PREDICTOR, _TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_SIZES, _EXTRAS, _FORMAT}


class Damaged(ValueError):
    """A file whose tags do not match its data."""


@dataclass(frozen=True)
class Page:
    """One image in a file, as declared by its tags."""

    width: int
    height: int
    samples: int
    dtype: np.dtype[Any] | None
    """None for samples that cannot be an array: 1, 10 or 12 bits, or several types."""
    order: str
    compression: int
    predictor: int
    separate: bool
    """Whether each band has its own blocks."""
    colors: int
    """Photometric interpretation: 0 and 1 grayscale, 2 RGB, 3 palette, 5 CMYK, 6 YCbCr, 8 Lab."""
    alpha: bool
    extras: int
    orientation: int
    overview: bool
    """A smaller copy of another page, or a mask."""
    block: tuple[int, int]
    """Width and height of a tile; the width of a strip is that of the image."""
    tiled: bool
    offsets: np.ndarray
    sizes: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Bands, height and width."""
        return self.samples, self.height, self.width

    @property
    def values(self) -> int:
        """Number of values in the page."""
        return math.prod(self.shape)

    @property
    def readable(self) -> bool:
        """Whether `read_bands` supports the page."""
        return self.dtype is not None and self.compression in COMPRESSIONS and self.predictor in (1, 2, 3)


def pages(data: bytes) -> list[Page]:
    """Return the pages of a TIFF or BigTIFF file, at most one more than `limits.BANDS`, without reading pixels.

    Errors   Damaged
    """
    import numpy as np  # takes 0.1 s, and is only needed for raw values

    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\x00", b"\x00+")
    word, count, entry = ("u8", "u8", 20) if big else ("u4", "u2", 12)

    def numbers(kind: str, position: int, length: int = 1) -> np.ndarray:
        size = np.dtype(kind).itemsize * length
        if position < 0 or length < 0 or position + size > len(data):
            raise Damaged
        return np.frombuffer(data, order + kind, length, position).astype("i8")

    def first(kind: str, position: int) -> int:
        return int(numbers(kind, position)[0])

    result: list[Page] = []
    visited: set[int] = set()
    position = first(word, 8 if big else 4)
    while position and position not in visited and len(result) <= limits.BANDS:
        visited.add(position)
        tags: dict[int, np.ndarray] = {}
        first_entry, length = position + np.dtype(count).itemsize, first(count, position)
        if length > 1000:
            raise Damaged
        for offset in range(first_entry, first_entry + entry * length, entry):
            tag, kind, count_of_values = first("u2", offset), first("u2", offset + 2), first(word, offset + 4)
            if tag in _WANTED and kind in _INTEGERS:
                field = offset + entry - np.dtype(word).itemsize
                inside = np.dtype(_INTEGERS[kind]).itemsize * count_of_values <= np.dtype(word).itemsize
                tags[tag] = numbers(_INTEGERS[kind], field if inside else first(word, field), count_of_values)
        result.append(_page(tags, order))
        position = first(word, first_entry + entry * length)
    if not result:
        raise Damaged
    return result


def _page(tags: dict[int, np.ndarray], order: str) -> Page:
    import numpy as np  # as above

    def tag(number: int, default: int) -> int:
        values = tags.get(number)
        return default if values is None or not len(values) else int(values[0])

    width, height, samples = tag(_WIDTH, 0), tag(_HEIGHT, 0), tag(_SAMPLES, 1)
    if width < 1 or height < 1 or samples < 1:
        raise Damaged
    bits, formats = set(tags.get(_BITS, np.array([1]))), set(tags.get(_FORMAT, np.array([1])))
    kind = None
    if len(bits) == len(formats) == 1 and tag(_ORDER, 1) == 1:
        letter, length = _KINDS.get(int(formats.pop()), ""), int(bits.pop())
        known = letter and length in ((16, 32, 64) if letter == "f" else (8, 16, 32, 64))
        kind = np.dtype(f"{order}{letter}{length // 8}") if known else None
    tiled = _TILES in tags
    rows = min(height, tag(_ROWS, height)) or height
    block = (tag(_TILE_WIDTH, 0), tag(_TILE_HEIGHT, 0)) if tiled else (width, rows)
    if min(block) < 1 or max(block) > 1 << 20:
        raise Damaged
    extras = tags.get(_EXTRAS, np.array([], "i8"))
    return Page(
        width=width,
        height=height,
        samples=samples,
        dtype=kind,
        order=order,
        compression=tag(_COMPRESSION, 1),
        predictor=tag(_PREDICTOR, 1),
        separate=tag(_LAYOUT, 1) == 2 and samples > 1,
        colors=tag(_COLORS, 1),
        alpha=bool(len(extras)) and int(extras[0]) in (1, 2),
        extras=len(extras),
        orientation=tag(_ORIENTATION, 1),
        overview=bool(tag(254, 0) & 5),
        block=block,
        tiled=tiled,
        offsets=tags.get(_TILES if tiled else _STRIPS, np.array([], "i8")),
        sizes=tags.get(_TILE_SIZES if tiled else _STRIP_SIZES, np.array([], "i8")),
    )


def read_bands(data: bytes, page: Page, decode: Callable[[bytes], Image.Image]) -> np.ndarray:
    """Return the values of a page [samples, height, width] in native byte order, with its orientation applied.

    `decode` decodes an image with the limits of uploads.

    Errors   Damaged, and errors of Pillow
    """
    import numpy as np  # as above

    assert page.dtype is not None
    planes, samples = (page.samples, 1) if page.separate else (1, page.samples)
    across, down = -(-page.width // page.block[0]), -(-page.height // page.block[1])
    blocks = across * down
    if not len(page.offsets) == len(page.sizes) == blocks * planes <= MOST_BLOCKS:
        raise Damaged
    row = page.block[0] * samples * page.dtype.itemsize
    if row * across * page.height > 2 * limits.BAND_BYTES:  # tiles that are much larger than the image
        raise Damaged
    bands = np.empty((page.samples, page.height, page.width), page.dtype.newbyteorder("="))
    for plane in range(planes):
        part = slice(plane * blocks, (plane + 1) * blocks)
        packed = _to_gray_tiff(data, page, part, row, across)
        image = decode(packed)
        if image.size != (row * across, page.height) or image.mode != "L":
            raise Damaged
        raw = np.asarray(image).reshape(page.height, across, row)
        values = _values(raw, page, samples).reshape(page.height, -1, samples)[:, : page.width]
        bands[plane * samples : (plane + 1) * samples] = values.transpose(2, 0, 1)
    return _orient(bands, page.orientation)


def _to_gray_tiff(data: bytes, page: Page, part: slice, row: int, across: int) -> bytes:
    """Return a TIFF file with one grayscale image whose pixels are the bytes of these blocks."""
    import numpy as np  # as above

    offsets, sizes = page.offsets[part], page.sizes[part]
    ends = offsets + sizes
    outside = (offsets < 0) | (offsets > len(data)) | (sizes < 1) | (sizes > len(data)) | (ends > len(data))
    if outside.any() or sizes.sum() > len(data):
        raise Damaged  # blocks outside the file, or blocks that are used repeatedly
    body = b"".join(data[start:end] for start, end in zip(offsets.tolist(), ends.tolist(), strict=True))
    table_start = 8 + len(body)
    new_offsets = 8 + np.concatenate([[0], np.cumsum(sizes)[:-1]])
    entries: dict[int, Any] = {_WIDTH: [row * across], _HEIGHT: [page.height], _BITS: [8]}
    entries[_COMPRESSION] = [page.compression]
    entries |= {_COLORS: [1], _SAMPLES: [1]}
    if page.tiled:
        entries |= {_TILE_WIDTH: [row], _TILE_HEIGHT: [page.block[1]], _TILES: new_offsets, _TILE_SIZES: sizes}
    else:
        entries |= {_STRIPS: new_offsets, _ROWS: [page.block[1]], _STRIP_SIZES: sizes}
    table, tail = [], []
    end = table_start + 2 + 12 * len(entries) + 4
    for tag, values in sorted(entries.items()):
        payload = np.asarray(values).astype("<u4").tobytes()
        if len(payload) > 4:
            tail.append(payload)
            payload = np.array([end], "<u4").tobytes()
            end += 4 * len(values)
        table.append(np.array([tag, 4], "<u2").tobytes() + np.array([len(values)], "<u4").tobytes() + payload)
    head = b"II*\x00" + np.array([table_start], "<u4").tobytes()
    return b"".join([head, body, np.array([len(table)], "<u2").tobytes(), *table, bytes(4), *tail])


def _values(raw: np.ndarray, page: Page, samples: int) -> np.ndarray:
    """Convert bytes [height, blocks across, bytes per row] to values [height, blocks across, columns, bands]."""
    import numpy as np  # as above

    assert page.dtype is not None
    height, across, row = raw.shape
    size = page.dtype.itemsize
    if page.predictor == 3 and page.dtype.kind == "f":
        # Bytes are differences; in each row, the highest bytes of all values come first, then the next ones.
        total = np.cumsum(raw.reshape(height, across, -1, samples), axis=2, dtype=np.uint8)
        swapped = total.reshape(height, across, size, -1).transpose(0, 1, 3, 2)
        return np.ascontiguousarray(swapped).view(f">f{size}").astype(f"=f{size}").reshape(height, across, -1, samples)
    native = page.dtype.newbyteorder("=")
    if page.predictor == 2:
        words = np.ascontiguousarray(raw).view(f"{page.order}u{size}").astype(f"=u{size}")
        total = np.cumsum(words.reshape(height, across, -1, samples), axis=2, dtype=words.dtype)
        return total.view(native)
    if page.predictor != 1:
        raise Damaged
    values = np.ascontiguousarray(raw).view(page.dtype).astype(native)
    return values.reshape(height, across, row // (size * samples), samples)


def _orient(values: np.ndarray, orientation: int) -> np.ndarray:
    """Apply the orientation tag."""
    import numpy as np  # as above

    steps = _ORIENTATIONS.get(orientation, "")
    if "t" in steps:
        values = values.transpose(0, 2, 1)
    if "x" in steps:
        values = values[:, :, ::-1]
    if "y" in steps:
        values = values[:, ::-1]
    return np.ascontiguousarray(values)
