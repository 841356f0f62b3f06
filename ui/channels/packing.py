"""The channels as the dictionaries that static/channels/channels.js, channel.js and planes.js read."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any

from PIL import Image

from ui.channels import words
from ui.channels.engine import TILE, sparsity
from ui.channels.messages import About, Channel, Fields, Measures, Share, Sheet, Why
from ui.engine import packing
from ui.engine.messages import Answer, unit_name

if TYPE_CHECKING:
    import torch

THUMBNAIL = 28  # cells of a plane's longer side in the row below a map
THUMBNAILS = 400_000  # bytes of them all
WHY = 256  # pixels of the longer side of the gradient's map
SATURATED = 0.98  # of the channels' largest values: where the colours of a shared range end


def sheet(step: Sheet, key: str, ident: int) -> dict[str, Any]:
    """Tiles, figures of all channels, and the photograph below them."""
    from explainers.maps.overlays import sprite  # torch takes seconds to start

    planes, low, high = sprite(step.maps, TILE)
    grid = list(step.maps.shape[1:])
    return {
        "id": ident,
        "key": key,
        **_about(step.about),
        "layer": step.settings.layer,
        "total": step.total,
        "pages": step.pages,
        "grid": grid,
        "cell": list(planes.shape[1:]),
        "numbers": step.numbers,
        "planes": _text(planes.numpy().tobytes()),
        "lo": _column(low),
        "hi": _column(high),
        "range": _shared(step),
        "mean": _column(step.means),
        "highest": _column(step.highest),
        "sparsity": _column(step.sparsity) if math.prod(grid) > 1 else None,
        "dead": step.dead.nonzero()[:, 0].tolist(),
        "crop": packing.picture(step.seen, 256),
        "name": words.sheet_file(step.settings),
        "note": words.sheet(step, (planes.shape[1], planes.shape[2])),
    }


def _shared(step: Sheet) -> list[float]:
    """The range that all tiles share: from the lowest value, or 0, to what most channels' largest do not exceed."""
    import torch  # torch takes seconds to start

    largest = torch.maximum(step.highest.abs(), step.lowest.abs())
    largest = largest[largest.isfinite()]
    end = float(largest.quantile(SATURATED)) if len(largest) else 0.0
    lowest = float(step.lowest[step.lowest.isfinite()].min()) if step.lowest.isfinite().any() else 0.0
    end = end or (float(largest.max()) if len(largest) else 0.0) or 1.0
    return [-end if lowest < 0 else 0.0, end]


def same(key: str, about: About, ident: int) -> dict[str, Any]:
    """The tiles that are shown already are the new answer's."""
    return {"id": ident, "key": key, **_about(about), "same": True}


def measures(step: Measures, ident: int) -> dict[str, Any]:
    """A measure of all channels."""
    note = words.measured(step)
    values = {"id": ident, **_about(step.about), "kind": step.kind, "values": _column(step.values), "note": note}
    return values | {"total": float(step.values.double().sum()), "subject": step.subject.name}


def channel(step: Channel, ident: int) -> dict[str, Any]:
    """One channel, large."""
    return {
        "v": 1,
        "id": ident,
        "state": "done",
        "about": f"{step.settings.loaded.name}/{step.settings.layer}/{step.number}",
        "map": packing.floats(step.map),
        "crop": packing.picture(step.seen),
        "name": words.channel_file(step),
        "words": words.channel(step),
    }


def opened(step: Channel, ident: int) -> dict[str, Any]:
    """Which channel is open."""
    return {"id": ident, **_about(step.about), "number": step.number, "total": step.total, "layer": step.settings.layer}


def facts(step: Channel, ident: int) -> dict[str, Any]:
    """The channel's figures, before its share and its receptive fields are known."""
    import torch  # torch takes seconds to start

    plane = step.map[None]
    sparse = float(sparsity(plane, torch.tensor([not bool(plane.any())])))
    peak = divmod(int(step.map.nan_to_num(float("-inf")).argmax()), step.map.shape[1])
    found = {"id": ident, "number": step.number, "peak": list(peak), "facts": words.facts(step, sparse)}
    if step.settings.loaded.finds:  # what is explained there is a thing in the picture
        return found
    name = unit_name(step.settings.layer, step.number)
    return {**found, "target": name, "explained": name == step.settings.names["target"]}


def closed(sentence: str, ident: int) -> dict[str, Any]:
    """No channel is open; the sentence says why."""
    return {"id": ident, "number": None, "sentence": sentence}


def more(step: Share | Fields) -> dict[str, Any]:
    """What is added to an open channel: its share of the class, or the receptive fields of all its cells."""
    if isinstance(step, Share):
        return {"share": {"title": words.share_title(step), "lines": words.share(step)}}
    rows, columns = step.spans if step.spans else (None, None)
    return {"fields": {"rows": rows, "columns": columns, "size": step.size, "line": words.fields(step)}}


def why(step: Why, ident: int) -> dict[str, Any]:
    """The gradient at the pixels, as a small map over the photograph."""
    found: dict[str, Any] = {"id": ident, "number": step.number, "line": words.why(step)}
    plane, seen, (rows, columns) = step.map, step.seen, step.grid
    box = (step.cell[1] / columns, step.cell[0] / rows, (step.cell[1] + 1) / columns, (step.cell[0] + 1) / rows)
    if plane is not None and step.window:
        (height, width), (left, top, right, bottom) = plane.shape, step.window
        seen = _part(seen, (left / width, top / height, right / width, bottom / height))
        plane = plane[top:bottom, left:right]
        across, down = width / (right - left), height / (bottom - top)
        box = (
            (box[0] - left / width) * across,
            (box[1] - top / height) * down,
            (box[2] - left / width) * across,
            (box[3] - top / height) * down,
        )
    if plane is not None and bool(plane.any()):
        found |= {"map": packing.floats(_small(plane), exact=False, by_size=True)}
    return found | {"box": box, "crop": packing.picture(seen, WHY)}


def _part(seen: Image.Image, box: tuple[float, float, float, float]) -> Image.Image:
    """A part of the picture, enlarged where it has few pixels."""
    width, height = seen.size
    edges = (box[0] * width, box[1] * height, box[2] * width, box[3] * height)
    size = (WHY, max(1, round(WHY * (edges[3] - edges[1]) / max(1.0, edges[2] - edges[0]))))
    return seen.convert("RGB").resize(size, Image.Resampling.BICUBIC, box=edges)


def _small(plane: torch.Tensor) -> torch.Tensor:
    """The map with no side above `WHY`: means over squares of pixels."""
    from torch.nn import functional  # torch takes seconds to start

    height, width = plane.shape
    shrink = max(height, width) / WHY
    if shrink <= 1:
        return plane
    return functional.adaptive_avg_pool2d(plane[None], (round(height / shrink), round(width / shrink)))[0]


def planes(step: Answer, ident: int) -> dict[str, Any] | None:
    """The pager below a map that is one of several planes, with a thumbnail of each; None where there is one map."""
    if not step.planes:
        return None
    from explainers.maps.overlays import sprite  # torch takes seconds to start

    raw = step.explanation.raw[0]
    side = min(THUMBNAIL, max(4, math.isqrt(THUMBNAILS // len(raw))))
    small, low, high = sprite(raw, side)
    return {
        "id": ident,
        "plane": step.plane,
        "count": step.planes,
        "cell": list(small.shape[1:]),
        "planes": _text(small.numpy().tobytes()),
        "lo": _column(low),
        "hi": _column(high),
        "crop": packing.picture(step.seen, 128),
        "words": words.planes(step),
    }


def _about(about: About) -> dict[str, str]:
    return {"about": about.channels, "whom": about.whom}


def _column(values: torch.Tensor) -> dict[str, Any]:
    return {"b64": _text(values.float().contiguous().cpu().numpy().tobytes()), "dtype": "float32"}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
