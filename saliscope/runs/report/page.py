"""Write the report as one HTML file that contains the style, script and data and makes no requests."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from saliscope import percentages
from saliscope.runs import formats
from saliscope.runs.report.content import gather
from saliscope.runs.report.context import Report
from saliscope.runs.run_data import RunData
from saliscope.runs.shards import refuse_disk_errors

STATIC = Path(__file__).parent / "static"
PAGE = Path(__file__).resolve().parents[2] / "page"
"""The app, whose code for elements and for drawing maps is used, so that maps look the same in both."""
DRAWING_SCRIPTS = (
    PAGE / "wire.js",
    *(PAGE / "drawing" / f"{name}.js" for name in ("constants", "colors", "field", "paint")),
    *(STATIC / f"{name}.js" for name in ("drawing", "tables")),
)
SCRIPTS = (*DRAWING_SCRIPTS, *(STATIC / f"{name}.js" for name in ("report", "embedding")))


def write(data: RunData, out: str | Path, inputs: Report) -> Path:
    """Write the report of a finished run, and return its path.

    Errors   Refused for a run without a readable image, for an invalid box or mask, and for a full disk
    """
    with _freed_memory():
        report = gather(data, inputs)
    path = Path(out).expanduser()
    with refuse_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(report), encoding="utf-8")
    return path


@contextmanager
def _freed_memory() -> Iterator[None]:
    """Let Arrow allocate with the system: its own pool keeps 60 MB more of a report of a million rows."""
    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(pool)


def render(content: dict[str, Any], template: str = "report.html", scripts: Sequence[Path] = SCRIPTS) -> str:
    """Return the page for the result of `gather`; all text in it is escaped."""
    text = script(scripts)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    # In a script element, only "</" and "<!--" have a special meaning.
    data = json.dumps(content.pop("data"), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    whole = Environment(loader=FileSystemLoader(STATIC), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    whole.filters |= {"percent": formats.percent, "number": formats.number}
    whole.globals |= {
        "plural": formats.plural,
        "p_value": formats.p_value,
        "points": percentages.points,
        "json": json.dumps,
    }
    whole.globals |= {"method_title": formats.title}
    return whole.get_template(template).render(
        **content,
        css=Markup((STATIC / "report.css").read_text(encoding="utf-8")),
        script=Markup(text),
        script_hash=f"sha256-{digest}",
        data=Markup(data),
    )


def script(scripts: Sequence[Path]) -> str:
    """Return the scripts as one module, without their imports of each other and their exports."""
    parts = [path.read_text(encoding="utf-8") for path in scripts]
    return "\n".join(
        re.sub(r"^export ", "", re.sub(r"^import [^;]*;$", "", part, flags=re.M), flags=re.M) for part in parts
    )
