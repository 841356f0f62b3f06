"""Conversions of decoded pixels: 8 bits per channel, sRGB, on white."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from saliscope import limits

Range = tuple[float, float]
"""The values of black and white."""

ORIENTATION = 0x0112
"""The tag of EXIF and TIFF."""
ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def orientation(image: Image.Image) -> Image.Transpose | None:
    """Return the EXIF orientation, read after loading because Pillow rotates TIFF; None if missing or invalid."""
    with contextlib.suppress(Exception):  # of any type, for a damaged tag
        return ORIENTATIONS.get(image.getexif().get(ORIENTATION, 1))
    return None


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return an image as the bytes of a file of this format."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixel_hash(image: Image.Image) -> str:
    """Return the SHA-256 hash of the RGB values of an image."""
    return hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()


def eight_bits(image: Image.Image, shown: Range | None = None) -> Image.Image:
    """Return the image with 8 bits per channel, in a mode that can be resized: L, LA, RGB, RGBA or CMYK.

    `shown` is the range of a grayscale image with more than 8 bits; by default that of this image.
    """
    if is_deep(image):
        return _stretch(image, shown or range_of([image]))
    if image.mode in ("PA", "RGBa") or (image.mode in ("1", "L", "P", "RGB") and "transparency" in image.info):
        return image.convert("RGBA")
    if image.mode == "La":
        return image.convert("LA")
    if image.mode == "1":
        return image.convert("L")
    return image if image.mode in ("L", "LA", "RGB", "RGBA", "CMYK") else image.convert("RGB")


def is_deep(image: Image.Image) -> bool:
    """Return whether this is a grayscale image with more than 8 bits."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def _stretch(image: Image.Image, shown: Range) -> Image.Image:
    """Return 16-bit, 32-bit and float grayscale as 8 bits, converted in blocks of rows to save memory."""
    values = np.asarray(image)
    low, high = shown
    factor = 255.0 / (high - low) if high > low else 0.0
    shallow = np.empty(values.shape, np.uint8)
    for top in range(0, len(values), 256):
        band = values[top : top + 256].astype(np.float64)
        band = np.where(np.isfinite(band), band, low)
        shallow[top : top + 256] = ((band - low) * factor).clip(0, 255).round()
    plain = Image.fromarray(shallow)
    key = image.info.get("transparency")
    if isinstance(key, int):
        plain.putalpha(Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8)))
    return plain


def range_of(images: Iterable[Image.Image]) -> Range:
    """Return the values of black and white: the range of the type if the values use it, or else their own range."""
    ends: list[float] = []
    full = 65535.0
    for image in images:
        values = np.asarray(image)
        if values.dtype.kind == "f":
            values, full = values[np.isfinite(values)], 1.0
        if values.size:
            ends += [float(values.min()), float(values.max())]
    low, high = (min(ends), max(ends)) if ends else (0.0, 0.0)
    return (0.0, full) if low >= 0 and full / 16 < high <= full else (low, high)


def is_transparent(image: Image.Image) -> bool:
    """Return whether any pixel is transparent, also in part."""
    return image.mode in ("LA", "RGBA") and any(image.getchannel("A").histogram()[:255])


def on_white(image: Image.Image, profile: object) -> Image.Image:
    """Convert colors to sRGB, and then blend transparency with white in sRGB."""
    if image.mode not in ("LA", "RGBA"):
        return _to_srgb(image, profile)
    white = Image.new("RGB", image.size, "white")
    white.paste(_to_srgb(image.convert(image.mode.rstrip("A")), profile), mask=image.getchannel("A"))
    return white


def _to_srgb(image: Image.Image, profile: object) -> Image.Image:
    """Return the image in sRGB; a profile that is invalid, too large or for another mode is ignored."""
    if isinstance(profile, bytes) and 0 < len(profile) <= limits.PROFILE:
        with contextlib.suppress(ImageCms.PyCMSError, OSError, ValueError, TypeError):
            source = ImageCms.getOpenProfile(io.BytesIO(profile))
            if "sRGB" not in ImageCms.getProfileDescription(source):
                converted = ImageCms.profileToProfile(image, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
                return converted or image.convert("RGB")
    return image.convert("RGB")
