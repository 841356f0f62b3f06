"""The comparison's answers as the dictionaries that its script reads."""

from __future__ import annotations

from typing import Any

from ui import words as page_words
from ui.compare.asks import Ask
from ui.engine import model_cache, packing
from ui.engine.messages import MIN_SCORE, Answer, Refining, Scene, Settings, Waiting
from ui.tabs import picture_panel


def waiting(ask: Ask, step: Waiting) -> dict[str, Any]:
    """Nothing yet, and why."""
    return _said(ask, "waiting", [{"text": step.sentence}], step.fraction)


def resolved(ask: Ask, settings: Settings) -> dict[str, Any]:
    """The settings by their names; the lists to choose from, where they are asked for."""
    method = settings.method
    value = {
        "names": settings.names,
        "takes_layer": method.takes_layer,
        "reads_class": method.reads_class,
        "task": settings.loaded.model.task,
        "shown": {
            "model": settings.loaded.title,
            "layer": settings.layer,
            "target": settings.names["target"],
            "method": method.title,
        },
    }
    return value | ({"lists": lists(settings)} if ask.lists else {})


def lists(settings: Settings) -> dict[str, Any]:
    """What a panel can choose from, as pairs of label and name; methods are those of its layer."""
    loaded = settings.loaded
    methods = model_cache.list_methods(loaded, settings.layer)
    return {
        "model": [(page_words.model_choice(info), info.name) for info in model_cache.list_models()],
        "layer": picture_panel.layers(loaded),
        "target": [] if loaded.finds else [(name, name) for name in loaded.names],
        "method": [(page_words.method_choice(method), method.name) for method in methods],
    }


def refining(ask: Ask, step: Refining) -> dict[str, Any]:
    """How far a long method is, and its map so far."""
    ident = packing.number()
    line = page_words.refining(step, ident)
    view = {} if step.map is None else {"view": packing.refining(step, ident)}
    return _said(ask, "partial" if view else "waiting", line["parts"], step.fraction) | view


def answer(ask: Ask, step: Answer) -> dict[str, Any]:
    """The map and what it is."""
    ident = packing.number()
    line = page_words.answered(step, ident)
    value = _said(ask, line["kind"], line["parts"]) | {"view": packing.answer(step, ident)}
    value |= {"notes": list(step.settings.notes), "name": step.name}
    return value | (found(step.scene) if step.scene else {})


def found(step: Scene) -> dict[str, Any]:
    """What was found in the picture, to choose from; where nothing is, what would find something."""
    value: dict[str, Any] = {"found": [(each.name, each.name) for each in step.found]}
    if step.remedy:
        value["remedy"] = {"score": step.remedy[MIN_SCORE], "label": page_words.remedy(step.remedy)}
    return value


def refused(ask: Ask, sentence: str, *, stopped: bool = False) -> dict[str, Any]:
    """One sentence in the place of the map."""
    return _said(ask, "halted" if stopped else "refused", [{"text": sentence}])


def passed(ask: Ask) -> dict[str, Any]:
    """The picture on the page is another one by now: the script asks again once it knows that."""
    return _said(ask, "passed", [])


def _said(ask: Ask, state: str, parts: list[dict[str, Any]], fraction: float | None = None) -> dict[str, Any]:
    return {"slot": ask.slot, "number": ask.number, "state": state, "parts": parts, "fraction": fraction}
