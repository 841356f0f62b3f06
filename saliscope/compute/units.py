"""What an index of units knows about the channels of a network: names, statistics, similar channels and images.

The built-in network has an index in `assets/units/`; `use` adds one that `saliscope index` wrote, and `keep` one of a
visitor's own images, which only their session gets. An index is used only for the network whose weights it was made
with.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import logging
import secrets
import threading
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image
from pyarrow import parquet as pq

from saliscope import limits, resources
from saliscope.compute import model_cache
from saliscope.compute.jobs import runs
from saliscope.errors import Refused
from saliscope.images.pixels import encode
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
_networks: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()
_visitors: OrderedDict[str, _Known] = OrderedDict()
"""The indices of visitors by session, the newest last."""
_sprites: dict[str, list[bytes | None]] = {}


@dataclass(frozen=True)
class Crop:
    """The part of a photo that the strongest cell sees, as JPEG; its `box` has fractions of the network's input.

    `photo` is the whole input as a small JPEG, or None if the index does not have it.
    """

    image: bytes
    box: tuple[float, float, float, float]
    value: float
    label: str | None
    photo: bytes | None = None


@dataclass(frozen=True)
class Unit:
    """A channel. `sparsity` is the share of images in which no cell is above 0; `auc`, `low`, `high` test the name.

    `names_by` are the words and the encoder that the name is from, empty for a label.
    `crops` are of the photos with its largest values, `effects` of those with its largest effects on a class.
    """

    channel: int
    mean: float
    sparsity: float
    dead: bool
    name: str | None = None
    auc: float | None = None
    low: float | None = None
    high: float | None = None
    count: int | None = None
    names_by: str = ""
    nearest: list[int] | None = None
    image: bytes | None = None
    crops: tuple[Crop, ...] = ()
    effects: tuple[Crop, ...] = ()


@dataclass(frozen=True)
class LayerUnits:
    """The channels of a layer in order, the number of indexed images, what these are, and file names of sprites.

    `effects` is the class of the effects, or "predicted". `own` is the number of the visitor's images, of which the
    crops are.
    """

    units: list[Unit]
    images: int
    photos: str
    sprites: dict[str, str]
    effects: str = ""
    own: int = 0


@dataclass(frozen=True)
class _Index:
    settings: dict[str, Any]
    units: pa.Table
    top: pa.Table | None = None
    photos: dict[str, bytes] | None = None

    @classmethod
    def of(cls, stored: Any) -> _Index:
        """Return a `StoredIndex`."""
        rows = stored.photos.to_pylist() if stored.photos is not None else []
        found = {**stored.settings, "indexed": stored.manifest["counts"]["images"]}
        at = stored.top.schema.get_field_index("thumbnail")
        # Many channels have the same crop, which is then in memory once: 3 MB instead of 52 for 100 images.
        top = stored.top.set_column(at, "thumbnail", stored.top["thumbnail"].dictionary_encode())
        return cls(found, stored.units, top, {row["path"]: row["photo"] for row in rows})


@dataclass(frozen=True)
class _Known:
    """The indices of a network, or the one of a visitor's images, and the layers that were read."""

    weights: str
    indices: list[_Index]
    layers: dict[str, LayerUnits | None] = field(default_factory=dict)


def use(open_folder: Callable[[Model], Any] | None) -> None:
    """Use another index besides that of the built-in network, or with None only the latter.

    Args     open_folder: returns a `StoredIndex`, and raises Refused for another network than its own
    """
    global _open_folder
    with _lock:
        _open_folder = open_folder
        _networks.clear()


def keep(session: str, stored: Any) -> None:
    """Keep the `StoredIndex` of a visitor's images for their session; it replaces the former one."""
    forget(session)
    with _lock:
        _visitors[session] = _Known(stored.settings["weights_sha256"], [_Index.of(stored)])
        oldest = list(_visitors)[: -limits.INDICES]
    for each in oldest:
        forget(each)


def forget(session: str | None) -> None:
    """Remove the index of a visitor, with its images."""
    with _lock:
        visitor = _visitors.pop(session or "", None)
        for units in visitor.layers.values() if visitor else ():
            for name in units.sprites.values() if units else ():
                _sprites.pop(name, None)
        if visitor:
            _draw_sprite.cache_clear()


runs.leavers.append(forget)


def of_layer(loaded: LoadedModel, layer: str, session: str = "") -> LayerUnits | None:
    """Return what is known about the channels of a layer, or None without an index of it.

    The index of the visitor with this session adds its images, and its names where it has some.
    """
    with _lock:
        if loaded.model.network not in _networks:
            weights = weights_hash(loaded.model)
            _networks[loaded.model.network] = _Known(weights, list(_fitting(loaded, weights)))
        known = _networks[loaded.model.network]
        if layer not in known.layers:
            found = (_read(index, layer) for index in known.indices)
            known.layers[layer] = next((units for units in found if units), None)
        visitor = _visitors.get(session)
        if visitor is None or visitor.weights != known.weights:
            return known.layers[layer]
        if layer not in visitor.layers:
            own = _read(visitor.indices[0], layer, secrets.token_hex(16))
            visitor.layers[layer] = own and _joined(known.layers[layer], own)
        return visitor.layers[layer] or known.layers[layer]


def _joined(base: LayerUnits | None, own: LayerUnits) -> LayerUnits:
    """Return the units of an index with the images and the names of a visitor's own."""
    if base is None or len(base.units) != len(own.units):
        return replace(own, own=own.images)
    images = {"crops", "effects"}
    tests = {"name", "auc", "low", "high", "count", "names_by"}
    units = [
        replace(unit, **{name: getattr(other, name) for name in (images | tests if other.name else images)})
        for unit, other in zip(base.units, own.units, strict=True)
    ]
    sprites = {**base.sprites, **own.sprites}
    return replace(base, units=units, sprites=sprites, effects=own.effects, own=own.images)


def _fitting(loaded: LoadedModel, weights: str) -> Iterator[_Index]:
    """Yield the indices that were made with the weights of this network, the user's own first."""
    if _open_folder is not None:
        try:
            yield _Index.of(_open_folder(loaded.model))
        except Refused as error:
            if loaded.name == model_cache.first_model():  # visitors may choose any other
                log.warning("%s", error)
    shipped = _shipped(SHIPPED)
    if shipped is not None and shipped.settings.get("weights_sha256") == weights:
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


def _read(index: _Index, layer: str, secret: str = "") -> LayerUnits | None:
    """Return the channels of a layer, or None if the index does not have all of them.

    A `secret` makes the names of its sprites unknown to other visitors.
    """
    crops = _crops(index, layer)
    fields, names_by = Unit.__dataclass_fields__, str(index.settings.get("names_by", ""))
    units = [
        Unit(
            **{name: row[name] for name in fields if name in row},
            names_by=names_by,
            crops=tuple(crops[row["channel"], "activation"]),
            effects=tuple(crops[row["channel"], "effect"]),
        )
        for row in _rows(index.units, layer, "channel")
    ]
    if not units or [unit.channel for unit in units] != list(range(len(units))):
        return None
    images = {TOP: [unit.crops[0].image if unit.crops else None for unit in units]}
    if not secret:  # a visitor's index has no synthetic images
        images[SYNTHETIC] = [unit.image for unit in units]
    counts = (index.settings.get(key) for key in ("indexed", "images"))
    count = next((number for number in counts if isinstance(number, int)), 0)
    sprites = {kind: _sprite_name(kind, each, secret) for kind, each in images.items() if any(each)}
    about = str(index.settings.get("photos", "")), sprites, str(index.settings.get("effects", ""))
    return LayerUnits(units, count, *about)


def _crops(index: _Index, layer: str) -> defaultdict[tuple[int, str], list[Crop]]:
    """Return the crops of each channel and kind, the strongest first."""
    crops, photos = defaultdict(list), index.photos or {}
    same: dict[bytes, bytes] = {}  # many channels of a late layer have the same crop
    for row in _rows(index.top, layer, "rank") if index.top is not None else ():
        if data := row["thumbnail"]:
            box = row["left"], row["top"], row["right"], row["bottom"]
            crop = Crop(same.setdefault(data, data), box, row["value"], row["label"], photos.get(row["path"]))
            crops[row["channel"], row["by"]].append(crop)
    return crops


def _rows(table: pa.Table, layer: str, order: str) -> list[dict[str, Any]]:
    return table.filter(pc.equal(table["layer"], layer)).sort_by(order).to_pylist()


def _sprite_name(kind: str, images: list[bytes | None], secret: str) -> str:
    """Register a sprite, and return its file name: a secret, or a hash of the images, with which browsers keep it."""
    digests = b"".join(hashlib.sha256(image or b"").digest() for image in images)
    name = f"{kind}-{secret or hashlib.sha256(digests).hexdigest()[:16]}.webp"
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
    return encode(sheet, "WEBP", quality=QUALITY, method=2)
