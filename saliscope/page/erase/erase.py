"""The Erase view: the map and the predictions of the edited image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from saliscope.compute.erase import engine
from saliscope.compute.erase.second import second_image
from saliscope.compute.jobs.runs import Run
from saliscope.images.edits.edit import LONGEST
from saliscope.page.erase import parts, view
from saliscope.page.events import Ask, answer_number, on, stop_on
from saliscope.page.wire import Updates


@on(parts.ERASE, "submit")
def answer(ask: Ask) -> Iterator[Updates]:
    """Answer the question of the page about the edited image; a new edit replaces the previous one of the visitor."""

    def work(run: Run) -> Iterator[Any]:
        edit, search = ask.text("edit", LONGEST + 1), ask.text("search")
        question = replace(ask.question(), edit=edit, second=second_image(ask.data.get("second")))
        return engine.answers(question, search if search in engine.GOALS else "", run)

    yield from answer_number(ask, parts.ERASE, "erase", work, lambda step: view.erased(step, ask.text("held")))


stop_on(parts.ERASE, "erase")
