"""What an index of units knows about the channels of a network: names, statistics, similar channels and images.

The built-in network has an index in `assets/units/`; `use` adds one that `saliscope index` wrote. An index is used only
for the network whose weights it was made with.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import logging
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image
from pyarrow import parquet as pq

from saliscope import resources
from saliscope.compute import model_cache
from saliscope.errors import Refused
from saliscope.zoo.weights import weights_hash

if TYPE_CHECKING:
    from saliscope.compute.answers import LoadedModel
    from saliscope.zoo import Model

SHIPPED = resources.assets() / "units" / "efficientnet_lite0.parquet"
SETTINGS = b"saliscope"
"""The key of the settings in the metadata of that file."""
SYNTHETIC, TOP = "synthetic", "top"
"""The kinds of images of a channel: optimized for it, and the part of a photo with its largest value."""
SIDE, ACROSS = 64, 36
"""Pixels of an image in a sprite, and images in a row."""
QUALITY = 80

log = logging.getLogger("saliscope")
_lock = threading.RLock()
_open_folder: Callable[[Model], Any] | None = None
_networks: weakref.WeakKeyDictionary[Any, _Network] = weakref.WeakKeyDictionary()
_sprites: dict[str, list[bytes | None]] = {}


@dataclass(frozen=True)
class Crop:
    """The part of a photo that the strongest cell sees, as JPEG; its `box` has fractions of the network's input."""

    image: bytes
    box: tuple[float, float, float, float]
    value: float
    label: str | None


@dataclass(frozen=True)
class Unit:
    """A channel. `sparsity` is the share of images in which no cell is above 0; `auc`, `low`, `high` test the name."""

    channel: int
    mean: float
    sparsity: float
    dead: bool
    name: str | None = None
    auc: float | None = None
    low: float | None = None
    high: float | None = None
    count: int | None = None
    nearest: list[int] | None = None
    image: bytes | None = None
    crops: tuple[Crop, ...] = ()


@dataclass(frozen=True)
class LayerUnits:
    """The channels of a layer in order, the number of indexed images, what these are, and file names of sprites."""

    units: list[Unit]
    images: int
    photos: str
    sprites: dict[str, str]


@dataclass(frozen=True)
class _Index:
    settings: dict[str, Any]
    units: pa.Table
    top: pa.Table | None = None


class _Network:
    """The indices of a network, and its layers that were read."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.indices = list(_fitting(loaded))
        self.layers: dict[str, LayerUnits | None] = {}


def use(open_folder: Callable[[Model], Any] | None) -> None:
    """Use another index besides that of the built-in network, or with None only the latter.

    Args     open_folder: returns a `StoredIndex`, and raises Refused for another network than its own
    """
    global _open_folder
    with _lock:
        _open_folder = open_folder
        _networks.clear()


def of_layer(loaded: LoadedModel, layer: str) -> LayerUnits | None:
    """Return what is known about the channels of a layer, or None without an index of it."""
    with _lock:
        if loaded.model.network not in _networks:
            _networks[loaded.model.network] = _Network(loaded)
        known = _networks[loaded.model.network]
        if layer not in known.layers:
            found = (_read(index, layer) for index in known.indices)
            known.layers[layer] = next((units for units in found if units), None)
        return known.layers[layer]


def _fitting(loaded: LoadedModel) -> Iterator[_Index]:
    """Yield the indices that were made with the weights of this network, the user's own first."""
    if _open_folder is not None:
        try:
            stored = _open_folder(loaded.model)
            settings = {**stored.settings, "indexed": stored.manifest["counts"]["images"]}
            yield _Index(settings, stored.units, stored.top)
        except Refused as error:
            if loaded.name == model_cache.first_model():  # visitors may choose any other
                log.warning("%s", error)
    shipped = _shipped(SHIPPED)
    if shipped is not None and shipped.settings.get("weights_sha256") == weights_hash(loaded.model):
        yield shipped


@functools.lru_cache(1)
def _shipped(path: Path) -> _Index | None:
    """Return the index of the built-in network, or None if it is missing or damaged."""
    if not path.is_file():
        return None
    try:
        table = pq.read_table(path)
        table.select(["layer", "channel", "mean", "sparsity", "dead"])  # KeyError if one is missing
        settings = dict(json.loads((table.schema.metadata or {})[SETTINGS]))
        return _Index({"photos": settings.get("source", ""), **settings}, table)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        log.warning("The index in %s is damaged (%s). Install Saliscope again.", path, error)
        return None


def _read(index: _Index, layer: str) -> LayerUnits | None:
    """Return the channels of a layer, or None if the index does not have all of them."""
    crops = defaultdict(list)
    for row in _rows(index.top, layer, "rank") if index.top is not None else ():
        if row["by"] == "activation" and row["thumbnail"]:
            box = row["left"], row["top"], row["right"], row["bottom"]
            crops[row["channel"]].append(Crop(row["thumbnail"], box, row["value"], row["label"]))
    fields = Unit.__dataclass_fields__
    units = [
        Unit(**{name: row[name] for name in fields if name in row}, crops=tuple(crops[row["channel"]]))
        for row in _rows(index.units, layer, "channel")
    ]
    if not units or [unit.channel for unit in units] != list(range(len(units))):
        return None
    images = {
        SYNTHETIC: [unit.image for unit in units],
        TOP: [unit.crops[0].image if unit.crops else None for unit in units],
    }
    counts = (index.settings.get(key) for key in ("indexed", "images"))
    count = next((number for number in counts if isinstance(number, int)), 0)
    sprites = {kind: _sprite_name(kind, each) for kind, each in images.items() if any(each)}
    return LayerUnits(units, count, str(index.settings.get("photos", "")), sprites)


def _rows(table: pa.Table, layer: str, order: str) -> list[dict[str, Any]]:
    return table.filter(pc.equal(table["layer"], layer)).sort_by(order).to_pylist()


def _sprite_name(kind: str, images: list[bytes | None]) -> str:
    """Register a sprite, and return its file name, which changes with its images."""
    digest = hashlib.sha256(b"".join(hashlib.sha256(image or b"").digest() for image in images)).hexdigest()[:16]
    name = f"{kind}-{digest}.webp"
    _sprites[name] = images
    return name


def sprite(name: str) -> bytes | None:
    """Return the images of all channels of a layer as one WebP, row by row, or None for an unknown name."""
    return _draw_sprite(name) if name in _sprites else None


@functools.lru_cache(16)
def _draw_sprite(name: str) -> bytes:
    images = _sprites[name]
    sheet = Image.new("RGBA", (SIDE * min(ACROSS, len(images)), SIDE * -(-len(images) // ACROSS)))
    for number, data in enumerate(images):
        if data is None:
            continue
        try:
            image = Image.open(io.BytesIO(data)).convert("RGB")
        except (OSError, ValueError):  # a damaged image leaves its place empty
            continue
        image.thumbnail((SIDE, SIDE))
        row, column = divmod(number, ACROSS)
        sheet.paste(image, (SIDE * column + (SIDE - image.width) // 2, SIDE * row + (SIDE - image.height) // 2))
    file = io.BytesIO()
    sheet.save(file, "WEBP", quality=QUALITY, method=2)
    return file.getvalue()
