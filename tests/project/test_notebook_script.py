"""Notebooks draw maps with the scripts of the page, joined in one file that the library contains.

`python -m tests.project.test_notebook_script` writes explainers/display/map.js again.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "saliscope" / "page"
START = STATIC / "notebook" / "notebook.js"
SCRIPT = ROOT / "explainers" / "display" / "map.js"
IMPORT = re.compile(r'^import \{[^}]*\} from "([^"]+)";\n', re.M)
NAME = re.compile(r"^(?:export )?(?:async )?(?:const|let|class|function) (\w+)", re.M)


def script() -> str:
    """Return the modules that a notebook needs as one expression, a function (element, data)."""
    modules: dict[Path, str] = {}
    _add(START, modules)
    names = [name for text in modules.values() for name in NAME.findall(text)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Several modules define {', '.join(twice)}; rename them, because one script contains all.")
    head = "// Generated from saliscope/page: run `python -m tests.project.test_notebook_script`.\n"
    return head + "(() => {\n" + "".join(map(_plain, modules.values())) + "return showMap;\n})()\n"


def _add(path: Path, modules: dict[Path, str]) -> None:
    """Add a module after those that it imports."""
    text = path.read_text(encoding="utf-8")
    for name in IMPORT.findall(text):
        if (imported := (path.parent / name).resolve()) not in modules:
            _add(imported, modules)
    modules[path] = text


def _plain(text: str) -> str:
    """Return the text of a module without imports, exports, comments and indentation."""
    text = IMPORT.sub("", text)
    text = re.sub(r"^[ \t]*/\*\*.*?\*/[ \t]*\n", "", text, flags=re.M | re.S)
    text = re.sub(r"^[ \t]*//[^\n]*\n", "", text, flags=re.M)
    text = re.sub(r" // [^\n\"'`]*$", "", text, flags=re.M)
    text = re.sub(r"^export ", "", text, flags=re.M)
    return re.sub(r"^[ \t]+|^\n", "", text, flags=re.M)


def test_the_script_is_that_of_the_page() -> None:
    """If this fails, run `python -m tests.project.test_notebook_script`."""
    assert SCRIPT.read_text(encoding="utf-8") == script()


if __name__ == "__main__":
    SCRIPT.write_text(script(), encoding="utf-8")
