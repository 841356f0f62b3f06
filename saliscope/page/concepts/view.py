"""The wire format of concepts for concepts.js."""

from __future__ import annotations

from typing import Any

from saliscope.compute.concepts import messages
from saliscope.compute.concepts.answers import Measured
from saliscope.compute.interventions.answers import BeforeAfter
from saliscope.page.channels.change_view import CROP_SIDE, before_after
from saliscope.page.components import view


def sheet(step: Measured) -> dict[str, Any]:
    """Pack the concepts in the order of their effects, largest first."""
    found = step.found
    items = [
        {
            "index": index,
            "effect": messages.effect(float(step.effects[index])),
            "map": view.small_map(found.maps[index], by_size=False),
            "cuts": [{"name": cut.name, **view.jpeg(cut.image)} for cut in found.cuts[index]],
        }
        for index in step.effects.argsort(descending=True).tolist()
    ]
    return {"summary": messages.summary(step), "crop": view.jpeg(step.crop, CROP_SIDE), "items": items}


def result(step: BeforeAfter, index: int, factor: float) -> dict[str, Any]:
    """Pack the classes and the maps before and after a concept was scaled."""
    return before_after(step, messages.title(index, factor))
