"""The files of a run, by their names relative to its folder: on a local disk, or in a store that fsspec opens."""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from saliscope.errors import Refused, means_full_disk
from saliscope.runs.items import file_system, is_local, list_folder, reason_of, refuse_errors

SETTINGS, MANIFEST, WORK, LOCK = "settings.json", "manifest.json", "work", "lock"


REQUESTS = 16
"""Number of files of a store that are read or deleted at the same time."""


@contextmanager
def refuse_disk_errors(folder: str | Path) -> Iterator[None]:
    """Convert errors of a full or read-only disk, or of a store, to Refused.

    Errors   Refused
    """
    local, again = is_local(str(folder)), "Finished batches are kept. Free some space and run the same command again."
    try:
        yield
    except Refused:
        raise
    except Exception as error:  # each store raises its own types of errors
        if means_full_disk(error):
            raise Refused(f"The disk of {str(folder)!r} is full. {again}") from None
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            raise Refused(f"A file in {str(folder)!r} exceeds the file-size limit (ulimit -f). {again}") from None
        if local and not isinstance(error, OSError):
            raise
        why = "Permission denied" if isinstance(error, PermissionError) else reason_of(error)
        advice = "Check the name and the credentials, or choose another folder. Finished batches are kept."
        advice = "Choose another folder." if local else advice
        raise Refused(f"Cannot write to {str(folder)!r} ({why}). {advice}") from None


class _Folder:
    """A folder in a file system: what local folders and stores have in common."""

    local: bool
    folder: str | Path
    fs: Any
    root: str
    """The path of the folder in the file system."""

    def path(self, name: str) -> str:
        """Return the path of a file in the file system of the store."""
        return f"{self.root}/{name}" if name else self.root

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist.

        Errors   Refused if the store cannot be read
        """
        with refuse_errors(str(self.folder)):
            try:
                self.fs.invalidate_cache()  # another process may have written the file
                return bytes(self.fs.cat_file(self.path(name)))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the sizes of the files in a folder by name, with -1 for folders; empty if it does not exist.

        Errors   Refused if the store cannot be read
        """
        with refuse_errors(str(self.folder)):
            try:
                self.fs.invalidate_cache()
                return list_folder(self.fs, self.path(folder).rstrip("/"))
            except (FileNotFoundError, NotADirectoryError):
                return {}

    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of files, None for those that do not exist.

        Errors   Refused if the store cannot be read
        """
        with ThreadPoolExecutor(REQUESTS) as pool:
            return list(pool.map(self.read, names))

    def delete(self, names: Iterable[str]) -> None:
        """Delete files and folders that exist.

        Errors   Refused if the folder or the store cannot be written
        """
        with refuse_disk_errors(self.folder), ThreadPoolExecutor(REQUESTS) as pool:
            list(pool.map(self._delete, names))

    def _delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.fs.invalidate_cache()
            self.fs.rm(self.path(name), recursive=True)


class LocalStore(_Folder):
    """A local folder. Files are written under a temporary name and renamed, so that existing files are complete."""

    local = True

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self.fs, self.root = file_system(os.path.abspath(self.folder))

    def write(self, name: str, data: Any, sync: bool = True) -> None:
        """Write a file completely or not at all; `sync` waits for the disk, so that it survives a power failure.

        Errors   Refused if the disk is full or read-only
        """
        path = Path(self.path(name))
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with refuse_disk_errors(self.folder):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(temporary, "wb") as file:
                    file.write(data)
                    if sync:
                        file.flush()
                        os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise


class RemoteStore(_Folder):
    """A folder in a store, such as `s3://bucket/run`: without renaming, and with locks only by agreement."""

    local = False

    def __init__(self, url: str) -> None:
        self.folder = url.rstrip("/")
        self.fs, root = file_system(url)
        self.root = root.rstrip("/")
        method = getattr(self.fs, "_pipe_file", None)
        conditional = method is not None and "mode" in inspect.signature(method).parameters
        self.is_exclusive = conditional or self.folder.startswith("memory:")
        """Whether the store itself refuses to create a file that exists, as S3, GCS and Azure do."""

    def write(self, name: str, data: Any, sync: bool = True) -> None:
        """Write a file.

        Errors   Refused if the store cannot be written
        """
        with refuse_disk_errors(self.folder):
            self._make_folder(name)
            self.fs.pipe_file(self.path(name), bytes(data))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that does not exist; return whether it was written.

        Errors   Refused if the store cannot be written
        """
        with refuse_disk_errors(self.folder):
            self._make_folder(name)
            self.fs.invalidate_cache()
            try:
                self.fs.pipe_file(self.path(name), data, mode="create")
            except OSError as error:
                if not _is_conflict(error):
                    raise
                return False
        return True

    def _make_folder(self, name: str) -> None:
        if not self.is_exclusive:  # object stores have no folders, and s3fs would create a missing bucket
            self.fs.makedirs(self.path(name).rpartition("/")[0], exist_ok=True)


def _is_conflict(error: OSError) -> bool:
    """Return whether a store refused a conditional write; s3fs converts only one answer of S3 to FileExistsError."""
    if isinstance(error, FileExistsError):
        return True
    response = getattr(error.__cause__, "response", None) or {}
    return response.get("Error", {}).get("Code") in ("PreconditionFailed", "ConditionalRequestConflict")


Store = LocalStore | RemoteStore


def open_store(folder: str | Path) -> Store:
    """Return the store of a folder: a local path, `file://…`, or a URL that fsspec opens.

    Errors   Refused for an unknown protocol, or if its package is not installed
    """
    text = str(folder).removeprefix("file://")
    return LocalStore(text) if is_local(text) else RemoteStore(text)
