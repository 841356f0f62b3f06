"""Indices of units with chosen names and plain images, as `saliscope index` writes them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image
from pyarrow import parquet as pq

from saliscope.zoo import Model, catalog
from saliscope.zoo.weights import weights_hash

LAYER, CHANNELS = "stages.2", 40
NAMES = {3: "tabby", 7: "tiger beetle", 17: "a bird with a name that is much too long for a tile"}
COUNT = 5000
"""Images of an index."""
COLORS = ("#c02020", "#20a020", "#2040c0")


def picture(channel: int, kind: str) -> bytes:
    """Return an image of one color, which depends on the channel."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), COLORS[channel % len(COLORS)]).save(file, kind)
    return file.getvalue()


def unit_rows(layer: str, channels: int, names: Mapping[int, str]) -> pa.Table:
    """Return the channels of a layer. Those with a name have an AUC of 0.97, and channels 1 and 2 are similar to 0."""
    rows = [
        {
            "layer": layer,
            "channel": k,
            "mean": 0.25,
            "sparsity": 0.88,
            "dead": False,
            **dict.fromkeys(("name", "auc", "low", "high", "count")),
            **({"name": names[k], "auc": 0.97, "low": 0.95, "high": 0.99, "count": 25} if k in names else {}),
            "nearest": [1, 2] if k == 0 else [0],
            "image": picture(k, "WEBP"),
        }
        for k in range(channels)
    ]
    return pa.Table.from_pylist(rows)


def top_rows(layer: str, channels: int, by: str = "activation") -> pa.Table:
    """Return two crops for each channel, which cover the left half of a photo."""
    place = {"row": 0, "column": 0, "left": 0.0, "top": 0.0, "right": 0.5, "bottom": 1.0}
    rows = [
        {
            "layer": layer,
            "channel": k,
            "by": by,
            "rank": rank,
            "position": rank,
            **place,
            "path": f"{rank}.jpg",
            "label": "tabby",
            "value": 5.5 - rank,
            "thumbnail": picture(k + 1, "JPEG"),
        }
        for k in range(channels)
        for rank in range(2)
    ]
    return pa.Table.from_pylist(rows)


def settings(model: Model) -> dict[str, Any]:
    """Return the settings of an index of a network."""
    return {"format": 1, "model": model.name, "weights_sha256": weights_hash(model)}


def photo_rows() -> pa.Table:
    """Return the whole photos of these crops, of two colors."""
    return pa.table({"path": ["0.jpg", "1.jpg"], "photo": [picture(0, "JPEG"), picture(1, "JPEG")]})


def write_folder(folder: Path, model: Model, units: pa.Table, top: pa.Table, photos: pa.Table | None = None) -> Path:
    """Write an index, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if photos is not None:
        pq.write_table(photos, folder / "photos.parquet")
    (folder / "settings.json").write_text(json.dumps(settings(model)), encoding="utf-8")
    (folder / "manifest.json").write_text(json.dumps({"counts": {"images": COUNT}}), encoding="utf-8")
    pq.write_table(units, folder / "units.parquet")
    pq.write_table(top, folder / "top.parquet")
    return folder


def write_pages(folder: Path) -> Path:
    """Write an index of two layers of the built-in network with photos, and return its folder."""
    units = unit_rows(LAYER, CHANNELS, NAMES), unit_rows("head", 1280, {})
    top = pa.concat_tables(top_rows(LAYER, CHANNELS, by) for by in ("activation", "effect"))
    rows = pa.concat_tables(units, promote_options="default")
    return write_folder(folder, catalog.load_model("efficientnet_lite0"), rows, top, photo_rows())


def write_file(path: Path, model: Model, units: pa.Table, **more: str) -> Path:
    """Write an index without photos and with more settings as one file, and return its path."""
    found = {**settings(model), "indexed": COUNT, "photos": "photos of animals", **more}
    pq.write_table(units.replace_schema_metadata({"saliscope": json.dumps(found)}), path)
    return path
