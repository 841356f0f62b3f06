"""Decode untrusted files to RGB images. All uploads are decoded here.

Names, types and sizes declared by a client are not trusted. The rules (limits are in `saliscope/limits.py`):

- The first bytes determine the format, out of a few decoders: a JPEG named x.txt is opened, HTML named x.png is not.
- Width and height in the header are checked before anything is decoded.
- EXIF orientation is applied, transparency is blended with white, colors are converted to sRGB, and only the first
  frame of an animation is used.
- 16-bit grayscale maps 0..65535 to 0..255 if the maximum is above 4095. Otherwise (12-bit cameras, depth maps), the
  result would be black, so the minimum and maximum of the image are used. Floats map 0..1 if they are in that range, or
  else their minimum and maximum. Non-finite values are set to the minimum.
- Large images are reduced (`limits.SIDE`), very large ones while decoding: JPEG by its decoder, PNG and TIFF in strips
  (`strips.py`).
- Truncated files are rejected.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image, features

from saliscope import limits
from saliscope.errors import Refused
from saliscope.images import parts, pixels, strips, tiff

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", *(("AVIF",) if features.check("avif") else ()))
_NAMES = ", ".join(name.replace("WEBP", "WebP") for name in FORMATS[:-1]) + " or " + FORMATS[-1]
_CHOOSE = f"Choose an image in {_NAMES} format."

NOT_FOUND = "The image is no longer on the server. Upload it again."
TOO_MUCH_MEMORY = (
    "Decoding the image needs more than {limit} MB of memory. Save a smaller copy, or save it as a plain JPEG or PNG."
)
TOO_SLOW = "Decoding the image takes too long. Save it again as a plain JPEG or PNG."
FOREIGN = "Only images that were uploaded here can be opened. Upload the file first."

NOTES = {
    "animated": "The file is an animation. Its first frame is used.",
    "transparent": "Parts of the image are transparent. They are filled with white.",
}
"""What is stated about an image, by the names in `info["notes"]` of an opened image."""

# Signatures (offset, bytes) of files that users upload by mistake, with a description.
_KINDS = (
    (0, b"%PDF", "a PDF document"),
    (0, b"PK\x03\x04", "a zip archive or an office document"),
    (0, b"PK\x05\x06", "a zip archive"),
    (0, (b"\x1f\x8b", b"7z\xbc\xaf", b"Rar!"), "a compressed archive"),
    (0, b"8BPS", "a Photoshop document"),
    (0, b"\x00\x00\x00\x0cjP", "a JPEG 2000 image"),
    (0, (b"\x00\x00\x00\x0cJXL", b"\xff\x0a"), "a JPEG XL image"),
    (0, b"\x00\x00\x01\x00", "an icon"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (4, (b"ftyphe", b"ftypmif1", b"ftypmsf1"), "a HEIC image (save it as JPEG first)"),
    (4, b"ftypcrx", "a raw camera image (save it as JPEG first)"),
    (4, b"ftyp", "a video"),
    (8, b"AVI ", "a video"),
    (0, b"\x1aE\xdf\xa3", "a video"),
    (8, b"WAVE", "an audio file"),
    (0, (b"ID3", b"OggS", b"fLaC"), "an audio file"),
    (0, (b"MZ", b"\x7fELF"), "a program"),
)
_SIGNATURES = (
    (0, b"\xff\xd8\xff", "JPEG"),
    (0, b"\x89PNG\r\n", "PNG"),
    (8, b"WEBP", "WebP"),
    (0, b"GIF8", "GIF"),
    (0, b"BM", "BMP"),
    (0, tiff.STARTS, "TIFF"),
    (4, b"ftypavi", "AVIF"),
)
_RUNS = (b"\1\0\0\0", b"\2\0\0\0")
"""The compressions of a BMP as runs of pixels."""
_large_lock = threading.Lock()
"""For large images, which are decoded one at a time."""
Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS or 0, limits.PIXELS)  # Pillow refuses twice as many


def open_image(source: str | os.PathLike[str] | bytes) -> Image.Image:
    """Return the image in a file or in bytes as RGB pixels.

    Returns  an RGB image, upright, on white, in sRGB; its shorter side is at most `limits.SIDE`. `info["notes"]` lists
             the names of the `NOTES` about it, if there are any
    Errors   Refused, with a message for the user
    """
    data = source if isinstance(source, bytes) else read(source)
    check_length(data)
    kind = _match(data, _SIGNATURES)
    if kind is None or (kind == "AVIF" and "AVIF" not in FORMATS):
        raise Refused(f"This file is {_describe(data)}, which is not supported. {_CHOOSE}")
    if _is_slow(kind, data):
        raise Refused(TOO_SLOW)
    with decoding(kind):
        return _decode(data)


@contextlib.contextmanager
def decoding(kind: str) -> Iterator[None]:
    """Convert all errors of a decoder to Refused; `kind` is the name of the format."""
    try:
        yield
    except Refused:
        raise
    except (_Timeout, TimeoutError):
        raise Refused(TOO_SLOW) from None
    except MemoryError:
        raise Refused(TOO_MUCH_MEMORY.format(limit=limits.DECODE_MEMORY // limits.MB)) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        most = limits.PIXELS // 10**6
        raise Refused(f"The image has too many pixels. The maximum is {most} million. Save a smaller copy.") from None
    except Exception as error:  # decoders raise many types of errors for damaged files
        raise Refused(
            f"This {kind} image is damaged or truncated. Save or download it again, or choose another one."
        ) from error


class TimedDecoder:
    """Decode the TIFF and PNG images in one file, all within the time limit of one image."""

    def __init__(self) -> None:
        self._end = time.monotonic() + limits.DECODE_SECONDS

    def __call__(self, data: bytes) -> Image.Image:
        """Return the decoded image, in its original mode."""
        with Image.open(_TimedBytes(data, self._end - time.monotonic()), formats=("TIFF", "PNG")) as image:
            image.load()
            return image.copy()


def upload_folder() -> Path:
    """Return the folder that the web server stores uploads in: Gradio's GRADIO_TEMP_DIR or its default."""
    return Path(os.environ.get("GRADIO_TEMP_DIR") or Path(tempfile.gettempdir()) / "gradio").resolve()


def inside_uploads(path: str | os.PathLike[str]) -> Path:
    """Return the uploaded file for a path sent by a client.

    Returns  the resolved path. Links are followed first, so that no link can lead out of Gradio's upload folder.
    Errors   Refused for anything else: another folder, a folder, a URL, or a value that is not a path
    """
    _check_name(path)
    folder = upload_folder()
    try:
        resolved = Path(path).resolve()
        inside, exists = resolved.is_relative_to(folder), resolved.exists()
    except (OSError, ValueError, RuntimeError):
        raise Refused(FOREIGN) from None
    if inside and resolved.is_file():
        return resolved
    raise Refused(FOREIGN if exists or not inside else NOT_FOUND)


def is_upload(path: str) -> bool:
    """Return whether a path is that of an uploaded file."""
    return Path(path).is_relative_to(upload_folder())


def _check_name(path: Any) -> None:
    """Refuse what is not the name of a file: open() would use a number as a file descriptor."""
    if not isinstance(path, (str, os.PathLike)):
        raise Refused(FOREIGN)
    if "://" in str(path) or str(path).startswith("data:"):
        raise Refused("Links are not supported. Download the image and upload the file.")


class _Timeout(BaseException):
    """Decoding takes too long. This is not an Exception, because decoders catch those."""


class _TimedBytes(io.BytesIO):
    """Bytes that raise `_Timeout` if they are read too late; every decoder reads in a loop over blocks."""

    def __init__(self, data: bytes, seconds: float) -> None:
        super().__init__(data)
        self._end = time.monotonic() + seconds

    def read(self, size: int | None = -1, /) -> bytes:
        if time.monotonic() > self._end:
            raise _Timeout
        return super().read(size)


def read(source: Any) -> bytes:
    """Return the bytes of a regular file, at most one byte more than the limit.

    Errors   Refused for a file that cannot be read, and for a file above the limit
    """
    if source is None or source == "":
        raise Refused(f"No image. {_CHOOSE}")
    _check_name(source)
    try:
        status = os.stat(source)
        if stat.S_ISDIR(status.st_mode):
            raise Refused(f"This is a folder, not an image. {_CHOOSE}")
        if not stat.S_ISREG(status.st_mode):  # a pipe would block, a device would be endless
            raise Refused(FOREIGN)
        if status.st_size > limits.FILE:
            raise Refused(too_large_file(status.st_size))
        with open(source, "rb") as file:
            return file.read(limits.FILE + 1)
    except Refused:
        raise
    except (OSError, ValueError):  # missing, unreadable, or an invalid name
        raise Refused(NOT_FOUND) from None


def check_length(data: bytes) -> None:
    """Refuse an empty file, and one with too many bytes.

    Errors   Refused
    """
    if not data:
        raise Refused(f"The file is empty. {_CHOOSE}")
    if len(data) > limits.FILE:
        raise Refused(too_large_file(len(data)))


def too_large_file(size: int) -> str:
    """Return the message for a file of too many bytes."""
    megabytes, limit = math.ceil(size / limits.MB * 10) / 10, limits.FILE // limits.MB
    return f"The file has {megabytes:.1f} MB. The maximum is {limit} MB. Save a smaller copy, for example as JPEG."


def _is_slow(kind: str, data: bytes) -> bool:
    """Return whether a file has so many parts that Pillow, which reads them in Python, takes seconds."""
    if kind == "BMP":
        return data[30:34] in _RUNS and len(data) > limits.RUNS
    if kind == "JPEG" and data.count(b"\xff\xda") > limits.SCANS:
        return True
    return any(total > limits.PARTS for total in itertools.accumulate(_costs(kind, data)))


def _costs(kind: str, data: bytes) -> Iterator[float]:
    """Yield how long reading takes for the segments of a JPEG, the chunks of a PNG, or the extensions of a GIF."""
    if kind == "JPEG":
        for marker, start, body, _ in parts.jpeg_segments(data):
            if marker == parts.START_OF_SCAN:
                return
            yield 1 + (body - start - 2) / 100  # fill bytes are read one by one
    elif kind == "PNG":
        costs = {b"IDAT": 1 / 20, b"fdAT": 1 / 20, b"iCCP": limits.PARTS // limits.PROFILES}
        yield from (costs.get(name, 1) for name, _, _ in parts.png_chunks(data))  # profiles are decompressed
    elif kind == "GIF":
        colors = data[10] if len(data) > 10 else 0
        at = 13 + (3 << ((colors & 7) + 1) if colors & 128 else 0)
        while data[at : at + 1] == b"\x21":
            at += 2
            yield 1
            while size := data[at] if at < len(data) else 0:
                at += 1 + size
                yield 1
            at += 1


def is_supported(data: bytes) -> bool:
    """Return whether a file starts like an image of a supported format."""
    return _match(data, _SIGNATURES) is not None


def _match(data: bytes, table: tuple[tuple[int, bytes | tuple[bytes, ...], str], ...]) -> str | None:
    return next((name for offset, start, name in table if data.startswith(start, offset)), None)


def _describe(data: bytes) -> str:
    """Return a description of a file that is not a supported image."""
    head = data[:2048].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in head:
        return "an SVG drawing"
    if b"<html" in head or head.startswith(b"<!doctype html"):
        return "a web page"
    if known := _match(data, _KINDS):
        return known
    with contextlib.suppress(UnicodeDecodeError):
        text = data[:2048].decode("utf-8", "strict" if len(data) <= 2048 else "ignore")
        if all(letter.isprintable() or letter in "\t\r\n\f" for letter in text):
            return "a text file"
    return "in an unknown format"


def _decode(data: bytes) -> Image.Image:
    with Image.open(_TimedBytes(data, limits.DECODE_SECONDS), formats=FORMATS) as image:
        check_size(*image.size)
        strips.check_pixels(image, data)
        size = reduced_size(*image.size)
        profile = image.info.get("icc_profile")
        with _large_lock if image.width * image.height > limits.HUGE else contextlib.nullcontext():
            image.draft(image.mode, size)  # only has an effect for JPEG
            if strips.is_too_large(image):
                plain, orientation = strips.reduce_image(image, data, size)
            else:
                image.load()
                plain, orientation = pixels.eight_bits(image), pixels.orientation(image)
                if plain.size != size:
                    plain = plain.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
        # The other images in a JPEG are previews, and those in a TIFF are pages.
        animated = image.format in ("GIF", "PNG", "WEBP", "AVIF") and getattr(image, "is_animated", False)
    upright = pixels.on_white(plain, profile)
    if orientation is not None:
        upright = upright.transpose(orientation)
    found = {"animated": animated, "transparent": pixels.is_transparent(plain)}
    notes = [name for name, holds in found.items() if holds]
    upright.info = {"notes": notes} if notes else {}
    return upright


def reduced_size(width: int, height: int) -> tuple[int, int]:
    """Return the size to which an image is reduced."""
    scale = min(1.0, limits.SIDE / min(width, height), math.sqrt(limits.WORK_PIXELS / (width * height)))
    return max(1, round(width * scale)), max(1, round(height * scale))


def check_size(width: int, height: int, most: int = limits.PIXELS) -> None:
    """Refuse images with too many pixels, and very elongated images.

    Errors   Refused
    """
    size = f"The image has {width} x {height} pixels."
    if width * height > most:
        raise Refused(f"{size} The maximum is {most // 10**6} million pixels. Save a smaller copy.")
    if max(width, height) > limits.RATIO * min(width, height):
        raise Refused(f"{size} One side may be at most {limits.RATIO} times the other. Crop it.")
