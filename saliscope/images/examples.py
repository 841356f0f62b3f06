"""The example images and their thumbnails."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps

from saliscope import resources
from saliscope.errors import Refused
from saliscope.images.pixels import encode

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
def thumbnails_name() -> str:
    """Return the file name of the thumbnails, which changes with the examples."""
    data = [example.path.read_bytes() for example in all_examples().values()]
    return f"examples-{hashlib.sha256(b''.join([repr((SMALL, QUALITY)).encode(), *data])).hexdigest()[:16]}.jpg"


@functools.cache
def thumbnails() -> bytes:
    """Return the center squares of all examples side by side, as one JPEG: a page needs one request for them."""
    found = list(all_examples().values())
    sheet = Image.new("RGB", (SMALL * len(found), SMALL))
    for k, example in enumerate(found):
        with Image.open(example.path) as file_image:
            file_image.draft("RGB", (2 * SMALL, 2 * SMALL))  # decoding a JPEG at 1/8 of its size takes 1/8 of the time
            image = file_image.convert("RGB")
        sheet.paste(ImageOps.fit(image, (SMALL, SMALL)), (SMALL * k, 0))
    return encode(sheet, "JPEG", quality=QUALITY)
