"""The tab that compares the model of the page with a second one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from saliscope.compute import model_cache
from saliscope.compute.answers import Waiting
from saliscope.compute.jobs.runs import Run
from saliscope.compute.models import engine, messages
from saliscope.compute.request import LONGEST, from_form
from saliscope.page.components.components import COMBOBOX, canvas, receiver
from saliscope.page.components.list_columns import HEADS
from saliscope.page.models import view
from saliscope.page.panel import panel
from saliscope.page.shared.tab import UNQUEUED, Tab, event_data, integer, queue_options, run_job


class Models(Tab):
    """A list of models, and the result for two of them."""

    title, id = messages.TITLE, "models"
    within, part = "compare", messages.PART

    def build(self) -> None:
        """Create the layout of the tab; the list of models is requested when it is shown."""
        combobox = {"list": COMBOBOX, "heads": HEADS["model"]}
        self.board = canvas("models/models", "hl-models", terms=messages.TERMS, combobox=combobox, events=["listed"])
        self.names = receiver("hl-models-listed", "models")

    def wire(self) -> None:
        """Connect the events; a new comparison replaces the previous one of the same user."""
        shared = queue_options("model", show_progress="hidden", trigger_mode="multiple")
        self.board.submit(self.compare, self.page.panel.inputs, self.board, **shared)
        self.board.listed(self.list_names, None, self.names, **queue_options("model", show_progress="hidden"))
        self.board.stop(self.stop_job, None, None, trigger_mode="multiple", **UNQUEUED)

    def list_names(self) -> Iterator[list[Any]]:
        """Return the models of the page as items of a list."""
        for _ in model_cache.wait():
            pass
        yield panel.models(model_cache.list_models())

    def compare(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[dict[str, Any]]:
        """Compare two models on the image of the page and the examples."""
        data = event_data(event)
        number, other = integer(data.get("number"), 0), data.get("other")
        name = other if isinstance(other, str) and len(other) <= LONGEST else ""

        def steps(run: Run) -> Iterator[dict[str, Any]]:
            question, with_examples = from_form(*form), data.get("examples") is not False
            for step in engine.compare(question, name, run, with_examples=with_examples):
                yield view.waiting(number, step) if isinstance(step, Waiting) else view.compared(number, step)

        def show_error(message: str) -> dict[str, Any]:
            return view.refused(number, message)

        yield from run_job(self.job_name(request), steps, show_error, question=str(number), number=number)
