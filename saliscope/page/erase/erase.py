"""The Erase view: the map and the predictions of the edited image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from saliscope.compute.answers import Waiting
from saliscope.compute.erase import engine
from saliscope.compute.erase.second import second_image
from saliscope.compute.jobs.runs import Run
from saliscope.images.edits.edit import LONGEST
from saliscope.page.erase import parts, view
from saliscope.page.events import Ask, on, run_job, stop_on
from saliscope.page.wire import Updates


@on(parts.ERASE, "submit")
def answer(ask: Ask) -> Iterator[Updates]:
    """Answer the question of the page about the edited image; a new edit replaces the previous one of the visitor."""
    number, held = ask.integer("number", 0), ask.text("held")

    def steps(run: Run) -> Iterator[Updates]:
        edit, search = ask.text("edit", LONGEST + 1), ask.text("search")
        question = replace(ask.question(), edit=edit, second=second_image(ask.data.get("second")))
        for step in engine.answers(question, search if search in engine.GOALS else "", run):
            shown = view.waiting(number, step) if isinstance(step, Waiting) else view.erased(number, step, held)
            yield {parts.ERASE: shown}

    def show_error(message: str) -> Updates:
        return {parts.ERASE: view.refused(number, message)}

    yield from run_job(ask.job("erase"), steps, show_error, question=str(number), number=number)


stop_on(parts.ERASE, "erase")
