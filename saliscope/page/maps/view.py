"""The wire format of the small maps for `static/maps/classes.js`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saliscope.page.components import view
from saliscope.page.maps import messages
from saliscope.session.answers import Answer
from saliscope.session.maps import top
from saliscope.session.maps.top import TopMaps

if TYPE_CHECKING:
    import torch

SIDE = 64
"""Values of the longer side of a small map, which is drawn at 36 pixels."""


def top_maps(step: TopMaps, of: int, ident: int) -> dict[str, Any]:
    """Pack the maps of classes; `of` is the number of the answer with the list of classes."""
    items = [{"index": index, "map": small(values, step.method.by_size)} for index, values in step.maps.items()]
    return {"id": ident, "of": of, "crop": view.jpeg(step.crop, 128), "items": items}


def small(values: torch.Tensor, by_size: bool) -> dict[str, Any]:
    """Pack a map reduced by averaging; gradients use magnitudes, because neighboring signs would cancel."""
    from torch.nn import functional  # torch takes seconds to start

    values = values.abs() if by_size else values
    height, width = values.shape
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(scale * height)), max(1, round(scale * width))
    return view.floats(functional.adaptive_avg_pool2d(values[None, None], size)[0, 0], exact=False)


def listed(step: Answer) -> dict[str, Any]:
    """Return the fields that the list of classes needs for its maps, or an empty dictionary if there are none."""
    method = top.method_of(step.settings, step.explanation.seconds)
    if method is None or not step.settings.key:
        return {}
    layer = step.settings.layer if method.takes_layer else ""
    return {"key": step.settings.key, "maps": {"method": method.name, "text": messages.top(method.title, layer)}}
