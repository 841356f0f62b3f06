"""Maps over their images, and channels of a layer, as HTML with static images.

Scripts replace the image of a map by the map with controls. Where scripts are blocked, it stays.
"""

from __future__ import annotations

import base64
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from explainers.display.display import (
    NO_PILLOW,
    Display,
    escape,
    findings_html,
    has_pillow,
    image_address,
    packed_map,
    png,
    script_json,
)
from explainers.errors import BadOption, kind_of, shorten
from explainers.maps.arrays import one_for_each, pixels, to_pillow
from explainers.maps.color_maps import BLUE, COLORS, RED, color_map
from explainers.maps.overlays import LUMA, RULE, bar_colors, color_bar, overlay, view

if TYPE_CHECKING:
    from PIL import Image

LARGEST = 384
"""The longest side of a shown image in pixels."""
SIDE = 224
"""The longest side of a shown image is at least this number of pixels."""
TERMS = {
    "mode": "View",
    "overlay": "Overlay",
    "photograph": "Image",
    "map": "Map",
    "swipe": "Swipe",
    "opacity": "Opacity",
    "divider": "Divider",
    "colors": "Colors from",
    "to": "to",
    "low": "Lower color limit",
    "high": "Upper color limit",
    "invalid": "Give two numbers, the lower limit first.",
    "reset": "Reset",
    "cell": "{value} at row {row}, column {column} of {h} × {w}",
}
"""Labels used by saliscope/page/notebook/notebook.js."""
HERE = Path(__file__).parent


@dataclass(frozen=True, eq=False)
class MapFigure:
    """One map [h, w] with the pixels [H, W, 3] of its image, and what is said about it.

    `title` is the target with its score, `lines` are smaller remarks, and `quantity` is the quantity and unit of the
    values. `signed`, `colors` and `limits` are as in `overlay`.
    """

    map: Tensor
    pixels: Tensor
    title: str
    lines: tuple[str, ...]
    findings: tuple[str, ...]
    quantity: str
    signed: bool
    colors: str | None = None
    limits: tuple[float, float] | None = None

    @cached_property
    def photo(self) -> Image.Image:
        """The image, at most `LARGEST` pixels wide and high."""
        image = to_pillow(self.pixels)
        image.thumbnail((LARGEST, LARGEST))
        return image

    @cached_property
    def drawn(self) -> Image.Image:
        """The map over the image, with its color bar below."""
        from PIL import Image  # optional: the library requires only torch

        # At least `SIDE` pixels, so that contours and the color bar have room.
        factor = max(1.0, SIDE / max(self.photo.size))
        photo = self.photo.resize((round(self.photo.width * factor), round(self.photo.height * factor)))
        how: dict[str, Any] = {"colors": self.colors, "limits": self.limits, "signed": self.signed}
        shown = overlay(photo, self.map, **how)
        bar = color_bar(view(self.map, **how), self.quantity, max(160, shown.width))
        both = Image.new("RGB", (max(shown.width, bar.width), shown.height + bar.height), "white")
        both.paste(shown, (0, 0))
        both.paste(bar, (0, shown.height))
        return both

    @property
    def data(self) -> dict[str, object]:
        """The map, how it is drawn without limits, and the settings for the script."""
        automatic = view(self.map, colors=self.colors, signed=self.signed)
        scale = png(to_pillow(bar_colors(256, automatic.colors, automatic.fine)))
        return {
            "scale": f"data:image/png;base64,{base64.b64encode(scale).decode('ascii')}",
            "map": packed_map(self.map),
            "image": image_address(self.photo),
            "drawing": {name: value for name, value in vars(automatic).items() if name != "values"},
            "limits": self.limits,
            "signed": self.signed,
            "unit": self.quantity,
            "label": self.label,
            "terms": TERMS,
        }

    @property
    def label(self) -> str:
        """The text instead of the image."""
        return f"{self.lines[0]}, {self.title}"


def maps_html(figures: Sequence[MapFigure]) -> str:
    """Return the figures next to each other, with one script for all of them."""
    # A script with this text only once, also for several maps.
    script = (HERE / "map.js").read_text(encoding="utf-8").partition("\n")[2].strip()
    parts, calls = [], []
    for figure in figures:
        mark = f"saliscope-{uuid.uuid4().hex}"
        parts.append(_figure_html(figure, mark))
        calls.append(f"showMap(document.getElementById({script_json(mark)}), {script_json(figure.data)});")
    code = "(() => {\n" + _constants() + "const showMap = " + script + ";\n" + "\n".join(calls) + "\n})();"
    return f'<div class="saliscope-maps">{"".join(parts)}</div><script>{code}</script>'


def _constants() -> str:
    """Return the colors and drawing constants as the script names them."""
    tables = {name: base64.b64encode(bytes(color_map(name).flatten().tolist())).decode("ascii") for name in COLORS}
    values = {"COLOR_MAPS": tables, "BLUE": BLUE, "RED": RED, "LUMA": LUMA, "RULE": RULE}
    return "".join(f"const {name} = {script_json(value)};\n" for name, value in values.items())


def _figure_html(figure: MapFigure, mark: str) -> str:
    lines = "".join(f'<p class="saliscope-quiet">{escape(line[:1].upper() + line[1:])}.</p>' for line in figure.lines)
    return (
        f'<figure><p class="saliscope-title">{escape(figure.title)}</p>'
        f'<div id="{mark}"><img src="{image_address(figure.drawn)}" alt="{escape(figure.label)}"></div>'
        f"<figcaption>{lines}{findings_html(figure.findings)}</figcaption></figure>"
    )


def show_channels(
    features: Tensor, channels: Sequence[int] | None = None, *, most: int = 64, colors: str = "magma"
) -> Display:
    """Show the channels of a layer for one image as small maps, each in its own range, in a notebook.

    `features` are the layer's output [K, h, w], or [1, K, h, w], such as a value of `capture` or the result of
    `feature_maps`. `channels` are the numbers of those to show, by default the first `most`.

    Returns  a `Display`, which a notebook shows if it is the last value of a cell
    Errors   ImportError without Pillow; BadOption for another shape; BadOption for an unknown channel or color map

    Example
        >>> show_channels(feature_maps(model, images[:1], layer="layer3"), [3, 17])
        Display(2 of 256 channels)
    """
    if not has_pillow():
        raise ImportError(NO_PILLOW)
    planes = features[0] if isinstance(features, Tensor) and features.ndim == 4 and len(features) == 1 else features
    if not isinstance(planes, Tensor) or planes.ndim != 3 or not planes.numel():
        given = tuple(features.shape) if isinstance(features, Tensor) else kind_of(features)
        raise BadOption(f"show_channels takes the channels [K, h, w] of one image, not {given}. Give features[0].")
    numbers = list(range(min(most, len(planes)))) if channels is None else list(channels)
    for number in numbers:
        if not isinstance(number, int) or not 0 <= number < len(planes):
            raise BadOption(f"Unknown channel {shorten(number)}. Give integers from 0 to {len(planes) - 1}.")
    color_map(colors)
    drawn = [(number, *_draw_channel(planes[number], colors)) for number in numbers]
    parts = [
        f'<figure><img src="{image_address(image)}" alt="Channel {number}">'
        f"<figcaption>{number}: {low:.3g} to {high:.3g}</figcaption></figure>"
        for number, image, low, high in drawn
    ]
    count = f"{len(numbers):,} of {len(planes):,} channel{'s' * (len(planes) != 1)}"
    content = f'<p>{count}</p><div class="saliscope-channels">{"".join(parts)}</div>'
    return Display(content, f"Display({count})", [each[1] for each in drawn])


def _draw_channel(plane: Tensor, colors: str) -> tuple[Image.Image, float, float]:
    """Draw a channel in its own range; values that are not finite are gray."""
    from PIL import Image  # optional: the library requires only torch

    values = plane.detach().to("cpu", torch.float32)
    finite = values[values.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (math.nan, math.nan)
    share = (values - low) / (high - low) if high > low else torch.zeros_like(values)
    drawn = color_map(colors)[(share.nan_to_num(0, 0, 0).clamp(0, 1) * 255).round().long()]
    drawn = torch.where(values.isfinite()[..., None], drawn, torch.tensor(128, dtype=torch.uint8))
    image = to_pillow(drawn.to(torch.uint8))
    factor = max(1, 96 // max(image.size))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST), low, high


MARGIN = 0.02
"""How far values may leave [0, 1] through interpolation."""
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Shown(NamedTuple):
    """The pixels of an image, uint8 [H, W, 3], and how its colors were found, "" if they are the image's own."""

    pixels: Tensor
    note: str


def given_images(photos: Any, count: int) -> list[Shown]:
    """Convert the caller's images, as `Explanation.overlay` accepts them.

    Errors   BadImages if there is not one image for each of the `count` maps; those of `pixels`
    """
    return [Shown(pixels(photo)[..., :3], "") for photo in one_for_each(photos, count)]


def network_inputs(images: Tensor) -> list[Shown]:
    """Convert a network's inputs [N, C, H, W] to images.

    Values from 0 to 1 and from 0 to 255 are colors. Values from -1 to 1 had mean and standard deviation 0.5. For other
    values, the normalization of ImageNet is undone (that of CLIP is nearly the same); if that does not give colors from
    0 to 1, or the image does not have three channels, its values are stretched to the full range. One channel is gray,
    and of more than three, the first three are shown.
    """
    values = images.detach().to("cpu", torch.float32)
    values = torch.where(values.isfinite(), values, 0.0)
    bands = values.shape[1]
    if bands != 3:
        values = values[:, :1].expand(-1, 3, -1, -1) if bands < 3 else values[:, :3]
    colors, note = _colors(values, bands)
    if bands > 3:
        note = f"bands 1 to 3 of {bands}, {note}"
    return [Shown((each.permute(1, 2, 0) * 255).round().to(torch.uint8), note) for each in colors.clamp(0, 1)]


def _colors(values: Tensor, bands: int) -> tuple[Tensor, str]:
    low, high = float(values.min()), float(values.max())
    if low >= -MARGIN and high <= 1 + MARGIN:
        return values, ""
    if low >= 0 and high <= 255:
        return values / 255, ""
    if low >= -1 - MARGIN and high <= 1 + MARGIN:
        return values * 0.5 + 0.5, "normalization with mean 0.5 undone"
    mean, std = IMAGENET
    colors = values * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    if bands == 3 and float(colors.min()) >= -MARGIN and float(colors.max()) <= 1 + MARGIN:
        return colors, "normalization of ImageNet undone"
    return (values - low) / (high - low), "colors stretched, because the normalization is unknown"
