"""Extract the images of a zip archive one by one, without trusting its file names or declared sizes."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from saliscope import limits
from saliscope.errors import Refused
from saliscope.page.batch import messages

PIECE = 1 << 20
LONGEST = 120
"""Maximum characters of a name."""


def is_archive(path: str) -> bool:
    """Return whether a file has the signature of a zip archive, independent of its name."""
    with open(path, "rb") as file:
        return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")


def unpack(path: str, name: str, folder: Path, is_image: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Yield the name of each image in the archive, and the file that it was extracted to.

    Errors   Refused for an invalid or encrypted archive, too many images, or too many bytes
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [each for each in archive.infolist() if _is_wanted(each) and is_image(each.filename)]
            if len(members) > limits.BATCH:
                raise Refused(messages.TOO_MANY.format(count=len(members), most=limits.BATCH))
            left = limits.BATCH_BYTES
            for number, member in enumerate(members):
                if member.flag_bits & 1:
                    raise Refused(messages.LOCKED.format(name=name))
                file = folder / f"{number:03d}"
                left -= _write(archive, member, file, min(left, limits.FILE), name)
                yield member.filename[-LONGEST:], str(file)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(messages.DAMAGED.format(name=name)) from None


def _is_wanted(member: zipfile.ZipInfo) -> bool:
    """Return whether this is an ordinary file, not a folder, a hidden file or a macOS resource fork."""
    parts = PurePosixPath(member.filename).parts
    return not member.is_dir() and not any(part.startswith((".", "__MACOSX")) for part in parts)


def _write(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path, most: int, name: str) -> int:
    size = 0
    with archive.open(member) as source, open(file, "wb") as target:
        while piece := source.read(PIECE):
            size += len(piece)
            if size > most:
                raise Refused(messages.TOO_LARGE.format(name=name, limit=limits.BATCH_BYTES // limits.MB))
            target.write(piece)
    return size
