"""Masks for a report: one image for all rows, or a folder with one mask per image."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from PIL import Image

from saliscope.errors import Refused


def find_masks(path: Path, rows: Iterable[str]) -> Image.Image | Callable[[str], Image.Image | None]:
    """Return the mask, or a function that returns the mask of a path, or None if there is none.

    Errors   Refused for a path that does not exist, for a file that is not an image, and for a folder without a mask
             of any of the rows
    """
    if not path.exists():
        raise Refused(f"File not found: {str(path)!r}. Pass a mask, or a folder of masks.")
    if not path.is_dir():
        return _read(path)
    files = {file.relative_to(path).with_suffix("").as_posix(): file for file in path.rglob("*") if file.is_file()}

    def find_mask(row: str) -> Image.Image | None:
        name = PurePosixPath(row).with_suffix("")
        file = files.get(name.as_posix()) or files.get(name.name)
        mask = None if file is None else _read(file)
        return mask if mask is not None and mask.getextrema() != (0, 0) else None  # a black mask is empty

    if not any(find_mask(row) is not None for row in rows):
        raise Refused(
            f"None of the images of the run has a mask in {str(path)!r}. A mask needs the name of its image, with any "
            "suffix."
        )
    return find_mask


def _read(path: Path) -> Image.Image:
    try:
        with Image.open(path) as file:
            return file.convert("L")
    except (OSError, ValueError):
        raise Refused(
            f"Cannot read the mask {str(path)!r}: it is not an image. Use an image that is white inside."
        ) from None
