"""The wire format of the small maps for `page/maps/classes.js`."""

from __future__ import annotations

from typing import Any

from saliscope.compute.answers import Answer
from saliscope.compute.maps import top
from saliscope.compute.maps.top import TopMaps
from saliscope.page.components import view
from saliscope.page.maps import messages


def top_maps(step: TopMaps, of: int, ident: int) -> dict[str, Any]:
    """Pack the maps of classes; `of` is the number of the answer with the list of classes."""
    items = [
        {"index": index, "map": view.small_map(values, step.method.by_size)} for index, values in step.maps.items()
    ]
    return {"id": ident, "of": of, "crop": view.jpeg(step.crop, 128), "items": items}


def listed(step: Answer) -> dict[str, Any]:
    """Return the fields that the list of classes needs for its maps, or an empty dictionary if there are none."""
    method = top.method_of(step.settings, step.explanation.seconds)
    if method is None or not step.settings.key:
        return {}
    layer = step.settings.layer if method.takes_layer else ""
    return {"key": step.settings.key, "maps": {"method": method.name, "text": messages.top(method.title, layer)}}
