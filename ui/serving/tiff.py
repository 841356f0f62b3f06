"""TIFF files of bands: their tags are read here, their blocks decompressed by Pillow.

Pillow opens a TIFF whose samples make a colour, and refuses five bands of 16 bits. So a page's strips or tiles are
handed to it as one grey picture of bytes, which every decompressor takes; what the bytes mean (type, byte order,
interleaved or separate bands, predictor) is undone here. Sizes are checked before anything is decoded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image

from ui import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

STARTS = (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")
COMPRESSIONS = {1, 5, 8, 32773, 32946, 34925, 50000}
"""None, LZW, Deflate (two numbers), PackBits, LZMA, Zstandard: those that know bytes and not pixels."""
MOST_BLOCKS = 100_000
_INTEGERS = {1: "u1", 3: "u2", 4: "u4", 16: "u8"}
_KINDS = {1: "u", 2: "i", 3: "f"}
_ORIENTATIONS = {1: "", 2: "x", 3: "xy", 4: "y", 5: "t", 6: "tx", 7: "txy", 8: "ty"}
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _COLOURS, _ORDER = 256, 257, 258, 259, 262, 266
_STRIPS, _TURN, _SAMPLES, _ROWS, _STRIP_SIZES, _LAYOUT = 273, 274, 277, 278, 279, 284
_PREDICTOR, _TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_SIZES, _EXTRAS, _FORMAT = 317, 322, 323, 324, 325, 338, 339
_WANTED = {254, _WIDTH, _HEIGHT, _BITS, _COMPRESSION, _COLOURS, _ORDER, _STRIPS, _TURN, _SAMPLES, _ROWS, _STRIP_SIZES}
_WANTED |= {_LAYOUT, _PREDICTOR, _TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_SIZES, _EXTRAS, _FORMAT}


class Damaged(ValueError):
    """A file whose tags do not describe its bytes."""


@dataclass(frozen=True)
class Page:
    """One picture of a file, as its tags declare it."""

    width: int
    height: int
    samples: int
    dtype: np.dtype[Any] | None
    """None for samples that are no array's: of one, ten or twelve bits, or of different types."""
    order: str
    compression: int
    predictor: int
    separate: bool
    """Whether each band has blocks of its own."""
    colours: int
    """Photometric interpretation: 0 and 1 grey, 2 RGB, 3 palette, 5 CMYK, 6 YCbCr, 8 Lab."""
    alpha: bool
    extras: int
    turn: int
    overview: bool
    """A smaller copy of another page, or a mask."""
    block: tuple[int, int]
    """Width and height of a tile; of a strip the width is the picture's."""
    tiled: bool
    offsets: np.ndarray
    sizes: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Bands, height and width."""
        return self.samples, self.height, self.width

    @property
    def values(self) -> int:
        """Numbers in the page."""
        return math.prod(self.shape)

    @property
    def readable(self) -> bool:
        """Whether `bands` reads it."""
        return self.dtype is not None and self.compression in COMPRESSIONS and self.predictor in (1, 2, 3)


def pages(data: bytes) -> list[Page]:
    """The pages of a TIFF or BigTIFF file, at most one over `limits.BANDS`; no pixel is read.

    Errors   Damaged
    """
    import numpy as np  # a tenth of a second that only raw pixels need

    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\x00", b"\x00+")
    word, count, entry = ("u8", "u8", 20) if big else ("u4", "u2", 12)

    def numbers(kind: str, at: int, length: int = 1) -> np.ndarray:
        size = np.dtype(kind).itemsize * length
        if at < 0 or length < 0 or at + size > len(data):
            raise Damaged
        return np.frombuffer(data, order + kind, length, at).astype("i8")

    def first(kind: str, at: int) -> int:
        return int(numbers(kind, at)[0])

    found: list[Page] = []
    seen: set[int] = set()
    at = first(word, 8 if big else 4)
    while at and at not in seen and len(found) <= limits.BANDS:
        seen.add(at)
        tags: dict[int, np.ndarray] = {}
        begin, length = at + np.dtype(count).itemsize, first(count, at)
        if length > 1000:
            raise Damaged
        for place in range(begin, begin + entry * length, entry):
            tag, kind, many = first("u2", place), first("u2", place + 2), first(word, place + 4)
            if tag in _WANTED and kind in _INTEGERS:
                field = place + entry - np.dtype(word).itemsize
                inside = np.dtype(_INTEGERS[kind]).itemsize * many <= np.dtype(word).itemsize
                tags[tag] = numbers(_INTEGERS[kind], field if inside else first(word, field), many)
        found.append(_page(tags, order))
        at = first(word, begin + entry * length)
    if not found:
        raise Damaged
    return found


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
        colours=tag(_COLOURS, 1),
        alpha=bool(len(extras)) and int(extras[0]) in (1, 2),
        extras=len(extras),
        turn=tag(_TURN, 1),
        overview=bool(tag(254, 0) & 5),
        block=block,
        tiled=tiled,
        offsets=tags.get(_TILES if tiled else _STRIPS, np.array([], "i8")),
        sizes=tags.get(_TILE_SIZES if tiled else _STRIP_SIZES, np.array([], "i8")),
    )


def bands(data: bytes, page: Page, opened: Callable[[bytes], Image.Image]) -> np.ndarray:
    """The page's values [samples, height, width] in the machine's byte order, upright.

    `opened` decodes a picture under the limits of every upload.

    Errors   Damaged, and those of Pillow
    """
    import numpy as np  # as above

    assert page.dtype is not None
    planes, each = (page.samples, 1) if page.separate else (1, page.samples)
    across, down = -(-page.width // page.block[0]), -(-page.height // page.block[1])
    blocks = across * down
    if not len(page.offsets) == len(page.sizes) == blocks * planes <= MOST_BLOCKS:
        raise Damaged
    row = page.block[0] * each * page.dtype.itemsize
    if row * across * page.height > 2 * limits.BAND_BYTES:  # tiles far larger than the picture
        raise Damaged
    found = np.empty((page.samples, page.height, page.width), page.dtype.newbyteorder("="))
    for plane in range(planes):
        part = slice(plane * blocks, (plane + 1) * blocks)
        packed = _grey(data, page, part, row, across)
        picture = opened(packed)
        if picture.size != (row * across, page.height) or picture.mode != "L":
            raise Damaged
        raw = np.asarray(picture).reshape(page.height, across, row)
        values = _values(raw, page, each).reshape(page.height, -1, each)[:, : page.width]
        found[plane * each : (plane + 1) * each] = values.transpose(2, 0, 1)
    return _upright(found, page.turn)


def _grey(data: bytes, page: Page, part: slice, row: int, across: int) -> bytes:
    """A TIFF file of one grey picture, whose pixels are the bytes of these blocks."""
    import numpy as np  # as above

    offsets, sizes = page.offsets[part], page.sizes[part]
    ends = offsets + sizes
    outside = (offsets < 0) | (offsets > len(data)) | (sizes < 1) | (sizes > len(data)) | (ends > len(data))
    if outside.any() or sizes.sum() > len(data):
        raise Damaged  # blocks outside the file, or a block that is used again and again
    body = b"".join(data[start:end] for start, end in zip(offsets.tolist(), ends.tolist(), strict=True))
    begin = 8 + len(body)
    places = 8 + np.concatenate([[0], np.cumsum(sizes)[:-1]])
    entries = {_WIDTH: [row * across], _HEIGHT: [page.height], _BITS: [8], _COMPRESSION: [page.compression]}
    entries |= {_COLOURS: [1], _SAMPLES: [1]}
    if page.tiled:
        entries |= {_TILE_WIDTH: [row], _TILE_HEIGHT: [page.block[1]], _TILES: places, _TILE_SIZES: sizes}
    else:
        entries |= {_STRIPS: places, _ROWS: [page.block[1]], _STRIP_SIZES: sizes}
    table, tail = [], []
    end = begin + 2 + 12 * len(entries) + 4
    for tag, values in sorted(entries.items()):
        words = np.asarray(values).astype("<u4").tobytes()
        if len(words) > 4:
            tail.append(words)
            words = np.array([end], "<u4").tobytes()
            end += 4 * len(values)
        table.append(np.array([tag, 4], "<u2").tobytes() + np.array([len(values)], "<u4").tobytes() + words)
    head = b"II*\x00" + np.array([begin], "<u4").tobytes()
    return b"".join([head, body, np.array([len(table)], "<u2").tobytes(), *table, bytes(4), *tail])


def _values(raw: np.ndarray, page: Page, each: int) -> np.ndarray:
    """Bytes [height, blocks across, bytes of a row] as values [height, blocks across, columns, bands]."""
    import numpy as np  # as above

    assert page.dtype is not None
    height, across, row = raw.shape
    size = page.dtype.itemsize
    if page.predictor == 3 and page.dtype.kind == "f":
        # Bytes are differences; of each row all highest bytes come first, then all next ones.
        total = np.cumsum(raw.reshape(height, across, -1, each), axis=2, dtype=np.uint8)
        mixed = total.reshape(height, across, size, -1).transpose(0, 1, 3, 2)
        return np.ascontiguousarray(mixed).view(f">f{size}").astype(f"=f{size}").reshape(height, across, -1, each)
    native = page.dtype.newbyteorder("=")
    if page.predictor == 2:
        words = np.ascontiguousarray(raw).view(f"{page.order}u{size}").astype(f"=u{size}")
        total = np.cumsum(words.reshape(height, across, -1, each), axis=2, dtype=words.dtype)
        return total.view(native)
    if page.predictor != 1:
        raise Damaged
    return np.ascontiguousarray(raw).view(page.dtype).astype(native).reshape(height, across, row // (size * each), each)


def _upright(values: np.ndarray, turn: int) -> np.ndarray:
    """As the file's orientation tag asks."""
    import numpy as np  # as above

    steps = _ORIENTATIONS.get(turn, "")
    if "t" in steps:
        values = values.transpose(0, 2, 1)
    if "x" in steps:
        values = values[:, :, ::-1]
    if "y" in steps:
        values = values[:, ::-1]
    return np.ascontiguousarray(values)
