"""Remove the metadata of an image before it is stored in a bundle.

- JPEG, PNG and WebP files keep their compressed pixels and their color profile. Location, time, camera, comments,
  thumbnails and any data after the image are removed. A rotated JPEG keeps its orientation tag.
- An image with bands becomes an NPY file with the same values; NPY files contain only values.
- Any other file, and a file whose pixels would change without its metadata, becomes a PNG of the explained pixels.

The resulting file is decoded again and compared: its pixels are exactly those of the original file.
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from saliscope.errors import Refused
from saliscope.images import bands, npy, parts, pixels, uploads

SUFFIXES = (".jpg", ".png", ".webp", ".npy", ".tif")
"""The suffixes of files without metadata."""
PNG_START = b"\x89PNG\r\n\x1a\n"
PNG_KEPT = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT", b"cICP"}
WEBP_KEPT = {b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ICCP", b"ANIM", b"ANMF"}
WEBP_FLAGS = 0x08 | 0x04  # EXIF, XMP


@dataclass(frozen=True)
class StrippedFile:
    """A file without metadata."""

    data: bytes
    suffix: str
    same_file: bool
    """Whether the compressed pixels are those of the uploaded file."""


def strip_metadata(data: bytes, channels: int) -> StrippedFile:
    """Return an uploaded file without metadata, for a network with this number of channels.

    Errors   Refused, if the image cannot be decoded
    """
    values = bands.read(data, channels)
    if values is not None:
        return _strip_bands(data, values, channels)
    image = uploads.open_image(data)
    for start, suffix, cut in _CUTS:
        if data.startswith(start):
            with contextlib.suppress(IndexError, Refused):
                short = cut(data)
                found = uploads.open_image(short)
                if (found.size, found.tobytes()) == (image.size, image.tobytes()):
                    return StrippedFile(short, suffix, True)
    return StrippedFile(pixels.encode(image, "PNG"), ".png", False)


def _strip_bands(data: bytes, values: np.ndarray, channels: int) -> StrippedFile:
    """Return an image with bands as NPY, or unchanged if an NPY file would be read with other axes."""
    if data.startswith(npy.START):
        return StrippedFile(data, ".npy", True)
    file = io.BytesIO()
    np.save(file, values)
    with contextlib.suppress(Refused):  # as many rows as bands, so NPY would be ambiguous
        if np.array_equal(npy.read(file.getvalue(), channels), values, equal_nan=True):
            return StrippedFile(file.getvalue(), ".npy", False)
    return StrippedFile(data, ".tif", True)


# JPEG


def _jpeg(data: bytes) -> bytes:
    """Return the required segments and the pixels, up to the end of the image; nothing if it has no end."""
    kept = [b"\xff\xd8", _orientation_segment(data)]
    for marker, _, body, end in parts.jpeg_segments(data):
        segment = data[body if marker == parts.PIXELS else body - 2 : end]
        if marker == 0xE0 and segment[4:9] == b"JFIF\0":
            segment = b"\xff\xe0\0\x10" + segment[4:16] + b"\0\0"  # without its thumbnail
        elif marker == 0xEE and segment[4:9] == b"Adobe":
            segment = b"\xff\xee\0\x0e" + segment[4:16]
        elif marker == 0xFE or (0xE0 <= marker <= 0xEF and not (marker == 0xE2 and segment[4:16] == b"ICC_PROFILE\0")):
            continue
        kept.append(segment)
    return b"".join(kept) if kept[-1] == b"\xff\xd9" else b""


def _orientation_segment(data: bytes) -> bytes:
    """Return an EXIF segment with only the orientation, or nothing if the image is upright."""
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        turn = pixels.orientation(image)
    if turn is None:
        return b""
    number = next(number for number, each in pixels.ORIENTATIONS.items() if each == turn)
    exif = b"Exif\0\0" + struct.pack("<2sHIHHHIHHI", b"II", 42, 8, 1, pixels.ORIENTATION, 3, 1, number, 0, 0)
    return b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif


# PNG and WebP


def _png(data: bytes) -> bytes:
    """Return the required chunks up to the end of the image; nothing if it has no end."""
    kept = [PNG_START]
    for name, start, end in parts.png_chunks(data):
        if name in PNG_KEPT and end <= len(data):
            kept.append(data[start:end])
            if name == b"IEND":
                return b"".join(kept)
    return b""


def _webp(data: bytes) -> bytes:
    whole = int.from_bytes(data[4:8], "little") + 8
    kept, start = [], 12
    while start + 8 <= min(whole, len(data)):
        kind, size = struct.unpack_from("<4sI", data, start)
        end = start + 8 + size + size % 2
        chunk = data[start:end]
        if kind == b"VP8X":
            chunk = chunk[:8] + bytes([chunk[8] & ~WEBP_FLAGS]) + chunk[9:]
        if kind in WEBP_KEPT:
            kept.append(chunk)
        start = end
    body = b"WEBP" + b"".join(kept)
    return b"RIFF" + struct.pack("<I", len(body)) + body


_CUTS: tuple[tuple[bytes, str, Callable[[bytes], bytes]], ...] = (
    (b"\xff\xd8\xff", ".jpg", _jpeg),
    (PNG_START, ".png", _png),
    (b"RIFF", ".webp", _webp),
)
