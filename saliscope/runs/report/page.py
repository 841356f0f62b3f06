"""Write the report as one HTML file that contains the style, script and data and makes no requests."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saliscope import percentages
from saliscope.runs import formats
from saliscope.runs.report.content import gather
from saliscope.runs.report.context import Report
from saliscope.runs.report.images import Read
from saliscope.runs.run_data import RunData
from saliscope.runs.shards import refuse_disk_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL import Image

    from saliscope.zoo import Model

STATIC = Path(__file__).parent / "static"
DRAWING = Path(__file__).resolve().parents[2] / "page" / "drawing"
"""The app's code for drawing maps, so that maps look the same in both."""
DRAWING_SCRIPTS = (
    *(DRAWING / f"{name}.js" for name in ("constants", "colors", "field", "paint")),
    *(STATIC / f"{name}.js" for name in ("drawing", "tables")),
)
SCRIPTS = (*DRAWING_SCRIPTS, *(STATIC / f"{name}.js" for name in ("report", "selection", "embedding")))


def write(
    data: RunData,
    out: str | Path,
    *,
    read: Read,
    model: Model | None = None,
    box: Sequence[float] | None = None,
    mask: Image.Image | Callable[[str], Image.Image | None] | None = None,
    link: str | None = None,
    metadata: Mapping[str, pa.Array] | None = None,
    source: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the report of a finished run, and return its path.

    `read` returns the image of a path, or None if it is not available anymore; `model` determines the region that the
    network received, and computes the maps of the expected class of mistakes; `box` (left, top, right, bottom as
    fractions of that region) and `mask` (white is inside; one for all images, or a function of the path) are regions
    whose share of the relevance is reported; `link` is the URL of an app. `metadata` has columns with a value per row,
    whose slices are compared (default: the other columns of the list that the run explains, which is found at `source`
    if it was moved). `progress` is called with the number of finished images and the total number.

    Errors   Refused for a run without a readable image, for an invalid box or mask, and for a full disk
    """
    with _freed_memory():
        report = gather(data, Report(read, model, box, mask, link, metadata, source, progress))
    path = Path(out).expanduser()
    with refuse_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(report), encoding="utf-8")
    return path


@contextmanager
def _freed_memory() -> Iterator[None]:
    """Let Arrow allocate with the system: its own pool keeps 60 MB more of a report of a million rows."""
    import pyarrow as pa  # slow to import, or an extra

    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(pool)


def render(content: dict[str, Any], template: str = "report.html", scripts: Sequence[Path] = SCRIPTS) -> str:
    """Return the page for the result of `gather`; all text in it is escaped."""
    from jinja2 import Environment, FileSystemLoader  # slow to import, or an extra
    from markupsafe import Markup  # slow to import, or an extra

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
