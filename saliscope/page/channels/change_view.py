"""The wire format of a change of channels for page/interventions/."""

from __future__ import annotations

from typing import Any

from saliscope.compute import messages as page_messages
from saliscope.compute.interventions import messages
from saliscope.compute.interventions.answers import BeforeAfter, Changed
from saliscope.page.components import view

CROP_SIDE = 384  # pixels of the longer side of the image below the maps


def changed(step: Changed) -> dict[str, Any]:
    """Pack the answer to a change of channels."""
    packed = before_after(step, messages.title(step)) | {"cell": step.shown_cell}
    if step.effects is not None:
        title, unit = messages.effects(step)
        packed["effects"] = {"map": view.floats(step.effects), "title": title, "unit": unit}
    return packed


def before_after(step: BeforeAfter, title: str) -> dict[str, Any]:
    """Pack the classes and the maps before and after a change, for page/interventions/result.js."""
    packed: dict[str, Any] = {
        "title": title,
        "summary": messages.summary(step),
        "map_title": messages.map_title(step),
        "classes": [
            {"texts": [each.name, *messages.row(each, step)], "change": each.after - each.before}
            for each in step.classes
        ],
        "crop": view.jpeg(step.crop, CROP_SIDE),
        "unit": page_messages.unit(step.settings),
    }
    if step.maps is not None:
        by_size = step.settings.method.by_size
        maps = [view.floats(each, by_size=by_size) for each in (step.maps.before, step.maps.after)]
        packed |= {"maps": maps, "note": messages.note(step)}
    return packed
