"""The folder of uploads and results: its age, its size, and a full disk.

Files are removed `limits.KEEP` seconds after their last use, also those of an earlier process. If there is no room for
a new upload, the least recently used files are removed first, of the address that has the most. Files that somebody
uses right now stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from saliscope import limits
from saliscope.images.uploads import upload_folder
from saliscope.page.serving.door.refusals import Refusal

FULL_DISK = "The server has no room for uploads right now. Try again in a few minutes, or use an example."
DIGEST = re.compile(r"[0-9a-f]{64}")  # Gradio names the folder of an upload after a hash of its content
OWN = re.compile(r"[0-9a-f]{64}|tmp.*")
"""What the page stores there; anything else is not removed."""


@dataclass(frozen=True)
class Entry:
    """An upload or a result: its path, the bytes of its files, and when it was last used."""

    path: str
    size: int
    used: float


def use_own_folder() -> None:
    """Let Gradio store files in a folder of this user and this program, unless the environment names one.

    The default of Gradio is one folder for all its applications, whose files the page must not remove.
    """
    if os.environ.get("GRADIO_TEMP_DIR"):
        return
    user = os.getuid() if hasattr(os, "getuid") else ""
    own = os.path.join(tempfile.gettempdir(), f"saliscope-uploads-{user}".rstrip("-"))
    with contextlib.suppress(OSError):
        os.makedirs(own, mode=0o700, exist_ok=True)
    status = os.lstat(own) if os.path.isdir(own) and not os.path.islink(own) else None
    if status is None or (user != "" and status.st_uid != user):  # another user has made it first
        own = tempfile.mkdtemp(prefix="saliscope-uploads-")
    os.environ["GRADIO_TEMP_DIR"] = own


def folder() -> str:
    """Return the path of the folder."""
    return str(upload_folder())


def entries(place: str | os.PathLike[str]) -> Iterator[Entry]:
    """Yield what is in a folder of uploads."""
    with contextlib.suppress(OSError), os.scandir(place) as found:
        for entry in found:
            with contextlib.suppress(OSError):  # not accessible, or deleted meanwhile
                if not OWN.fullmatch(entry.name) or entry.is_symlink():
                    continue
                if entry.is_file():
                    yield Entry(entry.path, entry.stat().st_size, entry.stat().st_mtime)
                elif DIGEST.fullmatch(entry.name):
                    with os.scandir(entry.path) as files:
                        stats = [file.stat(follow_symlinks=False) for file in files]
                    used = max(each.st_mtime for each in [entry.stat(), *stats])
                    yield Entry(entry.path, sum(each.st_size for each in stats), used)


def remove(entry: Entry) -> bool:
    """Remove an upload or a result; return whether it is gone."""
    with contextlib.suppress(OSError):  # in use on Windows, or deleted already
        shutil.rmtree(entry.path) if os.path.isdir(entry.path) else os.unlink(entry.path)
    return not os.path.lexists(entry.path)


def sweep(place: str | os.PathLike[str], age: float = limits.KEEP) -> int:
    """Remove uploads, results and leftovers of broken uploads that have not been used for `age` seconds.

    Returns  how many were removed
    """
    oldest = time.time() - age
    return sum(remove(entry) for entry in list(entries(place)) if entry.used <= oldest)


def touch(path: str) -> None:
    """Note that a file is used."""
    with contextlib.suppress(OSError, ValueError):
        os.utime(path)


def is_full() -> bool:
    """Return whether the disk has no room for an upload of the largest size."""
    try:
        return shutil.disk_usage(_existing(folder())).free < limits.UPLOAD + limits.DISK_RESERVE
    except OSError:
        return True


def size() -> int:
    """Return the bytes in the folder."""
    return sum(entry.size for entry in entries(folder()))


class Uploads:
    """The folder while the server runs. The methods are called in the event loop and work in threads."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._owners: dict[str, str] = {}
        self._size = self._count = 0
        """Bytes and entries, at least; counted again after a while and before anything is removed."""

    async def keep_clean(self) -> None:
        """Remove old files from time to time."""
        while True:
            place = folder()
            await asyncio.to_thread(sweep, place)
            async with self._lock:  # results are written without checking the space
                await asyncio.to_thread(self._remove_oldest, 0)
            await asyncio.sleep(limits.SWEEP)

    def own(self, paths: list[str], address: str) -> None:
        """Remember the address that has uploaded some files."""
        for path in paths:
            self._owners[os.path.dirname(path)] = address

    async def make_room(self, size: int) -> None:
        """Make room for an upload.

        Errors   Refusal 507 if there is none
        """
        async with self._lock:
            fits = self._size + size <= limits.UPLOADS and self._count + limits.UPLOAD_PARTS <= limits.UPLOADED_FILES
            if not (fits and await asyncio.to_thread(_has_room, size)) and not await asyncio.to_thread(
                self._remove_oldest, size
            ):
                raise Refusal(507, FULL_DISK)
            self._size += size
            self._count += 1

    def _measure(self) -> list[Entry]:
        found = list(entries(folder()))
        self._size, self._count = sum(each.size for each in found), len(found)
        known = {each.path for each in found}
        self._owners = {path: owner for path, owner in self._owners.items() if path in known}
        return found

    def _remove_oldest(self, size: int) -> bool:
        found = sorted(self._measure(), key=lambda each: each.used)
        of_owner: Counter[str] = Counter()
        for each in found:
            of_owner[self._owners.get(each.path, "")] += each.size
        now = time.time()
        while self._size + size > limits.UPLOADS or self._count >= limits.UPLOADED_FILES or not _has_room(size):
            unused = [each for each in found if now - each.used > limits.IN_USE]
            if not unused:  # an address with most of the folder keeps its files for a shorter time
                greedy = {owner for owner, its in of_owner.items() if owner and its > limits.UPLOADS // 2}
                unused = [
                    each for each in found
                    if self._owners.get(each.path) in greedy and now - each.used > limits.IN_USE / 10
                ]  # fmt: skip
            if not unused:
                return False
            most = max(unused, key=lambda each: (of_owner[self._owners.get(each.path, "")], -each.used))
            found.remove(most)
            if remove(most):
                of_owner[self._owners.pop(most.path, "")] -= most.size
                self._size -= most.size
                self._count -= 1
        return True


def _has_room(size: int) -> bool:
    return shutil.disk_usage(_existing(folder())).free >= size + limits.DISK_RESERVE


def _existing(path: str) -> str:
    """Return the path, or its first folder that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path
