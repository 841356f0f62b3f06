"""Sets of files that each contain many images: tars, tables of a dataset, and lists. Each file is a partition."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from saliscope.errors import Refused
from saliscope.runs.items import Item, is_local
from saliscope.runs.sources import lists, tables, tars
from saliscope.runs.sources.labels import label_depth, label_in, with_folder_labels
from saliscope.runs.sources.location import Location
from saliscope.runs.sources.partitions import WHOLE, Listing

FILES, BYTES = 64, 2**30
"""Number of files, and their bytes, above which no file is listed before its turn."""
FIRST = 8
"""Tars that are listed to find out which of their folders are labels."""


def list_set(kind: str, location: Location, names: Sequence[str]) -> Listing:
    """Return the images of a set of files: at once if it is small, otherwise each file is listed in its turn.

    Args     kind: "tar", "huggingface" (tables) or "list"
    Errors   Refused for files that cannot be read, that differ, or that have no images
    """
    if len(names) <= FILES and location.size(names) <= BYTES:
        found = list(itertools.islice(_items(kind, location, names), WHOLE + 1))
        if len(found) <= WHOLE:
            if kind == "tar":
                found = with_folder_labels(found, _inner_paths(location, names, found))
            return Listing.of(_once(location, found), kind)
    depth = _label_depth(location, names) if kind == "tar" else None
    parts = tuple(partial(_list_file, kind, location, name, names[0], depth) for name in names)
    return Listing(parts, kind)


def _items(kind: str, location: Location, names: Sequence[str]) -> Iterator[Item]:
    for name in names:
        for block in _list_file(kind, location, name, names[0]):
            yield from block


def _list_file(kind: str, location: Location, name: str, first: str, depth: int | None = None) -> Iterator[list[Item]]:
    """Yield the images in one file of a set.

    Args     first: the first file of the set; tables need the same columns and classes
             depth: which folder inside of a tar is the label
    """
    if kind == "list":
        folder, _, own = name.rpartition("/")
        inner = Location(location.source, location.fs, location.path(folder).rstrip("/"), own)
        for block in lists.blocks(inner, own):
            paths = (posixpath.normpath(posixpath.join(folder, i.path)) if is_local(i.path) else i.path for i in block)
            yield _sorted(replace(item, path=path) for item, path in zip(block, paths, strict=True))
    elif kind == "tar":
        items = tars.members(location, name, prefix=name + "/")
        if depth is not None:
            start = len(location.to_text(name)) + 1
            items = [replace(item, label=label_in(item.path[start:], depth)) for item in items]
        yield _sorted(items)
    else:
        yield tables.list_images(location, name, first)


def _sorted(items: Iterable[Item]) -> list[Item]:
    return sorted(items, key=lambda item: item.path)


def _once(location: Location, items: list[Item]) -> list[Item]:
    """Return the images sorted by path, each once.

    Errors   Refused for two labels of one path, and if there are no images
    """
    found: dict[str, Item] = {}
    for item in items:
        if found.setdefault(item.path, item).label != item.label:
            raise Refused(f"{location.source} lists {item.path} with two labels. Remove one entry.")
    if not found:
        raise Refused(f"The dataset {location.source} has no rows.")
    return [found[path] for path in sorted(found)]


def _inner_paths(location: Location, names: Sequence[str], items: list[Item]) -> dict[str, str]:
    """Return the paths of the images inside of their tars."""
    starts = {location.url(name): len(location.to_text(name)) + 1 for name in names}
    return {item.path: item.path[starts[item.url] :] for item in items}


def _label_depth(location: Location, names: Sequence[str]) -> int | None:
    """Return which folder inside of the tars is the label, as the first tars show; None if they have label files."""
    folders: set[str] = set()
    for name in names[:FIRST]:
        items = list(_items("tar", location, [name]))
        if any(item.label is not None for item in items):
            return None
        folders |= {path.rpartition("/")[0] for path in _inner_paths(location, [name], items).values()}
        depth = label_depth(folders)
        if depth is not None:
            return depth
    return None
