"""A file or folder on this machine or behind an address, with the names of the files in it."""

from __future__ import annotations

import contextlib
import glob
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from dataset.errors import Refused
from dataset.items import file_system, is_local

PICTURES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"}
"""Suffixes of the formats that are decoded."""


def suffix(name: str) -> str:
    """The last suffix of a name, in small letters, with its dot."""
    return posixpath.splitext(name)[1].lower()


def is_picture(name: str) -> bool:
    """Whether a file is called like a picture that can be decoded."""
    return suffix(name) in PICTURES


@dataclass(frozen=True)
class Place:
    """Where a source lies: `root` is its folder in the file system, `name` its file where it is one."""

    source: str
    fs: Any
    root: str
    name: str = ""
    matches: tuple[str, ...] | None = None
    """Files that a pattern with * names, relative to the root; None: all."""

    @property
    def is_file(self) -> bool:
        """Whether the source is one file."""
        return bool(self.name)

    @property
    def local(self) -> bool:
        """Whether it lies on this machine."""
        return is_local(self.source)

    def path(self, name: str) -> str:
        """The path of a file in the file system."""
        return f"{self.root.rstrip('/')}/{name}" if self.root else name

    def url(self, name: str) -> str:
        """What opens the file from anywhere: an absolute path, or an address with its protocol."""
        path = self.path(name)
        if self.local:
            return path
        if "::" not in self.source:
            return str(self.fs.unstrip_protocol(path))
        # Such as zip://folder::file.zip or simplecache::s3://bucket: the first part with a path is this file system's.
        parts = self.source.split("::")
        own = next((i for i, part in enumerate(parts) if "://" in part), 0)
        parts[own] = f"{parts[own].partition('://')[0]}://{path.lstrip('/') if own < len(parts) - 1 else path}"
        return "::".join(parts)

    def open(self, name: str) -> IO[bytes]:
        """The file, for reading."""
        file: IO[bytes] = self.fs.open(self.path(name), "rb")
        return file

    def start(self, name: str) -> bytes:
        """The first 2048 bytes of a file."""
        with refusing(self.source), self.open(name) as file:
            return file.read(2048)

    def files(self) -> list[str]:
        """All files below the root but hidden ones, relative to it, in order; folders behind links are followed."""
        if self.matches is not None:
            return list(self.matches)
        with refusing(self.source):
            names = _walk(self.root) if self.local else _find(self.fs, self.root)
            return sorted(name for name in names if not is_hidden(name))

    @staticmethod
    def shown(name: str) -> str:
        """A file's name as text: bytes that are no UTF-8 are written as \\udc.., which a table can hold."""
        return name.encode("utf-8", "backslashreplace").decode()


def open_place(source: str) -> Place:
    """The file, folder or pattern of files that a source names.

    Errors   Refused where there is nothing
    """
    if not source:
        raise Refused("The source is an empty name. Give a folder of pictures, a list, a tar or a data set.")
    if is_local(source):
        source = os.path.expanduser(source)
    outer, chained, inner = source.rpartition("::")
    if chained and not is_local(source) and is_local(inner):
        source = f"{outer}::{os.path.abspath(os.path.expanduser(inner))}"
    fs, root = file_system(source)
    with refusing(source):
        if fs.isfile(root):
            folder, _, name = root.rpartition("/")
            return Place(source, fs, folder or ("/" if root.startswith("/") else ""), name)
        if fs.isdir(root):
            return Place(source, fs, root)
        if glob.has_magic(source) and (found := [str(path) for path in fs.glob(root) if fs.isfile(path)]):
            folder = posixpath.commonpath([posixpath.dirname(path) for path in found])
            return Place(source, fs, folder, matches=tuple(posixpath.relpath(path, folder) for path in found))
    if is_local(source) and os.path.lexists(source):
        raise Refused(f"{source} is neither a file nor a folder that can be opened.")
    raise Refused(
        f"There is nothing at {source}. Check the spelling"
        + (f"; relative paths begin at {os.getcwd()}." if is_local(source) and not os.path.isabs(source) else ".")
    )


@contextlib.contextmanager
def refusing(source: str) -> Iterator[None]:
    """Errors of a file system become Refused."""
    try:
        yield
    except Refused:
        raise
    except PermissionError as error:
        raise Refused(f"{source} may not be read by this user.") from error
    except Exception as error:  # every file system has errors of its own
        raise Refused(f"{source} cannot be read: {error or type(error).__name__}.") from error


def is_hidden(name: str) -> bool:
    """Folders of tools (.git), and the ._x.jpg and __MACOSX that a Mac leaves beside pictures."""
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def _find(fs: Any, root: str) -> list[str]:
    root = root.rstrip("/")
    return [str(path)[len(root) :].lstrip("/") for path in fs.find(root)]


def _walk(root: str, inside: str = "", above: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
    """fsspec follows a link to a folder above it for ever; here a folder inside itself is left out."""
    status = os.stat(os.path.join(root, inside))
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    with os.scandir(os.path.join(root, inside)) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                yield from _walk(root, f"{inside}{entry.name}/", (*above, here))
            elif entry.is_file():
                yield inside + entry.name
