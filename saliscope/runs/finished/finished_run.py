"""The images and the network of a finished run, for its report and for metrics of its maps.

Single images are found again without listing the source.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image

from saliscope.errors import Refused
from saliscope.runs.decoding import Decode
from saliscope.runs.items import Item, is_local, read
from saliscope.runs.run import load
from saliscope.runs.run_data import RunData
from saliscope.runs.settings import Settings
from saliscope.runs.sources import lists, tables, tars
from saliscope.runs.sources.location import Location, open_location, suffix
from saliscope.zoo import Model, ModelUnavailable
from saliscope.zoo.model import Preparation
from saliscope.zoo.weights import weights_hash

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
        self._location = location = open_location(source)
        self._members = functools.lru_cache(maxsize=1)(self._read_tar)  # rows are in the order of the tars
        self._is_tar = location.is_file and tars.is_tar(location.start(location.name))

    def find(self, path: str) -> Item | None:
        """Return the image with this path; it may have been deleted."""
        location = self._location
        if self._is_tar:
            return self._members(location.name, "").get(path)
        name, mark, row = path.rpartition("#")
        if mark and row.isdecimal() and suffix(name) in tables.SUFFIXES:
            return Item(path, None, location.url(self._raw(name)), row=int(row))
        for end in re.finditer(r"\.tar/", path, re.IGNORECASE):
            tar = self._raw(path[: end.end() - 1])
            if location.fs.isfile(location.path(tar)):
                return self._members(tar, tar + "/").get(path)
        may_be_list = location.is_file or location.matches
        return Item(path, None, (lists.url_of if may_be_list else Location.url)(location, self._raw(path)))

    def _raw(self, name: str) -> str:
        """Return the file name that `to_text` has written as text."""
        if "\\udc" not in name or (self._location.local and os.path.lexists(self._location.path(name))):
            return name
        return ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), name)

    def _read_tar(self, name: str, prefix: str) -> dict[str, Item]:
        return {item.path: item for item in tars.members(self._location, name, prefix)}


class FinishedRun:
    """A finished run, with access to its images and its network."""

    def __init__(self, data: RunData, decode: Decode, model: Model | None = None) -> None:
        """Args     model: the network of the run, if it cannot be loaded by the name that the run has."""
        self.data, self._decode, self._given = data, decode, model

    @cached_property
    def settings(self) -> Settings:
        """The settings of the run."""
        stored = Settings.of(self.data.settings)
        own = dict(stored.own)
        if isinstance(own.get("size"), list):
            own["size"] = tuple(own["size"])
        own |= {name: self._resolve(own[name]) for name in ("weights", "labels") if isinstance(own.get(name), str)}
        file, colon, factory = stored.model.rpartition(":")
        model = f"{self._resolve(file)}{colon}{factory}" if file.endswith(".py") else stored.model
        return replace(stored, own=own, model=model)

    @cached_property
    def source(self) -> str:
        """The source of the images of the run."""
        return self._resolve(self.data.manifest.get("source", ""))

    def _resolve(self, path: str) -> str:
        """Return a path relative to the folder in which the run was started, if it exists there."""
        directory = self.data.manifest.get("directory")
        if not is_local(path) or os.path.isabs(os.path.expanduser(path)) or not directory:
            return path
        resolved = os.path.join(directory, path)
        return resolved if os.path.lexists(resolved) else path

    @cached_property
    def _finder(self) -> Finder | None:
        try:
            return Finder(self.source)
        except (Refused, OSError):
            return None

    def image(self, path: str, digest: str | None = None) -> Image.Image | None:
        """Return the image of a row, or None if it does not exist anymore or has changed; as `read`."""
        return self.decode(self.read(path, digest))

    def decode(self, data: bytes | None) -> Image.Image | None:
        """Return the image in the bytes of a file, or None if it cannot be decoded."""
        try:
            return None if data is None else self._decode(data)
        except (ValueError, OSError):
            return None

    def read(self, path: str, digest: str | None = None) -> bytes | None:
        """Return the encoded bytes of the image of a row, or None if it does not exist anymore or has changed.

        Args     digest: the SHA-256 in the row, if the caller has it; otherwise the row is searched
        """
        try:
            item = None if self._finder is None else self._finder.find(path)
            data = None if item is None else read(item)
        except (ValueError, OSError):
            return None
        if data is None:
            return None
        digest = self._rows.find(path, "sha256") if digest is None else digest
        return data if digest == hashlib.sha256(data).hexdigest() else None

    @cached_property
    def _rows(self) -> RowIndex:
        return RowIndex(self.data, "path")

    @cached_property
    def _digests(self) -> RowIndex:
        return RowIndex(self.data, "sha256")

    def path_of(self, digest: str) -> str | None:
        """Return the path of the first image with this SHA-256, or None."""
        return self._digests.find(digest, "path")

    @cached_property
    def model(self) -> Model:
        """The network of the run.

        Errors   Refused if its weights have changed; zoo.ModelUnavailable
        """
        model = self._given or load(self.settings)
        if weights_hash(model) != self.data.manifest["weights_sha256"]:
            raise Refused(f"The weights of {model.name} are not those of this run. Run `saliscope explain` again.")
        return model

    @cached_property
    def preparation(self) -> Preparation | None:
        """The preprocessing of the run, without loading the network; None if it was not stored."""
        stored = self.data.manifest.get("preprocessing")
        if stored is None:
            return None if self._given is None else self._given.preparation
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
        }
        return Preparation(**values)

    def try_model(self) -> Model | None:
        """Return the network of the run, or None if it is not available or has changed."""
        try:
            return self.model
        except (Refused, ModelUnavailable):
            return None
