"""Maps as images: the overlay on a photograph, the colour bar, the sprite of all channels.

One set of constants, `RULE`, draws every map that the project shows; `ui/static/paint.js` has the same constants and
arithmetic for the page. The photograph is muted, not the map:

    coarse maps   lie on a pale photograph (15% of its saturation, 80% of its brightness), with white contours at 50%
                  and 80% of the colour range, which stay readable on any background and in greyscale
    fine maps     of 32 x 32 cells and more, unless smooth, lie on a dark grey photograph (45%); blurred for display
                  with σ = 1/224 of their side; colours saturate at the 99.5th percentile of |value|, so that outliers
                  do not leave the rest pale
    opacity       0.9 |s|^0.65 at fraction s of the colour range: zero is transparent

Two kinds of colour map:

    sequential    "magma", "viridis": from min(0, minimum) to the maximum
    signed        "signed": blue below zero, red above, symmetric about zero

The range always includes zero: a constant map of 0.25 has one bright colour, a blank one none. Values that are not
finite are drawn as black and white stripes, which no colour map contains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from explainers.errors import BadOption
from explainers.maps.colour_maps import BLUE, RED, colour_map
from explainers.maps.photographs import picture as draw_picture
from explainers.maps.photographs import pixels
from explainers.maps.resize import blur, enlarge

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

RULE = {
    "fine": 1024,
    "rough": 0.1,
    "coarse_colour": 0.15,
    "coarse_light": 0.8,
    "fine_colour": 0.0,
    "fine_light": 0.45,
    "strength": 0.9,
    "curve": 0.65,
    "low_line": 0.5,
    "high_line": 0.8,
    "line": 1 / 360,
    "halo": 0.55,
    "full": 0.995,
    "blur": 1 / 224,
}
"""The constants, the same in `ui/static/paint.js`.

A map of `fine` cells or more is fine if its `roughness` is above `rough`; `*_colour` and `*_light` are the fractions of
saturation and brightness that the photograph keeps; `strength` and `curve` factor and exponent of the opacity; `line`
the width of a contour relative to the image's shorter side (at least one pixel), `halo` the darkness around it; `full`
the quantile at which colours saturate, `blur` σ relative to a fine map's longer side.
"""
LUMA = (0.2126, 0.7152, 0.0722)
"""Luma coefficients of red, green and blue (ITU-R BT.709)."""


@dataclass(frozen=True, eq=False)
class View:
    """A map as it is drawn: `values` [h, w], in `colours` from `low` to `high`.

    `fine` selects the photograph below it, `smooth` interpolation between cells; `clipped` says whether values exceed
    the limits.
    """

    values: Tensor
    colours: str
    low: float
    high: float
    fine: bool
    smooth: bool
    clipped: bool


def view(
    map: Tensor,
    *,
    colours: str | None = None,
    limits: tuple[float, float] | None = None,
    signed: bool = True,
    smooth: bool = True,
) -> View:
    """How a map is drawn: its colours, its limits, the photograph below it.

    Returns  a `View`: "signed" with (-m, m) where a value is negative, else "magma" with (0, m), where m = max |value|,
             in fine maps the 99.5th percentile unless that is 0. Only finite values count. A sequential colour map that
             is named starts at the minimum where that is negative. A map of zeros has (0, 1) or (-1, 1).
    Errors   ValueError for a map that is not `[h, w]`; BadOption for another colour map, or limits without order.
    """
    if not isinstance(map, Tensor) or map.ndim != 2 or not map.numel():
        given = tuple(map.shape) if isinstance(map, Tensor) else type(map).__name__
        raise ValueError(f"overlay draws one map [h, w], not {given}. Of a batch give one, such as explanation.map[0].")
    # NaN propagates through the interpolation; an infinity might not.
    values = torch.where(map.isfinite(), map.detach(), torch.nan).to("cpu")
    values = (values if values.dtype == torch.float64 else values.float()) if signed else values.float().abs()
    fine = values.numel() >= RULE["fine"] and roughness(values) > RULE["rough"]
    if fine and smooth:
        values = blur(values[None], RULE["blur"] * max(values.shape))[0]
    finite = values[values.isfinite()].double()
    lowest, highest = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    name = colours or ("signed" if lowest < 0 else "magma")
    colour_map(name)
    largest = max(abs(lowest), abs(highest))
    far = (_quantile(finite.abs(), RULE["full"]) if fine and finite.numel() else 0.0) or largest
    if name == "signed":
        low, high = -(far or 1.0), far or 1.0
    else:
        low, high = min(lowest, 0.0), max(min(highest, far), 0.0)
        high = high if high > low else low + 1.0
    if limits is not None:
        low, high = _checked(limits)
        if name == "signed":
            high = max(abs(low), abs(high))
            low = -high
    return View(values, name, low, high, fine, smooth, largest > max(abs(low), abs(high)))


def roughness(values: Tensor) -> float:
    """Mean squared difference of neighbours over twice the variance: 0 for a plane, about 1 for white noise.

    Returns  a number >= 0; 0 for a map without variance. Values that are not finite are left out.
    """
    finite = values[values.isfinite()].double()
    if not finite.numel() or not float(finite.var(correction=0)) > 0:
        return 0.0
    steps = torch.cat([values.diff(dim=0).flatten(), values.diff(dim=1).flatten()]).double()
    steps = steps[steps.isfinite()]
    return float((steps**2).mean() / (2 * finite.var(correction=0))) if steps.numel() else 0.0


def _quantile(values: Tensor, share: float) -> float:
    """The quantile, linearly interpolated; `torch.quantile` refuses maps of more than 2**24 values."""
    ordered = values.sort().values
    position = share * (len(ordered) - 1)
    below, fraction = int(position), position - int(position)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + fraction * (ordered[above] - ordered[below]))


def colour_limits(values: Tensor, colours: str | None = None, *, signed: bool = True) -> tuple[str, float, float]:
    """The colours and limits with which `overlay` draws a map, as `limits=` for others.

    Returns  (colours, low, high), low < high, as `view` chooses them
    """
    chosen = view(values, colours=colours, signed=signed)
    return chosen.colours, chosen.low, chosen.high


def overlay(
    photo: Image.Image | Tensor,
    map: Tensor,
    *,
    opacity: float = 1.0,
    colours: str | None = None,
    limits: tuple[float, float] | None = None,
    signed: bool = True,
    smooth: bool = True,
) -> Image.Image:
    """Draw a map over its photograph, resized to it: a Pillow image, or a tensor or array of its pixels.

    Of pixels [3, H, W], [H, W, 3] and [H, W] are accepted, in uint8 or as floats from 0 to 1.
    `opacity` blends from the photograph (0) to the map over the muted photograph (1). `signed=False` draws magnitudes,
    in which attributions of single pixels are easiest to read; `smooth=False` draws the map's cells without blur.

    Returns  a new image of the photograph's size, RGB, or RGBA with the photograph's alpha channel. `opacity=0` is the
             photograph bit for bit. `limits` are the values at both ends of the colour map, which makes images
             comparable; values beyond have the end's colour. "signed" is symmetric about zero, up to the larger limit.
    Errors   ValueError for a map that is not `[h, w]`; BadOption for an opacity outside [0, 1], another colour map, or
             limits without order; TypeError and ValueError for a photograph that is none, or normalised for a model,
             or has more than 8 bits a channel.

    Example
        >>> from PIL import Image
        >>> photo = Image.new("RGB", (640, 480))
        >>> overlay(photo, grad_cam(model, images, 281, layer="layer4")[0]).size
        (640, 480)
    """
    if isinstance(opacity, bool) or not isinstance(opacity, (int, float)) or not 0 <= opacity <= 1:
        raise BadOption(f"opacity={opacity!r} is not possible. Give a number from 0 to 1.")
    chosen = view(map, colours=colours, limits=limits, signed=signed, smooth=smooth)
    picture = pixels(photo)
    if opacity == 0:
        return draw_picture(picture)
    original = picture[..., :3].float()
    drawn = _drawn(original, chosen)
    picture[..., :3] = (original + (drawn - original) * opacity).round().clamp(0, 255).to(torch.uint8)
    return draw_picture(picture)


def _drawn(photo: Tensor, chosen: View) -> Tensor:
    """The map over the muted photograph, `[H, W, 3]` from 0 to 255."""
    height, width = photo.shape[:2]
    drawn = muted(photo, chosen.fine)
    values = enlarge(chosen.values[None], (height, width), smooth=chosen.smooth)[0]
    share = shares(values, chosen)
    colour, weight = paint(share, chosen.colours)
    drawn += (colour - drawn) * weight[..., None]
    if not chosen.fine:
        line, halo = _contours(share.abs(), max(1.0, RULE["line"] * min(height, width)))
        drawn *= 1 - halo[..., None]
        drawn += (255 - drawn) * line[..., None]
    stripe = torch.arange(height)[:, None] + torch.arange(width)
    stripes = ((stripe // 4) % 2 * 255).float()[..., None]
    return torch.where(values.isnan()[..., None], stripes, drawn)


def muted(photo: Tensor, fine: bool) -> Tensor:
    """A photograph `[..., 3]` with less saturation and brightness, as background of a map."""
    kind = "fine" if fine else "coarse"
    grey = (photo * torch.tensor(LUMA)).sum(dim=-1, keepdim=True)
    return (grey + (photo - grey) * RULE[f"{kind}_colour"]) * RULE[f"{kind}_light"]


def shares(values: Tensor, chosen: View) -> Tensor:
    """Values as fractions of the colour range: -1 to 1 in signed colours, else 0 to 1."""
    if chosen.colours == "signed":
        return (values.float() / chosen.high).clamp(-1, 1)
    return ((values.float() - chosen.low) / (chosen.high - chosen.low)).clamp(0, 1)


def paint(share: Tensor, colours: str) -> tuple[Tensor, Tensor]:
    """Colour `[..., 3]` and opacity of fractions of the colour range; NaN is transparent."""
    share = share.nan_to_num()
    if colours == "signed":
        colour = torch.where((share < 0)[..., None], torch.tensor(BLUE), torch.tensor(RED)).float()
    else:
        colour = colour_map(colours)[(share * 255).round().long()].float()
    return colour, RULE["strength"] * share.abs() ** RULE["curve"]


def _contours(size: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """Coverage of each pixel by the contours, and the darkness of their halo, by distance = |value − level| / slope."""
    slopes = []
    for dim in (0, 1):
        step = size.diff(dim=dim).abs()
        blank = torch.zeros_like(size.narrow(dim, 0, 1))
        slopes.append(torch.cat([blank, step], dim).maximum(torch.cat([step, blank], dim)))
    slope = (slopes[0] ** 2 + slopes[1] ** 2).sqrt().clamp(min=1e-6)
    reach = math.ceil(1.5 * width + 0.5)
    ends = torch.stack([size, -size]).nan_to_num()[:, None]
    around = functional.max_pool2d(ends, 2 * reach + 1, stride=1, padding=reach)[:, 0]
    line, halo = torch.zeros_like(size), torch.zeros_like(size)
    for level in (RULE["low_line"], RULE["high_line"]):
        away = (size - level).abs() / slope
        crossed = (around[0] >= level) & (-around[1] < level)  # only where neighbours lie on both sides of the level
        line = line.maximum(crossed * (width / 2 + 0.5 - away).clamp(0, 1).nan_to_num())
        halo = halo.maximum(crossed * ((1.5 * width + 0.5 - away) / width).clamp(0, 1).nan_to_num())
    return line, RULE["halo"] * halo


def colour_bar(
    low: float,
    high: float,
    *,
    colours: str | None = None,
    unit: str = "",
    size: tuple[int, int] = (320, 48),
    dark: bool = False,
    fine: bool = False,
    clipped: bool = False,
) -> Image.Image:
    """Draw the colours as they appear over a muted grey, labelled with values.

    `fine` for a map on the dark photograph, `clipped` where values exceed the limits, both as in `View`.

    Returns  RGB image of `size` (width, height), black on white, or white on near-black with `dark`, labelled at both
             ends and in the middle (zero on a signed map). Without `colours` the sign of `low` chooses, as in
             `overlay`; "signed" is drawn from -m to m.
    Errors   BadOption for another colour map, limits without order, or a size too small to read (160 x 32).
    """
    from PIL import Image, ImageDraw  # an optional package: the library needs torch alone

    low, high = _checked((low, high))
    name = colours or ("signed" if low < 0 else "magma")
    colour_map(name)
    width, height = size
    if width < 160 or height < 32:
        raise BadOption(f"size={size!r} is too small to read. Give at least (160, 32).")
    if name == "signed":
        high = max(abs(low), abs(high))
        low = -high
    paper, ink = ((27, 27, 31), (250, 250, 250)) if dark else ((255, 255, 255), (27, 27, 31))
    picture = Image.new("RGB", (width, height), paper)
    left, strip = 8, height - 24
    bar = bar_colours(width - 2 * left, name, fine)
    picture.paste(draw_picture(bar.expand(strip, -1, -1)), (left, 4))
    ends = f"{'<= ' * clipped}{low:.3g}" if name == "signed" else f"{low:.3g}", f"{'>= ' * clipped}{high:.3g}"
    marks = [(ends[0], 0.0), (f"{(low + high) / 2:.3g}", 0.5), (f"{ends[1]} {unit}".rstrip(), 1.0)]
    _labels(ImageDraw.Draw(picture), marks, (left, strip + 7, width - left), ink)
    return picture


def bar_colours(steps: int, colours: str, fine: bool) -> Tensor:
    """The colours of evenly spaced values over muted grey, uint8 `[1, steps, 3]`."""
    grey = muted(torch.full((1, steps, 3), 128.0), fine)
    share = torch.linspace(-1 if colours == "signed" else 0, 1, steps)[None]
    colour, weight = paint(share, colours)
    return (grey + (colour - grey) * weight[..., None]).round().to(torch.uint8)


def _labels(
    draw: ImageDraw.ImageDraw, marks: list[tuple[str, float]], box: tuple[int, int, int], ink: tuple[int, int, int]
) -> None:
    left, top, right = box
    for text, share in marks:
        length = draw.textlength(text)
        draw.text((round(left + share * (right - left - length)), top), text, fill=ink)


def sprite(features: Tensor, cell: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    """A small greyscale image of each channel, normalised by its own range.

    Returns  (planes, low, high): planes uint8 `[K, c, c]` for square grids, else in the grid's aspect ratio, no side
             above `cell`: larger grids are averaged, smaller ones are not enlarged. A plane's value v stands for
             `low + v / 255 * (high - low)`; low and high are float32 `[K]`, of the averaged plane. A constant channel
             is 0 with low = high. Values that are not finite are drawn 0 and left out of the range, which is NaN where
             none is finite.
    Errors   ValueError for another shape; BadOption for a cell below 1.
    """
    if features.ndim != 3 or not features.numel():
        raise ValueError(f"sprite takes one image's channels [K, h, w], not {tuple(features.shape)}. Give features[0].")
    if cell < 1:
        raise BadOption(f"cell={cell!r} is not possible. Give an integer of at least 1.")
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
    pair = limits if isinstance(limits, (tuple, list)) and len(limits) == 2 else (math.nan, math.nan)
    low, high = (float(value) if hasattr(value, "__float__") else math.nan for value in pair)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BadOption(f"limits={limits!r} are not possible. Give (low, high), both finite, low below high.")
    return low, high
