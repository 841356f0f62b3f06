"""The example photographs and their thumbnails."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

ASSETS = Path(__file__).resolve().parent.parent / "assets"
SMALL = 112


@dataclass(frozen=True)
class Example:
    """A photograph that a visitor can choose by its id."""

    id: str
    alt: str
    path: Path
    note: str = ""
    """What to try with it."""


def all_examples() -> dict[str, Example]:
    """The examples by id, in the order of the page.

    Errors   OSError or ValueError when `assets/examples.json` is missing or broken
    """
    listed = json.loads((ASSETS / "examples.json").read_text(encoding="utf-8"))
    made = (Example(item["id"], item["alt"], ASSETS / item["file"], item.get("note", "")) for item in listed)
    return {example.id: example for example in made}


def small(example: Example) -> dict[str, str]:
    """An entry of the strip of examples: id, words, and the centre square as a data URL."""
    with Image.open(example.path) as photo:
        photo.draft("RGB", (2 * SMALL, 2 * SMALL))  # a JPEG decodes at an eighth of its size in an eighth of the time
        photo = photo.convert("RGB")
    side = min(photo.size)
    left, top = (photo.width - side) // 2, (photo.height - side) // 2
    file = io.BytesIO()
    photo.resize((SMALL, SMALL), box=(left, top, left + side, top + side)).save(file, "JPEG", quality=85)
    return {
        "id": example.id,
        "alt": example.alt,
        "note": example.note,
        "src": "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode(),
    }
