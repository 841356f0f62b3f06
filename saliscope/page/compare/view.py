"""The wire format of the comparison."""

from __future__ import annotations

from typing import Any

from saliscope.compute import messages as page_messages
from saliscope.compute import model_cache
from saliscope.compute.answers import MIN_SCORE, Answer, Refining, Scene, Settings
from saliscope.compute.compare import questions
from saliscope.compute.compare.questions import PanelRequest
from saliscope.compute.messages import status
from saliscope.page.components import view as page_view
from saliscope.page.methods import picker
from saliscope.page.panel import settings as panel
from saliscope.page.wire import new_number


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
        "model": panel.models(model_cache.list_models()),
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


def answer(panel_request: PanelRequest, step: Answer) -> dict[str, Any]:
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
        value["remedy"] = {"score": step.remedy[MIN_SCORE], "label": page_messages.remedy(step.remedy)}
    return value


def message(panel_request: PanelRequest, state: str, *parts: Any, fraction: float | None = None) -> dict[str, Any]:
    """Pack the state of a panel, and its status line in parts or as a text."""
    line = status(state, *parts, fraction=fraction)
    return {"slot": panel_request.slot, "number": panel_request.number, "state": line.pop("kind"), **line}
