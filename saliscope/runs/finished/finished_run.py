"""The images and the network of a finished run, for its report and for metrics of its maps."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from functools import cached_property
from typing import Any

from PIL import Image

from saliscope.errors import Refused
from saliscope.runs.decoding import Decode
from saliscope.runs.finished.finding import Finder, RowIndex
from saliscope.runs.items import is_local, read
from saliscope.runs.run import load
from saliscope.runs.run_data import RunData
from saliscope.runs.settings import Settings
from saliscope.zoo import Model, ModelUnavailable
from saliscope.zoo.model import Preparation
from saliscope.zoo.weights import weights_hash


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
        data = self.read(path, digest)
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
