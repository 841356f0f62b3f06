"""Finds the concepts of the layer, and shows the network with one of them scaled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from saliscope.compute.answers import Waiting
from saliscope.compute.concepts import engine
from saliscope.compute.jobs.runs import Run
from saliscope.page.concepts import parts, view
from saliscope.page.events import Ask, on, run_job, stop_on
from saliscope.page.wire import Updates


@on(parts.CONCEPTS, "submit")
def find(ask: Ask) -> Iterator[Updates]:
    """Find concepts and measure their effects."""
    yield from _answer(
        ask,
        lambda run: engine.find(ask.question(), engine.parse(ask.data), run),
        lambda step: {"sheet": view.sheet(step)},
    )


@on(parts.CONCEPTS, "scale")
def scale(ask: Ask) -> Iterator[Updates]:
    """Multiply a concept by a factor."""
    index, factor = ask.integer("concept", -1), ask.data.get("factor")
    factor = float(factor) if isinstance(factor, (int, float)) else -1.0
    yield from _answer(
        ask,
        lambda run: engine.scale(ask.question(), engine.parse(ask.data), index, factor, run),
        lambda step: {"result": view.result(step, index, factor)},
    )


stop_on(parts.CONCEPTS, "concepts")


def _answer(
    ask: Ask, answer: Callable[[Run], Iterator[Any]], shown: Callable[[Any], dict[str, Any]]
) -> Iterator[Updates]:
    """Run the job of the view and return the `ticket` of the request; a new job replaces the previous one."""
    ticket = ask.integer("ticket", 0)

    def pack(**fields: Any) -> Updates:
        return {parts.CONCEPTS: {"ticket": ticket, **fields}}

    def steps(run: Run) -> Iterator[Updates]:
        for step in answer(run):
            is_waiting = isinstance(step, Waiting)
            yield pack(waiting=step.message, fraction=step.fraction) if is_waiting else pack(**shown(step))

    yield from run_job(ask.job("concepts"), steps, lambda message: pack(refused=message))
