"""A photograph as it travels in a bundle: the visitor's own file without what it says about them.

- JPEG, PNG and WebP keep their compressed pixels and their colours' profile; place, time, camera, comments, thumbnails
  and whatever stands behind the picture are cut out. A JPEG that must be turned keeps that one number.
- A picture of bands becomes an NPY file of the same values; an NPY file holds nothing but values.
- Any other file, and one whose pixels would change without what is cut, becomes a PNG of the explained pixels.

Whatever travels is opened again and compared: it gives the very pixels of the file.
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from ui.engine.messages import Refused
from ui.serving import bands, npy, uploads

if TYPE_CHECKING:
    import numpy as np

ORIENTATION = 0x0112
PNG_START = b"\x89PNG\r\n\x1a\n"
PNG_KEPT = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT", b"cICP"}
WEBP_KEPT = {b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ICCP", b"ANIM", b"ANMF"}
WEBP_FLAGS = 0x08 | 0x04  # EXIF, XMP


class Unreadable(ValueError):
    """The file is not built as its format says: its pixels travel as PNG."""


@dataclass(frozen=True)
class Plain:
    """A file without metadata."""

    data: bytes
    suffix: str
    same_file: bool
    """Whether these are the compressed pixels that the visitor gave."""


def plain(data: bytes, channels: int) -> Plain:
    """What travels of an uploaded file, for a network of so many channels.

    Errors   Refused, as the picture's own
    """
    with uploads.decoding("TIFF"):
        values = bands.read(data, channels)
    if values is not None:
        return _values(data, values, channels)
    photo = uploads.open_picture(data)
    for start, suffix, cut in _CUTS:
        if data.startswith(start):
            with contextlib.suppress(Unreadable, struct.error, IndexError, Refused):
                short = cut(data)
                if _same(photo, uploads.open_picture(short)):
                    return Plain(short, suffix, True)
    file = io.BytesIO()
    photo.save(file, "PNG")
    return Plain(file.getvalue(), ".png", False)


def _same(one: Image.Image, other: Image.Image) -> bool:
    return one.size == other.size and one.tobytes() == other.tobytes()


def _values(data: bytes, values: np.ndarray, channels: int) -> Plain:
    """A picture of bands: as NPY, unless that would be read with other axes."""
    import numpy as np  # a tenth of a second that only raw pixels need

    if data.startswith(npy.START):
        return Plain(data, ".npy", True)
    file = io.BytesIO()
    np.save(file, values)
    try:
        again = npy.read(file.getvalue(), channels)
    except Refused:
        return Plain(data, ".tif", True)  # as many rows as bands: only the file itself says which are which
    same = again.shape == values.shape and again.tobytes() == values.tobytes()
    return Plain(file.getvalue(), ".npy", False) if same else Plain(data, ".tif", True)


# JPEG


def _jpeg(data: bytes) -> bytes:
    """Its own segments and its pixels, up to the end of the picture."""
    parts = [b"\xff\xd8"]
    if turned := _turned(data):
        parts.append(turned)
    for marker, segment in _segments(data):
        if marker == 0xE0 and segment[4:9] == b"JFIF\0":
            segment = b"\xff\xe0\0\x10" + segment[4:16] + b"\0\0"  # without its thumbnail
        elif marker == 0xEE and segment[4:9] == b"Adobe":
            segment = b"\xff\xee\0\x0e" + segment[4:16]
        elif marker == 0xFE or (0xE0 <= marker <= 0xEF and not (marker == 0xE2 and segment[4:16] == b"ICC_PROFILE\0")):
            continue
        parts.append(segment)
    return b"".join(parts)


def _turned(data: bytes) -> bytes:
    """An EXIF segment with nothing but the orientation, where that turns the picture."""
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as photo:
        number = photo.getexif().get(ORIENTATION, 1)
    if number not in range(2, 9):
        return b""
    exif = b"Exif\0\0" + struct.pack("<2sHIHHHIHHI", b"II", 42, 8, 1, ORIENTATION, 3, 1, number, 0, 0)
    return b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Marker and bytes of every segment after the first; the pixels are part of the segment before them."""
    at = 2
    while True:
        if data[at] != 0xFF:
            raise Unreadable
        while data[at + 1] == 0xFF:
            at += 1
        marker = data[at + 1]
        if marker == 0xD9:
            yield marker, data[at : at + 2]
            return
        end = at + 2 if marker == 1 or 0xD0 <= marker <= 0xD7 else at + 2 + int.from_bytes(data[at + 2 : at + 4])
        if end > len(data) or end < at + 2:
            raise Unreadable
        if marker == 0xDA:
            end = _scan(data, end)
        yield marker, data[at:end]
        at = end


def _scan(data: bytes, at: int) -> int:
    """Where the pixels end that begin here: at the next marker that is none of theirs."""
    while True:
        at = data.find(b"\xff", at)
        if at < 0 or at + 1 >= len(data):
            raise Unreadable
        if data[at + 1] == 0 or 0xD0 <= data[at + 1] <= 0xD7:
            at += 2
        elif data[at + 1] == 0xFF:
            at += 1
        else:
            return at


# PNG and WebP


def _png(data: bytes) -> bytes:
    parts, at = [PNG_START], len(PNG_START)
    while True:
        size, kind = struct.unpack_from(">I4s", data, at)
        end = at + size + 12
        if end > len(data):
            raise Unreadable
        if kind in PNG_KEPT:
            parts.append(data[at:end])
        if kind == b"IEND":
            return b"".join(parts)
        at = end


def _webp(data: bytes) -> bytes:
    whole = int.from_bytes(data[4:8], "little") + 8
    parts, at = [], 12
    while at + 8 <= min(whole, len(data)):
        kind, size = struct.unpack_from("<4sI", data, at)
        end = at + 8 + size + size % 2
        chunk = data[at:end]
        if kind == b"VP8X":
            chunk = chunk[:8] + bytes([chunk[8] & ~WEBP_FLAGS]) + chunk[9:]
        if kind in WEBP_KEPT:
            parts.append(chunk)
        at = end
    body = b"WEBP" + b"".join(parts)
    return b"RIFF" + struct.pack("<I", len(body)) + body


_CUTS: tuple[tuple[bytes, str, Callable[[bytes], bytes]], ...] = (
    (b"\xff\xd8\xff", ".jpg", _jpeg),
    (PNG_START, ".png", _png),
    (b"RIFF", ".webp", _webp),
)
