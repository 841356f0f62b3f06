"""The component that shows how one value of the open channel is computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from saliscope.compute.arithmetic import engine, messages
from saliscope.compute.arithmetic.answers import ValueOf
from saliscope.compute.jobs.runs import Run
from saliscope.compute.request import from_form
from saliscope.page.channels import arithmetic_view
from saliscope.page.components import view
from saliscope.page.components.components import canvas
from saliscope.page.shared.tab import Page, Updates, event_data, integer, queue_options, run_job


class ArithmeticPanel:
    """Patch, kernel, products, and the operations after their sum, for a cell that was clicked."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.drawing = canvas("arithmetic/arithmetic", "hl-arithmetic", terms=messages.TERMS, events=["submit"])

    def wire(self) -> None:
        """Connect the click on a cell."""
        shared = queue_options("model", trigger_mode="multiple", show_progress="hidden")
        self.drawing.submit(self.trace, self.page.panel.inputs, self.drawing, **shared)

    def trace(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Show how the value of "channel" at "cell" is computed."""
        data = event_data(event)
        number, given = integer(data.get("channel"), -1), data.get("cell")
        fits = isinstance(given, list) and len(given) == 2 and all(type(each) is int for each in given)
        cell = (given[0], given[1]) if isinstance(given, list) and fits else (-1, -1)

        def pack(**fields: Any) -> Updates:
            return {self.drawing: {"id": view.number(), "channel": number, "cell": cell, **fields}}

        def steps(run: Run) -> Iterator[Updates]:
            for step in engine.trace(from_form(*form), number, cell, run):
                if isinstance(step, ValueOf):
                    yield pack(**arithmetic_view.value(step))

        yield from run_job(f"{request.session_hash}/arithmetic", steps, lambda message: pack(refused=message))
