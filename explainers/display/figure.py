"""Maps over their images as HTML: a static image that scripts replace by the map with controls.

Where scripts are blocked, the image stays.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from explainers.display.display import findings_html
from explainers.display.encoding import escape, image_address, packed_map, script_json
from explainers.maps.overlays import color_bar, overlay, view
from explainers.maps.pixels import to_pillow

if TYPE_CHECKING:
    from PIL import Image

LARGEST = 384
"""The longest side of a shown image in pixels."""
SIDE = 224
"""The longest side of a shown image is at least this number of pixels."""
TERMS = {
    "view": "View",
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
"""Labels used by saliscope/page/static/notebook/notebook.js."""
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
        drawing, shown = view(self.map, **how), overlay(photo, self.map, **how)
        size = max(160, shown.width), 52 if len(self.quantity) > 12 else 40
        about: dict[str, Any] = {"colors": drawing.colors, "fine": drawing.fine, "clipped": drawing.clipped}
        bar = color_bar(drawing.low, drawing.high, unit=self.quantity, size=size, **about)
        both = Image.new("RGB", (max(shown.width, bar.width), shown.height + bar.height), "white")
        both.paste(shown, (0, 0))
        both.paste(bar, (0, shown.height))
        return both

    @property
    def data(self) -> dict[str, object]:
        """The map and its settings for the script."""
        return {
            "map": packed_map(self.map),
            "image": image_address(self.photo),
            "colors": self.colors or "auto",
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
    code = "(() => {\nconst showMap = " + script + ";\n" + "\n".join(calls) + "\n})();"
    return f'<div class="saliscope-maps">{"".join(parts)}</div><script>{code}</script>'


def _figure_html(figure: MapFigure, mark: str) -> str:
    lines = "".join(f'<p class="saliscope-quiet">{escape(line[:1].upper() + line[1:])}.</p>' for line in figure.lines)
    return (
        f'<figure><p class="saliscope-title">{escape(figure.title)}</p>'
        f'<div id="{mark}"><img src="{image_address(figure.drawn)}" alt="{escape(figure.label)}"></div>'
        f"<figcaption>{lines}{findings_html(figure.findings)}</figcaption></figure>"
    )
