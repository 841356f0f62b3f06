"""A finished run's pictures and network again: for its report, and for metrics of its maps."""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from PIL import Image

from dataset.errors import Refused
from dataset.items import Item, is_local, read
from dataset.pictures import Decode
from dataset.run import load
from dataset.settings import Settings, weights_hash
from dataset.shards import Finished
from dataset.sources import list_items

if TYPE_CHECKING:
    from models import Model


class Past:
    """Where a finished run's pictures and network are found again."""

    def __init__(self, finished: Finished, decode: Decode) -> None:
        self.finished, self._decode = finished, decode

    @cached_property
    def settings(self) -> Settings:
        """Those of the run."""
        kept = dict(self.finished.manifest["settings"])
        known = {name: kept[name] for name in Settings.__dataclass_fields__ if name in kept}
        own = dict(known.get("own", {}))
        if isinstance(own.get("size"), list):
            own["size"] = tuple(own["size"])
        own |= {name: self._there(own[name]) for name in ("weights", "labels") if isinstance(own.get(name), str)}
        file, colon, factory = str(known.get("model", "auto")).rpartition(":")
        if file.endswith(".py"):
            known["model"] = f"{self._there(file)}{colon}{factory}"
        return Settings(**known | {"own": own})

    @cached_property
    def source(self) -> str:
        """Where the run's pictures lie."""
        return self._there(self.finished.manifest.get("source", ""))

    def _there(self, path: str) -> str:
        """A path as it was meant: from the folder in which the run was begun."""
        began = self.finished.manifest.get("directory")
        if not is_local(path) or os.path.isabs(os.path.expanduser(path)) or not began:
            return path
        there = os.path.join(began, path)
        return there if os.path.lexists(there) else path

    @cached_property
    def _items(self) -> dict[str, Item]:
        try:
            return {item.path: item for item in list_items(self.source).items}
        except (Refused, OSError):
            return {}

    def photograph(self, path: str) -> Image.Image | None:
        """The picture of a row; None where it is not there any more, or another one is."""
        data = self.data(path)
        try:
            return None if data is None else self._decode(data)
        except (ValueError, OSError):
            return None

    def data(self, path: str) -> bytes | None:
        """The bytes of the picture of a row; None as above."""
        item = self._items.get(path)
        try:
            data = None if item is None else read(item)
        except (ValueError, OSError):
            return None
        return data if data is not None and self.hashes.get(path) == hashlib.sha256(data).hexdigest() else None

    @cached_property
    def hashes(self) -> dict[str, Any]:
        """SHA-256 of the pictures by path; None for those that could not be read."""
        table = self.finished.table
        return dict(zip(table["path"].to_pylist(), table["sha256"].to_pylist(), strict=True))

    @cached_property
    def network(self) -> Model:
        """The network of the run.

        Errors   Refused where it has other weights now; models.ModelUnavailable
        """
        model = load(self.settings)
        if weights_hash(model) != self.finished.manifest["weights_sha256"]:
            raise Refused(f"{model.name} has other weights than in this run. Run hooklens explain again.")
        return model

    def model(self) -> Model | None:
        """The network of the run, None where it is not here or another."""
        from models import ModelUnavailable  # torch takes seconds to start

        try:
            return self.network
        except (Refused, ModelUnavailable):
            return None
