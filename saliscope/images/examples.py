"""The example images and their thumbnails."""

from __future__ import annotations

import functools
import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from saliscope import resources
from saliscope.errors import Refused

ASSETS = resources.assets()
SMALL, QUALITY = 112, 85
"""Pixels of a side of a thumbnail, and the quality of its JPEG."""


@dataclass(frozen=True)
class Example:
    """An example image, which is selected by its ID."""

    id: str
    alt: str
    path: Path
    note: str = ""
    """A suggestion of what to try."""


def all_examples() -> dict[str, Example]:
    """Return the examples by ID, in the order of the page.

    Errors   OSError or ValueError if `assets/examples.json` is missing or damaged
    """
    listed = json.loads((ASSETS / "examples.json").read_text(encoding="utf-8"))
    examples = (Example(item["id"], item["alt"], ASSETS / item["file"], item.get("note", "")) for item in listed)
    return {example.id: example for example in examples}


def example(name: str = "dog") -> Image.Image:
    """Return an example image of the installed package, by its ID.

    Returns  the image in RGB; its attribute `filename` is the path of the file
    Errors   Refused (a ValueError) for an unknown ID, with the available ones

    Example
        >>> example("coffee").size
        (600, 400)
    """
    found = all_examples().get(name)
    if found is None:
        raise Refused(f"Unknown example {name!r}. Available: {', '.join(all_examples())}.")
    image = Image.open(found.path)
    image.load()
    return image


@functools.cache
def thumbnail_names() -> dict[str, str]:
    """Return the file names of the thumbnails by the examples' IDs; a name changes with the example."""
    return {ident: f"{ident}-{_hash(example.path.read_bytes())}.jpg" for ident, example in all_examples().items()}


def _hash(data: bytes) -> str:
    return hashlib.sha256(repr((SMALL, QUALITY)).encode() + data).hexdigest()[:16]


@functools.cache
def thumbnail(ident: str) -> bytes:
    """Return the center square of an example as a small JPEG."""
    with Image.open(all_examples()[ident].path) as file_image:
        file_image.draft("RGB", (2 * SMALL, 2 * SMALL))  # decoding a JPEG at 1/8 of its size takes 1/8 of the time
        image = file_image.convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    file = io.BytesIO()
    image.resize((SMALL, SMALL), box=(left, top, left + side, top + side)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
