"""Notebooks draw maps with the scripts of the page, joined in one file that the library contains.

`python -m tests.project.test_notebook_script` writes explainers/display/map.js again.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "saliscope" / "page"
START = STATIC / "notebook" / "notebook.js"
CONSTANTS = STATIC / "drawing" / "constants.js"
"""Left out: explainers/display/figure.py writes these constants before the script."""
SCRIPT = ROOT / "explainers" / "display" / "map.js"
IMPORT = re.compile(r'^import \{[^}]*\} from "([^"]+)";\n', re.M)
NAME = re.compile(r"^(?:export )?(?:async )?(?:const|let|class|function) (\w+)", re.M)
STATEMENTS = re.compile(r"^(?=[^\s)}\]])", re.M)
METHODS = re.compile(r"^(?=  (?:async )?\w+\(.*\) \{$)|(?<=^  }\n)", re.M)
"""Where a statement of a module starts, and where a method of a class starts or ends; prettier formats all modules."""
REMOVABLE = re.compile(
    r"(?:export )?(?:async )?(?:const|let|function) (\w+)|  (?:async )?(?!constructor)(\w+)\(.*\) \{$", re.M
)


def script() -> str:
    """Return the modules that a notebook needs as one expression, a function (element, data)."""
    modules: dict[Path, str] = {}
    _add(START, modules)
    names = [name for text in modules.values() for name in NAME.findall(text)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Several modules define {', '.join(twice)}; rename them, because one script contains all.")
    head = "// Generated from saliscope/page: run `python -m tests.project.test_notebook_script`.\n"
    whole = [each for text in modules.values() for each in STATEMENTS.split(_without_comments(text))]
    parts = [part for each in whole for part in (METHODS.split(each) if "class " in each[:13] else [each])]
    while unused := _unused(parts):
        parts = [part for part in parts if part not in unused]
    text = re.sub(r"^export |^[ \t]+|^\n", "", "".join(parts), flags=re.M)
    return head + "(() => {\n" + text + "return showMap;\n})()\n"


def _unused(parts: list[str]) -> list[str]:
    """Return the functions, constants and methods whose names occur in no other part."""
    names = Counter(name for part in parts for name in set(re.findall(r"\w+", part)))
    found = [(REMOVABLE.match(part), part) for part in parts]
    return [part for match, part in found if match and names[match[1] or match[2]] == 1 and "showMap" not in match[0]]


def _add(path: Path, modules: dict[Path, str]) -> None:
    """Add a module after those that it imports."""
    text = path.read_text(encoding="utf-8")
    for name in IMPORT.findall(text):
        if (imported := (path.parent / name).resolve()) not in {CONSTANTS, *modules}:
            _add(imported, modules)
    modules[path] = text


def _without_comments(text: str) -> str:
    """Return the text of a module without imports and comments."""
    text = IMPORT.sub("", text)
    text = re.sub(r"^[ \t]*/\*\*.*?\*/[ \t]*\n", "", text, flags=re.M | re.S)
    text = re.sub(r"^[ \t]*//[^\n]*\n", "", text, flags=re.M)
    return re.sub(r" // [^\n\"'`]*$", "", text, flags=re.M)


def test_the_script_is_that_of_the_page() -> None:
    """If this fails, run `python -m tests.project.test_notebook_script`."""
    assert SCRIPT.read_text(encoding="utf-8") == script()


if __name__ == "__main__":
    SCRIPT.write_text(script(), encoding="utf-8")
