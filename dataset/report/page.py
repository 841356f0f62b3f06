"""The report as one HTML file: template, style, script and data in one, and no request to anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataset.report.content import Report, gather
from dataset.report.pictures import Read
from dataset.shards import Finished, room_on_disk

if TYPE_CHECKING:
    from PIL import Image

    from models import Model

STATIC = Path(__file__).parent / "static"
DRAWING = Path(__file__).resolve().parents[2] / "ui" / "static" / "drawing"
"""The app's own drawing of maps, so that a map looks the same in both."""
SCRIPTS = (DRAWING / "colours.js", DRAWING / "field.js", DRAWING / "paint.js", STATIC / "report.js")


def write(
    finished: Finished,
    out: str | Path,
    *,
    read: Read,
    model: Model | None = None,
    box: Sequence[float] | None = None,
    mask: Image.Image | Callable[[str], Image.Image | None] | None = None,
    link: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the report on a finished run; returns where it is.

    `read` gives a photograph by its row's path, None where that is gone; `model` says which region the network saw and
    gives the map of the expected class of mistakes; `box` (left, top, right, bottom in parts of that region) and `mask`
    (white is inside; one for all pictures, or a function of the path) are regions whose share of the relevance is told;
    `link` is the address of an app; `progress` is called with the pictures done and all.

    Errors   Refused for a run without a readable picture, for a box or a mask that cannot be, and for a full disk
    """
    report = gather(finished, Report(read, model, box, mask, link, progress))
    path = Path(out).expanduser()
    with room_on_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(report), encoding="utf-8")
    return path


def render(content: dict[str, Any]) -> str:
    """The page of what `gather` found; all text in it is escaped."""
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    text = script()
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    # In a script element only "</" and "<!--" mean something.
    data = json.dumps(content.pop("data"), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    whole = Environment(loader=FileSystemLoader(STATIC), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return whole.get_template("report.html").render(
        **content,
        css=Markup((STATIC / "report.css").read_text(encoding="utf-8")),
        script=Markup(text),
        script_hash=f"sha256-{digest}",
        data=Markup(data),
    )


def script() -> str:
    """The scripts as one module: their imports of each other and their exports are left out."""
    parts = [path.read_text(encoding="utf-8") for path in SCRIPTS]
    return "\n".join(
        re.sub(r"^export ", "", re.sub(r"^import .*$", "", part, flags=re.M), flags=re.M) for part in parts
    )
