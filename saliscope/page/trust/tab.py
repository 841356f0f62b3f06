"""The faithfulness check in the overlay tab, which runs after a map is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from saliscope.compute.answers import Answer
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.runs import Run
from saliscope.compute.request import Request, from_form
from saliscope.compute.trust import engine, messages
from saliscope.compute.trust.answers import CheckedMap, CheckProgress, Weights
from saliscope.page.components import view as page_view
from saliscope.page.components.components import canvas
from saliscope.page.shared.tab import UNQUEUED, Page, Updates, event_data, queue_options, run_job
from saliscope.page.trust import view

PART = "trust"
"""Name of these jobs among the jobs of a user."""


class Trust:
    """The `strip` component starts the check with "focus" and the randomization test with "submit"."""

    def __init__(self, page: Page, overlay: str) -> None:
        self.page = page
        self.strip = canvas("trust/trust", "hl-trust", terms=messages.TERMS, of=overlay)

    def wire(self) -> None:
        """Connect the events; the check starts automatically for quick methods when the map is visible."""
        inputs, shared = self.page.panel.inputs, queue_options("model", trigger_mode="multiple", show_progress="hidden")
        self.strip.focus(self.check, inputs, self.strip, **shared)
        self.strip.submit(self.randomize, inputs, self.strip, **shared)
        self.strip.stop(self.stop, **UNQUEUED)

    def identify_map(self, step: Answer, ident: int) -> Updates:
        """Identify the map that can be checked after an answer."""
        return {self.strip: view.identify(step, ident)}

    def without_answer(self) -> Updates:
        """Clear the strip if nothing is explained."""
        return {self.strip: {"id": page_view.number(), "key": "", "why": "", "quick": False}}

    def check(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Check the current map."""
        yield from self._job(engine.check, event, request, form)

    def randomize(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Run the randomization test."""
        yield from self._job(engine.randomize_weights, event, request, form)

    def stop(self, request: gr.Request) -> None:
        """Stop the check or the test."""
        runs.stop(f"{request.session_hash}/{PART}")

    def interrupt(self, session: str | None) -> Updates:
        """Stop the check or the test of a user who asks a new question, because both would take twice as long.

        Returns  what to show if the new question fails
        """
        run = runs.supersede(f"{session}/{PART}")
        return {self.strip: view.failed(next(iter(run.questions), ""), messages.STOPPED)} if run else {}

    def _job(
        self,
        work: Callable[[Request, Run, str], Iterator[Any]],
        event: gr.EventData,
        request: gr.Request,
        form: tuple[Any, ...],
    ) -> Iterator[Updates]:
        key = str(event_data(event).get("key", ""))

        def steps(run: Run) -> Iterator[Updates]:
            step = None
            for step in work(from_form(*form), run, key):
                if isinstance(step, CheckProgress):
                    yield {self.strip: view.progress(step)}
                elif isinstance(step, CheckedMap):
                    yield {self.strip: view.verdict(step)}
                elif isinstance(step, Weights):
                    yield {self.strip: view.weights(step)}
            if not isinstance(step, (CheckedMap, Weights)):
                yield show_error(messages.CHANGED)

        def show_error(message: str) -> Updates:
            return {self.strip: view.failed(key, message)}

        yield {self.strip: gr.skip()}  # Gradio requires at least one step
        name = f"{request.session_hash}/{PART}"
        yield from run_job(name, steps, show_error, question=key, again=True, unknown=messages.UNKNOWN)
