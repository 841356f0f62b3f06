"""Maps as images: the overlay on an image or on the frames of a video, and the color bar.

One set of constants, `RULE`, controls how every map in the project is drawn. `saliscope/page/drawing/paint.js`
uses the same constants and arithmetic for the page. The image is muted, not the map:

    coarse maps   are drawn on a pale image (15% of its saturation, 80% of its brightness), with contours at 50% and
                  80% of the color range, which stay readable on any background and in grayscale: white ones with a
                  dark halo, and around negative values dark ones with a white halo
    fine maps     (32 x 32 cells or more, unless smooth) are drawn on a dark gray image (45%) and blurred for display
                  with σ = 1/224 of their side; colors saturate at the 99.5th percentile of |value|, so that outliers
                  do not make everything else pale
    opacity       0.9 |s|^0.65 at fraction s of the color range: zero is transparent

Two kinds of color map:

    sequential    "magma", "viridis": from min(0, minimum) to the maximum
    signed        "signed": blue below zero, red above, symmetric about zero

The range always includes zero: a constant map of 0.25 has one bright color, a blank one none. Values that are not
finite are drawn as black and white stripes, which no color map contains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from explainers.errors import BadImages, BadOption, kind_of, shorten
from explainers.maps.arrays import check_cells, pixels, to_pillow
from explainers.maps.color_maps import BLUE, RED, color_map
from explainers.maps.resize import blur, resize
from explainers.options import check_finite, check_keywords
from explainers.placement import Placement, place

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

RULE = {
    "fine": 1024,
    "rough": 0.1,
    "coarse_color": 0.15,
    "coarse_light": 0.8,
    "fine_color": 0.0,
    "fine_light": 0.45,
    "strength": 0.9,
    "curve": 0.65,
    "low_line": 0.5,
    "high_line": 0.8,
    "line": 1 / 360,
    "halo": 0.55,
    "full": 0.995,
    "blur": 1 / 224,
    "signed_blur": 3 / 224,
}
"""The constants; `saliscope/page/drawing/constants.js` is generated from them.

A map of `fine` cells or more is fine if its `roughness` is above `rough`. `*_color` and `*_light` are the fractions of
saturation and brightness that the image keeps; `strength` and `curve` are the factor and exponent of the opacity;
`line` is the width of a contour relative to the image's shorter side (at least one pixel), `halo` the strength of its
halo; `full` is the quantile at which colors saturate; `blur` is σ relative to a fine map's longer side,
and `signed_blur` that of a fine map with both signs, whose neighboring pixels would otherwise show as speckle.
"""
LEFT, STRIP, INK = 8, 16, (27, 27, 31)
"""The margin of a color bar and the height of its colors, in pixels, and the color of its labels."""
LUMA = (0.2126, 0.7152, 0.0722)
"""Luma coefficients of red, green and blue (ITU-R BT.709)."""


@dataclass(frozen=True, eq=False)
class View:
    """A map with its drawing settings: `values` [h, w], drawn in `colors` from `low` to `high`.

    `fine` selects how the image below is muted, `smooth` whether cells are interpolated; `largest` is the largest
    magnitude, and `sigma` says how far the values are blurred, in cells.
    """

    values: Tensor
    colors: str
    low: float
    high: float
    fine: bool
    smooth: bool
    largest: float
    sigma: float

    @property
    def clipped(self) -> bool:
        """Whether values exceed the limits."""
        return self.largest > max(abs(self.low), abs(self.high))


def view(
    map: Tensor,
    *,
    colors: str | None = None,
    limits: tuple[float, float] | None = None,
    signed: bool = True,
    smooth: bool = True,
) -> View:
    """Choose how a map is drawn: its colors, its limits and how the image below is muted.

    Returns  a `View`: "signed" with (-m, m) if any value is negative, else "magma" with (0, m). m is max |value|, or
             for fine maps the 99.5th percentile unless that is 0. Only finite values count. If a sequential color map
             is given, it starts at the minimum if that is negative. A map of zeros has (0, 1) or (-1, 1).
    Errors   BadOption if the map is not `[h, w]`; BadOption for an unknown color map or unordered limits.
    """
    if not isinstance(map, Tensor) or map.ndim != 2 or not map.numel():
        given = tuple(map.shape) if isinstance(map, Tensor) else type(map).__name__
        frames = " For a video or volume, use overlay_frames." if isinstance(map, Tensor) and map.ndim == 3 else ""
        raise BadOption(
            f"overlay draws one map [h, w], not {given}. For a batch, give one map, such as explanation.map[0].{frames}"
        )
    # NaN propagates through the interpolation; an infinity might not.
    values = torch.where(map.isfinite(), map.detach(), torch.nan).to("cpu")
    values = (values if values.dtype == torch.float64 else values.float()) if signed else values.float().abs()
    fine = values.numel() >= RULE["fine"] and roughness(values) > RULE["rough"]
    sigma = 0.0
    if fine and smooth:
        sigma = RULE["signed_blur" if bool((values < 0).any()) else "blur"] * max(values.shape)
        values = blur(values[None], sigma)[0]
    finite = values[values.isfinite()].double()
    lowest, highest = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    name = ("signed" if lowest < 0 else "magma") if colors is None else colors
    color_map(name)
    largest = max(abs(lowest), abs(highest))
    far = (_quantile(finite.abs(), RULE["full"]) if fine and finite.numel() else 0.0) or largest
    low, high = min(lowest, 0.0), max(min(highest, far), 0.0)
    high = high if high > low else low + 1.0
    if limits is not None:
        low, high = _check_limits(limits)
    if name == "signed":
        high = (far or 1.0) if limits is None else max(abs(low), abs(high))
        low = -high
    return View(values, name, low, high, fine, smooth, largest, sigma)


def roughness(values: Tensor) -> float:
    """Compute the mean squared difference of neighbors over twice the variance: 0 for a plane, about 1 for white noise.

    Returns  a number >= 0; 0 for a map without variance. Values that are not finite are ignored.
    """
    finite = values[values.isfinite()].double()
    if not finite.numel() or not float(finite.var(correction=0)) > 0:
        return 0.0
    steps = torch.cat([values.diff(dim=0).flatten(), values.diff(dim=1).flatten()]).double()
    steps = steps[steps.isfinite()]
    return float((steps**2).mean() / (2 * finite.var(correction=0))) if steps.numel() else 0.0


def _quantile(values: Tensor, share: float) -> float:
    """Return the linearly interpolated quantile. `torch.quantile` does not accept more than 2**24 values."""
    ordered, position = values.sort().values, share * (len(values) - 1)
    below, fraction = int(position), position - int(position)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + fraction * (ordered[above] - ordered[below]))


@check_keywords
def overlay(
    image: Image.Image | Tensor,
    map: Tensor,
    *,
    opacity: float = 1.0,
    colors: str | None = None,
    limits: tuple[float, float] | None = None,
    signed: bool = True,
    smooth: bool = True,
    placement: Placement | None = None,
) -> Image.Image:
    """Draw a map over its image, resized to the image.

    `image` is a Pillow image, or its pixels as a tensor or array [3, H, W], [H, W, 3] or [H, W], in uint8 or as floats
    from 0 to 1. `opacity` blends from the image (0) to the map over the muted image (1). `signed=False` draws
    magnitudes, in which attributions of single pixels are easiest to read; `smooth=False` draws the map's cells without
    blur. `limits` are the values at both ends of the color map, which makes several overlays comparable; values beyond
    them get the end color. "signed" is symmetric about zero, up to the larger limit. `placement` is where the map's
    cells lie: `Explanation.placement` or `Layer.placement`; None if they cover the image evenly.

    Returns  a new image of the size of `image`, RGB, or RGBA with its alpha channel. With `opacity=0` it equals `image`
             bit for bit.
    Errors   BadOption if the map is not `[h, w]`; BadOption for an opacity outside [0, 1], an unknown color map or
             unordered limits; WrongType or BadOption if `image` is not an image, is normalized for a model, or has
             more than 8 bits per channel.

    Example
        >>> from PIL import Image
        >>> photo = Image.new("RGB", (640, 480))
        >>> overlay(photo, grad_cam(model, images, 281, layer="layer4")[0]).size
        (640, 480)
    """
    check_finite("opacity", opacity, "a number from 0 to 1", least=0, most=1)
    check_cells(map, "map", first=0)
    chosen = view(place(map, placement), colors=colors, limits=limits, signed=signed, smooth=smooth)
    values = pixels(image)
    if opacity == 0:
        return to_pillow(values)
    original = values[..., :3].float()
    drawn = _draw(original, chosen)
    values[..., :3] = (original + (drawn - original) * opacity).round().clamp(0, 255).to(torch.uint8)
    return to_pillow(values)


@check_keywords
def overlay_frames(
    frames: Sequence[Image.Image | Tensor] | Tensor,
    map: Tensor,
    *,
    opacity: float = 1.0,
    colors: str | None = None,
    limits: tuple[float, float] | None = None,
    signed: bool = True,
    smooth: bool = True,
    placement: Placement | None = None,
) -> list[Image.Image]:
    """Draw the map of a video or volume over each of its frames, with the options of `overlay`.

    `frames` are the frames or slices that the network received, as images, or as one tensor [T, 3, H, W], [T, H, W, 3]
    or [T, H, W]. The map [t, h, w] is interpolated linearly in time. All frames have the same colors and limits, by
    default the widest of those that `overlay` chooses for single frames, so that they are comparable.

    Returns  new images, one for each frame
    Errors   BadImages if the map is not [t, h, w], or without frames; those of `overlay`

    Example
        >>> from PIL import Image
        >>> clip = [Image.new("RGB", (64, 48)) for _ in range(4)]
        >>> drawn = overlay_frames(clip, torch.rand(2, 6, 8))
        >>> len(drawn), drawn[0].size
        (4, (64, 48))
    """
    check_cells(map, "map", first=0)
    if not isinstance(map, Tensor) or map.ndim != 3:
        given = f"shape {tuple(map.shape)}" if isinstance(map, Tensor) else kind_of(map)
        raise BadImages(
            f"overlay_frames draws one map [t, h, w], not {given}. For a batch, give one map, such as "
            "explanation.map[0]."
        )
    is_clip = isinstance(frames, Sequence) or (isinstance(frames, Tensor) and frames.ndim >= 3)
    if not is_clip or not len(frames):
        raise BadImages("frames is not a sequence of images. Give a list of images, or a tensor [T, 3, H, W].")
    map = place(map, placement)
    maps = resize(map[None].detach(), (len(frames), *map.shape[1:]))[0]
    if colors is None and limits is None:
        colors = "signed" if signed and bool((maps < 0).any()) else "magma"
    shown = [heat for heat in maps if bool((heat.nan_to_num(0, 0, 0) != 0).any())]  # maps of zeros have any limits
    if limits is None and shown:
        own = [view(heat, colors=colors, signed=signed) for heat in shown]
        limits = min(each.low for each in own), max(each.high for each in own)
    drawing: dict[str, Any] = {"opacity": opacity, "colors": colors, "limits": limits}
    return [overlay(one, heat, **drawing, signed=signed, smooth=smooth) for one, heat in zip(frames, maps, strict=True)]


def _draw(photo: Tensor, chosen: View) -> Tensor:
    """Draw the map over the muted image, `[H, W, 3]` from 0 to 255."""
    height, width = photo.shape[:2]
    drawn = mute(photo, chosen.fine)
    values = resize(chosen.values[None], (height, width), "cubic" if chosen.smooth else "nearest")[0]
    share = shares(values, chosen)
    color, weight = paint(share, chosen.colors)
    drawn += (color - drawn) * weight[..., None]
    if not chosen.fine:
        line, halo = _contours(share.abs(), max(1.0, RULE["line"] * min(height, width)))
        ground = torch.where(share < 0, 255.0, 0.0)[..., None]
        drawn += (ground - drawn) * halo[..., None]
        drawn += (255 - ground - drawn) * line[..., None]
    stripe = torch.arange(height)[:, None] + torch.arange(width)
    stripes = ((stripe // 4) % 2 * 255).float()[..., None]
    return torch.where(values.isnan()[..., None], stripes, drawn)


def mute(photo: Tensor, fine: bool) -> Tensor:
    """Reduce the saturation and brightness of an image `[..., 3]`, as background of a map."""
    kind = "fine" if fine else "coarse"
    gray = (photo * torch.tensor(LUMA)).sum(dim=-1, keepdim=True)
    return (gray + (photo - gray) * RULE[f"{kind}_color"]) * RULE[f"{kind}_light"]


def shares(values: Tensor, chosen: View) -> Tensor:
    """Return values as fractions of the color range: -1 to 1 for signed colors, else 0 to 1."""
    if chosen.colors == "signed":
        return (values.float() / chosen.high).clamp(-1, 1)
    return ((values.float() - chosen.low) / (chosen.high - chosen.low)).clamp(0, 1)


def paint(share: Tensor, colors: str) -> tuple[Tensor, Tensor]:
    """Return color `[..., 3]` and opacity for fractions of the color range; NaN is transparent."""
    share = share.nan_to_num()
    if colors == "signed":
        color = torch.where((share < 0)[..., None], torch.tensor(BLUE), torch.tensor(RED)).float()
    else:
        color = color_map(colors)[(share * 255).round().long()].float()
    return color, RULE["strength"] * share.abs() ** RULE["curve"]


def _contours(size: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """Return each pixel's contour coverage and the strength of its halo, by distance = |value − level| / slope."""
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
        crossed = (around[0] >= level) & (-around[1] < level)  # neighbors on both sides of the level
        line = line.maximum(crossed * (width / 2 + 0.5 - away).clamp(0, 1).nan_to_num())
        halo = halo.maximum(crossed * ((1.5 * width + 0.5 - away) / width).clamp(0, 1).nan_to_num())
    return line, RULE["halo"] * halo


def color_bar(drawing: View, unit: str, width: int) -> Image.Image:
    """Draw the colors as they appear over a muted gray, labeled with values.

    Returns  RGB image, black on white, labeled at both ends and, if there is space, in the middle (zero on a signed
             map). Values that exceed the limits are marked. A long unit has its own line.
    """
    from PIL import Image, ImageDraw  # optional: the library requires only torch

    low, high, clipped = drawing.low, drawing.high, drawing.clipped
    first = f"{'<= ' * (clipped and drawing.colors == 'signed')}{low:.3g}"
    last = f"{'>= ' * clipped}{high:.3g}"
    length, right = ImageDraw.Draw(Image.new("RGB", (1, 1))).textlength, width - LEFT
    has_line = length(f"{first} {last} {unit}  ") > right - LEFT
    image = Image.new("RGB", (width, 52 if has_line else 40), "white")
    draw = ImageDraw.Draw(image)
    image.paste(to_pillow(bar_colors(right - LEFT, drawing.colors, drawing.fine).expand(STRIP, -1, -1)), (LEFT, 4))
    end = last if has_line else f"{last} {unit}".rstrip()
    _draw_labels(draw, [(first, 0.0), (f"{(low + high) / 2:.3g}", 0.5), (end, 1.0)], (LEFT, STRIP + 7, right))
    if has_line:
        _draw_labels(draw, [("", 0.0), (unit, 1.0)], (LEFT, STRIP + 19, right))
    return image


def bar_colors(steps: int, colors: str, fine: bool) -> Tensor:
    """Return the colors of evenly spaced values over muted gray, uint8 `[1, steps, 3]`."""
    gray = mute(torch.full((1, steps, 3), 128.0), fine)
    share = torch.linspace(-1 if colors == "signed" else 0, 1, steps)[None]
    color, weight = paint(share, colors)
    return (gray + (color - gray) * weight[..., None]).round().to(torch.uint8)


def _draw_labels(draw: ImageDraw.ImageDraw, marks: list[tuple[str, float]], box: tuple[int, int, int]) -> None:
    """Draw texts at their shares of the width; those between the ends only if they have room."""
    left, top, right = box
    first, last = marks[0][0], marks[-1][0]
    free = right - left - 2 * max(draw.textlength(first), draw.textlength(last))
    start = left + (draw.textlength(f"{first}  ") if first else 0)
    for text, share in marks:
        length = draw.textlength(text)
        if share in (0, 1) or length + 2 * draw.textlength("  ") <= free:
            at = left + share * (right - left - length)
            draw.text((round(max(start, at) if share else at), top), text, fill=INK)


def _check_limits(limits: tuple[float, float]) -> tuple[float, float]:
    pair = limits if isinstance(limits, (tuple, list)) and len(limits) == 2 else (math.nan, math.nan)
    low, high = (float(value) if hasattr(value, "__float__") else math.nan for value in pair)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BadOption(f"Invalid limits={shorten(limits)}. Give (low, high), both finite, with low below high.")
    return low, high
