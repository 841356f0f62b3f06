"""Untrusted bytes in, RGB pixels out: the one place where a visitor's file is decoded.

No name, type or size that a client declares is trusted. The rules (figures in `ui/limits.py`):

- The first bytes decide the format, among a few decoders: a JPEG called x.txt opens, a page called x.png does not.
- Width and height are checked in the header, before anything is decoded.
- EXIF orientation is applied, transparency blended onto white, colours converted to sRGB, of animations the first frame
  taken.
- 16-bit greys map 0..65535 to 0..255 where their maximum is above 4095. Otherwise (12-bit cameras, depth maps), where
  that would be black, their own minimum..maximum. Floats map 0..1 where they lie in it, else minimum..maximum.
  Values that are not finite count as the minimum.
- Large pictures are reduced (`limits.SIDE`), JPEGs while they are decoded.
- A truncated file is refused.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageCms, features

from ui import limits
from ui.engine.messages import Refused

if TYPE_CHECKING:
    import numpy as np

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", *(("AVIF",) if features.check("avif") else ()))
_NAMES = ", ".join(name.replace("WEBP", "WebP") for name in FORMATS[:-1]) + " or " + FORMATS[-1]
_CHOOSE = f"Choose a photograph in {_NAMES} format."

NOTHING = f"There is no picture yet. {_CHOOSE}"
NOT_FOUND = "The picture is no longer on the server. Upload it again."
FOLDER = f"This is a folder, not a picture. {_CHOOSE}"
EMPTY = f"The file is empty. {_CHOOSE}"
TOO_HEAVY = "The file has {megabytes:.1f} MB; at most {limit} MB are read. Save it smaller, for example as JPEG."
TOO_LARGE = "The picture declares {width} x {height} pixels; at most {limit} million are read. Save it smaller."
TOO_LARGE_UNSEEN = "The picture declares more pixels than are read here ({limit} million). Save it smaller."
TOO_NARROW = "The picture is {width} x {height} pixels; one side may be at most {limit} times the other. Crop it."
TOO_SLOW = "The picture takes too long to read. Save it again as a plain JPEG or PNG."
NOT_A_PICTURE = "This file is {kind}, which cannot be explained. {choose}"
DAMAGED = "This {kind} picture is damaged or ends too early. Save or download it again, or choose another one."
FOREIGN = "Only a picture that was uploaded here can be opened. Upload the file first."
LINK = "Links are not opened. Download the picture and upload the file."

# Signatures (offset, bytes) of what people upload by mistake, and its name.
_KINDS = (
    (0, b"%PDF", "a PDF document"),
    (0, b"PK\x03\x04", "a zip archive or an office document"),
    (0, b"PK\x05\x06", "a zip archive"),
    (0, b"\x1f\x8b", "a compressed archive"),
    (0, b"7z\xbc\xaf", "a compressed archive"),
    (0, b"Rar!", "a compressed archive"),
    (0, b"8BPS", "a Photoshop document"),
    (0, b"\x00\x00\x00\x0cjP", "a JPEG 2000 picture"),
    (0, b"\x00\x00\x00\x0cJXL", "a JPEG XL picture"),
    (0, b"\xff\x0a", "a JPEG XL picture"),
    (0, b"\x00\x00\x01\x00", "an icon"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (4, b"ftyphe", "a HEIC picture (save it as JPEG first)"),
    (4, b"ftypmif1", "a HEIC picture (save it as JPEG first)"),
    (4, b"ftypmsf1", "a HEIC picture (save it as JPEG first)"),
    (4, b"ftypcrx", "a raw camera picture (save it as JPEG first)"),
    (4, b"ftyp", "a video"),
    (8, b"AVI ", "a video"),
    (0, b"\x1aE\xdf\xa3", "a video"),
    (8, b"WAVE", "an audio file"),
    (0, b"ID3", "an audio file"),
    (0, b"OggS", "an audio file"),
    (0, b"fLaC", "an audio file"),
    (0, b"MZ", "a program"),
    (0, b"\x7fELF", "a program"),
)
_SIGNATURES = (
    (0, b"\xff\xd8\xff", "JPEG"),
    (0, b"\x89PNG\r\n", "PNG"),
    (8, b"WEBP", "WebP"),
    (0, b"GIF8", "GIF"),
    (0, b"BM", "BMP"),
    (0, b"II*\x00", "TIFF"),
    (0, b"MM\x00*", "TIFF"),
    (0, b"II+\x00", "TIFF"),
    (0, b"MM\x00+", "TIFF"),
    (4, b"ftypavi", "AVIF"),
)
_ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_one_large = threading.Lock()


def open_picture(source: str | os.PathLike[str] | bytes) -> Image.Image:
    """The photograph in a file or in bytes, as RGB pixels that can be shown and explained.

    Returns  an RGB picture, upright, on white, in sRGB; its shorter side is at most `limits.SIDE`.
    Errors   Refused, with a sentence for the visitor.
    """
    data = source if isinstance(source, bytes) else read(source)
    if not data:
        raise Refused(EMPTY)
    if len(data) > limits.FILE:
        raise Refused(_too_heavy(len(data)))
    kind = _match(data, _SIGNATURES)
    if kind is None or (kind == "AVIF" and "AVIF" not in FORMATS):
        raise Refused(NOT_A_PICTURE.format(kind=_kind(data), choose=_CHOOSE))
    if kind == "JPEG" and data.count(b"\xff\xda") > limits.SCANS:
        raise Refused(TOO_SLOW)
    with decoding(kind):
        return _decode(data)


@contextlib.contextmanager
def decoding(kind: str) -> Iterator[None]:
    """Every error of a decoder becomes a sentence, Refused; `kind` names the format."""
    try:
        yield
    except Refused:
        raise
    except _Timeout:
        raise Refused(TOO_SLOW) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, MemoryError):
        raise Refused(TOO_LARGE_UNSEEN.format(limit=limits.PIXELS // 10**6)) from None
    except Exception as error:  # damaged files make decoders raise a dozen kinds of error
        raise Refused(DAMAGED.format(kind=kind)) from error


def one_large(values: int) -> contextlib.AbstractContextManager[object]:
    """Large pictures are decoded one at a time."""
    return _one_large if values > limits.HUGE else contextlib.nullcontext()


class Timed:
    """Decodes the TIFF and PNG pictures of one file, all of them within the time of one."""

    def __init__(self) -> None:
        self._end = time.monotonic() + limits.DECODE_SECONDS

    def __call__(self, data: bytes) -> Image.Image:
        """The loaded picture, in its own mode."""
        with Image.open(_TimedBytes(data, self._end - time.monotonic()), formats=("TIFF", "PNG")) as picture:
            picture.load()
            return picture.copy()


def inside_uploads(path: str | os.PathLike[str]) -> Path:
    """The file behind a path that a client sent, if it is one that a visitor uploaded.

    Returns  the resolved path: links are followed first, so that none leads out of Gradio's upload folder.
    Errors   Refused for anything else: another folder, a folder, a link to a web page, something that is no path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise Refused(FOREIGN)
    if "://" in str(path) or str(path).startswith("data:"):
        raise Refused(LINK)
    from gradio.utils import get_upload_folder  # gradio comes after gradio_setup, which the page imports

    folder = Path(get_upload_folder()).resolve()
    try:
        resolved = Path(path).resolve(strict=True)
    except FileNotFoundError:
        inside = Path(os.path.abspath(path)).is_relative_to(folder)
        raise Refused(NOT_FOUND if inside else FOREIGN) from None
    except (OSError, ValueError, RuntimeError):
        raise Refused(FOREIGN) from None
    if not resolved.is_relative_to(folder) or not resolved.is_file():
        raise Refused(FOREIGN)
    return resolved


class _Timeout(Exception):
    """Decoding takes too long. Not an OSError: decoders catch those."""


class _TimedBytes(io.BytesIO):
    """Bytes that raise `_Timeout` when read too late: every decoder's loop over blocks reads."""

    def __init__(self, data: bytes, seconds: float) -> None:
        super().__init__(data)
        self._end = time.monotonic() + seconds

    def read(self, size: int | None = -1, /) -> bytes:
        if time.monotonic() > self._end:
            raise _Timeout
        return super().read(size)


def read(source: Any) -> bytes:
    """The bytes of a regular file, never more than one over the limit.

    Errors   Refused for what is no readable file, and for one over the limit
    """
    if source is None or source == "":
        raise Refused(NOTHING)
    if not isinstance(source, (str, os.PathLike)):  # a number would be taken for an open file
        raise Refused(FOREIGN)
    if "://" in str(source) or str(source).startswith("data:"):
        raise Refused(LINK)
    try:
        status = os.stat(source)
        if stat.S_ISDIR(status.st_mode):
            raise Refused(FOLDER)
        if not stat.S_ISREG(status.st_mode):  # a pipe would block, a device would never end
            raise Refused(FOREIGN)
        if status.st_size > limits.FILE:
            raise Refused(_too_heavy(status.st_size))
        with open(source, "rb") as file:
            return file.read(limits.FILE + 1)
    except Refused:
        raise
    except (OSError, ValueError):  # missing, unreadable, or a name that no file can have
        raise Refused(NOT_FOUND) from None


def _too_heavy(size: int) -> str:
    return TOO_HEAVY.format(megabytes=math.ceil(size / limits.MB * 10) / 10, limit=limits.FILE // limits.MB)


def _match(data: bytes, table: tuple[tuple[int, bytes, str], ...]) -> str | None:
    return next((name for offset, start, name in table if data.startswith(start, offset)), None)


def _kind(data: bytes) -> str:
    """The name of a kind of file that is no picture."""
    head = data[:2048].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in head:
        return "an SVG drawing"
    if b"<html" in head or head.startswith(b"<!doctype html"):
        return "a web page"
    known = _match(data, _KINDS)
    if known:
        return known
    with contextlib.suppress(UnicodeDecodeError):
        text = data[:2048].decode("utf-8", "strict" if len(data) <= 2048 else "ignore")
        if all(letter.isprintable() or letter in "\t\r\n\f" for letter in text):
            return "a text file"
    return "not a picture of a known format"


def _decode(data: bytes) -> Image.Image:
    with Image.open(_TimedBytes(data, limits.DECODE_SECONDS), formats=FORMATS) as picture:
        width, height = picture.size
        check_size(width, height)
        scale = min(1.0, limits.SIDE / min(width, height), math.sqrt(limits.WORK_PIXELS / (width * height)))
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        profile = picture.info.get("icc_profile")
        with one_large(width * height):
            picture.draft(picture.mode, size)  # JPEG alone listens
            picture.load()
            orientation = _orientation(picture)
            plain = _eight_bits(picture)
            if plain.size != size:
                plain = plain.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
    upright = _on_white(plain, profile)
    if orientation is not None:
        upright = upright.transpose(orientation)
    upright.info = {}
    return upright


def check_size(width: int, height: int) -> None:
    """Errors   Refused for more pixels than are read, and for pictures that are nearly lines"""
    if width * height > limits.PIXELS:
        raise Refused(TOO_LARGE.format(width=width, height=height, limit=limits.PIXELS // 10**6))
    if max(width, height) > limits.RATIO * min(width, height):
        raise Refused(TOO_NARROW.format(width=width, height=height, limit=limits.RATIO))


def _orientation(picture: Image.Image) -> Image.Transpose | None:
    """From EXIF, read after loading (Pillow turns TIFF itself); None where EXIF is missing or broken."""
    try:
        return _ORIENTATIONS.get(picture.getexif().get(0x0112, 1))
    except _Timeout:
        raise
    except Exception:
        return None


def _eight_bits(picture: Image.Image) -> Image.Image:
    """The picture with 8 bits per channel, in a mode that can be resized: L, LA, RGB, RGBA or CMYK."""
    if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
        return _stretch(picture)
    if picture.mode in ("PA", "RGBa") or (picture.mode == "P" and "transparency" in picture.info):
        return picture.convert("RGBA")
    if picture.mode in ("1", "L", "RGB") and "transparency" in picture.info:
        return picture.convert("RGBA")
    if picture.mode == "La":
        return picture.convert("LA")
    if picture.mode == "1":
        return picture.convert("L")
    return picture if picture.mode in ("L", "LA", "RGB", "RGBA", "CMYK") else picture.convert("RGB")


def _stretch(picture: Image.Image) -> Image.Image:
    """16-bit, 32-bit and float greys as 8 bits, in bands of rows to save a second copy."""
    import numpy as np  # a tenth of a second that only raw pixels need

    deep = np.asarray(picture)
    low, high = _range(deep)
    factor = 255.0 / (high - low) if high > low else 0.0
    shallow = np.empty(deep.shape, np.uint8)
    for top in range(0, len(deep), 256):
        band = deep[top : top + 256].astype(np.float64)
        band = np.where(np.isfinite(band), band, low)
        shallow[top : top + 256] = ((band - low) * factor).clip(0, 255).round()
    plain = Image.fromarray(shallow)
    key = picture.info.get("transparency")
    if not isinstance(key, int):
        return plain
    plain.putalpha(Image.fromarray(np.where(deep == key, 0, 255).astype(np.uint8)))
    return plain


def _range(deep: np.ndarray) -> tuple[float, float]:
    """The values of black and white: the type's range where the values use it, else their own."""
    import numpy as np  # a tenth of a second that only raw pixels need

    finite = deep if deep.dtype.kind != "f" else deep[np.isfinite(deep)]
    if finite.size == 0:
        return 0.0, 0.0
    low, high = float(finite.min()), float(finite.max())
    full = 1.0 if deep.dtype.kind == "f" else 65535.0
    return (0.0, full) if low >= 0 and full / 16 < high <= full else (low, high)


def _on_white(picture: Image.Image, profile: object) -> Image.Image:
    """Colours to sRGB, then transparency blended onto white, which is white in sRGB."""
    alpha = picture.getchannel("A") if picture.mode in ("LA", "RGBA") else None
    colours = picture.convert(picture.mode.rstrip("A")) if alpha else picture
    colours = _to_srgb(colours, profile)
    if alpha is None:
        return colours
    white = Image.new("RGB", colours.size, "white")
    white.paste(colours, mask=alpha)
    return white


def _to_srgb(picture: Image.Image, profile: object) -> Image.Image:
    """The picture in sRGB; a profile that is broken, too large or of another mode is ignored."""
    if isinstance(profile, bytes) and 0 < len(profile) <= limits.PROFILE:
        with contextlib.suppress(ImageCms.PyCMSError, OSError, ValueError, TypeError):
            source = ImageCms.getOpenProfile(io.BytesIO(profile))
            if "sRGB" not in ImageCms.getProfileDescription(source):
                turned = ImageCms.profileToProfile(picture, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
                if turned is not None:
                    return turned
    return picture.convert("RGB")
