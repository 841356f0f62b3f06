"""Scripts contain no text for users, which comes from the messages of their feature, and no long lines or functions."""

from __future__ import annotations

import re
from pathlib import Path

STATIC = Path(__file__).parents[2] / "saliscope" / "page" / "static"
COMMENT = re.compile(r"/\*.*?\*/|(?<![:\"'`])//[^\n]*", re.S)
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\\n]|\\.)*)`')
TEXT = re.compile(r"(^|[\s,;])[A-Z][a-z]+([\s.…:,]|$)|(^| )[a-z]{2,} [a-z]{2,}( |$)|^[a-z]{3,} $|^ [a-z]{2,}( |$)")
"""A capitalized word, or two lowercase words next to each other."""
KEYS = {"Escape", "Enter", "Home", "End", "Tab", "Files"}
FORMATS = {" of ", " px", " input", "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"}
FORMATS |= {"{'descr': '<f4', 'fortran_order': False, 'shape': ", "Connection to the server was lost"}
"""Names of fonts, parts of selectors and of formats, and a message of Gradio that a script looks for."""
FILE_FORMATS = {"share/formats/pdf.js"}
"""Scripts whose strings are the operators of a file format."""


MOST_LINES, MOST_COLUMNS = 60, 120
FUNCTION = re.compile(r"^( *)(?!(?:if|for|while|switch)\b|}).*(?:\)|=>) \{$")
"""The first line of a function, as the formatter writes it."""


def texts(script: str) -> list[str]:
    """Return the parts of a script's strings that read as text."""
    found = []
    for plain, template in STRING.findall(COMMENT.sub("", script.replace("image/*", "image/"))):
        for part in re.split(r"\$\{[^{}]*\}", plain or template):
            if "hl-" not in part and part not in KEYS | FORMATS and TEXT.search(part):
                found.append(part)
    return found


def long_functions(script: str) -> list[str]:
    """Return the first lines of long functions. A function ends at the first "}" with its own indentation."""
    lines, found = script.splitlines(), []
    for start, line in enumerate(lines):
        if match := FUNCTION.match(line):
            end = next((k for k in range(start, len(lines)) if lines[k].startswith(f"{match[1]}}}")), start)
            if end - start >= MOST_LINES:
                found.append(line.strip())
    return found


def scripts() -> dict[str, str]:
    """Return all scripts by their path."""
    return {path.relative_to(STATIC).as_posix(): path.read_text(encoding="utf-8") for path in STATIC.rglob("*.js")}


def test_scripts_contain_no_text() -> None:
    written = {name: script for name, script in scripts().items() if name not in FILE_FORMATS}
    assert {name: found for name, script in written.items() if (found := texts(script))} == {}


def test_functions_and_lines_are_short() -> None:
    assert {name: found for name, script in scripts().items() if (found := long_functions(script))} == {}
    wide = {
        name: [line for line in script.splitlines() if len(line) > MOST_COLUMNS] for name, script in scripts().items()
    }
    assert {name: lines for name, lines in wide.items() if lines} == {}


def test_text_in_a_script_is_found() -> None:
    script = 'say("Not ready", `${count} files left`, "Save", "hl-note hl-quiet", "Enter", "px"); // A remark'

    assert texts(script) == ["Not ready", " files left", "Save"]


def test_a_long_function_is_found() -> None:
    body = "\n".join(["    step();"] * 59)

    assert long_functions(f"class A {{\n  run(x) {{\n{body}\n  }}\n}}\n") == ["run(x) {"]
    assert long_functions(f"class A {{\n  run(x) {{\n{body[12:]}\n  }}\n}}\n") == []
