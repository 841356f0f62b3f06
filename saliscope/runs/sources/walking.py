"""Walk a folder in the order of the paths of its files, with only one folder of each level in memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

AHEAD = 8
"""Folders of a store that are listed at the same time."""


def is_hidden(name: str) -> bool:
    """Return whether a file is hidden (.git), or one of macOS's extra files (._x.jpg, __MACOSX)."""
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def list_local(root: str, inside: str = "") -> list[str]:
    """Return the files and folders directly in a folder, relative to the root and sorted; folders end with a slash."""
    names = []
    with os.scandir(os.path.join(root, inside)) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                names.append(f"{inside}{entry.name}/")
            elif entry.is_file() or not os.path.exists(entry.path):  # a link to a missing file cannot be read
                names.append(inside + entry.name)
    return sorted(names, key=_text)


def _text(name: str) -> str:
    """Return the name as it is written to the rows, whose order counts."""
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()


def walk_local(root: str, inside: str = "", above: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
    """Yield the files below a folder. Unlike in fsspec, a link to a parent folder does not cause an endless loop."""
    status = os.stat(os.path.join(root, inside))
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for name in list_local(root, inside):
        if name[-1] == "/":
            yield from walk_local(root, name, (*above, here))
        else:
            yield name


def list_store(fs: Any, root: str, inside: str = "") -> list[str]:
    """Return the files and folders directly in a folder of a store, as `list_local`."""
    root = root.rstrip("/")
    folder = f"{root}/{inside}".rstrip("/") if inside and root else inside.rstrip("/") or root
    names = []
    for entry in fs.ls(folder, detail=True):
        path = str(entry["name"])
        inner = path.strip("/")[len(root.strip("/")) :].strip("/")
        if not inner or inner == inside.strip("/") or is_hidden(inner.rpartition("/")[2]):
            continue
        names.append(inner + "/" * (entry["type"] == "directory"))
    cache = getattr(fs, "dircache", None)
    if cache is not None:
        cache.pop(folder, None)  # it would keep all names of the store
    return sorted(names, key=_text)


def walk_store(fs: Any, root: str, inside: str = "") -> Iterator[str]:
    """Yield the files below a folder of a store; the next folders are listed while one is read."""
    with ThreadPoolExecutor(AHEAD) as pool:
        yield from _walk(fs, root, list_store(fs, root, inside), pool)


def _walk(fs: Any, root: str, names: list[str], pool: ThreadPoolExecutor) -> Iterator[str]:
    folders = iter([name for name in names if name[-1] == "/"])
    waiting: deque[Future[list[str]]] = deque()
    for name in names:
        if name[-1] != "/":
            yield name
            continue
        while len(waiting) < AHEAD and (folder := next(folders, None)) is not None:
            waiting.append(pool.submit(list_store, fs, root, folder))
        yield from _walk(fs, root, waiting.popleft().result(), pool)
