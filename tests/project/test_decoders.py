"""Only decoder processes decode files of visitors: no module of the page names a function that decodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.project.sources import ROOT, files, parse

DECODERS = {
    "Image": {"open"},
    "ImageFile": {"Parser"},
    "uploads": {"open_image", "TimedDecoder"},
    "bands": {"open_file", "open_bands", "preview_image", "read"},
    "metadata": {"strip_metadata"},
    "npy": {"read"},
    "tiff": {"pages", "read_bands"},
    "strips": {"reduce_image"},
    "np": {"load", "genfromtxt", "loadtxt"},
    "numpy": {"load", "genfromtxt", "loadtxt"},
    "torch": {"load"},
    "io": {"read_image", "decode_image", "decode_jpeg", "decode_png"},
    "pickle": {"load", "loads", "Unpickler"},
}
"""Modules and their functions that decode bytes."""
OWN_FILES = {
    "saliscope/page/agents/tools.py": "Image.open",  # an overlay that the page has drawn
    "saliscope/compute/erase/tensors.py": "Image.open",  # the JPEG that an edit has just encoded
    "saliscope/compute/units.py": "Image.open",  # an index that the project or the owner of the page has made
    "saliscope/compute/bundles/reading.py": "npy.read",  # the command `replay`, which the page does not have
}
"""Files that decode what the project or the user of a command has, and how."""


def uses(path: Path) -> Iterator[str]:
    """Yield the decoders that a file names: as an attribute of a module, or imported on their own."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
            module = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if node.attr in DECODERS.get(module, ()):
                yield f"{module}.{node.attr}"
        if isinstance(node, ast.ImportFrom) and node.module:
            module = node.module.rpartition(".")[2]
            yield from (f"{module}.{name.name}" for name in node.names if name.name in DECODERS.get(module, ()))


def test_the_page_decodes_no_files_in_its_process() -> None:
    places = ("saliscope/page", "saliscope/compute", "saliscope/cli/serving.py", "app.py")
    found = {path.relative_to(ROOT).as_posix(): set(uses(path)) for place in places for path in files(place)}
    unknown = {name: names - {OWN_FILES.get(name)} for name, names in found.items()}
    assert {name: names for name, names in unknown.items() if names} == {}
    assert len(found) > 100
