"""The Erase tab: a canvas to paint on, and the map and the predictions of the edited image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from saliscope.compute.answers import Waiting
from saliscope.compute.bundles.messages import SAVE
from saliscope.compute.erase import engine, messages
from saliscope.compute.erase.second import second_image
from saliscope.compute.jobs.runs import Run
from saliscope.compute.request import from_form
from saliscope.images.edits.edit import IN_ADDRESS, LONGEST, RANGES
from saliscope.page.components.components import canvas, example_items
from saliscope.page.erase import view
from saliscope.page.shared.messages import DRAWING, READING, SECOND_IMAGE
from saliscope.page.shared.tab import UNQUEUED, Tab, event_data, integer, queue_options, run_job


class Erase(Tab):
    """One component, whose script sends every edit and draws its answer."""

    title, id = messages.ERASE, "erase"
    in_menu = True

    def build(self) -> None:
        """Create the layout of the tab."""
        self.board = canvas(
            "erase/erase",
            "hl-erase",
            terms={**DRAWING, **messages.TERMS, "second": SECOND_IMAGE | {"accept": messages.ACCEPTED}},
            map=READING,
            save=SAVE,
            examples=example_items(),
            ranges=RANGES,
            longest={"sent": LONGEST, "address": IN_ADDRESS},
        )

    def wire(self) -> None:
        """Connect the events; a new edit replaces the previous one of the same user."""
        shared = queue_options("model", show_progress="hidden", trigger_mode="multiple")
        self.board.submit(self.answer, self.page.panel.inputs, self.board, **shared)
        self.board.stop(self.stop_job, None, None, trigger_mode="multiple", **UNQUEUED)

    def answer(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[dict[str, Any]]:
        """Answer the question of the page about the edited image."""
        data = event_data(event)
        number, held = integer(data.get("number"), 0), _text(data.get("held"))

        def steps(run: Run) -> Iterator[dict[str, Any]]:
            edit, search = (_text(data.get(name)) for name in ("edit", "search"))
            question = replace(from_form(*form), edit=edit, second=second_image(data.get("second")))
            for step in engine.answers(question, search if search in engine.GOALS else "", run):
                if isinstance(step, Waiting):
                    yield view.waiting(number, step)
                else:
                    yield view.erased(number, step, held)

        def show_error(message: str) -> dict[str, Any]:
            return view.refused(number, message)

        yield from run_job(self.job_name(request), steps, show_error, question=str(number), number=number)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
