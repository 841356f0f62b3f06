"""The templates of reports, comparisons and printed results.

The page of a report or a comparison is one HTML file that contains the style, script and data. It makes no requests,
and all text in it is escaped.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup

from saliscope import percentages
from saliscope.runs import formats

STATIC = Path(__file__).parent / "report" / "static"
PAGE = Path(__file__).resolve().parents[1] / "page"
"""The app, whose code for elements and for drawing maps is used, so that maps look the same in both."""
DRAWING_SCRIPTS = (
    PAGE / "wire.js",
    *(PAGE / "drawing" / f"{name}.js" for name in ("constants", "colors", "field", "paint")),
    *(STATIC / f"{name}.js" for name in ("drawing", "tables")),
)
SCRIPTS = (*DRAWING_SCRIPTS, *(STATIC / f"{name}.js" for name in ("report", "embedding")))


@functools.cache
def templates() -> Environment:
    """Return the templates in `static`; text in HTML is escaped."""
    escape = select_autoescape(["html"])
    found = Environment(loader=FileSystemLoader(STATIC), autoescape=escape, trim_blocks=True, lstrip_blocks=True)
    found.filters |= {"percent": formats.percent, "number": formats.number}
    found.globals |= {name: getattr(formats, name) for name in ("plural", "p_value", "title", "duration")}
    found.globals |= {"points": percentages.points, "json": json.dumps}
    return found


def render(content: dict[str, Any], template: str, scripts: Sequence[Path]) -> str:
    """Return the page with these variables; `data` returns what its script needs, once all other parts are rendered."""
    parts = [path.read_text(encoding="utf-8") for path in scripts]
    # One module, without the imports of each other and the exports.
    parts = [re.sub(r"^export ", "", re.sub(r"^import [^;]*;$", "", part, flags=re.M), flags=re.M) for part in parts]
    script = "\n".join(parts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

    def data() -> Markup:
        text = json.dumps(content["data"](), allow_nan=False, separators=(",", ":"))
        return Markup(text.replace("<", "\\u003c"))  # in a script, only "</" and "<!--" have a special meaning

    css = Markup((STATIC / "report.css").read_text(encoding="utf-8"))
    own = {"css": css, "script": Markup(script), "script_hash": f"sha256-{digest}", "data": data}
    return templates().get_template(template).render(content | own)


def text_of(name: str, /, **values: Any) -> str:
    """Return what is printed for a result, by the name of its class, or for a plan."""
    return templates().get_template("results.txt").render(result_kind=name, **values).strip()


def notebook(**values: Any) -> str:
    """Return the HTML that a notebook shows: a table of `rows` with `heads`, `lines` of text, and `figures`."""
    return templates().get_template("notebook.html").render(values).strip()
