"""The Compare tab with up to four panels; a script creates the layout, requests the maps and compares them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from saliscope import limits
from saliscope.compute.answers import Answer, Refining, Scene, Settings, Waiting
from saliscope.compute.bundles.messages import SAVE
from saliscope.compute.compare import messages, questions
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.runs import Run
from saliscope.compute.request import from_form
from saliscope.page.compare import view
from saliscope.page.components.components import COMBOBOX, canvas, receiver, set_state
from saliscope.page.components.list_columns import HEADS
from saliscope.page.shared.messages import DRAWING, READING
from saliscope.page.shared.tab import UNQUEUED, Tab, Updates, event_data, queue_options, run_job


class Compare(Tab):
    """The board with the panels, and for each panel a hidden component that receives its answers."""

    title, id = messages.COMPARE, "compare"
    part = messages.MAPS

    def build(self) -> None:
        """Create the layout of the tab."""
        self.board = canvas(
            "compare/compare",
            "hl-compare",
            terms={**DRAWING, **messages.TERMS},
            map=READING,
            combobox={"list": COMBOBOX, "heads": HEADS},
            save=SAVE,
            slots=questions.SLOTS,
            at_once=limits.RUNNING,
            events=["answered"],
        )
        self.slots = [receiver(f"hl-compare-{slot}", "compared", slot) for slot in range(questions.SLOTS)]

    def wire(self) -> None:
        """Connect the events; panels send their own requests and get the page settings without a request."""
        panel = self.page.panel
        silent: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        self.board.answered(None, panel.inputs, None, js=set_state("form", "inputs"), **silent)
        panel.image.change(None, panel.image, None, js=set_state("imagePath", "inputs[0]?.path || ''"), **silent)
        shared = queue_options("model", show_progress="hidden", trigger_mode="multiple")
        self.board.submit(self.answer, panel.inputs, self.slots, **shared)
        self.board.stop(self.stop, None, None, trigger_mode="multiple", **UNQUEUED)

    def answer(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Compute the map of a panel. A request that was sent twice is answered once."""
        panel_request = questions.parse(event_data(event))
        slot, current = self.slots[panel_request.slot], Run(0.0)
        known: dict[str, Any] = {}

        def steps(run: Run) -> Iterator[Updates]:
            nonlocal current
            current = run
            image = from_form(*form).image
            if image is None or form[0] != panel_request.image:
                yield {slot: view.skipped(panel_request)}
                return
            for value in _values(panel_request, image, run, known):
                yield {slot: value}

        def show_error(message: str) -> Updates:
            stopped = current.cancelled
            return {
                slot: known | view.refused(panel_request, messages.STOPPED if stopped else message, stopped=stopped)
            }

        name = f"{request.session_hash}/compare-{panel_request.slot}"
        number = panel_request.number
        yield from run_job(name, steps, show_error, question=str(number), number=number)

    def stop(self, event: gr.EventData, request: gr.Request) -> None:
        """Stop the run of one panel or of all panels; their own handlers show the best maps so far."""
        for slot in (event_data(event).get("slot"),) if "slot" in event_data(event) else range(questions.SLOTS):
            runs.stop(f"{request.session_hash}/compare-{slot}")


def _values(
    panel_request: questions.PanelRequest, image: str, run: Run, known: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the message to the script for each step.

    Values of earlier steps are collected in `known` and sent again, because only the second of two steps in quick
    succession may arrive.
    """
    for step in questions.answers(panel_request, image, run):
        if isinstance(step, questions.CropBox):
            known["box"] = step.box
        elif isinstance(step, Settings):
            known |= view.resolved(panel_request, step)
        elif isinstance(step, Scene):
            known |= view.objects(step)
        elif isinstance(step, Waiting):
            yield known | view.waiting(panel_request, step)
        elif isinstance(step, Refining):
            yield known | view.refining(panel_request, step) | ({} if step.map is None else {"lists": None})
        elif isinstance(step, Answer):
            yield known | view.answer(panel_request, step)
