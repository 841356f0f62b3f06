"""The pictures of a zip, written out one by one: nothing that its names or sizes claim is trusted."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from ui import limits
from ui.engine.messages import Refused
from ui.many import words

PIECE = 1 << 20
LONGEST = 120
"""Characters of a name that are kept."""


def is_archive(path: str) -> bool:
    """Whether a file begins as a zip does, whatever its name."""
    with open(path, "rb") as file:
        return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")


def unpack(path: str, name: str, folder: Path, is_picture: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Each picture's name within the archive, and the file that it was written to.

    Errors   Refused for what is no zip, for an encrypted one, for too many pictures, and for too many bytes
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [each for each in archive.infolist() if _is_wanted(each) and is_picture(each.filename)]
            if len(members) > limits.MANY:
                raise Refused(words.TOO_MANY.format(count=len(members), most=limits.MANY))
            left = limits.MANY_BYTES
            for number, member in enumerate(members):
                if member.flag_bits & 1:
                    raise Refused(words.LOCKED.format(name=name))
                file = folder / f"{number:03d}"
                left -= _write(archive, member, file, min(left, limits.FILE), name)
                yield member.filename[-LONGEST:], str(file)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(words.DAMAGED.format(name=name)) from None


def _is_wanted(member: zipfile.ZipInfo) -> bool:
    """Not what systems add: folders, hidden files, Apple's copies."""
    parts = PurePosixPath(member.filename).parts
    return not member.is_dir() and not any(part.startswith((".", "__MACOSX")) for part in parts)


def _write(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path, most: int, name: str) -> int:
    size = 0
    with archive.open(member) as source, open(file, "wb") as target:
        while piece := source.read(PIECE):
            size += len(piece)
            if size > most:
                raise Refused(words.TOO_LARGE.format(name=name, limit=limits.MANY_BYTES // limits.MB))
            target.write(piece)
    return size
