"""The reference contains every public name once, and the troubleshooting quotes messages that exist."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter

import pytest

from tests.project.sources import ROOT, files, parse

REFERENCE = ROOT / "docs" / "reference"
LISTED = re.compile(r"^\.\. names:: (\S+)\n\n(.*?)^```$", re.M | re.S)
DESCRIBED = {"explainers.METHODS", "explainers.METRICS", "explainers.MethodName", "saliscope.runs"}
"""Names without a docstring, which the text of a page describes."""


def listed() -> Counter[str]:
    """Return how often the pages of the reference list each name."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(REFERENCE.glob("*.md")))
    return Counter(f"{module}.{name}" for module, names in LISTED.findall(text) for name in names.split())


@pytest.mark.parametrize("module", ["explainers", "saliscope", "saliscope.runs"])
def test_every_public_name_is_in_the_reference_once(module: str) -> None:
    found = listed()
    names = {f"{module}.{name}" for name in importlib.import_module(module).__all__ if not name.startswith("__")}
    text = "\n".join(path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md"))

    assert {name: found[name] for name in names - DESCRIBED if found[name] != 1} == {}
    assert [name for name in names & DESCRIBED if f"`{name.removeprefix('explainers.')}`" not in text] == []


def messages() -> list[str]:
    """Return all texts of the code, with … in place of values."""
    found = []
    for path in [path for folder in ("explainers", "saliscope") for path in files(folder)]:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values))
    return found


def quoted() -> list[str]:
    return re.findall(r"^\*\*`(.*?)`\*\*", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.M)


def test_messages_in_the_troubleshooting_are_those_of_the_code() -> None:
    """Every part of a message between two values is in one text of the code."""
    text = "\n".join(messages())
    parts = {part.strip() for message in quoted() for part in message.split("…") if len(part.strip()) > 10}

    assert len(parts) > 40
    assert sorted(part for part in parts if part not in text) == []
