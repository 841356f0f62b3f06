"""Hugging Face image folders: a metadata.csv, .jsonl or .parquet next to the images contains their labels."""

from __future__ import annotations

import itertools
import posixpath
from dataclasses import replace

from saliscope.runs.items import Item
from saliscope.runs.sources import lists, tables
from saliscope.runs.sources.location import Location, suffix

FILE = "file_name"
"""The column that Hugging Face requires; other files may also be called metadata."""
NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def list_images(location: Location, names: list[str]) -> dict[str, Item]:
    """Return the images in the metadata files among `names` by path; empty if the files contain no labels.

    Errors   Refused for a file that cannot be read, and for a file that lists none of the images next to it
    """
    images: dict[str, Item] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        if file not in NAMES or not _has_file_names(location, name):
            continue
        inner = Location(location.url(name), location.fs, location.path(folder).rstrip("/"), file)
        for item in itertools.chain.from_iterable(lists.blocks(inner, file)):
            path = posixpath.normpath(posixpath.join(folder, item.path))
            images[path] = replace(item, path=path)
    return images if any(item.label is not None for item in images.values()) else {}


def _has_file_names(location: Location, name: str) -> bool:
    if suffix(name) == ".parquet":
        return FILE in tables.columns(location, name)
    return FILE.encode() in location.start(name)
