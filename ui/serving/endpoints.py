"""The API: typed functions that Gradio offers to programs.

Gradio checks neither types nor paths of their arguments, so `from_api` does. A refusal is one sentence, which the
client raises as its error.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.data_classes import FileData
from gradio.utils import get_upload_folder

from ui import limits, words
from ui.channels import engine as channels_engine
from ui.channels.messages import Channels
from ui.engine import engine, model_cache, runs
from ui.engine.messages import Answer, Found, Refused, Scene, Settings
from ui.engine.request import Request, from_api
from ui.serving import arguments
from ui.serving import words as api_words
from ui.share import links

SORTS = ("activation", "effect", "number")


def build() -> None:
    """Offer the endpoints; inside `gr.Blocks`."""
    limit = limits.CONCURRENCY["model"]
    for function in (explain, feature_maps, list_models, list_layers, list_methods):
        arguments.offer(function)
        gr.api(_sentences(function), api_name=function.__name__, concurrency_id="model", concurrency_limit=limit)


def _sentences(function: Callable[..., Any]) -> Callable[..., Any]:
    """An error leaves the server as one sentence."""

    @wraps(function)
    def guarded(*values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        except Exception as error:
            sentence = engine.sentence_of(error, words.UNKNOWN_TO_A_PROGRAM)
            raise gr.Error(sentence, print_exception=False) from None

    return guarded


def explain(
    image: FileData,
    model: str = "",
    method: str = "",
    layer: str = "",
    target: str = "",
    options: dict | None = None,
    bands: str = "",
) -> dict:
    """Explain one picture: the map as .npy, the overlay as PNG, predictions, statistics and findings.

    image: the picture, uploaded. model, method, layer: names as on the page, empty for the default. target: a class
    name or index, empty for the top prediction. options: the method's options by name; others are refused. Methods
    that give several planes have them all in the map, [planes, height, width]; the overlay shows the one with the
    largest norm. Of a detector or a segmentation network, predictions are what it found, with boxes in parts of the
    overlay; target is the name of one of them ("dog", "dog#2"), empty for the first, and options may hold a detector's
    min_score. Where nothing is found, map and overlay are null and a finding says why.
    bands: of a TIFF or NPY picture of more than three bands, those to show as red, green and blue: "3,2,1".
    """
    request = from_api(image, options, model=model, layer=layer, target=target, method=method, bands=bands)
    answer = _last(engine.explain, request, (Scene, Answer), stages=False)
    _no_notes(answer.settings)
    if isinstance(answer, Scene):
        return _nothing(answer)
    values = answer.explanation.raw[0] if answer.planes else answer.map
    names, explanation = answer.settings.loaded.names, answer.explanation
    return {
        **_resolved(answer.settings),
        "target": _explained(answer),
        "options": {name: engine.plain(value) for name, value in answer.options.items()},
        "predictions": _found(answer.scene) if answer.scene else [_class(k, names, share) for k, share in answer.top],
        "statistics": {name: engine.plain(value) for name, value in explanation.statistics[0].items()},
        "findings": [
            {"code": f.code, "sentence": f.sentence, "remedy": engine.plain(f.remedy)} for f in explanation.findings[0]
        ],
        "bands": engine.plain(vars(answer.settings.bands)) if answer.settings.bands else None,
        "seconds": explanation.seconds,
        "share": answer.share,
        "shape": list(values.shape),
        "map": _file("map.npy", lambda path: engine.save_array(values, path)),
        "overlay": _file("overlay.png", lambda path: engine.save_overlay(answer, path)),
    }


def feature_maps(
    image: FileData,
    model: str = "",
    layer: str = "",
    channels: list[int] | None = None,
    sort: str = "activation",
    bands: str = "",
) -> dict:
    """The layer's output for one picture, [channels, height, width] as .npy, with each channel's mean and effect.

    channels: which ones, in this order; none for all. sort: "activation", "effect" (on the top class) or "number".
    bands: as of `explain`.
    """
    if sort not in SORTS:
        raise Refused(api_words.no_sort(sort, SORTS))
    request = from_api(image, model=model, layer=layer, bands=bands)
    sheet = _last(channels_engine.every, request, Channels, sort=sort)
    _no_notes(sheet.settings)
    chosen = _chosen(channels, sheet)
    rows = [sheet.numbers.index(number) for number in chosen]
    return {
        **_resolved(sheet.settings),
        "target": sheet.subject.label if sheet.subject else None,
        "channels": chosen,
        "mean": [sheet.means[row] for row in rows],
        "effect": None if sheet.effects is None else [sheet.effects[row] for row in rows],
        "shape": [len(rows), *sheet.maps.shape[1:]],
        "maps": _file("maps.npy", lambda path: engine.save_array(sheet.maps[rows], path)),
    }


def list_models() -> list[dict]:
    """Every model: name, title, classes, size, whether it is here already, top-1 accuracy."""
    _ready()
    return [engine.plain(vars(info)) for info in model_cache.list_models()]


def list_layers(model: str = "") -> list[dict]:
    """The layers of a model that have a grid, in the order of their calls."""
    settings = _settled(from_api(model=model))
    return [
        {
            "name": layer.name,
            "kind": layer.kind,
            "shape": list(layer.shape),
            "grid": list(layer.grid or ()),
            "stage": layer.stage,
            "default": layer.name == settings.loaded.default,
        }
        for layer in settings.loaded.layers
    ]


def list_methods(model: str = "", layer: str = "") -> list[dict]:
    """The methods that can explain this model at this layer, with their options."""
    settings = _settled(from_api(model=model, layer=layer))
    return [
        {
            "name": method.name,
            "title": method.title,
            "family": method.family,
            "returns": method.returns,
            "paper": method.paper,
            "summary": method.summary,
            "caution": method.caution,
            "takes_layer": method.takes_layer,
            "options": [engine.plain(vars(option)) for option in method.options.values()],
        }
        for method in model_cache.list_methods(settings.loaded, settings.layer)
    ]


# Arguments and answers


def _chosen(channels: Any, sheet: Channels) -> list[int]:
    if channels is None or channels == []:
        return sheet.numbers
    integers = isinstance(channels, list) and all(type(number) is int for number in channels)
    if not integers or not all(0 <= number < sheet.total for number in channels):
        raise Refused(api_words.no_channels(sheet.settings.layer, sheet.total))
    return channels[: sheet.total]


def _ready() -> None:
    for _ in model_cache.wait():
        pass


def _settled(request: Request) -> Settings:
    settings = _last(engine.explain, request, Settings)
    _no_notes(settings)
    return settings


def _no_notes(settings: Settings) -> None:
    """An unknown name is an error for a program; the page shows the default and a note."""
    if settings.notes:
        raise Refused(" ".join(settings.notes).split(" Shown instead")[0])


def _no_unknown(settings: Settings, request: Request) -> None:
    """An option that the method does not have is an error for a program; the page notes it."""
    if notes := links.unknown_options(settings, request):
        raise Refused(notes[0])


def _class(index: int, names: list[str], probability: float) -> dict[str, Any]:
    return {"index": index, "name": names[index], "probability": probability}


def _explained(answer: Answer) -> dict[str, Any]:
    """The class with its probability; a thing that was found; a channel by its name alone."""
    if answer.settings.unit:
        return {"index": None, "name": answer.name, "probability": None}
    names = answer.settings.loaded.names
    return _thing(answer.thing) if answer.scene else _class(answer.target, names, answer.confidence)


def _thing(found: Found) -> dict[str, Any]:
    """A detection with its score, or a region with its share of the pixels; the box is left, top, right, bottom."""
    measure = "score" if found.mask is None else "share"
    return {"index": found.label, "name": found.name, measure: found.share, "box": list(found.box)}


def _found(scene: Scene) -> list[dict[str, Any]]:
    return [_thing(each) for each in scene.found]


def _nothing(scene: Scene) -> dict[str, Any]:
    """The answer to a picture in which nothing was found that could be explained: the same fields, no map."""
    finding = {"code": "nothing_found", "sentence": scene.sentence, "remedy": engine.plain(scene.remedy)}
    return {
        **_resolved(scene.settings),
        "target": None,
        "options": {name: engine.plain(value) for name, value in scene.settings.options.items()},
        "predictions": _found(scene),
        "statistics": {},
        "findings": [finding],
        "bands": engine.plain(vars(scene.settings.bands)) if scene.settings.bands else None,
        "seconds": 0.0,
        "share": 1.0,
        "shape": [],
        "map": None,
        "overlay": None,
    }


def _last(function: Callable[..., Iterator[Any]], request: Request, kind: Any, **named: Any) -> Any:
    """The last step of that kind; an unknown name ends the work before it begins."""
    last = None
    with runs.begin(None) as run:
        for step in function(request, run, **named):
            if isinstance(step, Settings):
                _no_notes(step)
                _no_unknown(step, request)
            if isinstance(step, kind):
                last = step
    return last


def _resolved(settings: Settings) -> dict[str, Any]:
    return {
        "model": settings.loaded.name,
        "layer": settings.layer if settings.takes_layer else None,
        "method": settings.method.name,
    }


def _file(name: str, write: Callable[[Path], None]) -> FileData:
    """A file for the caller under a name that nobody can guess; the guard removes old files called tmp…"""
    folder = Path(get_upload_folder())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tmp{secrets.token_hex(32)}-{name}"
    write(path)
    return FileData(path=str(path), orig_name=name)
