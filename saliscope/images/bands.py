"""Images with N bands: read TIFF and NPY files, and convert them for networks with N channels and for display.

- Values are converted to the unit of the network's mean and std (`scale_values`). Integers of 8 and 16 bits are divided
  by the largest value of their type, floats in [0, 1] are unchanged, and for all others, the minimum and maximum of the
  image are mapped to 0 and 1. If mean or std exceed 1, they apply to the original values, which are unchanged. A note
  on the page says which conversion was used.
- A network with three channels receives the three selected bands, in their order. A network with one channel receives
  their luminance, which is the band itself if all three are the same. Other networks need as many bands as channels.
- Three bands are displayed, each stretched from its 2nd to its 98th percentile.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from PIL import Image

from saliscope import limits
from saliscope.errors import Refused
from saliscope.images import npy, tiff, uploads

WRONG_COUNT = (
    "This network needs {channels} bands, but the image has {bands}. Use a TIFF or NPY file with {channels} bands."
)
NPZ = "This is an NPZ archive. Save the array of the image as NPY with numpy.save."
LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue for grayscale conversion in Pillow."""
LOW, HIGH = 2, 98
"""Percentiles of a band that are displayed as black and white."""
DEEP_PNG = b"\x89PNG\r\n", b"\x10\x00"
"""The start of a PNG file, and its 25th and 26th byte for 16-bit grayscale, which X-ray images use."""
DARK = 0.1
"""Fraction of the range of an integer type; if all values are below it, the page shows a hint."""
SATELLITE = 13
"""Number of bands of Sentinel-2, in which red, green and blue are the 4th, 3rd and 2nd band."""
SHOWN_AS_IMAGE = (npy.START, *tiff.STARTS)
"""The starts of files that browsers do not display."""


@dataclass(frozen=True)
class BandChoice:
    """The three displayed bands of an image, counted from 1, and how its values were converted."""

    three: tuple[int, int, int]
    count: int
    about: str
    """The number of bands, their type, their size and the range of their values."""
    use: str
    """Which bands the network receives; empty if there is no choice."""

    @property
    def text(self) -> str:
        """The selection in the format of a `Request`: "3,2,1 of 5"."""
        return f"{','.join(map(str, self.three))} of {self.count}"


@dataclass(frozen=True)
class Bands:
    """An image with bands, ready for a network."""

    image: Image.Image
    """The three selected bands as RGB."""
    values: np.ndarray
    """The network input before normalization, float32 [channels, height, width], with the size of `image`."""
    choice: BandChoice
    note: str = ""
    """A message if the requested bands do not exist."""


def open_bands(data: bytes, channels: int, *, raw: bool = False, requested: str = "") -> Bands | None:
    """Return the bands of a file, or None for an ordinary image, which `uploads.open_image` reads.

    `channels` is the number of channels of the network; `raw` means that its mean and std apply to original values;
    `requested` are three bands to display, counted from 1: "3,2,1", or "3,2,1 of 13" only for images with 13 bands.

    Errors   Refused
    """
    values = read(data, channels)
    if values is None:
        return None
    count = len(values)
    if channels not in (1, 3, count):
        raise Refused(WRONG_COUNT.format(channels=channels, bands=count))
    three, note = choose_bands(requested, count, channels)
    kind, (height, width) = values.dtype, values.shape[1:]
    image = to_rgb(values, three)
    if channels in (1, 3):
        used = three if channels == 3 or len(set(three)) > 1 else three[:1]
        values = values[[band - 1 for band in used]]
    values, how = scale_values(values, raw)
    values = reduce_size(values)
    if channels == 1 and len(values) == 3:
        values = sum(weight * band for weight, band in zip(LUMINANCE, values, strict=True))[None].astype("float32")
    image = image.resize(values.shape[:0:-1], Image.Resampling.LANCZOS, reducing_gap=2.0)
    description = f"{count} band{'s' * (count > 1)} of {kind}, {width} × {height} pixels; {how}."
    return Bands(image, values, BandChoice(three, count, description, _describe_use(channels, count)), note)


@uploads.decoding("TIFF")
def read(data: bytes, channels: int | None) -> np.ndarray | None:
    """Return the stored values of a file, [bands, height, width], or None for an ordinary image or another file.

    Errors   Refused
    """
    if data.startswith(npy.START):
        array = npy.read(data, channels)
        uploads.check_size(array.shape[2], array.shape[1])
        return array
    if data.startswith(b"PK") and re.search(rb"\.npy", data[:200]):
        raise Refused(NPZ)
    decode = uploads.TimedDecoder()
    if channels == 1 and data.startswith(DEEP_PNG[0]) and data[24:26] == DEEP_PNG[1]:
        uploads.check_size(int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"), limits.WHOLE)
        with uploads.decoding("PNG"):
            return np.asarray(decode(data)).astype("u2")[None]
    if not data.startswith(tiff.STARTS):
        return None
    layers = [page for page in tiff.pages(data) if not page.overview]
    if not layers:
        return None
    page = layers[0]
    layers = [each for each in layers if each.kind == page.kind] if page.samples == 1 else [page]
    if _is_ordinary_image(page, len(layers), channels):
        return None
    if not all(layer.readable for layer in layers):
        raise Refused(
            "This TIFF encoding is not supported. Save the file uncompressed or with Deflate or LZW, with values of 8, "
            "16 or 32 bits, or as NPY."
        )
    count = page.samples * len(layers)
    values = count * page.height * page.width
    assert page.dtype is not None
    npy.check_size(count, values, values * page.dtype.itemsize)
    uploads.check_size(page.width, page.height)
    return np.concatenate([tiff.read_bands(data, layer, decode) for layer in layers])


def _is_ordinary_image(page: tiff.Page, layers: int, channels: int | None) -> bool:
    """Return whether a page is an image for display: grayscale or color, with or without transparency."""
    if page.colors not in (0, 1, 2, 6) or (page.dtype is None and page.samples - page.alpha in (1, 3)):
        return True  # palettes, CMYK, Lab; 1-bit images, and colors with 10 bits
    if page.dtype is None:
        return False
    colors = 1 if page.colors < 2 else 3
    eye = page.samples - page.alpha == colors and (layers == 1 or colors == 3)
    if channels in (None, 3) or not page.readable:
        return eye
    return channels == 1 and page.dtype.itemsize == 1 and eye


def choose_bands(requested: str, count: int, channels: int | None) -> tuple[tuple[int, int, int], str]:
    """Return the three bands to display, counted from 1, and a message if the requested bands do not exist."""
    default = (4, 3, 2) if count == SATELLITE else (1, 2, min(3, count))
    if count == 1 or (channels == 1 and count != 3):
        default = (1, 1, 1)
    numbers, _, of = requested.partition(" of ")
    if not numbers or (of and of != str(count)):
        return default, ""
    known = {str(band): band for band in range(1, count + 1)}
    found = [known.get(part.strip(), 0) for part in numbers.split(",")]
    if len(found) == 3 and all(found):
        red, green, blue = found
        return (red, green, blue), ""
    used = ",".join(map(str, default))
    known_bands = f"the image has bands 1 to {count}. Using the default instead: {used}."
    return default, f"Unknown bands '{numbers[:40]}': {known_bands}"


def _describe_use(channels: int, count: int) -> str:
    """Return which bands the network receives."""
    if count == 1:
        return ""
    if channels not in (1, 3):
        return (
            f"The network receives all {count} bands. The selected ones are displayed, each from its {LOW}nd to its "
            f"{HIGH}th percentile."
        )
    if channels == 3:
        return "The network receives these three bands."
    return "The network receives the luminance of these bands as one channel, or the band itself if all are the same."


def scale_values(values: np.ndarray, raw: bool) -> tuple[np.ndarray, str]:
    """Return the values as float32 in the unit of the network's mean and std, and a description of the conversion."""
    kind = values.dtype
    top = int(np.iinfo(kind).max) if kind.kind in "ui" and kind.itemsize <= 2 else 0
    floats, gaps = values.astype(np.float32), ""
    finite = np.isfinite(floats) if kind.kind == "f" else np.array(True)
    lowest, highest = _extremes(floats if finite.all() else floats[finite])
    if not finite.all():
        floats, gaps = np.where(finite, floats, np.float32(lowest)), "; non-finite values are set to the minimum"
    span = f"{lowest:.6g} to {highest:.6g}"
    if raw:
        return floats, f"values {span} are unchanged, because the network's mean and std are in that unit{gaps}"
    if top:
        how = f"values {span} are divided by {top:,}, the largest value of the type"
        if 0 < highest < DARK * top:
            how += (
                ". All values are therefore close to 0; if the network was trained on another scale, save the image as "
                "floats from 0 to 1 on that scale"
            )
        return floats / np.float32(top), how
    if lowest >= 0 and highest <= 1:
        return floats, f"values {span} are unchanged{gaps}"
    length = np.float32(min(max(highest - lowest, 1e-37), 3e38))
    with np.errstate(over="ignore", invalid="ignore"):
        floats = (floats - np.float32(lowest)) / length
    return floats, f"values {span} are mapped to 0 to 1 (minimum to maximum){gaps}"


def _extremes(values: np.ndarray) -> tuple[float, float]:
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)


def reduce_size(values: np.ndarray) -> np.ndarray:
    """Return bands [n, h, w] at the size to which ordinary images are reduced."""
    size = uploads.reduced_size(*values.shape[:0:-1])
    if size == values.shape[:0:-1]:
        return values
    bands = [Image.fromarray(band).resize(size, Image.Resampling.BOX, reducing_gap=None) for band in values]
    return np.stack([np.asarray(band) for band in bands])


def to_rgb(values: np.ndarray, three: tuple[int, int, int]) -> Image.Image:
    """Return three bands as an RGB image, each stretched between two of its percentiles; three of 8 bits unchanged."""
    unchanged = values.dtype == "uint8" and len(values) == 3
    bands = {band: values[band - 1] if unchanged else _stretch(values[band - 1]) for band in set(three)}
    return Image.merge("RGB", [Image.fromarray(bands[band]) for band in three])


def _stretch(band: np.ndarray) -> np.ndarray:
    step = max(1, math.isqrt(band.size // 250_000))
    sample = band[::step, ::step].astype(np.float64)
    sample = sample[np.isfinite(sample)]
    low, high = np.percentile(sample, [LOW, HIGH]).tolist() if sample.size else (0.0, 0.0)
    if high <= low:
        low, high = _extremes(sample)
    factor = 255 / (high - low) if high > low else 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        values = (band.astype(np.float32) - np.float32(low)) * np.float32(factor)
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0).clip(0, 255).round().astype(np.uint8)


def open_file(data: bytes, channels: int, *, raw: bool = False, requested: str = "") -> Image.Image | Bands:
    """Return the image in a file, with its bands if it has other than three of 8 bits; see `open_bands`.

    Errors   Refused
    """
    found = open_bands(data, channels, raw=raw, requested=requested)
    return uploads.open_image(data) if found is None else found


def preview_image(data: bytes, channels: int | None, requested: str) -> Image.Image:
    """Return a small image of a file that browsers do not display (`SHOWN_AS_IMAGE`); see `open_bands`.

    Errors   Refused
    """
    values = read(data, channels)
    if values is None:
        image = uploads.open_image(data)
    else:
        three, _ = choose_bands(requested, len(values), channels)
        image = to_rgb(values, three)
    image.thumbnail((limits.PREVIEW_SIDE, limits.PREVIEW_SIDE))
    return image
