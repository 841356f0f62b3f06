"""The scripts draw maps with the colors and constants of the library, in a file that is generated from Python.

`python -m tests.project.test_script_constants` writes saliscope/page/drawing/constants.js again.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

from explainers.maps.color_maps import BLUE, COLORS, RED, color_map
from explainers.maps.overlays import LUMA, RULE

STATIC = Path(__file__).parents[2] / "saliscope" / "page"
SCRIPT = STATIC / "drawing" / "constants.js"
LINE = 112
"""Characters of a table per line."""


def script() -> str:
    """Return the script with all constants."""
    lines = [
        "// Colors and drawing constants of the library, from explainers/maps/color_maps.py and overlays.py.",
        "// Generated: run `python -m tests.project.test_script_constants` instead of editing this file.",
        "",
        "/** The 256 colors of each color map as RGB bytes in base64. */",
        "export const COLOR_MAPS = {",
    ]
    for name in COLORS:
        text = base64.b64encode(bytes(color_map(name).flatten().tolist())).decode("ascii")
        parts = [json.dumps(text[k : k + LINE]) for k in range(0, len(text), LINE)]
        lines += [f"  {name}:", "    " + " +\n    ".join(parts) + ","]
    lines += ["};", ""]
    lines += [f"export const {name} = {json.dumps(value)};" for name, value in (("BLUE", BLUE), ("RED", RED))]
    lines += [f"export const LUMA = {json.dumps(LUMA)};", "", "/** Documented in explainers/maps/overlays.py. */"]
    lines += ["export const RULE = {", *(f"  {name}: {number(value)}," for name, value in RULE.items()), "};", ""]
    return "\n".join(lines)


def number(value: float) -> str:
    """Return a number as the formatter of the scripts writes it, without a trailing ".0"."""
    return str(int(value)) if value == int(value) else repr(value)


def test_the_script_has_the_constants_of_the_library() -> None:
    """If this fails, run `python -m tests.project.test_script_constants`."""
    assert SCRIPT.read_text(encoding="utf-8") == script()


def test_gradients_of_the_style_sheets_show_the_color_maps() -> None:
    """The legend of the channels: magma at equal steps; blue, black and red for signed values."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(STATIC.rglob("*.css")))
    found = [re.findall(r"#\w{6}", colors) for colors in re.findall(r"linear-gradient\(90deg, (#.*?)\)", text)]
    magma = [f"#{bytes(color).hex()}" for color in color_map("magma")[::51].tolist()]

    assert magma in found
    assert [f"#{bytes(color).hex()}" for color in (BLUE, (0, 0, 4), RED)] in [colors[1:-1] for colors in found]


if __name__ == "__main__":
    SCRIPT.write_text(script(), encoding="utf-8")
