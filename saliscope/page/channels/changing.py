"""Changes the selected channels and shows the answer of the changed network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saliscope.compute.answers import Waiting
from saliscope.compute.interventions import engine
from saliscope.compute.interventions.answers import Changed
from saliscope.compute.interventions.changes import parse
from saliscope.compute.jobs.runs import Run
from saliscope.page.channels import change_view, parts
from saliscope.page.events import Ask, on, run_job, stop_on
from saliscope.page.wire import Updates


@on(parts.CHANGE, "submit")
def apply(ask: Ask) -> Iterator[Updates]:
    """Answer a change as `changes.parse` describes it, and return the `ticket` of the request."""
    ticket = ask.integer("ticket", 0)

    def pack(**fields: Any) -> Updates:
        return {parts.CHANGE: {"ticket": ticket, **fields}}

    def steps(run: Run) -> Iterator[Updates]:
        for step in engine.intervene(ask.question(), parse(ask.data), run):
            if isinstance(step, Waiting):
                yield pack(waiting=step.message, fraction=step.fraction)
            elif isinstance(step, Changed):
                yield pack(result=change_view.changed(step))

    yield from run_job(ask.job("change"), steps, lambda message: pack(refused=message))


stop_on(parts.CHANGE, "change")
