"""Masks of a report: one picture for all, or a folder with one for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from PIL import Image

from dataset.errors import Refused
from hooklens import words


def find(path: Path, rows: Iterable[str]) -> Image.Image | Callable[[str], Image.Image | None]:
    """The mask, or a function from a row's path to its own; None where there is none for it.

    Errors   Refused for what is no picture, and for a folder without a mask of any of the rows
    """
    if not path.is_dir():
        return _read(path)
    files = {each.relative_to(path).with_suffix("").as_posix(): each for each in path.rglob("*") if each.is_file()}

    def of(row: str) -> Image.Image | None:
        name = PurePosixPath(row).with_suffix("")
        file = files.get(name.as_posix()) or files.get(name.name)
        mask = None if file is None else _read(file)
        return mask if mask is not None and mask.getextrema() != (0, 0) else None  # nothing is inside a black one

    if not any(of(row) is not None for row in rows):
        raise Refused(words.NO_MASKS.format(path=str(path)))
    return of


def _read(path: Path) -> Image.Image:
    try:
        with Image.open(path) as file:
            return file.convert("L")
    except (OSError, ValueError):
        raise Refused(words.NO_MASK.format(path=str(path))) from None
