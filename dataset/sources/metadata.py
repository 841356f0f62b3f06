"""Hugging Face's image folders: a metadata.csv, .jsonl or .parquet beside the pictures tells their labels."""

from __future__ import annotations

import posixpath
from dataclasses import replace

from dataset.items import Item
from dataset.sources import lists, tables
from dataset.sources.place import Place, suffix

FILE = "file_name"
"""The column that Hugging Face asks for; other files may be called metadata too."""
NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def listed(place: Place, names: list[str]) -> dict[str, Item]:
    """The pictures that metadata files among `names` list, by path; none where these have no labels.

    Errors   Refused for a file that cannot be read, and for one that lists none of the pictures beside it
    """
    found: dict[str, Item] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        if file not in NAMES or not _lists_files(place, name):
            continue
        beside = Place(place.url(name), place.fs, place.path(folder).rstrip("/"), file)
        items = lists.parquet(beside, file) if suffix(file) == ".parquet" else lists.text(beside, file)
        for item in items:
            path = posixpath.normpath(posixpath.join(folder, item.path))
            found[path] = replace(item, path=path)
    return found if any(item.label is not None for item in found.values()) else {}


def _lists_files(place: Place, name: str) -> bool:
    return FILE in tables.columns(place, name) if suffix(name) == ".parquet" else FILE.encode() in place.start(name)
