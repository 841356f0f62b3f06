"""The answers of the panels of the comparison; its script creates the layout, requests the maps and compares them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saliscope import limits
from saliscope.compute.answers import Answer, Refining, Scene, Settings, Waiting
from saliscope.compute.compare import messages, questions
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.runs import Run
from saliscope.page.compare import parts, view
from saliscope.page.events import Ask, on, run_job
from saliscope.page.wire import Updates


@on(parts.COMPARE, "submit")
def answer(ask: Ask) -> Iterator[Updates]:
    """Compute the map of a panel. A request that was sent twice is answered once."""
    panel_request = questions.parse(ask.data)
    slot = f"compared.{panel_request.slot}"
    known: dict[str, Any] = {}

    def steps(run: Run) -> Iterator[Updates]:
        image = ask.question().image
        if image is None or ask.form.get("image") != panel_request.image:
            yield {slot: view.message(panel_request, "passed")}  # the script sends a new request
            return
        for value in _values(panel_request, image, run, known):
            yield {slot: value}

    def show_error(message: str) -> Updates:
        state = "halted" if message == messages.STOPPED else "refused"
        return {slot: known | view.message(panel_request, state, message)}

    name, number = ask.job(f"compare-{panel_request.slot}"), panel_request.number
    yield from run_job(name, steps, show_error, question=str(number), number=number, stopped=messages.STOPPED)


@on(parts.COMPARE, "stop")
def stop(ask: Ask) -> None:
    """Stop the run of one panel or of all panels; their own handlers show the best maps so far."""
    for slot in (ask.data["slot"],) if "slot" in ask.data else range(limits.PANELS):
        runs.stop(ask.job(f"compare-{slot}"))


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
            yield known | view.message(panel_request, "waiting", step.message, fraction=step.fraction)
        elif isinstance(step, Refining):
            yield known | view.refining(panel_request, step) | ({} if step.map is None else {"lists": None})
        elif isinstance(step, Answer):
            yield known | view.answer(panel_request, step)
