"""The answers of the API endpoints, for `saliscope/page/serving/endpoints.py` and the tools for agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gradio.data_classes import FileData

import explainers
from saliscope import zoo
from saliscope.compute import api_messages, engine, messages, model_cache
from saliscope.compute.answers import Answer, DetectedObject, Scene, Settings
from saliscope.compute.bundles import links
from saliscope.compute.channels import engine as channels_engine
from saliscope.compute.channels.answers import Channels
from saliscope.compute.jobs import runs
from saliscope.compute.request import Request, from_api
from saliscope.compute.trust import engine as checks
from saliscope.errors import Refused
from saliscope.page.files import new_file

SORTS = ("activation", "effect", "number")


def message_of(error: Exception) -> str:
    """Return the message of an error for a program."""
    return engine.message_of(error, messages.UNKNOWN_TO_A_PROGRAM)


def explain(
    image: FileData,
    model: str = "",
    method: str = "",
    layer: str = "",
    target: str = "",
    options: dict[str, Any] | None = None,
    bands: str = "",
) -> dict[str, Any]:
    """Answer the endpoint `explain`.

    Errors   Refused
    """
    request = from_api(image, options, model=model, layer=layer, target=target, method=method, bands=bands)
    answer = _last(engine.explain, request, (Scene, Answer), stages=False)
    if answer is None:
        raise Refused(messages.NO_IMAGE)
    _refuse_notes(answer.settings)
    if isinstance(answer, Scene):
        return _empty_answer(answer)
    values = answer.explanation.raw[0] if answer.planes else answer.map
    explanation = answer.explanation
    return {
        **_names(answer.settings),
        "target": _target(answer),
        "options": {name: engine.plain(value) for name, value in answer.options.items()},
        "predictions": _objects(answer.scene)
        if answer.scene
        else [_class(k, answer, share) for k, share in answer.top],
        "statistics": {name: engine.plain(value) for name, value in explanation.statistics[0].items()},
        "findings": [
            {"code": f.code, "sentence": f.sentence, "remedy": engine.plain(f.remedy)} for f in explanation.findings[0]
        ],
        "verdict": _verdict(answer),
        "bands": engine.plain(vars(answer.settings.bands)) if answer.settings.bands else None,
        "seconds": explanation.seconds,
        "device": explanation.device,
        "share": answer.share,
        "shape": list(values.shape),
        "map": _file("map.npy", lambda path: engine.save_array(values, path)),
        "overlay": _file("overlay.png", lambda path: _save_overlay(answer, path)),
    }


def feature_maps(
    image: FileData,
    model: str = "",
    layer: str = "",
    channels: list[int] | None = None,
    sort: str = "activation",
    bands: str = "",
) -> dict[str, Any]:
    """Answer the endpoint `feature_maps`.

    Errors   Refused
    """
    sheet, chosen = read_channels(image, model, layer, channels, sort, bands)
    rows = [sheet.numbers.index(number) for number in chosen]
    return {
        **_names(sheet.settings),
        "target": sheet.subject.label if sheet.subject and not sheet.settings.loaded.encodes_text else None,
        "channels": chosen,
        "mean": [sheet.means[row] for row in rows],
        "effect": None if sheet.effects is None else [sheet.effects[row] for row in rows],
        "shape": [len(rows), *sheet.maps.shape[1:]],
        "maps": _file("maps.npy", lambda path: engine.save_array(sheet.maps[rows], path)),
    }


def read_channels(
    image: FileData, model: str, layer: str, channels: list[int] | None, sort: str, bands: str
) -> tuple[Channels, list[int]]:
    """Return all channels of a layer in the order of `sort`, and the numbers of the requested ones.

    Errors   Refused
    """
    if sort not in SORTS:
        raise Refused(api_messages.invalid_sort(sort, SORTS))
    request = from_api(image, model=model, layer=layer, bands=bands)
    sheet = _last(channels_engine.all_channels, request, Channels, sort=sort)
    _refuse_notes(sheet.settings)
    return sheet, _parse_channels(channels, sheet)


def list_models() -> list[dict[str, Any]]:
    """Answer the endpoint `list_models`."""
    for _ in model_cache.wait():
        pass
    return [engine.plain(vars(info)) for info in zoo.list_models()]


def list_layers(model: str = "") -> list[dict[str, Any]]:
    """Answer the endpoint `list_layers`."""
    settings = resolve(from_api(model=model))
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


def list_methods(model: str = "", layer: str = "") -> list[dict[str, Any]]:
    """Answer the endpoint `list_methods`."""
    settings = resolve(from_api(model=model, layer=layer))
    return [describe_method(method) for method in model_cache.list_methods(settings.loaded)]


def describe_method(method: explainers.Method) -> dict[str, Any]:
    """Return the properties of a method, with its options."""
    names = ("name", "title", "family", "returns", "paper", "summary", "caution", "takes_layer")
    options = [engine.plain(vars(option)) for option in method.options.values()]
    return {**{name: getattr(method, name) for name in names}, "options": options}


# Arguments and answers


def _parse_channels(channels: Any, sheet: Channels) -> list[int]:
    if channels is None or channels == []:
        return sheet.numbers
    integers = isinstance(channels, list) and all(type(number) is int for number in channels)
    if not integers or not all(0 <= number < sheet.total for number in channels):
        raise Refused(api_messages.invalid_channels(sheet.settings.layer, sheet.total))
    return channels[: sheet.total]


def resolve(request: Request) -> Settings:
    """Return the settings of a request, without an image.

    Errors   Refused for unknown names
    """
    settings = _last(engine.explain, request, Settings)
    _refuse_notes(settings)
    return settings


def _refuse_notes(settings: Settings) -> None:
    """Refuse unknown names, for which the page would use the default with a note."""
    if settings.notes:
        raise Refused(messages.without_default(" ".join(settings.notes)))


def _class(index: int, answer: Answer, share: float) -> dict[str, Any]:
    """Return a class with its probability, a score if the network has no probabilities, or a sentence."""
    loaded = answer.settings.loaded
    if loaded.encodes_text:
        return {"index": None, "name": answer.settings.class_names[index], "probability": None, "similarity": share}
    known = {"probability": share} if loaded.has_probabilities else {"probability": None, "score": share}
    return {"index": index, "name": loaded.names[index], **known}


def _target(answer: Answer) -> dict[str, Any]:
    """Return the explained class with its probability, the sentences, the object, or the name of the channel."""
    if answer.settings.unit:
        return {"index": None, "name": answer.name, "probability": None}
    if answer.settings.sentences:
        return {**_class(0, answer, answer.confidence), "name": answer.name}
    return _object(answer.detected_object) if answer.scene else _class(answer.target, answer, answer.confidence)


def _object(item: DetectedObject) -> dict[str, Any]:
    """Return a detection with its score, or a region with its share; boxes have left, top, right, bottom."""
    measure = "score" if item.mask is None else "share"
    return {"index": item.label, "name": item.name, measure: item.share, "box": list(item.box)}


def _objects(scene: Scene) -> list[dict[str, Any]]:
    return [_object(item) for item in scene.objects]


def _verdict(answer: Answer) -> dict[str, str]:
    """Return the verdict on the map: that of a finished check of the page, or the one without tests."""
    checked = checks.find(answer.settings.key)
    found = checked.verdict if checked else answer.verdict
    return {"code": found.code, "sentence": found.sentence, "mark": found.mark}


def _empty_answer(scene: Scene) -> dict[str, Any]:
    """Return the answer for an image without detections: the same fields without a map."""
    finding = {"code": "nothing_found", "sentence": scene.message, "remedy": engine.plain(scene.remedy)}
    return {
        **_names(scene.settings),
        "target": None,
        "options": {name: engine.plain(value) for name, value in scene.settings.options.items()},
        "predictions": _objects(scene),
        "statistics": {},
        "findings": [finding],
        "verdict": None,
        "bands": engine.plain(vars(scene.settings.bands)) if scene.settings.bands else None,
        "seconds": 0.0,
        "device": str(scene.settings.loaded.device),
        "share": 1.0,
        "shape": [],
        "map": None,
        "overlay": None,
    }


def _last(function: Callable[..., Iterator[Any]], request: Request, kind: Any, **keywords: Any) -> Any:
    """Return the last step of a type; unknown names are refused before the computation."""
    last = None
    with runs.start(None) as run:
        assert run is not None
        for step in function(request, run, **keywords):
            if isinstance(step, Settings):
                _refuse_notes(step)
                if notes := links.unknown_options(step, request):  # the page would show a note
                    raise Refused(notes[0])
            if isinstance(step, kind):
                last = step
    return last


def _names(settings: Settings) -> dict[str, Any]:
    return {
        "model": settings.loaded.name,
        "layer": settings.layer if settings.method.takes_layer else None,
        "method": settings.method.name,
    }


def _save_overlay(answer: Answer, path: Path) -> None:
    """Write the map over the crop as PNG."""
    explainers.overlay(answer.crop, answer.map, signed=not answer.settings.method.by_size).save(path)


def _file(name: str, write: Callable[[Path], None]) -> FileData:
    """Write a file under an unguessable name."""
    path = new_file(name)
    write(path)
    return FileData(path=str(path), orig_name=name)
