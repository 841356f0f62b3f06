"""A local or remote file or folder, with the names of the files in it."""

from __future__ import annotations

import contextlib
import glob
import os
import posixpath
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

from saliscope import install
from saliscope.errors import Refused
from saliscope.runs.formats import shorten
from saliscope.runs.items import file_system, is_local, list_folder, refuse_errors

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"}
"""Suffixes of the supported formats."""
AHEAD = 8
"""Folders of a store that are listed at the same time."""


def suffix(name: str) -> str:
    """Return the last suffix of a name in lower case, with its dot."""
    return posixpath.splitext(name)[1].lower()


def is_image(name: str) -> bool:
    """Return whether the suffix of a file is that of a supported image format."""
    return suffix(name) in IMAGE_SUFFIXES


@dataclass(frozen=True)
class Location:
    """The location of a source: `root` is its folder in the file system, `name` its file if it is a file."""

    source: str
    fs: Any
    root: str
    name: str = ""
    matches: tuple[str, ...] | None = None
    """The files that match a pattern with *, relative to the root; None: all files."""

    @property
    def is_file(self) -> bool:
        """Whether the source is a single file."""
        return bool(self.name)

    @property
    def local(self) -> bool:
        """Whether the source is on this machine."""
        return is_local(self.source)

    def path(self, name: str) -> str:
        """Return the path of a file in the file system."""
        return f"{self.root.rstrip('/')}/{name}" if self.root else name

    def url(self, name: str) -> str:
        """Return the absolute path or the URL of a file."""
        path = self.path(name)
        if self.local:
            return path
        if "::" not in self.source:
            return str(self.fs.unstrip_protocol(path))
        # In zip://folder::file.zip or simplecache::s3://bucket, the first part with a path belongs to this file system.
        parts = self.source.split("::")
        own = next((i for i, part in enumerate(parts) if "://" in part), 0)
        parts[own] = f"{parts[own].partition('://')[0]}://{path.lstrip('/') if own < len(parts) - 1 else path}"
        return "::".join(parts)

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading."""
        file: IO[bytes] = self.fs.open(self.path(name), "rb")
        return file

    def start(self, name: str) -> bytes:
        """Return the first 2048 bytes of a file."""
        with refuse_errors(self.source), self.open(name) as file:
            return file.read(2048)

    def size(self, names: Sequence[str]) -> int:
        """Return the number of bytes of some files."""
        with refuse_errors(self.source):
            return sum(int(self.fs.size(self.path(name)) or 0) for name in names)

    def walk(self, inside: str = "") -> Iterator[str]:
        """Yield all files below the root or one of its folders, except hidden ones, relative to the root and sorted.

        Only a few folders of each level are in memory. Links are followed.
        """
        if self.matches is not None:
            yield from (name for name in self.matches if name.startswith(inside))
            return
        with ThreadPoolExecutor(AHEAD) as pool:
            yield from self._walk(self.entries(inside), pool)

    def _walk(self, names: list[str], pool: ThreadPoolExecutor) -> Iterator[str]:
        """Yield the files among these names and below these folders; the next folders are listed while one is read."""
        folders = iter([name for name in names if name[-1] == "/"])
        waiting: deque[Future[list[str]]] = deque()
        for name in names:
            if name[-1] != "/":
                yield name
                continue
            while len(waiting) < AHEAD and (folder := next(folders, None)) is not None:
                waiting.append(pool.submit(self.entries, folder))
            yield from self._walk(waiting.popleft().result(), pool)

    def entries(self, inside: str) -> list[str]:
        """Return the files and folders directly in a folder, except hidden ones, relative to the root and sorted.

        Folders end with a slash.
        """
        with refuse_errors(self.source):
            names = list_local(self.root, inside) if self.local else list_store(self.fs, self.root, inside)
            return sorted(names, key=self.to_text)

    @staticmethod
    def to_text(name: str) -> str:
        """Return a file name as valid UTF-8: other bytes are written as \\udc.., so that a table can contain them."""
        return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()


def open_location(source: str) -> Location:
    """Return the file, folder or pattern of files that a source names.

    Errors   Refused if it does not exist
    """
    if not source:
        raise Refused("The source is empty. Pass a folder of images, a list, a tar or a dataset.")
    if is_local(source):
        source = os.path.expanduser(source)
    outer, chained, inner = source.rpartition("::")
    if chained and not is_local(source) and is_local(inner):
        source = f"{outer}::{os.path.abspath(os.path.expanduser(inner))}"
    fs, root = file_system(source)
    with refuse_errors(source):
        if fs.isfile(root):
            folder, _, name = root.rpartition("/")
            return Location(source, fs, folder or ("/" if root.startswith("/") else ""), name)
        if fs.isdir(root):
            return Location(source, fs, root)
        if glob.has_magic(source) and (matches := [str(path) for path in fs.glob(root) if fs.isfile(path)]):
            return _file_set(source, fs, matches)
        if "{" in source and not glob.has_magic(source):
            return _file_set(source, fs, _expand_braces(source, fs, root))
        if not is_local(source):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                fs.ls(root)  # `isfile` and `isdir` of fsspec hide why a store cannot be read
    if is_local(source) and os.path.lexists(source):
        raise Refused(f"{source} is neither a file nor a folder that can be opened.")
    raise Refused(
        f"File or folder not found: {source}. Check the spelling"
        + (f"; the working directory is {os.getcwd()}." if is_local(source) and not os.path.isabs(source) else ".")
    )


def _file_set(source: str, fs: Any, paths: list[str]) -> Location:
    folder = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    return Location(source, fs, folder, matches=tuple(posixpath.relpath(path, folder) for path in paths))


def _expand_braces(source: str, fs: Any, root: str) -> list[str]:
    """Return the files that a pattern such as `train-{0000..1023}.tar` names.

    Errors   Refused for files that do not exist, because a set without them would look complete
    """
    try:
        from braceexpand import braceexpand  # only in the extra `data`
    except ImportError:
        raise Refused(
            f"{source} needs the package braceexpand, which is not installed. {install.hint('data')}."
        ) from None
    try:
        paths: list[str] = list(dict.fromkeys(braceexpand(root)))
    except ValueError:  # UnbalancedBracesError, which its types lack
        raise Refused(f"The braces in {source} are not balanced. Example: train-{{0000..1023}}.tar.") from None
    missing = [path for path in paths if not fs.isfile(path)]
    if missing:
        names = shorten(missing, 3)
        raise Refused(f"{len(missing)} of the {len(paths)} files in {source} do not exist: {names}. Check the numbers.")
    return paths


def is_hidden(name: str) -> bool:
    """Return whether a file is hidden (.git), or one of macOS's extra files (._x.jpg, __MACOSX)."""
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def list_local(root: str, inside: str) -> Iterator[str]:
    """Yield the files and folders directly in a folder, except a folder above it, which would be endless.

    A link can lead there, or a link to a folder above the root, which contains the root.
    """
    parts = inside.split("/")
    above = {_identify(os.path.join(root, *parts[:depth])) for depth in range(len(parts))}
    with os.scandir(os.path.join(root, inside)) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                if _identify(entry.path) not in above:
                    yield f"{inside}{entry.name}/"
            elif entry.is_file() or not os.path.exists(entry.path):  # a link to a missing file cannot be read
                yield inside + entry.name


def _identify(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def list_store(fs: Any, root: str, inside: str) -> Iterator[str]:
    """Yield the files and folders directly in a folder of a store, as `list_local`."""
    root = root.rstrip("/")
    folder = f"{root}/{inside}".rstrip("/") if inside and root else inside.rstrip("/") or root
    for name, size in list_folder(fs, folder).items():
        if not is_hidden(name):
            yield f"{inside}{name}{'/' if size < 0 else ''}"
    fs.dircache.pop(folder, None)  # it would keep all names of the store
