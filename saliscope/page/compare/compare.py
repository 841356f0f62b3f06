"""The answers of the panels of the comparison; its script creates the layout, requests the maps and compares them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saliscope import limits
from saliscope.compute import messages as page_messages
from saliscope.compute.answers import MIN_SCORE, Answer, Refining, Scene, Settings, Waiting
from saliscope.compute.compare import messages, questions
from saliscope.compute.compare.questions import PanelRequest
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.runs import Run
from saliscope.compute.messages import status
from saliscope.compute.methods.findings import label
from saliscope.page.compare import parts
from saliscope.page.components import view as page_view
from saliscope.page.events import Ask, on, run_job
from saliscope.page.methods import picker
from saliscope.page.panel import settings as panel
from saliscope.page.wire import Updates, new_number


@on(parts.COMPARE, "submit")
def answer(ask: Ask) -> Iterator[Updates]:
    """Compute the map of a panel. A request that was sent twice is answered once."""
    panel_request = questions.parse(ask.data)
    slot = f"compared.{panel_request.slot}"
    known: dict[str, Any] = {}

    def steps(run: Run) -> Iterator[Updates]:
        image = ask.question().image
        if image is None or ask.form.get("image") != panel_request.image:
            yield {slot: message(panel_request, "passed")}  # the script sends a new request
            return
        for value in _values(panel_request, image, run, known):
            yield {slot: value}

    def show_error(text: str) -> Updates:
        state = "halted" if text == messages.STOPPED else "refused"
        return {slot: known | message(panel_request, state, text)}

    name, number = ask.job(f"compare-{panel_request.slot}"), panel_request.number
    yield from run_job(name, steps, show_error, number=number, stopped=messages.STOPPED)


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
        if isinstance(step, Settings):
            known |= resolved(panel_request, step)
        elif isinstance(step, Scene):
            known |= objects(step)
        elif isinstance(step, Waiting):
            yield known | message(panel_request, "waiting", step.message, fraction=step.fraction)
        elif isinstance(step, Refining):
            yield known | refining(panel_request, step) | ({} if step.map is None else {"lists": None})
        elif isinstance(step, Answer):
            yield known | pack_answer(panel_request, step)


def resolved(panel_request: PanelRequest, settings: Settings) -> dict[str, Any]:
    """Pack the settings of a panel, and the lists of names if requested."""
    method = settings.method
    value = {
        "names": settings.names,
        "takes_layer": method.takes_layer,
        "reads_class": method.reads_class,
        "task": "text" if settings.loaded.encodes_text else settings.loaded.model.task,
        "shown": {
            "model": settings.loaded.title,
            "layer": settings.layer,
            "target": settings.names["target"],
            "method": method.title,
        },
    }
    if settings.loaded.encodes_text:
        value["found"] = [(name, name) for name in questions.page_sentences(panel_request)]
    return value | ({"lists": lists(settings)} if panel_request.lists else {})


def lists(settings: Settings) -> dict[str, Any]:
    """Return the choices of a panel as items of the lists, and the note below the list of methods."""
    loaded = settings.loaded
    return {
        "layer": panel.layers(loaded),
        "target": [] if loaded.detects_objects else [(name, name) for name in loaded.names],
        "method": picker.items(settings),
        "note": picker.note(settings),
    }


def refining(panel_request: PanelRequest, step: Refining) -> dict[str, Any]:
    """Pack the progress of a long method, and its partial map."""
    ident = new_number()
    line = page_messages.refining(step, ident)
    view = {} if step.map is None else {"view": page_view.refining(step, ident)}
    return message(panel_request, "partial" if view else "waiting", *line["parts"], fraction=step.fraction) | view


def pack_answer(panel_request: PanelRequest, step: Answer) -> dict[str, Any]:
    """Pack the map and its description."""
    ident = new_number()
    line = page_messages.answered(step, ident)
    value = message(panel_request, line["kind"], *line["parts"]) | {"view": page_view.answer(step, ident)}
    value |= {"notes": list(step.settings.notes), "name": step.name}
    return value | (objects(step.scene) if step.scene else {})


def objects(step: Scene) -> dict[str, Any]:
    """Pack the detected objects, or the remedy if there are none."""
    value: dict[str, Any] = {"found": [(item.name, item.name) for item in step.objects]}
    if step.remedy:
        value["remedy"] = {"score": step.remedy[MIN_SCORE], "label": label(step.remedy)}
    return value


def message(panel_request: PanelRequest, state: str, *parts: Any, fraction: float | None = None) -> dict[str, Any]:
    """Pack the state of a panel, and its status line in parts or as a text."""
    line = status(state, *parts, fraction=fraction)
    return {"slot": panel_request.slot, "number": panel_request.number, "state": line.pop("kind"), **line}
