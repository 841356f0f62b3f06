"""Finds the concepts of the layer, and shows the network with one of them scaled."""

from __future__ import annotations

from collections.abc import Iterator

from saliscope.compute.concepts import engine
from saliscope.page.concepts import parts, view
from saliscope.page.events import Ask, answer_ticket, on, stop_on
from saliscope.page.wire import Updates


@on(parts.CONCEPTS, "submit")
def find(ask: Ask) -> Iterator[Updates]:
    """Find concepts and measure their effects."""
    yield from answer_ticket(
        ask,
        parts.CONCEPTS,
        "concepts",
        lambda run: engine.find(ask.question(), engine.parse(ask.data), run),
        lambda step: {"sheet": view.sheet(step)},
    )


@on(parts.CONCEPTS, "scale")
def scale(ask: Ask) -> Iterator[Updates]:
    """Multiply a concept by a factor."""
    index, factor = ask.integer("concept", -1), ask.data.get("factor")
    factor = float(factor) if isinstance(factor, (int, float)) else -1.0
    yield from answer_ticket(
        ask,
        parts.CONCEPTS,
        "concepts",
        lambda run: engine.scale(ask.question(), engine.parse(ask.data), index, factor, run),
        lambda step: {"result": view.result(step, index, factor)},
    )


stop_on(parts.CONCEPTS, "concepts")
