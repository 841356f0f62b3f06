"""Find single images of a run again, without listing its source."""

from __future__ import annotations

import functools
import os
import re

import numpy as np

from saliscope.runs.items import Item
from saliscope.runs.run_data import RunData
from saliscope.runs.sources import lists, tables, tars
from saliscope.runs.sources.listing import file_kind
from saliscope.runs.sources.location import open_location, suffix

ESCAPED = re.compile(r"\\udc([0-9a-f]{2})")
"""A byte of a file name that is not UTF-8, as `Location.to_text` writes it."""


class RowIndex:
    """The rows of a run by the values of a column: eight bytes per row."""

    def __init__(self, data: RunData, column: str) -> None:
        self._data, self._column = data, column
        parts = [
            np.fromiter(map(hash, table[column].to_pylist()), np.int64, len(table))
            for _, table in data.batches([column])
        ]
        self._values = np.concatenate([np.zeros(0, np.int64), *parts])

    def find(self, value: str, wanted: str) -> str | None:
        """Return another column of the first row with this value, or None."""
        for row in np.flatnonzero(self._values == hash(value)):
            found = self._data.take([int(row)], [self._column, wanted])
            if found[self._column][0].as_py() == value:
                return None if found[wanted][0].as_py() is None else str(found[wanted][0])
        return None


class Finder:
    """The images of a source by the path of their rows.

    Errors   Refused, in `find` too, if the source cannot be read
    """

    def __init__(self, source: str) -> None:
        self._location = open_location(source)
        self._members = functools.lru_cache(maxsize=1)(self._read_tar)  # rows are in the order of the tars
        self._kind = self._find_kind()

    def _find_kind(self) -> str:
        location = self._location
        if not location.is_file:
            is_list = location.matches and all(suffix(name) in lists.SUFFIXES for name in location.matches)
            return "list" if is_list and not tables.with_images(location, list(location.matches or ())) else "folder"
        return file_kind(location, location.start(location.name)) or ""

    def find(self, path: str) -> Item | None:
        """Return the image with this path; it may have been deleted."""
        location = self._location
        if self._kind == "list":
            return Item(path, None, lists.url_of(location, path))
        if self._kind == "tar":
            return self._members(location.name, "").get(path)
        name, mark, row = path.rpartition("#")
        if mark and row.isdecimal() and suffix(name) in tables.SUFFIXES:
            return Item(path, None, location.url(self._raw(name)), row=int(row))
        for end in re.finditer(r"\.tar/", path, re.IGNORECASE):
            tar = self._raw(path[: end.end() - 1])
            if location.fs.isfile(location.path(tar)):
                return self._members(tar, tar + "/").get(path)
        return Item(path, None, location.url(self._raw(path)))

    def _raw(self, name: str) -> str:
        """Return the file name that `to_text` has written as text."""
        if "\\udc" not in name or (self._location.local and os.path.lexists(self._location.path(name))):
            return name
        return ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), name)

    def _read_tar(self, name: str, prefix: str) -> dict[str, Item]:
        return {item.path: item for item in tars.members(self._location, name, prefix)}
