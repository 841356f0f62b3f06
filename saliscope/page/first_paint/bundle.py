"""All scripts and style sheets of the page as one module, so that a slow line needs one request instead of about 180.

A script that exports `mount` draws a part, whose `module` is the name of the script. Each script becomes a function, so
its names stay local. Scripts import others only at their start, and export only functions, classes and constants; a
test checks that they use no other module syntax.
"""

from __future__ import annotations

import functools
import hashlib
import json
import posixpath
import re
from pathlib import Path

import brotli
from starlette.requests import Request
from starlette.responses import Response

PAGE = Path(__file__).resolve().parents[1]
START = "page.js"
QUALITY = 9
"""Level of brotli: level 11 would take two seconds of the first visitor for 9% fewer bytes."""

IMPORT = re.compile(r'^import \{([^}]*)\} from "([^"]+)";\n', re.M)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const) (\w+))", re.M)
COMMENT = re.compile(r"^[ \t]*(?:/\*\*.*?\*/[ \t]*|//[^\n]*)\n", re.M | re.S)


def build() -> bytes:
    """Return the module, which exports `start`."""
    modules: dict[str, str] = {}
    mounts = [path.relative_to(PAGE).as_posix() for path in sorted(PAGE.rglob("*.js")) if "mount" in _exports(path)]
    for name in (*mounts, START):
        if name not in modules:
            _add(name, modules)
    numbers = {name: f"m{number}" for number, name in enumerate(modules)}
    parts = [
        f"const {numbers[name]} = (() => {{\n{_body(name, text, numbers)}}})();\n" for name, text in modules.items()
    ]
    sheet = "document.head.append(Object.assign(document.createElement('style'), {textContent: %s}));\n"
    table = ", ".join(f'"{name.removesuffix(".js")}": {numbers[name]}.mount' for name in mounts)
    exported = f"export const start = (...given) => {numbers[START]}.start({{ {table} }}, ...given);\n"
    return "".join([sheet % json.dumps(style(), ensure_ascii=False), *parts, exported]).encode()


def _exports(path: Path) -> list[str]:
    return EXPORT.findall(path.read_text(encoding="utf-8"))


def style() -> str:
    """Return the style sheet of the page, followed by those of its features.

    The rules are nested, which makes them stronger than those with which Gradio resets all elements.
    """
    sheets = sorted(PAGE.rglob("*.css"), key=lambda path: (path.name != "page.css", path.name))
    rules = "\n".join(path.read_text(encoding="utf-8") for path in sheets)
    return f":root:root {{\n{rules}\n}}"


def _add(name: str, modules: dict[str, str]) -> None:
    """Add a script after those that it imports."""
    text = (PAGE / name).read_text(encoding="utf-8")
    for _, path in IMPORT.findall(text):
        if (imported := _resolve(name, path)) not in modules:
            _add(imported, modules)
    modules[name] = text


def _body(name: str, text: str, numbers: dict[str, str]) -> str:
    """Return a script as the body of a function that returns its exports."""

    def read(match: re.Match[str]) -> str:
        names = re.sub(r"(\w+) as (\w+)", r"\1: \2", " ".join(match[1].split()))
        return f"const {{ {names} }} = {numbers[_resolve(name, match[2])]};\n"

    exported = EXPORT.findall(text)
    text = COMMENT.sub("", EXPORT.sub("", IMPORT.sub(read, text)))
    return f"{text}return {{ {', '.join(exported)} }};\n"


def _resolve(name: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))


class Bundle:
    """The script under a name that changes with its content, so browsers keep it. It is sent compressed."""

    def __init__(self) -> None:
        self.script = build()
        self.name = f"page-{hashlib.sha256(self.script).hexdigest()[:16]}.js"
        self.compressed = brotli.compress(self.script, quality=QUALITY)

    async def respond(self, request: Request) -> Response:
        """Answer a request for the script."""
        headers = {"vary": "accept-encoding"}
        content = self.script
        if "br" in request.headers.get("accept-encoding", ""):  # otherwise the page's middleware compresses it
            content, headers["content-encoding"] = self.compressed, "br"
        return Response(content, media_type="text/javascript", headers=headers)


@functools.cache
def load() -> Bundle:
    """Return the bundle of this process."""
    return Bundle()
