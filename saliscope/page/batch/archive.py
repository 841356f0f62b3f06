"""Extract the images of a zip archive one by one, without trusting its file names or declared sizes."""

from __future__ import annotations

import io
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
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compressions of all common programs; others take much more time and memory per byte."""


class Budget:
    """The images and bytes that all archives and files of one report may still have.

    `go_on` is called for every part that is unpacked, and returns whether the job continues.
    """

    def __init__(self, go_on: Callable[[], bool] = lambda: True) -> None:
        self.images, self.bytes, self.go_on = limits.BATCH, limits.BATCH_BYTES, go_on

    def take_images(self, count: int) -> None:
        """Count images.

        Errors   Refused for too many
        """
        self.images -= count
        if self.images < 0:
            raise Refused(messages.TOO_MANY.format(count=limits.BATCH - self.images, most=limits.BATCH))

    def take_bytes(self, count: int) -> None:
        """Count bytes.

        Errors   Refused for too many
        """
        self.bytes -= count
        if self.bytes < 0:
            raise Refused(messages.TOO_MUCH)


def is_archive(path: str) -> bool:
    """Return whether a file has the signature of a zip archive, independent of its name."""
    with open(path, "rb") as file:
        return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")


def unpack(
    path: str, name: str, folder: Path, is_image: Callable[[str], bool], budget: Budget
) -> Iterator[tuple[str, str]]:
    """Yield the name of each image in the archive, and the file that it was extracted to.

    Errors   Refused for an invalid or encrypted archive, and for more images or bytes than the budget has left
    """
    try:
        with _Listing(path) as file, zipfile.ZipFile(file) as archive:
            file.left = None
            members = [each for each in archive.infolist() if _is_wanted(each) and is_image(each.filename)]
            budget.take_images(len(members))
            for number, member in enumerate(members):
                if member.flag_bits & 1:
                    raise Refused(messages.LOCKED.format(name=name))
                if member.compress_type not in COMPRESSIONS:
                    raise Refused(messages.COMPRESSION.format(name=name))
                target = folder / f"{number:03d}"
                _write(archive, member, target, budget)
                yield member.filename[-LONGEST:], str(target)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(messages.DAMAGED.format(name=name)) from None


class _Listing(io.FileIO):
    """A file of which only `left` bytes can be read, until that is None: its list of files is read as a whole."""

    left: int | None = limits.BATCH_LISTING

    def read(self, size: int | None = -1, /) -> bytes:
        if self.left is None:
            return super().read(size) or b""
        data = super().read(self.left + 1 if size is None or size < 0 else min(size, self.left + 1)) or b""
        self.left -= len(data)
        if self.left < 0:
            raise Refused(messages.TOO_MANY_FILES)
        return data


def _is_wanted(member: zipfile.ZipInfo) -> bool:
    """Return whether this is an ordinary file, not a folder, a hidden file or a macOS resource fork."""
    parts = PurePosixPath(member.filename).parts
    return not member.is_dir() and not any(part.startswith((".", "__MACOSX")) for part in parts)


def _write(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path, budget: Budget) -> None:
    with archive.open(member) as source, open(file, "wb") as target:
        while piece := source.read(PIECE):
            budget.take_bytes(len(piece))
            if not budget.go_on():
                raise Refused(messages.STOPPED)
            target.write(piece)
