"""The wire format of channels, and of what an index knows about them, for the scripts in page/channels/."""

from __future__ import annotations

import math
from typing import Any

import torch
from PIL import Image

import explainers
from saliscope.compute.answers import Answer, unit_name
from saliscope.compute.channels import messages
from saliscope.compute.channels.answers import (
    Channel,
    Contribution,
    Identifiers,
    InputGradient,
    Measures,
    ReceptiveFields,
    Sheet,
)
from saliscope.compute.channels.engine import TILE, sparsity
from saliscope.compute.engine import plane_number
from saliscope.compute.units import ACROSS, SIDE, Crop, LayerUnits
from saliscope.page.components import view
from saliscope.page.components.thumbnails import reduced, thumbnails
from saliscope.page.wire import base64_text

THUMBNAIL = 28  # cells of the longer side of a plane in the row below a map
THUMBNAILS = 400_000  # bytes of all thumbnails
GRADIENT_SIDE = 256  # pixels of the longer side of the gradient map
SATURATED = 0.98  # quantile of the channel maxima at which a shared color range ends


def sheet(step: Sheet, key: str) -> dict[str, Any]:
    """Pack tiles, statistics of all channels, and the image below them."""
    tiles, grid = _tiles(step.maps, TILE), list(step.maps.shape[1:])
    return {
        "key": key,
        **_ids(step.ids),
        "layer": step.settings.layer,
        "total": step.total,
        "grid": grid,
        "numbers": step.numbers,
        **tiles,
        "range": _shared(step),
        "mean": view.numbers(step.means),
        "highest": view.numbers(step.highest),
        "sparsity": view.numbers(step.sparsity) if math.prod(grid) > 1 else None,
        "dead": step.dead.nonzero()[:, 0].tolist(),
        "crop": view.jpeg(step.crop, 256),
        "name": messages.sheet_file(step.settings),
        "note": messages.sheet(step, tuple(tiles["cell"])),
    }


def _shared(step: Sheet) -> list[float]:
    """Return the shared range of all tiles: from 0 (or the negative end) to the quantile of the channel maxima."""
    largest = torch.maximum(step.highest.abs(), step.lowest.abs())
    largest = largest[largest.isfinite()]
    end = float(largest.quantile(SATURATED)) if len(largest) else 0.0
    lowest = float(step.lowest[step.lowest.isfinite()].min()) if step.lowest.isfinite().any() else 0.0
    end = end or (float(largest.max()) if len(largest) else 0.0) or 1.0
    return [-end if lowest < 0 else 0.0, end]


def same(key: str, ids: Identifiers) -> dict[str, Any]:
    """Tell the page to keep its tiles."""
    return {"key": key, **_ids(ids), "same": True}


def measures(step: Measures) -> dict[str, Any]:
    """Pack a measure of all channels."""
    note, values = messages.measured(step), view.numbers(step.values)
    return {**_ids(step.ids), "kind": step.kind, "values": values, "note": note, "cell": step.cell}


def channel(step: Channel) -> dict[str, Any]:
    """Pack an enlarged channel."""
    return {
        "state": "done",
        "about": f"{step.settings.loaded.name}/{step.settings.layer}/{step.number}",
        "map": view.floats(step.map),
        "crop": view.jpeg(step.crop),
        "name": messages.channel_file(step),
        "words": messages.channel(step),
    }


def open_channel(step: Channel) -> dict[str, Any]:
    """Pack the number of the open channel."""
    return {**_ids(step.ids), "number": step.number}


def facts(step: Channel) -> dict[str, Any]:
    """Pack the statistics of a channel, without its contribution and its receptive fields."""
    plane = step.map[None]
    sparse = float(sparsity(plane, torch.tensor([not bool(plane.any())])))
    peak = divmod(int(step.map.nan_to_num(float("-inf")).argmax()), step.map.shape[1])
    packed = {"number": step.number, "peak": list(peak), "facts": messages.facts(step, sparse)}
    if step.settings.loaded.detects_objects:  # channels cannot be a target of detectors
        return packed
    name = unit_name(step.settings.layer, step.number)
    return {**packed, "target": name, "explained": name == step.settings.names["target"]}


def more(step: Contribution | ReceptiveFields) -> dict[str, Any]:
    """Pack an addition to an open channel: its contribution to the class, or the receptive fields of its cells."""
    if isinstance(step, Contribution):
        return {"share": {"title": messages.contribution_title(step), "lines": messages.contribution(step)}}
    rows, columns = step.spans if step.spans else (None, None)
    return {"fields": {"rows": rows, "columns": columns, "size": step.size, "line": messages.receptive_fields(step)}}


def input_gradient(step: InputGradient) -> dict[str, Any]:
    """Pack the input gradient as a small map over the image."""
    packed: dict[str, Any] = {"line": messages.input_gradient(step), "cell": step.cell}
    plane, crop, (rows, columns) = step.map, step.crop, step.grid
    box = [step.cell[1] / columns, step.cell[0] / rows, (step.cell[1] + 1) / columns, (step.cell[0] + 1) / rows]
    if plane is not None and step.window:
        (height, width), (left, top, right, bottom) = plane.shape, step.window
        crop = _part(crop, (left / width, top / height, right / width, bottom / height))
        plane = plane[top:bottom, left:right]
        across, down = width / (right - left), height / (bottom - top)
        start, scale = (left / width, top / height) * 2, (across, down) * 2
        box = [(edge - first) * factor for edge, first, factor in zip(box, start, scale, strict=True)]
    if plane is not None and bool(plane.any()):
        packed |= {"map": view.floats(reduced(plane[None], GRADIENT_SIDE)[0], exact=False, by_size=True)}
    return packed | {"box": box, "crop": view.jpeg(crop, GRADIENT_SIDE)}


def _part(crop: Image.Image, box: tuple[float, float, float, float]) -> Image.Image:
    """Crop a part of the image and resize it."""
    width, height = crop.size
    edges = (box[0] * width, box[1] * height, box[2] * width, box[3] * height)
    size = (GRADIENT_SIDE, max(1, round(GRADIENT_SIDE * (edges[3] - edges[1]) / max(1.0, edges[2] - edges[0]))))
    return crop.convert("RGB").resize(size, Image.Resampling.BICUBIC, box=edges)


def planes(step: Answer) -> dict[str, Any] | None:
    """Pack the pager of a map with several planes, with a thumbnail of each plane, or return None for a single map."""
    if not step.planes:
        return None
    raw = explainers.place(step.explanation.raw[0], step.explanation.placement)
    side = min(THUMBNAIL, max(4, math.isqrt(THUMBNAILS // len(raw))))
    return {
        "plane": step.plane,
        "usual": plane_number(step.explanation.raw[0], None),
        "count": step.planes,
        **_tiles(raw, side),
        "crop": view.jpeg(step.crop, 128),
        "words": messages.planes(step),
    }


def layer_units(found: LayerUnits | None) -> dict[str, Any] | None:
    """Pack names, their tests, and the sprites for the tiles of a layer."""
    if found is None:
        return None
    tested = [unit.name is not None and unit.auc is not None for unit in found.units]
    return {
        "names": [unit.name if has else None for unit, has in zip(found.units, tested, strict=True)],
        "tests": [messages.unit_test(unit) if has else None for unit, has in zip(found.units, tested, strict=True)],
        "sprites": {kind: f"hl/units/{name}" for kind, name in found.sprites.items()},
        "side": SIDE,
        "across": ACROSS,
    }


def unit(found: LayerUnits | None, number: int) -> dict[str, Any]:
    """Pack everything about an open channel."""
    if found is None:
        return {}
    unit, photos = found.units[number], list[bytes]()
    by = [messages.BY_RESPONSE, messages.by_effect(found)] if unit.effects else [messages.BY_RESPONSE]
    return {
        "number": number,
        "lines": messages.unit(unit, found),
        "image": None if unit.image is None else _source(unit.image, "webp"),
        "crops": [[_crop(crop, photos) for crop in crops] for crops in (unit.crops, unit.effects) if crops],
        "by": by,
        "photos": [_source(photo, "jpeg") for photo in photos],
        "nearest": [other for other in unit.nearest or [] if 0 <= other < len(found.units)],
    }


def _crop(crop: Crop, photos: list[bytes]) -> dict[str, Any]:
    """Pack a crop; its photo is added to the photos unless it is among them."""
    packed = {"src": _source(crop.image, "jpeg"), "box": crop.box, "value": crop.value, "label": crop.label or ""}
    if crop.photo is None:
        return {**packed, "photo": None}
    if crop.photo not in photos:
        photos.append(crop.photo)
    return {**packed, "photo": photos.index(crop.photo)}


def _source(image: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64_text(image)}"


def _tiles(maps: torch.Tensor, side: int) -> dict[str, Any]:
    """Pack maps [K, h, w] as small images, and the range of each."""
    planes, low, high = thumbnails(maps, side)
    cell, data = list(planes.shape[1:]), base64_text(planes.numpy().tobytes())
    return {"cell": cell, "planes": data, "lo": view.numbers(low), "hi": view.numbers(high)}


def _ids(ids: Identifiers) -> dict[str, str]:
    return {"about": ids.channels, "whom": ids.target}
