"""Changes the selected channels, and packs the answer of the changed network for page/interventions/."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saliscope.compute import messages as page_messages
from saliscope.compute.interventions import engine, messages
from saliscope.compute.interventions.answers import BeforeAfter, Changed
from saliscope.compute.interventions.changes import parse
from saliscope.page.channels import parts
from saliscope.page.components import view
from saliscope.page.events import Ask, answer_newest, on, stop_on
from saliscope.page.wire import Updates

CROP_SIDE = 384  # pixels of the longer side of the image below the maps


@on(parts.CHANGE, "submit")
def apply(ask: Ask) -> Iterator[Updates]:
    """Answer a change as `changes.parse` describes it."""
    yield from answer_newest(
        ask,
        parts.CHANGE,
        "change",
        lambda run: engine.intervene(ask.question(), parse(ask.data), run),
        lambda step: {"result": changed(step)},
    )


stop_on(parts.CHANGE, "change")


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
