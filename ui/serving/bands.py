"""Pictures of N bands: TIFF and NPY files in; what a network of N channels gets of them, and a photograph to look at.

- Values are put in the unit of the network's mean and std (`scaled`): integers of 8 and 16 bits are divided by the
  largest of their type, floats in [0, 1] stay, all others map minimum..maximum of the picture to 0..1. Where mean or
  std exceed 1 they are in the picture's own unit, and so the values stay. A sentence on the page says which.
- A network of three channels gets the three bands that are chosen, in their order; a grey one their luminance, which is
  the band itself where the three are one; any other network takes as many bands as it has channels.
- What is shown are three bands, each stretched from its 2nd to its 98th percentile.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from ui import limits
from ui.engine.messages import BandChoice, Refused
from ui.serving import npy, tiff, uploads

if TYPE_CHECKING:
    import numpy as np

WRONG_COUNT = "This network takes {channels} bands; the picture has {bands}. Give a TIFF or NPY with {channels} bands."
NPZ = "This is an NPZ archive. Save the one array that is the picture as NPY, with numpy.save."
NOT_READ = (
    "The bands of this TIFF are stored in a way that is not read here. Save it uncompressed or with Deflate or LZW, "
    "with values of 8, 16 or 32 bits, or as NPY."
)
UNKNOWN = "There are no bands “{asked}” in this picture; it has bands 1 to {count}. Shown instead: {used}."
DIM = (
    ". That leaves them near 0: where the network was trained on another scale, save the picture as floats from 0 to 1 "
    "on that scale"
)
LUMINANCE = (0.299, 0.587, 0.114)
"""Of red, green and blue, as Pillow makes a photograph grey."""
LOW, HIGH = 2, 98
"""Percentiles of a band that are shown black and white."""
DEEP_PNG = b"\x89PNG\r\n", b"\x10\x00"
"""The start of a PNG file, and its 25th and 26th byte where it is grey with 16 bits, as X-ray pictures are."""
DARK = 0.1
"""Fraction of an integer type's range below which its use is worth a sentence."""
SATELLITE = 13
"""Bands of Sentinel-2: red, green and blue are the 4th, 3rd and 2nd."""
PREVIEW = re.compile(r"(.+)\.\d+-\d+-\d+\.preview\.png")
"""The name of a preview: that of its file, and the three bands that it shows."""
_one_preview = threading.Lock()  # no queue is before them


@dataclass(frozen=True)
class Bands:
    """A picture of bands, ready for a network."""

    photo: Image.Image
    """The three chosen bands as RGB."""
    values: np.ndarray
    """What the network gets, float32 [channels, height, width], of the photograph's height and width."""
    choice: BandChoice
    note: str = ""
    """A sentence where the bands that were asked for do not exist."""


def open_bands(data: bytes, channels: int, *, raw: bool = False, asked: str = "") -> Bands | None:
    """The bands of a file; None for a photograph, which `uploads.open_picture` reads.

    `channels` of the network; `raw`: its mean and std are in the picture's own unit; `asked`: three bands to show,
    "3,2,1", counted from 1, or "3,2,1 of 13", which holds for pictures of 13 bands alone.

    Errors   Refused
    """
    with uploads.decoding("PNG" if data.startswith(DEEP_PNG[0]) else "TIFF"):
        values = read(data, channels)
        if values is None:
            return None
        count = len(values)
        if channels not in (1, 3, count):
            raise Refused(WRONG_COUNT.format(channels=channels, bands=count))
        three, note = chosen(asked, count, channels)
        kind, (height, width) = values.dtype, values.shape[1:]
        photo = shown(values, three, plain=kind == "uint8" and count == 3)
        if channels == 3 or (channels == 1 and len(set(three)) > 1):
            values = values[[band - 1 for band in three]]
        elif channels == 1:
            values = values[three[0] - 1 : three[0]]
        values, how = scaled(values, raw)
        values = reduced(values)
        if channels == 1 and len(values) == 3:
            values = sum(weight * band for weight, band in zip(LUMINANCE, values, strict=True))[None].astype("float32")
        photo = photo.resize(values.shape[:0:-1], Image.Resampling.LANCZOS, reducing_gap=2.0)
    about = f"{count} band{'s' * (count > 1)} of {kind}, {width} × {height} pixels; {how}."
    return Bands(photo, values, BandChoice(three, count, about, _used(channels, count)), note)


def read(data: bytes, channels: int | None) -> np.ndarray | None:
    """The values of a file as stored, [bands, height, width]; None for a photograph and for what is no picture.

    Errors   Refused, tiff.Damaged, and those of Pillow
    """
    import numpy as np  # a tenth of a second that only raw pixels need

    if data.startswith(npy.START):
        array = npy.read(data, channels)
        uploads.check_size(array.shape[2], array.shape[1])
        return array
    if data.startswith(b"PK") and re.search(rb"\.npy", data[:200]):
        raise Refused(NPZ)
    opened = uploads.Timed()
    if channels == 1 and data.startswith(DEEP_PNG[0]) and data[24:26] == DEEP_PNG[1]:
        uploads.check_size(int.from_bytes(data[16:20]), int.from_bytes(data[20:24]))
        return np.asarray(opened(data)).astype("u2")[None]
    if not data.startswith(tiff.STARTS):
        return None
    found = [page for page in tiff.pages(data) if not page.overview]
    if not found:
        return None
    page = found[0]
    layers = [page]
    if page.samples == 1:
        layers = [each for each in found if (each.shape, each.dtype, each.turn) == (page.shape, page.dtype, page.turn)]
    if _is_photograph(page, len(layers), channels):
        return None
    if not all(layer.readable for layer in layers):
        raise Refused(NOT_READ)
    count, values = page.samples * len(layers), page.values * len(layers)
    assert page.dtype is not None
    npy.check_size(count, values, values * page.dtype.itemsize)
    uploads.check_size(page.width, page.height)
    with uploads.one_large(values):
        return np.concatenate([tiff.bands(data, layer, opened) for layer in layers])


def _is_photograph(page: tiff.Page, layers: int, channels: int | None) -> bool:
    """Whether a page is a picture for the eye: grey alone, or of the samples that make a colour, with transparency."""
    if page.colours not in (0, 1, 2, 6) or (page.dtype is None and page.samples - page.alpha in (1, 3)):
        return True  # palettes, inks, Lab; bits, and colours of ten bits
    if page.dtype is None:
        return False
    colours = 1 if page.colours < 2 else 3
    grey = colours == 1 and layers == 1 and page.samples - page.alpha == 1
    eye = grey or (colours == 3 and page.samples - page.alpha == 3)
    if channels in (None, 3) or not page.readable:
        return eye
    return channels == 1 and page.dtype.itemsize == 1 and eye


def chosen(asked: str, count: int, channels: int | None) -> tuple[tuple[int, int, int], str]:
    """The three bands to show, counted from 1; a sentence where the ones asked for do not exist."""
    if count == 1 or (channels == 1 and count != 3):
        default = (1, 1, 1)
    else:
        default = (4, 3, 2) if count == SATELLITE else (1, 2, min(3, count))
    numbers, _, of = asked.partition(" of ")
    if not numbers or (of and of != str(count)):
        return default, ""
    parts = [part.strip() for part in numbers.split(",")]
    known = {str(band): band for band in range(1, count + 1)}
    if len(parts) == 3 and all(part in known for part in parts):
        red, green, blue = (known[part] for part in parts)
        return (red, green, blue), ""
    used = ",".join(map(str, default))
    return default, UNKNOWN.format(asked=numbers[:40], count=count, used=used)


def _used(channels: int, count: int) -> str:
    """What the network gets of the bands."""
    if count == 1:
        return ""
    if channels == count and channels != 3:
        return f"The network gets all {count} bands; these are shown, each from its {LOW}nd to its {HIGH}th percentile."
    if channels == 3:
        return "The network gets these three bands."
    return "The network gets these bands as one grey channel: their luminance, or the band itself where all are one."


def scaled(values: np.ndarray, raw: bool) -> tuple[np.ndarray, str]:
    """The values as float32 in the unit of the network's mean and std, and how that was done."""
    import numpy as np  # as above

    kind, top = values.dtype, 0
    if kind.kind in "ui" and kind.itemsize <= 2:
        top = int(np.iinfo(kind).max)
    plain, lost = values.astype(np.float32), ""
    finite = np.isfinite(plain) if kind.kind == "f" else np.array(True)
    lowest, highest = _extremes(plain if finite.all() else plain[finite])
    if not finite.all():
        plain, lost = np.where(finite, plain, np.float32(lowest)), "; values that are not finite count as the smallest"
    span = f"{lowest:.6g} to {highest:.6g}"
    if raw:
        return plain, f"values {span} stay as they are, because the network's mean and std are in that unit{lost}"
    if top:
        dark = DIM if 0 < highest < DARK * top else ""
        return plain / np.float32(top), f"values {span} are divided by {top:,}, the largest of the type{dark}"
    if lowest >= 0 and highest <= 1:
        return plain, f"values {span} stay as they are{lost}"
    length = np.float32(min(max(highest - lowest, 1e-37), 3e38))
    with np.errstate(over="ignore", invalid="ignore"):
        plain = (plain - np.float32(lowest)) / length
    return plain, f"values {span} are mapped to 0 to 1, from the smallest to the largest{lost}"


def _extremes(values: np.ndarray) -> tuple[float, float]:
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)


def reduced(values: np.ndarray) -> np.ndarray:
    """Bands [n, h, w] at the size to which a photograph is reduced."""
    import numpy as np  # as above

    height, width = values.shape[1:]
    scale = min(1.0, limits.SIDE / min(width, height), math.sqrt(limits.WORK_PIXELS / (width * height)))
    if scale == 1:
        return values
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    bands = [Image.fromarray(band).resize(size, Image.Resampling.BOX, reducing_gap=None) for band in values]
    return np.stack([np.asarray(band) for band in bands])


def shown(values: np.ndarray, three: tuple[int, int, int], *, plain: bool = False) -> Image.Image:
    """Three bands as an RGB picture, each stretched between two of its percentiles; `plain`: as they are."""
    bands = {band: values[band - 1] if plain else _stretched(values[band - 1]) for band in set(three)}
    return Image.merge("RGB", [Image.fromarray(bands[band]) for band in three])


def _stretched(band: np.ndarray) -> np.ndarray:
    import numpy as np  # as above

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


# Browsers show neither TIFF nor NPY: the picture's component gets a PNG that lies beside the file.


def preview(path: Path, channels: int | None = None, asked: str = "") -> Path | None:
    """A PNG of an uploaded file that no browser shows, written beside it; None for other files and for broken ones.

    `channels` and `asked` as in `open_bands`.
    """
    three = (1, 2, 3)
    with contextlib.suppress(Refused, OSError), _one_preview:
        data = uploads.read(path)
        if not data.startswith((npy.START, *tiff.STARTS)):
            return None
        with uploads.decoding("TIFF"):
            values = read(data, channels)
            if values is not None:
                three, _ = chosen(asked, len(values), channels)
                photo = shown(values, three, plain=values.dtype == "uint8" and len(values) == 3)
        if values is None:
            photo = uploads.open_picture(data)
        target = path.with_name(f"{path.name}.{'-'.join(map(str, three))}.preview.png")
        if not target.exists():
            if sum(PREVIEW.fullmatch(each) is not None for each in os.listdir(path.parent)) >= limits.PREVIEWS:
                return None
            photo.thumbnail((limits.PREVIEW_SIDE, limits.PREVIEW_SIDE))
            photo.save(target)
        return target
    return None


def original(path: Path) -> Path:
    """The file of which this one is the preview; the path itself for any other file."""
    named = PREVIEW.fullmatch(path.name)
    source = path.with_name(named[1]) if named else path
    return source if source.is_file() and not source.is_symlink() else path
