"""The wire format of the small maps, which `static/maps/topmaps.js` draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ui.engine import packing
from ui.engine.messages import Answer
from ui.maps import top, words
from ui.maps.top import TopMaps

if TYPE_CHECKING:
    import torch

SIDE = 64
"""Values of a small map's longer side; on the screen it has 44 points."""


def top_maps(step: TopMaps, of: int, ident: int) -> dict[str, Any]:
    """The maps of classes; `of` is the number of the list of classes beside which they stand."""
    items = [
        {"index": index, "map": packing.floats(_small(values, step.method.by_size), exact=False)}
        for index, values in step.maps.items()
    ]
    return {"id": ident, "of": of, "crop": packing.picture(step.seen, 128), "items": items}


def _small(values: torch.Tensor, by_size: bool) -> torch.Tensor:
    """The mean over the values of each pixel of a small map; signs of neighbours would cancel."""
    from torch.nn import functional  # torch takes seconds to start

    values = values.abs() if by_size else values
    height, width = values.shape
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(scale * height)), max(1, round(scale * width))
    return functional.adaptive_avg_pool2d(values[None, None], size)[0, 0]


def listed(step: Answer) -> dict[str, Any]:
    """What the list of classes says about the maps beside it; nothing where there are none."""
    method = top.method_of(step.settings, step.explanation.seconds)
    if method is None or not step.settings.key:
        return {}
    layer = step.settings.layer if method.takes_layer else ""
    return {"key": step.settings.key, "maps": {"method": method.name, "text": words.top(method.title, layer)}}
