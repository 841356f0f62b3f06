"""Maps as HTML: a static image that scripts replace by the map with controls; where scripts are blocked, it stays."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from explainers.display.encoding import escape, image_address, packed_map, script_json
from explainers.display.figure import MapFigure
from explainers.display.tables import findings_html

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


def maps_html(figures: Sequence[MapFigure]) -> str:
    """Return the figures next to each other, with one script for all of them."""
    marks = [f"saliscope-{uuid.uuid4().hex}" for _ in figures]
    parts = [_figure_html(figure, mark) for figure, mark in zip(figures, marks, strict=True)]
    # A script with this text only once, also for several maps.
    script = (HERE / "map.js").read_text(encoding="utf-8").partition("\n")[2].strip()
    calls = [
        f"showMap(document.getElementById({script_json(mark)}), {script_json(_data(figure))});"
        for figure, mark in zip(figures, marks, strict=True)
    ]
    code = "(() => {\nconst showMap = " + script + ";\n" + "\n".join(calls) + "\n})();"
    return f'<div class="saliscope-maps">{"".join(parts)}</div><script>{code}</script>'


def _figure_html(figure: MapFigure, mark: str) -> str:
    lines = "".join(f'<p class="saliscope-quiet">{escape(line[:1].upper() + line[1:])}.</p>' for line in figure.lines)
    return (
        f'<figure><p class="saliscope-title">{escape(figure.title)}</p>'
        f'<div id="{mark}"><img src="{image_address(figure.drawn)}" alt="{escape(_label(figure))}"></div>'
        f"<figcaption>{lines}{findings_html(figure.findings)}</figcaption></figure>"
    )


def _data(figure: MapFigure) -> dict[str, object]:
    return {
        "map": packed_map(figure.map),
        "image": image_address(figure.photo),
        "colors": figure.colors or "auto",
        "limits": figure.limits,
        "signed": figure.signed,
        "unit": figure.quantity,
        "label": _label(figure),
        "terms": TERMS,
    }


def _label(figure: MapFigure) -> str:
    return f"{figure.lines[0]}, {figure.title}"
