"""The tables of an index: the channels with their names and synthetic images, and their strongest images.

`open_index` opens a finished index.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from PIL import Image
from pyarrow import parquet as pq
from torch import Tensor

from explainers import TopImages, UnitIndex, UnitName, feature_visualization, name_units, unit
from saliscope.errors import Refused
from saliscope.images.pixels import encode
from saliscope.runs.decoding import Decode, decode_batches
from saliscope.runs.items import Item
from saliscope.runs.report.analysis.summary import tree
from saliscope.runs.run import Report
from saliscope.runs.settings import Classes, check_format, is_imagenet
from saliscope.runs.stores import MANIFEST, SETTINGS, open_store
from saliscope.zoo import Model, Preparation
from saliscope.zoo.weights import weights_hash

UNITS, TOP, PHOTOS = "units.parquet", "top.parquet", "photos.parquet"
METADATA = b"saliscope"
"""The key of the settings in the metadata of units.parquet, which can be used without the other files."""
SIDES = ("left", "top", "right", "bottom")
ACTIVATION, EFFECT = "activation", "effect"
SIDE = 64
"""Pixels of the longer side of a thumbnail; smaller boxes are stored in their own size."""
QUALITY = 85
PHOTO, PHOTO_QUALITY, PHOTO_BYTES = 128, 80, 2**25
"""Pixels of the longer side of a whole photo, its quality as JPEG, and the bytes that all photos may have."""
BATCH = 16
"""Images that are read at once for thumbnails, and units that are optimized together."""
STEPS, SYNTHETIC_QUALITY = 48, 60
"""Steps of the optimization of synthetic images, and their quality as WebP."""
NEAREST = 5
"""Similar units that are listed for each unit."""
DICTIONARY = 2**30
"""Bytes up to which equal thumbnails of a column are stored once."""


def unit_table(index: UnitIndex, samples: Mapping[str, Tensor], names: Sequence[list[str] | None]) -> pa.Table:
    """Return one row for each channel of each layer.

    Args     samples: mean activations [n, K] by layer of the images with these names; without any, units get no names
    """
    rows: list[dict[str, Any]] = []
    for layer, units in index.layers.items():
        found: list[UnitName | None] = [None] * len(units.mean)
        if any(names):
            found = name_units(samples[layer], names)
        near = nearest_units(samples[layer]) if layer in samples else [None] * len(units.mean)
        columns = units.mean.tolist(), units.sparsity.tolist(), units.dead.tolist()
        for channel, (mean, sparsity, dead, others, name) in enumerate(zip(*columns, near, found, strict=True)):
            row = {"layer": layer, "channel": channel, "mean": mean, "sparsity": sparsity, "dead": dead}
            row |= {key: getattr(name, key, None) for key in ("name", "auc", "low", "high", "count")}
            rows.append(row | {"nearest": others})
    return pa.Table.from_pylist(rows, UNIT_SCHEMA)


def nearest_units(activations: Tensor) -> list[list[int] | None]:
    """Return for each unit the units whose activations [n, K] correlate most with its own, the nearest first.

    A unit without variance, and without a positive correlation, has none.
    """
    values = activations.double() - activations.double().mean(0)
    spread = values.norm(dim=0)
    similarity = (values.T @ values) / (spread[:, None] * spread)
    similarity = similarity.nan_to_num(-1.0, -1.0, -1.0).fill_diagonal_(-1.0)
    found = similarity.topk(min(NEAREST, len(similarity)), dim=1)
    pairs = zip(found.values.tolist(), found.indices.tolist(), strict=True)
    near = [[unit for value, unit in zip(*row, strict=True) if value > 0] for row in pairs]
    return [units or None for units in near]


def names_of(labels: Sequence[str | None], classes: Sequence[str]) -> list[list[str] | None]:
    """Return the names of each image: its class, or its label if the network does not have it, or None without one.

    If the classes are those of ImageNet, the ancestors of a class in WordNet are names too.
    """
    known, above = Classes(classes), tree().above if is_imagenet(classes) else None

    @functools.cache
    def names(label: str) -> list[str]:
        index = known.find(label)
        if index is None:
            return [label]
        return [known.name(index)] if above is None else [tree().names[node] for node in above[index]]

    return [None if label is None else names(label) for label in labels]


def top_table(index: UnitIndex, items: Sequence[Item]) -> pa.Table:
    """Return one row for each strongest image of each channel, and for each with the largest effect, if computed."""
    parts = []
    for layer, units in index.layers.items():
        for by, top in ((ACTIVATION, units.top), (EFFECT, units.effects)):
            if top is not None:
                parts.append(_rows(layer, by, top, items))
    return pa.concat_tables(parts)


def _rows(layer: str, by: str, top: TopImages, items: Sequence[Item]) -> pa.Table:
    channels, ranks = top.values.shape
    images = top.images.flatten().tolist()
    values: dict[str, Any] = {
        "layer": [layer] * len(images),
        "channel": torch.arange(channels).repeat_interleave(ranks).tolist(),
        "by": [by] * len(images),
        "rank": torch.arange(ranks).repeat(channels).tolist(),
        "position": images,
        "path": [items[image].path for image in images],
        "label": pa.array([items[image].label for image in images], pa.string()),
        "value": top.values.float().flatten().tolist(),
        **dict(zip(("row", "column"), top.cells.flatten(0, 1).T.tolist(), strict=True)),
        **dict(zip(SIDES, top.boxes.float().flatten(0, 1).T.tolist(), strict=True)),
    }
    return pa.table(values)


def add_thumbnails(
    table: pa.Table,
    items: Sequence[Item],
    decode: Decode,
    preparation: Preparation,
    workers: int,
    report: Report | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Read the images of the table again, as the network receives them; `report` is called after each batch.

    Returns  the table with a JPEG of each box, and a table with a small JPEG of each whole image by its path. If these
             have more than `PHOTO_BYTES`, those of the highest ranks are kept.
    """
    boxes: defaultdict[int, dict[tuple[float, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    sides = (table[side].to_pylist() for side in SIDES)
    for row, (image, box) in enumerate(zip(table["position"].to_pylist(), zip(*sides, strict=True), strict=True)):
        boxes[image][box].append(row)
    thumbnails: list[bytes | None] = [None] * len(table)
    photos: dict[int, bytes] = {}
    order = sorted(boxes)
    parts = [[items[image] for image in order[start : start + BATCH]] for start in range(0, len(order), BATCH)]
    done = 0
    for batch in decode_batches(parts, decode, preparation, workers):
        for k, image in zip(batch.places, batch.images, strict=True):  # others were deleted after they were indexed
            at, whole = order[done + k], to_pil(image, preparation)
            photos[at] = _jpeg(whole, PHOTO, PHOTO_QUALITY)
            for box, rows in boxes[at].items():
                data = _jpeg(_part(whole, box), SIDE, QUALITY)
                for row in rows:
                    thumbnails[row] = data
        done += len(batch.items)
        if report is not None:
            report(done, len(order))
    ranks = dict.fromkeys(table.sort_by("rank")["position"].to_pylist())
    return table.append_column("thumbnail", pa.array(thumbnails, pa.binary())), _photo_table(photos, ranks, items)


def _photo_table(photos: Mapping[int, bytes], order: Iterable[int], items: Sequence[Item]) -> pa.Table:
    """Return the first photos in this order that have at most `PHOTO_BYTES` together."""
    rows, left = [], PHOTO_BYTES
    for at in order:
        left -= len(photos.get(at, b""))
        if at in photos and left >= 0:
            rows.append({"path": items[at].path, "photo": photos[at]})
    return pa.Table.from_pylist(rows, pa.schema([("path", pa.string()), ("photo", pa.binary())]))


def to_pil(image: Tensor, preparation: Preparation) -> Image.Image:
    """Return the network input [C, H, W] as an image."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (preparation.mean, preparation.std))
    white = 1 if preparation.raw else 255
    pixels = ((image * std + mean) * white).round().clamp(0, 255).to(torch.uint8)
    return Image.fromarray(pixels.movedim(0, 2).squeeze(2).numpy())


def _part(image: Image.Image, box: Sequence[float]) -> Image.Image:
    width, height = image.size
    left, top = min(int(box[0] * width), width - 1), min(int(box[1] * height), height - 1)
    return image.crop((left, top, max(left + 1, round(box[2] * width)), max(top + 1, round(box[3] * height))))


def _jpeg(image: Image.Image, side: int, quality: int) -> bytes:
    small = image.copy()
    small.thumbnail((side, side))
    return encode(small, "JPEG", quality=quality)


def to_parquet(table: pa.Table) -> pa.Buffer:
    """Return the table as a Parquet file, in which equal values of a column are stored once."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", dictionary_pagesize_limit=DICTIONARY)
    return sink.getvalue()


UNIT_SCHEMA = pa.schema(
    [
        *(("layer", pa.string()), ("channel", pa.int32()), ("mean", pa.float64()), ("sparsity", pa.float64())),
        *(("dead", pa.bool_()), ("name", pa.string()), ("auc", pa.float64()), ("low", pa.float64())),
        *(("high", pa.float64()), ("count", pa.int64()), ("nearest", pa.list_(pa.int32()))),
    ]
)


def add_images(model: Model, layer: str, channels: int, side: int, done: Tensor | None) -> Iterator[Tensor]:
    """Yield an image of each channel of a layer so far, [K, C, side, side] in 0 to 255, after each batch.

    Args     done: images of the first channels, from a stopped call
    """
    mean, std = model.preparation.mean, model.preparation.std
    images = torch.zeros(0, model.channels, side, side, dtype=torch.uint8) if done is None else done
    while len(images) < channels:
        batch = range(len(images), min(channels, len(images) + BATCH))
        target = unit(layer, list(batch))
        found = feature_visualization(
            model.network, target, mean=mean, std=std, size=(side, side), images=len(batch), steps=STEPS
        )
        images = torch.cat([images, (255 * found.images.cpu()).round().to(torch.uint8)])
        yield images


def to_webp(images: Tensor, dead: Sequence[bool]) -> list[bytes | None]:
    """Return images [K, C, H, W] as WebP files, None for dead channels, whose images mean nothing."""
    drawn = (Image.fromarray(image.movedim(0, 2).squeeze(2).numpy()) for image in images)
    return [
        None if is_dead else encode(image, "WEBP", quality=SYNTHETIC_QUALITY, method=6)
        for image, is_dead in zip(drawn, dead, strict=True)
    ]


@dataclass(frozen=True)
class StoredIndex:
    """A finished index: the settings, the manifest, and the tables `units`, `top` and `photos`."""

    folder: Path | str
    settings: dict[str, Any]
    manifest: dict[str, Any]
    units: pa.Table
    top: pa.Table
    photos: pa.Table | None = None


def open_index(folder: str | Path, model: Model | None = None) -> StoredIndex:
    """Return a finished index.

    Args     folder: a local path, or a URL that fsspec opens
             model: the network with which the index will be used
    Errors   Refused for a folder without an index, an unfinished, damaged or newer one, and one of another network
    """
    store = open_store(folder)
    found = {name: store.read(name) for name in (SETTINGS, MANIFEST, UNITS, TOP, PHOTOS)}
    if found[SETTINGS] is None:
        raise Refused(
            f"{str(folder)!r} does not contain an index of units. Pass the --out folder of `saliscope index`."
        )
    if found[MANIFEST] is None:
        raise Refused(f"The index in {str(folder)!r} is not finished. Run the same `saliscope index` command again.")
    try:
        settings, manifest = (json.loads(found[name] or b"") for name in (SETTINGS, MANIFEST))
        weights = settings["weights_sha256"]
        units, top = (pq.read_table(pa.BufferReader(found[name] or b"")) for name in (UNITS, TOP))
        photos = found[PHOTOS] and pq.read_table(pa.BufferReader(found[PHOTOS]))  # may be left out
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise Refused(f"The index in {str(folder)!r} is damaged ({error}). Delete it, and index again.") from None
    check_format(settings, folder, "index")
    if model is not None and weights_hash(model) != weights:
        raise Refused(
            f"The index in {str(folder)!r} is of {settings['model']} with other weights than those of {model.name}. "
            "Index again, or load that model."
        )
    return StoredIndex(store.folder, settings, manifest, units, top, photos or None)
