"""Pictures of maps: colour maps, the overlay on a photograph, the colour bar, the sprite of all channels.

Two kinds of paint, so that nothing is drawn where nothing is:

    sequential  "magma", "viridis": every pixel becomes (1 - opacity) photograph + opacity colour. Zero is the dark end,
                so a blank map only darkens.
    signed      "signed": blue below zero, red above, and a pixel's opacity grows with its distance from zero, so that
                zero leaves the photograph as it is. On white paper this gives exactly the table blue-white-red.

The range is tied to zero, never to the smallest value: (0, max) for maps without negative values, (-m, m) with. A map
that is 0.25 everywhere is therefore drawn evenly bright, and a blank one as nothing. Values that are not finite are
drawn as black and white stripes, which no colour map contains. Pillow is imported inside the functions alone.
"""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from .errors import BadOption, nearest
from .maps import resize

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

# 256 x 3 bytes each. Magma and viridis by Nathaniel J. Smith and Stefan van der Walt, in the public domain (CC0).
MAGMA = (
    "AAAEAQAFAQEGAQEIAgEJAgILAgINAwMPAwMSBAQUBQQWBgUYBgUaBwYcCAceCQcgCggiCwkkDAkmDQopDgsrEAstEQwvEg0xEw00FA42FQ44Fg87"
    "GA89GRA/GhBCHBBEHRFHHhFJIBFLIRFOIhFQJBJTJRJVJxJYKRFaKhFcLBFfLRFhLxFjMRFlMxBnNBBpNhBrOBBsOQ9uOw9wPQ9xPw9yQA90Qg91"
    "RA92RRB3RxB4SRB4ShB5TBF6ThF7TxJ7URJ8UhN8VBN9VhR9VxV+WRV+WhZ+XBZ/XRd/Xxh/YBiAYhmAZBqAZRqAZxuAaByBahyBax2BbR2Bbh6B"
    "cB+Bch+BcyCBdSGBdiGBeCKBeSKCeyOCfCOCfiSCgCWCgSWBgyaBhCaBhieBiCeBiSiBiymBjCmBjiqBkCqBkSuBkyuAlCyAliyAmC2AmS2Amy5/"
    "nC5/ni9/oC9/oTB+ozB+pTF+pjF9qDJ9qjN9qzN8rTR8rjR7sDV7sjV7szZ6tTZ6tzd5uDd5ujh4vDl4vTl3vzp3wDp2wjt1xDx1xTx0xz1zyD5z"
    "yj5yzD9xzUBxz0Bw0EFv0kJv00Nu1URt1kVs2EVs2UZr20dq3Ehp3klo30po4Exn4k1m405l5E9k5VBk51Jj6FNi6VRi6lZh61dg7Fhg7Vpf7lte"
    "711e8F9e8WBd8mJd8mRc82Vc9Gdc9Glc9Wtc9mxc9m5c93Bc93Jc+HRc+HZc+Xhd+Xld+Xtd+n1e+n9e+oFf+4Nf+4Vg+4dh/Ilh/Ipi/Ixj/I5k"
    "/JBl/ZJm/ZRn/ZZo/Zhp/Zpq/Ztr/p1s/p9t/qFu/qNv/qVx/qdy/qlz/qp0/qx2/q53/rB4/rJ6/rR7/rZ8/rd+/rl//ruB/r2C/r+E/sGF/sKH"
    "/sSI/saK/siM/sqN/syP/s2Q/s+S/tGU/tOV/tWX/teZ/tia/dqc/dye/d6g/eCh/eKj/eOl/eWn/eep/emq/eus/Oyu/O6w/PCy/PK0/PS2/Pa4"
    "/Pe5/Pm7/Pu9/P2/"
)

VIRIDIS = (
    "RAFURAJWRQRXRQVZRgdaRghcRgpdRgteRw1gRw5hRxBjRxFkRxNlSBRnSBZoSBdpSBhqSBpsSBttSBxuSB1vSB9wSCBxSCFzSCN0SCR1SCV2SCZ3"
    "SCh4SCl5Ryp6Ryx6Ry17Ry58Ry99RjB+RjJ+RjN/RjSARTWBRTeBRTiCRDmDRDqDRDuEQz2EQz6FQj+FQkCGQkGGQUKHQUSHQEWIQEaIP0eIP0iJ"
    "PkmJPkqJPkyKPU2KPU6KPE+KPFCLO1GLO1KLOlOLOlSMOVWMOVaMOFiMOFmMN1qMN1uNNlyNNl2NNV6NNV+NNGCNNGGNM2KNM2ONMmSOMmWOMWaO"
    "MWeOMWiOMGmOMGqOL2uOL2yOLm2OLm6OLm+OLXCOLXGOLHGOLHKOLHOOK3SOK3WOKnaOKneOKniOKXmOKXqOKXuOKHyOKH2OJ36OJ3+OJ4COJoGO"
    "JoKOJoKOJYOOJYSOJYWOJIaOJIeOI4iOI4mOI4qNIouNIoyNIo2NIY6NIY+NIZCNIZGMIJKMIJKMIJOMH5SMH5WLH5aLH5eLH5iLH5mKH5qKHpuK"
    "HpyJHp2JH56JH5+IH6CIH6GIH6GHH6KHIKOGIKSGIaWFIaaFIqeFIqiEI6mDJKqDJauCJayCJq2BJ62BKK6AKa9/KrB/LLF+LbJ9LrN8L7R8MbV7"
    "MrZ6NLZ5Nbd5N7h4OLl3Orp2O7t1Pbx0P7xzQL1yQr5xRL9wRsBvSMFuSsFtTMJsTsNrUMRqUsVpVMVoVsZnWMdlWshkXMhjXsliYMpgY8tfZcte"
    "Z8xcac1bbM1abs5YcM9Xc9BWddBUd9FTetFRfNJQf9NOgdNNhNRLhtVJidVIi9ZGjtZFkNdDk9dBldhAmNg+m9k8ndk7oNo5oto3pds2qNs0qtwy"
    "rdwwsN0vst0ttd4ruN4put4ovd8mwN8lwt8jxeAhyOAgyuEfzeEd0OEc0uIb1eIa2OIZ2uMZ3eMY3+MY4uQY5eQZ5+QZ6uUa7OUb7+Uc8eUd9OYe"
    "9uYg+OYh++cj/ecl"
)

# The ends of the signed map: a blue and a red of like lightness (L* 42 and 39), which protan, deutan and tritan eyes
# still tell apart by hue, as the test simulates.
BLUE, RED = (33, 102, 172), (178, 24, 43)
COLOURS = ("magma", "viridis", "signed")
FINE = 1024
"""Cells from which on a map counts as fine: 32 x 32."""


def colour_map(name: str) -> Tensor:
    """Look up the 256 colours of "magma", "viridis" or "signed".

    Returns  uint8 `[256, 3]`, RGB. Entry 0 is the low end and 255 the high end; "signed" has white at entry 128, where
             `round(255 * 0.5)` points, and fades in straight lines to `BLUE` (entries 0 and 1) and `RED` (255).
    Errors   BadOption for another name.
    """
    if name == "signed":
        t = ((torch.arange(256) - 128) / 127).clamp(-1, 1)[:, None]
        ends = torch.where(t < 0, torch.tensor(BLUE), torch.tensor(RED))
        return (255 + (ends - 255) * t.abs()).round().to(torch.uint8)
    tables = {"magma": MAGMA, "viridis": VIRIDIS}
    if name not in tables:
        hint = nearest(str(name), COLOURS)
        raise BadOption(f"There is no colour map {name!r}. {hint}Choose one of {', '.join(COLOURS)}.")
    return torch.tensor(list(base64.b64decode(tables[name])), dtype=torch.uint8).view(256, 3)


def colour_limits(values: Tensor, colours: str | None = None) -> tuple[str, float, float]:
    """Choose colours and range of a map: "signed" with (-m, m) where a value is negative, else "magma" with (0, m).

    m is the largest size, or what `strong` says of fine maps.

    Returns  (colours, low, high), low < high; only finite values count. A sequential colour map asked for by name
             begins at the smallest value where that is negative. A map without any size has (0, 1) or (-1, 1).
    """
    finite = values.detach()[values.isfinite()].double()
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    name = colours or ("signed" if low < 0 else "magma")
    far = strong(finite)
    if name == "signed":
        return name, -(far or 1.0), far or 1.0
    low, high = min(low, 0.0), max(min(high, far), 0.0)
    return name, low, high if high > low else low + 1.0


def strong(values: Tensor) -> float:
    """The size that takes the full colour: the largest; in fine maps the 99th percentile, unless that is 0.

    A few extreme pixels of a gradient would leave all the others pale.
    """
    sizes = values.detach().abs().flatten()
    if not sizes.numel():
        return 0.0
    robust = float(sizes.float().quantile(0.99)) if FINE <= sizes.numel() <= 2**24 else 0.0
    return robust or float(sizes.max())


def overlay(
    photo: Image.Image,
    map: Tensor,
    *,
    opacity: float = 0.5,
    colours: str | None = None,
    limits: tuple[float, float] | None = None,
) -> Image.Image:
    """Draw a map over its photograph, resized to it.

    Returns  a new picture of the photograph's size, RGB (RGBA where the photograph has transparency, kept as it is).
             `opacity=0` gives the photograph to the bit. `limits` are the raw values of the colour map's two ends and
             make pictures comparable; values beyond take the end's colour. "signed" keeps zero in the middle and
             reaches as far as the farther limit on both sides.
    Errors   ValueError for a map that is not `[h, w]`; BadOption for an opacity outside [0, 1], another colour map, or
             limits without order; TypeError for a photograph with more than 8 bits a channel.
    """
    if not isinstance(map, Tensor) or map.ndim != 2 or not map.numel():
        given = tuple(map.shape) if isinstance(map, Tensor) else type(map).__name__
        raise ValueError(f"overlay draws one map [h, w], not {given}; of a batch give one: explanation.map[0].")
    if not 0 <= opacity <= 1:
        raise BadOption(f"opacity={opacity!r} is not possible. Give a number from 0 to 1.")
    name, low, high = colour_limits(map, colours)
    table = colour_map(name)
    if limits is not None:
        low, high = _checked(limits)
    picture = _pixels(photo)
    if opacity == 0:
        return _picture(picture)
    # Values that are not finite must spread with the interpolation, never mix with their neighbours into a number.
    values = torch.where(map.isfinite(), map.detach(), torch.nan).to("cpu")
    values = resize(values[None], (picture.shape[0], picture.shape[1]))[0]
    colour, weight = _paint(values, name, table, low, high)
    blend = picture[..., :3] + (colour - picture[..., :3]) * (opacity * weight)[..., None]
    picture[..., :3] = blend.round().clamp(0, 255).to(torch.uint8)
    return _picture(picture)


def _paint(values: Tensor, name: str, table: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Colour `[h, w, 3]` and weight `[h, w]` of each value."""
    missing = values.isnan()
    if name == "signed":
        share = (values / max(abs(low), abs(high))).clamp(-1, 1)
        colour, weight = torch.where((share < 0)[..., None], torch.tensor(BLUE), torch.tensor(RED)).float(), share.abs()
    else:
        share = ((values - low) / (high - low)).clamp(0, 1)
        colour = table[(share.nan_to_num() * 255).round().long()].float()
        weight = torch.ones_like(share)
    stripe = torch.arange(values.shape[0])[:, None] + torch.arange(values.shape[1])
    stripes = ((stripe // 4) % 2 * 255).float()[..., None].expand_as(colour)
    return torch.where(missing[..., None], stripes, colour), torch.where(missing, 1.0, weight)


def colour_bar(
    low: float,
    high: float,
    *,
    colours: str | None = None,
    unit: str = "",
    size: tuple[int, int] = (320, 48),
    dark: bool = False,
) -> Image.Image:
    """Draw the colour map with its raw values below: both ends, and the middle (zero on a signed map) between them.

    Returns  RGB picture of `size` (width, height), black on white, or white on near-black with `dark`. Without
             `colours` the sign of `low` chooses, as in `overlay`; "signed" is drawn from -m to m.
    Errors   BadOption for another colour map, limits without order, or a size too small to read (160 x 32).
    """
    from PIL import Image, ImageDraw

    low, high = _checked((low, high))
    name = colours or ("signed" if low < 0 else "magma")
    table = colour_map(name)
    width, height = size
    if width < 160 or height < 32:
        raise BadOption(f"size={size!r} is too small to read. Give at least (160, 32).")
    if name == "signed":
        high = max(abs(low), abs(high))
        low = -high
    paper, ink = ((27, 27, 31), (250, 250, 250)) if dark else ((255, 255, 255), (27, 27, 31))
    picture = Image.new("RGB", (width, height), paper)
    left, strip = 8, height - 24
    columns = (torch.linspace(0, 1, width - 2 * left) * 255).round().long()
    picture.paste(_picture(table[columns].expand(strip, -1, -1)), (left, 4))
    middle = (low + high) / 2
    marks = [(low, 0.0), (middle, 0.5), (high, 1.0)]
    _labels(ImageDraw.Draw(picture), marks, unit, (left, strip + 7, width - left), ink)
    return picture


def _labels(
    draw: ImageDraw.ImageDraw,
    marks: list[tuple[float, float]],
    unit: str,
    place: tuple[int, int, int],
    ink: tuple[int, int, int],
) -> None:
    left, top, right = place
    for index, (value, share) in enumerate(marks):
        text = f"{value:.3g}" + (f" {unit}" if unit and index == len(marks) - 1 else "")
        length = draw.textlength(text)
        draw.text((round(left + share * (right - left - length)), top), text, fill=ink)


def sprite(features: Tensor, cell: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    """Make a small grey picture of each channel, each scaled by its own range.

    Returns  (planes, low, high): planes uint8 `[K, c, c]` for square grids, in the grid's own proportions otherwise,
             no side above `cell`: larger grids are averaged, smaller ones stay as they are. A plane's value v means
             `low + v / 255 * (high - low)`; low and high are float32 `[K]`, of the averaged plane. A flat channel is
             0 with low = high. Values that are not finite are left out of the range and drawn 0; where nothing else
             is there, low and high are NaN.
    Errors   ValueError for another shape; BadOption for a cell below 1.
    """
    if features.ndim != 3 or not features.numel():
        raise ValueError(f"sprite takes one picture's channels [K, h, w], not {tuple(features.shape)}: features[0].")
    if cell < 1:
        raise BadOption(f"cell={cell!r} is not possible. Give a whole number from 1.")
    planes = features.detach().float()
    height, width = planes.shape[1:]
    shrink = max(height, width, cell) / cell
    if shrink > 1:
        smaller = max(1, round(height / shrink)), max(1, round(width / shrink))
        planes = functional.adaptive_avg_pool2d(planes, smaller)
    finite = planes.isfinite()
    low = torch.where(finite, planes, math.inf).amin(dim=(1, 2))
    high = torch.where(finite, planes, -math.inf).amax(dim=(1, 2))
    span = torch.where(high > low, high - low, 1.0)[:, None, None]
    shares = (planes - low[:, None, None]) / span * 255
    empty = ~finite.any(dim=2).any(dim=1)
    shares = torch.where(finite, shares, 0.0).round().clamp(0, 255)
    return shares.to(torch.uint8), low.masked_fill(empty, torch.nan), high.masked_fill(empty, torch.nan)


def _checked(limits: tuple[float, float]) -> tuple[float, float]:
    low, high = (float(value) for value in limits)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BadOption(f"limits={tuple(limits)!r} are not possible. Give (low, high), both finite, low below high.")
    return low, high


def _pixels(photo: Image.Image) -> Tensor:
    """The photograph as uint8 `[H, W, 3]`, or `[H, W, 4]` where it has transparency; a copy."""
    if photo.mode.startswith(("I", "F")):
        raise TypeError(f"The photograph has mode {photo.mode!r}, over 8 bits a channel. Scale it to 0..255 first.")
    clear = photo.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in photo.info
    photo = photo.convert("RGBA" if clear else "RGB")
    pixels = torch.frombuffer(bytearray(photo.tobytes()), dtype=torch.uint8)
    return pixels.view(photo.height, photo.width, -1)


def _picture(pixels: Tensor) -> Image.Image:
    """The other way round. A buffer lent to a tensor carries the bytes over, which needs no numpy."""
    from PIL import Image

    height, width, channels = pixels.shape
    buffer = bytearray(pixels.numel())
    torch.frombuffer(buffer, dtype=torch.uint8).copy_(pixels.reshape(-1))
    return Image.frombytes("RGBA" if channels == 4 else "RGB", (width, height), bytes(buffer))
