"""The network diagram: its drawing, the gradient norms of its layers, and their sizes and costs."""

from __future__ import annotations

from collections.abc import Iterator

from saliscope.compute.jobs.runs import Run
from saliscope.compute.rail import description, norms
from saliscope.compute.request import LONGEST
from saliscope.page.events import Ask, on, run_job
from saliscope.page.rail import parts, view
from saliscope.page.wire import Updates


@on(parts.RAIL, "measure")
def measure(ask: Ask) -> Iterator[Updates]:
    """Compute the norms for the settings of the page."""

    def steps(run: Run) -> Iterator[Updates]:
        for step in norms.measure(ask.question(), run):
            if isinstance(step, norms.Norms):
                yield {"gradients": view.norms(step)}

    yield from run_job(ask.job("rail"), steps, lambda message: {"gradients": {"failed": message}})


@on(parts.RAIL, "describe")
def describe(ask: Ask) -> Iterator[Updates]:
    """Measure the sizes and costs of all layers of the current network."""

    def steps(run: Run) -> Iterator[Updates]:
        for step in description.describe(ask.question(), run):
            if isinstance(step, description.Described):
                yield {"description": view.description(step)}

    def show_error(message: str) -> Updates:
        return {"description": {"model": ask.text("model", LONGEST), "failed": message}}

    yield from run_job(ask.job("describe"), steps, show_error)
