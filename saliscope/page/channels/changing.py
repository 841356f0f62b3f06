"""The component that changes the selected channels and shows the answer of the changed network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from saliscope.compute.answers import Waiting
from saliscope.compute.interventions import engine, messages
from saliscope.compute.interventions.answers import Changed
from saliscope.compute.interventions.changes import parse
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.runs import Run
from saliscope.compute.request import from_form
from saliscope.page.channels import change_view
from saliscope.page.components import view
from saliscope.page.components.components import canvas, example_items
from saliscope.page.shared.messages import SECOND_IMAGE
from saliscope.page.shared.tab import UNQUEUED, Page, Updates, event_data, integer, queue_options, run_job


class Changing:
    """The form of a change, and below it the classes and the maps before and after."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.drawing = canvas(
            "interventions/interventions",
            "hl-change",
            terms={**messages.CHANGE, "second": SECOND_IMAGE},
            examples=example_items(),
            events=["submit", "stop"],
        )

    def wire(self) -> None:
        """Connect the events: Apply, and Stop or Reset."""
        shared = queue_options("model", trigger_mode="multiple", show_progress="hidden")
        self.drawing.submit(self.apply, self.page.panel.inputs, self.drawing, **shared)
        self.drawing.stop(self.stop, None, None, **UNQUEUED)

    def apply(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Answer a change; `event` contains it as `changes.parse` describes, and the `ticket` of the request."""
        data = event_data(event)
        ticket = integer(data.get("ticket"), 0)

        def pack(**fields: Any) -> Updates:
            return {self.drawing: {"id": view.number(), "ticket": ticket, **fields}}

        def steps(run: Run) -> Iterator[Updates]:
            for step in engine.intervene(from_form(*form), parse(data), run):
                if isinstance(step, Waiting):
                    yield pack(waiting=step.message, fraction=step.fraction)
                elif isinstance(step, Changed):
                    yield pack(result=change_view.changed(step))

        yield from run_job(f"{request.session_hash}/change", steps, lambda message: pack(refused=message))

    def stop(self, request: gr.Request) -> None:
        """Stop the computation."""
        runs.stop(f"{request.session_hash}/change")
