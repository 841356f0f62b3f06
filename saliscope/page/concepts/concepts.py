"""Finds the concepts of the layer, and shows the network with one of them scaled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saliscope.compute.concepts import engine, messages
from saliscope.compute.concepts.answers import Measured
from saliscope.compute.interventions.answers import BeforeAfter
from saliscope.page.channels.changing import CROP_SIDE, before_after
from saliscope.page.components import view
from saliscope.page.concepts import parts
from saliscope.page.events import Ask, answer_newest, on, stop_on
from saliscope.page.wire import Updates


@on(parts.CONCEPTS, "submit")
def find(ask: Ask) -> Iterator[Updates]:
    """Find concepts and measure their effects."""
    yield from answer_newest(
        ask,
        parts.CONCEPTS,
        "concepts",
        lambda run: engine.find(ask.question(), engine.parse(ask.data), run),
        lambda step: {"sheet": sheet(step)},
    )


@on(parts.CONCEPTS, "scale")
def scale(ask: Ask) -> Iterator[Updates]:
    """Multiply a concept by a factor."""
    index, factor = ask.integer("concept", -1), ask.data.get("factor")
    factor = float(factor) if isinstance(factor, (int, float)) else -1.0
    yield from answer_newest(
        ask,
        parts.CONCEPTS,
        "concepts",
        lambda run: engine.scale(ask.question(), engine.parse(ask.data), index, factor, run),
        lambda step: {"result": result(step, index, factor)},
    )


stop_on(parts.CONCEPTS, "concepts")


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
