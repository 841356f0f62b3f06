"""Directives of the reference, which is made from the code.

`names` shows public names of a module with their docstrings, and `commands` the commands of `saliscope`.
"""

import importlib
import inspect
import re

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

log = logging.getLogger(__name__)
FIELD = re.compile(r"(Returns|Errors|Source)\s{2,}(?=\S)")
ANNOTATED = re.compile(
    r"""~?typ\w+\.Annotated\[(.*?), (?:~explainers\.options\.\w+\(.*?\)|'.*?'|".*?")\](?= = |, |\))"""
)
"""A type with the range or the text of an option, as autodoc writes it."""


class Names(SphinxDirective):
    """`.. names:: MODULE`, with the names as content: functions, classes and errors."""

    required_arguments = 1
    has_content = True

    def run(self):
        module = self.arguments[0]
        lines = [f".. currentmodule:: {module}", ""]
        for name in " ".join(self.content).split():
            found = getattr(importlib.import_module(module), name)
            kind, options = ("class", ["   :members:"]) if inspect.isclass(found) else ("function", [])
            lines += [f".. auto{kind}:: {module}.{name}", *options, ""]
            if not inspect.getdoc(found):
                log.warning("%s.%s has no docstring", module, name, location=self.get_location())
        node = nodes.Element()
        self.state.nested_parse(StringList(lines, source=self.get_location()), self.content_offset, node)
        return node.children


class Commands(SphinxDirective):
    """All commands with their help and options, as typer writes them in Markdown."""

    def run(self):
        import typer
        from typer.cli import get_docs_for_click

        from saliscope.cli.commands import app

        group = typer.main.get_command(app)
        text = get_docs_for_click(obj=group, ctx=typer.Context(group), name="saliscope").partition("\n## ")
        return self.parse_text_to_nodes(f"## {text[2]}", allow_section_headings=True)


def escape(line):
    """Return a line of plain text, with backticks for code, as reStructuredText."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"([*|\\]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def convert_docstring(app, what, name, obj, options, lines):
    """Convert a docstring of this project to reStructuredText: indented blocks, fields and an example."""
    result, state = [], "text"
    for before, line in zip(["", *lines], lines, strict=False):
        indented = line.startswith("    ")
        if field := FIELD.match(line):
            result += [*([""] if state != "field" else []), f":{field[1]}: {escape(line[field.end() :])}"]
            state = "field"
        elif line.strip() in ("Example", "Examples"):
            result += ["", "**Example**", "", ".. code-block:: pycon", ""]
            state = "block"
        elif not line.strip():
            result.append("")
        elif state == "field" and line.startswith(" "):
            result.append(f"   {escape(line.strip())}")
        elif indented and (state == "block" or not before.strip()):
            result += [] if state == "block" else [".. code-block:: text", ""]
            result.append(f"   {line[4:]}")
            state = "block"
        else:
            result.append(escape(line))
            state = "text"
    lines[:] = result


def list_options(app, what, name, obj, options, lines):
    """Add the options of a method with their ranges, which its signature declares."""
    from explainers import METHODS

    method = METHODS.get(name.removeprefix("explainers."))
    if method is None or method.function is not obj or not method.options:
        return
    entries = []
    for option in method.options.values():
        limits = [str(limit) for limit in (option.low, option.high) if limit is not None]
        values = ", ".join(map(str, option.choices)) or " to ".join(limits)
        details = f"{values}; default {option.default}" if values else f"default {option.default}"
        entries.append(f"- ``{option.name}``: {escape(option.help)} ({escape(details)})")
    fields = next((k for k, line in enumerate(lines) if line.startswith(":Returns:")), len(lines))
    lines[fields:fields] = ["**Options**", "", *entries, ""]


def shorten_signature(app, what, name, obj, options, signature, returned):
    """Omit the ranges and texts of options from a signature, as `list_options` has them."""
    if signature:
        signature = re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", ANNOTATED.sub(r"\1", signature))
    return signature, returned


def setup(app):
    app.add_directive("names", Names)
    app.add_directive("commands", Commands)
    app.connect("autodoc-process-docstring", convert_docstring)
    app.connect("autodoc-process-docstring", list_options)
    app.connect("autodoc-process-signature", shorten_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
