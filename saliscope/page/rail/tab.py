"""The components of the network rail, and the request for gradient norms after a map is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from saliscope.compute.answers import Answer, Settings
from saliscope.compute.jobs.runs import Run
from saliscope.compute.rail import description, messages, network, norms
from saliscope.compute.request import Request, from_form
from saliscope.page.components.components import canvas, receiver
from saliscope.page.rail import view
from saliscope.page.shared.tab import Page, Updates, event_data, queue_options, run_job


class Rail:
    """The visible `drawing`, whose value has the maps of the stages, and hidden components for network and norms."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.drawing = canvas("rail/rail", "hl-strip", terms=messages.terms(), events=["measure", "describe"])
        self.network = receiver("hl-rail-network", "network")
        self.norms = receiver("hl-rail-norms", "gradients")
        self.description = receiver("hl-rail-description", "description")

    @property
    def outputs(self) -> list[Any]:
        """The components that an answer may change."""
        return [self.drawing, self.network, self.norms]

    def wire(self) -> None:
        """Connect the event that requests the norms when a map is shown and the rail is visible."""
        shared = queue_options("model", show_progress="hidden", trigger_mode="multiple")
        self.drawing.measure(self.measure, self.page.panel.inputs, self.norms, **shared)
        self.drawing.describe(self.describe, self.page.panel.inputs, self.description, **shared)

    def update_drawing(self, settings: Settings, form: Any) -> Updates:
        """Update the drawing if the model has changed; `form` is the value of the options component."""
        known = form.get("model") if isinstance(form, dict) else None
        return {} if known == settings.loaded.name else {self.network: network.drawing(settings.loaded)}

    def identify_norms(self, step: Answer, question: Request) -> Updates:
        """Identify the requested norms after an answer."""
        return {self.norms: view.identify(step, str(question.image))}

    def without_answer(self, settings: Settings) -> Updates:
        """Clear the norms if nothing is explained."""
        return {self.norms: {"key": "", "chosen": settings.layer, "note": ""}}

    def without_stages(self, step: Answer, ident: int) -> Updates:
        """Clear the maps of the stages for a network without comparable stages."""
        return {self.drawing: {"id": ident, "chosen": step.settings.layer, "stages": []}}

    def measure(self, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Compute the norms for the current page."""

        def steps(run: Run) -> Iterator[Updates]:
            for step in norms.measure(from_form(*form), run):
                if isinstance(step, norms.Norms):
                    yield {self.norms: view.norms(step)}

        yield from run_job(f"{request.session_hash}/rail", steps, lambda message: {self.norms: {"failed": message}})

    def describe(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Measure the sizes and costs of all layers of the current network."""
        model = str(event_data(event).get("model", ""))

        def steps(run: Run) -> Iterator[Updates]:
            for step in description.describe(from_form(*form), run):
                if isinstance(step, description.Described):
                    yield {self.description: view.description(step)}

        def show_error(message: str) -> Updates:
            return {self.description: {"model": model, "failed": message}}

        yield from run_job(f"{request.session_hash}/describe", steps, show_error)
