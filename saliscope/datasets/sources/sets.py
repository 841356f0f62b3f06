"""Sets of files that each contain many images: tars, tables of a dataset, and lists. Each file is a partition."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from saliscope.datasets.items import Item, is_local
from saliscope.datasets.sources import lists, tables, tars
from saliscope.datasets.sources.labels import label_depth, label_in, with_folder_labels
from saliscope.datasets.sources.location import Location
from saliscope.datasets.sources.partitions import WHOLE, Listing, Partition
from saliscope.errors import Refused

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
            classes = tables.declared_classes(location, names[0]) if kind == "huggingface" else None
            return Listing.of(_once(location, found), kind, classes)
    classes = tables.declared_classes(location, names[0]) if kind == "huggingface" else None
    depth = _label_depth(location, names) if kind == "tar" else None
    parts = [Partition(location.to_text(name), FileBlocks(kind, location, name, names[0], depth)) for name in names]
    return Listing(tuple(parts), kind, classes)


def _items(kind: str, location: Location, names: Sequence[str]) -> Iterator[Item]:
    for name in names:
        for block in FileBlocks(kind, location, name, names[0])():
            yield from block


@dataclass(frozen=True)
class FileBlocks:
    """Lists the images in one file of a set. It is an object because it is sent to other machines."""

    kind: str
    location: Location
    name: str
    first: str
    """The first file of the set; tables need the same columns and classes."""
    depth: int | None = None
    """Which folder inside of a tar is the label."""

    def __call__(self) -> Iterator[list[Item]]:
        if self.kind == "list":
            folder, _, name = self.name.rpartition("/")
            inner = Location(self.location.source, self.location.fs, self.location.path(folder).rstrip("/"), name)
            for block in lists.blocks(inner, name):
                moved = [replace(item, path=_join(folder, item.path)) for item in block]
                yield sorted(moved, key=lambda item: item.path)
        elif self.kind == "tar":
            prefix = self.name + "/"
            items = tars.members(self.location, self.name, prefix=prefix)
            if self.depth is not None:
                start = len(self.location.to_text(prefix))
                items = [replace(item, label=label_in(item.path[start:], self.depth)) for item in items]
            yield sorted(items, key=lambda item: item.path)
        else:
            yield tables.list_images(self.location, self.name, self.first)


def _join(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path)) if is_local(path) else path


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
