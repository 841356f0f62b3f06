"""One script with all modules and style sheets of the first view, so that a slow line needs one request instead of 110.

The script contains the text of each module. The browser loads it from memory (a blob), and an import map replaces its
address (bundle.js), so modules work as before. Only two things are replaced in a text, because a module in
memory has no address: relative imports, and `import.meta.url`. Other modules, such as those of other tabs, are loaded
from their addresses when they are needed, and import those of the bundle.

Gradio's files have other names in every version, so the bundle finds them from Gradio's HTML: the entry, the modules
that it imports, and the components of the page in Gradio's table. A module that is not found is loaded as usual.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import posixpath
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import brotli
import gradio
from starlette.requests import Request
from starlette.responses import Response

from saliscope.page.first_paint import repeated_work

FRONTEND = Path(gradio.__file__).parent / "templates" / "frontend"
STATIC = Path(__file__).resolve().parents[1] / "static"
START = Path(__file__).with_suffix(".js")
FAST, SMALLEST = 5, 11
"""Levels of brotli: 0.1 s and 235 kB, or two to four seconds and 205 kB."""

ENTRY = re.compile(r'<script type="module" crossorigin src="\./(assets/[\w.-]+\.js)"></script>')
SHEET = re.compile(r'<link rel="stylesheet" crossorigin href="\./(assets/[\w.-]+\.css)">')
PATH = re.compile(r"\./[\w./-]+\.js(?=[\"'`])")
IMPORT = re.compile(r"\b(?:from|import)\s*(\(?)\s*$")
LOADED = re.compile(r"import\(`\./([\w.-]+\.js)`\)[^\[]*?\[([\d,]*)\]")
"""A module that is loaded on demand, and the numbers of the files that it needs."""
FILES = re.compile(r"m\.f=(\[[^\]]*\])")
"""The names of these files."""
COMPONENT = r":\{[^{}]*?\bcomponent:\(\)=>\w+\(\(\)=>import\(`\./([\w.-]+)`"
"""What follows the type of a component in Gradio's table, with its module."""
PICK = "i.map(i=>d[i])"
APPLICATION = ("Index-", "Blocks-")
"""The starts of the names of two modules: Gradio's entry always loads the first on demand, which loads the second."""


class Bundle(NamedTuple):
    """The script, its name, which depends on its content, and the elements of Gradio's HTML that it replaces."""

    script: bytes
    name: str
    entry: str
    sheet: str

    @property
    def elements(self) -> str:
        """The elements for the start of the page that load the script; without it, Gradio is loaded as usual."""
        usual = json.dumps(self.sheet + self.entry).replace("<", "\\u003c")
        load = f"document.head.append(document.createRange().createContextualFragment({usual}))"
        return (
            f"<script>window.saliscope = {{ loadGradio: () => {load} }};</script>"
            f'<script defer src="hl/{self.name}" onerror="saliscope.loadGradio()"></script>'
        )


class Import(NamedTuple):
    """An import: its position in the text without the quotes, the imported module, and whether it is on demand."""

    start: int
    end: int
    name: str
    on_demand: bool


def build(components: Iterable[str], modules: Iterable[str]) -> Bundle | None:
    """Bundle Gradio's modules for these types of components, and ours with these paths below static/.

    Returns  None if Gradio's HTML has another form
    """
    html = (FRONTEND / "index.html").read_text(encoding="utf-8")
    entry, sheet = ENTRY.search(html), SHEET.search(html)
    if not entry or not sheet:
        return None
    names, sheets = _gradio_files(entry[1], sorted(set(components)))
    names |= dict.fromkeys(_closure([f"hl/{name}" for name in modules]))
    content = {
        "modules": {name: _in_memory(name) for name in names},
        "styles": {name: _text(name) for name in [sheet[1], *sheets]},
        "entry": entry[1],
    }
    start = _without_comments(START.read_text(encoding="utf-8")).strip().removesuffix(";")
    script = f"({start})({json.dumps(content, ensure_ascii=False)});\n".encode()
    return Bundle(script, f"page-{hashlib.sha256(script).hexdigest()[:16]}.js", entry[0], sheet[0])


def _gradio_files(entry: str, components: list[str]) -> tuple[dict[str, None], dict[str, None]]:
    """Return the modules and the style sheets that Gradio loads for the entry and for components, in order."""
    names, sheets = dict.fromkeys(_closure([entry])), dict[str, None]()

    def add(name: str, needed: list[str]) -> None:
        names.update(dict.fromkeys(_closure([name])))
        sheets.update(dict.fromkeys(needed))

    loading = entry
    for start in APPLICATION:
        for name, needed in _loaded_by(loading).items():
            if name.startswith(f"assets/{start}"):
                add(name, needed)
                loading = name
    for table in [name for name in names if "component:()=>" in _text(name)]:
        for kind in components:
            listed = re.search(rf"[{{,]{kind}{COMPONENT}", _text(table))
            if listed and (name := f"assets/{listed[1]}") in _loaded_by(table):
                add(name, _loaded_by(table)[name])
    return names, sheets


@functools.cache
def _loaded_by(name: str) -> dict[str, list[str]]:
    """Return the modules that a module of Gradio loads on demand, and the style sheets that each needs."""
    files = FILES.search(_text(name))
    listed: list[str] = json.loads(files[1]) if files else []
    needed = {
        module: [listed[int(number)] for number in numbers.split(",") if number]
        for module, numbers in LOADED.findall(_text(name))
    }
    return {
        f"assets/{module}": [_resolve(name, path) for path in paths if path.endswith(".css")]
        for module, paths in needed.items()
    }


def _closure(names: list[str]) -> list[str]:
    """Return modules and all modules that they import, without those loaded on demand."""
    found: list[str] = []
    while names:
        name, *names = names
        if name not in found:
            found.append(name)
            names += [each.name for each in _imports(name) if not each.on_demand]
    return found


@functools.cache
def _imports(name: str) -> list[Import]:
    return list(_find_imports(name))


def _find_imports(name: str) -> Iterator[Import]:
    text = _text(name)
    for path in PATH.finditer(text):  # starts with plain characters, because the files have a megabyte
        start = path.start() - (text[path.start() - 1] == ".")
        if before := IMPORT.search(text[max(0, start - 40) : start - 1]):
            yield Import(start, path.end(), _resolve(name, text[start : path.end()]), bool(before[1]))


def _resolve(name: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))


@functools.cache
def _text(name: str) -> str:
    folder, _, rest = name.partition("/")
    path = STATIC / rest if folder == "hl" else FRONTEND / name
    return path.read_text(encoding="utf-8")


def _in_memory(name: str) -> str:
    """Return the text of a module that works without an address."""
    text, parts, end = _text(name), [], 0
    for each in _imports(name):
        parts += [text[end : each.start], each.name]
        end = each.end
    text = "".join([*parts, text[end:]])
    if name.startswith("hl/"):
        text = _without_comments(text)
    text = text.replace("import.meta.url", f"new URL({json.dumps(name)},document.baseURI).href")
    # Gradio also loads what a module needs, in parallel: only files that are not in the bundle.
    text = text.replace(PICK, f"{PICK}.filter(window.saliscope.isMissing)")
    text = repeated_work.remove(text)
    return f"{text}\n//# sourceURL={name}\n"


def _without_comments(text: str) -> str:
    """Return a script of ours without the comments that have their own lines; line numbers stay."""

    def empty(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    return re.sub(r"^[ \t]*(?:/\*\*.*?\*/[ \t]*|//[^\n]*)(?=\n)", empty, text, flags=re.M | re.S)


class Server:
    """The route of the script, which is sent compressed and kept by browsers, because its name changes with it."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.compressed = brotli.compress(bundle.script, quality=FAST)

    async def respond(self, request: Request) -> Response:
        """Answer a request for the script."""
        headers = {"vary": "accept-encoding"}
        content = self.bundle.script
        if "br" in request.headers.get("accept-encoding", ""):  # otherwise the page's middleware compresses it
            content, headers["content-encoding"] = self.compressed, "br"
        return Response(content, media_type="text/javascript", headers=headers)

    def compress(self) -> None:
        """Compress the script as far as possible, which takes some seconds, with low priority."""
        lower_priority()
        self.compressed = brotli.compress(self.bundle.script, quality=SMALLEST)


def lower_priority() -> None:
    """Let the current thread compute when no other needs the processor."""
    with contextlib.suppress(OSError, AttributeError):  # priorities of threads exist on Linux only
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
