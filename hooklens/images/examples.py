"""The example images and their thumbnails."""

from __future__ import annotations

import functools
import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from hooklens import resources

ASSETS = resources.assets()
SMALL = 112


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


def thumbnail(example: Example) -> bytes:
    """Return the center square of an example as a small JPEG."""
    with Image.open(example.path) as file_image:
        file_image.draft("RGB", (2 * SMALL, 2 * SMALL))  # decoding a JPEG at 1/8 of its size takes 1/8 of the time
        image = file_image.convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    file = io.BytesIO()
    image.resize((SMALL, SMALL), box=(left, top, left + side, top + side)).save(file, "JPEG", quality=85)
    return file.getvalue()


@functools.cache
def thumbnails() -> dict[str, tuple[str, bytes]]:
    """Return file name and content of the thumbnails by the examples' IDs; the name changes with the content."""
    files = {example.id: thumbnail(example) for example in all_examples().values()}
    return {ident: (f"{ident}-{hashlib.sha256(file).hexdigest()[:16]}.jpg", file) for ident, file in files.items()}
