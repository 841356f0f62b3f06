"""Masks for a report: one image for all rows, or a folder with one mask per image."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from PIL import Image

from saliscope.cli import messages
from saliscope.errors import Refused


def find(path: Path, rows: Iterable[str]) -> Image.Image | Callable[[str], Image.Image | None]:
    """Return the mask, or a function that returns the mask of a path, or None if there is none.

    Errors   Refused for a path that does not exist, for a file that is not an image, and for a folder without a mask
             of any of the rows
    """
    if not path.exists():
        raise Refused(messages.NO_MASK.format(path=str(path)))
    if not path.is_dir():
        return _read(path)
    files = {file.relative_to(path).with_suffix("").as_posix(): file for file in path.rglob("*") if file.is_file()}

    def find_mask(row: str) -> Image.Image | None:
        name = PurePosixPath(row).with_suffix("")
        file = files.get(name.as_posix()) or files.get(name.name)
        mask = None if file is None else _read(file)
        return mask if mask is not None and mask.getextrema() != (0, 0) else None  # a black mask is empty

    if not any(find_mask(row) is not None for row in rows):
        raise Refused(messages.NO_MASKS.format(path=str(path)))
    return find_mask


def _read(path: Path) -> Image.Image:
    try:
        with Image.open(path) as file:
            return file.convert("L")
    except (OSError, ValueError):
        raise Refused(messages.NOT_A_MASK.format(path=str(path))) from None
