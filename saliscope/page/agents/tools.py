"""The tools for agents: their arguments, and what they return. The answers are those of the API, shortened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from saliscope.compute import engine, model_cache
from saliscope.compute.methods import lines
from saliscope.compute.request import from_api
from saliscope.errors import Refused
from saliscope.images import examples
from saliscope.page.agents import messages, schemas
from saliscope.page.agents.images import read_image
from saliscope.page.agents.schemas import Schema
from saliscope.page.agents.sheet import draw_channels
from saliscope.page.api import answers
from saliscope.page.methods import picker

MOST_CHANNELS, CHANNELS = 64, 16
"""Channels in one answer: the most, and by default."""
MOST_LAYERS = 40
"""Layers in one answer."""
DIGITS = 6
"""Significant digits of numbers."""
TYPES = {
    "string": (str, "a string"),
    "integer": (int, "an integer"),
    "array": (list, "a list of integers"),
    "object": (dict, "an object"),
}
"""The types of arguments."""

Answer = tuple[list[Image.Image], dict[str, Any]]


@dataclass(frozen=True)
class Tool:
    """A tool: its function takes the arguments by name, and returns images and a JSON object."""

    function: Callable[..., Answer]
    title: str
    description: str
    arguments: dict[str, Schema]
    output: Schema
    required: list[str] = field(default_factory=list)
    downloads: bool = True
    """Whether a call may download the weights of a model."""

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.function.__name__

    @property
    def schema(self) -> Schema:
        """The schema of the arguments."""
        return {
            "type": "object",
            "properties": self.arguments,
            "required": self.required,
            "additionalProperties": False,
        }

    def __call__(self, arguments: dict[str, Any], *, local: bool) -> Answer:
        """Call the tool; `local` is whether an image may be a path of this machine. null is the default.

        Errors   Refused for invalid arguments, and the errors of the engine
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        for name, value in given.items():
            if name not in self.arguments:
                raise Refused(messages.unknown_argument(self.name, name, self.arguments))
            _check(name, value, self.arguments[name])
        for name in self.required:
            if name not in given:
                raise Refused(messages.missing_argument(self.name, name, self.arguments[name]["description"]))
        if "filter" in given:
            given["filter"] = given["filter"].strip()
        if "image" in given:
            given["image"] = read_image(given["image"], local=local)
        images, answer = self.function(**given)
        return images, engine.plain(answer, DIGITS)


def explain(image: Any, target: Any = "", **settings: Any) -> Answer:
    """Return the overlay and the answer of the endpoint, without its files."""
    answer = answers.explain(image, target=str(target), **settings)
    overlay, _ = answer.pop("overlay"), answer.pop("map")
    return [] if overlay is None else [_open(overlay.path)], answer


def feature_maps(
    image: Any,
    model: str = "",
    layer: str = "",
    channels: list[int] | None = None,
    count: int = CHANNELS,
    sort: str = "activation",
    bands: str = "",
) -> Answer:
    """Return the channels as one image, and the statistics of each."""
    wanted = len(channels) if channels else count
    if not 1 <= wanted <= MOST_CHANNELS:
        raise Refused(messages.wrong_count(MOST_CHANNELS, wanted))
    sheet, numbers = answers.read_channels(image, model, layer, channels, sort, bands)
    numbers = numbers if channels else numbers[:count]
    rows = [sheet.numbers.index(number) for number in numbers]
    subject = None if sheet.settings.loaded.encodes_text else sheet.subject
    statistics = [
        {
            "number": number,
            "mean": sheet.means[row],
            "min": float(sheet.maps[row].min()),
            "max": float(sheet.maps[row].max()),
            "effect": sheet.effects[row] if sheet.effects else None,
        }
        for number, row in zip(numbers, rows, strict=True)
    ]
    answer = {
        "model": sheet.settings.loaded.name,
        "layer": sheet.settings.layer,
        "total": sheet.total,
        "grid": list(sheet.maps.shape[1:]),
        "target": {"index": subject.label, "name": subject.name} if subject else None,
        "channels": statistics,
    }
    return [draw_channels(sheet.maps[rows], numbers)], answer


def list_models(filter: str = "", name: str = "") -> Answer:
    """Return the names of the models by task; several weights of a network only if there is a filter."""
    models = answers.list_models()
    names = [model["name"] for model in models]
    if name and name not in names:
        raise Refused(messages.unknown_model(name, names))
    wanted = [model for model in models if name in ("", model["name"])]
    wanted = [
        model for model in wanted if _matches(filter, *(model[key] for key in ("name", "title", "task", "weights")))
    ]
    if not wanted:
        raise Refused(messages.no_match("model", filter, names))
    shown = wanted if filter or name else [model for model in wanted if model["cached"] or ":" not in model["name"]]
    tasks = []
    for task in dict.fromkeys(model["task"] for model in shown):
        group = [model for model in shown if model["task"] == task]
        loadable = [model for model in group if not model["error"]]
        tasks.append(
            {
                "task": task,
                "ready": [model["name"] for model in loadable if model["cached"]],
                "download": [model["name"] for model in loadable if not model["cached"]],
                "failed": {model["name"]: model["error"] for model in group if model["error"]},
            }
        )
    answer = {"default": model_cache.first_model(), "tasks": tasks, "hidden": len(wanted) - len(shown)}
    if name:
        kept = schemas.MODELS["properties"]["details"]["properties"]
        details = {**wanted[0], "ready": wanted[0]["cached"]}
        answer["details"] = {key: details[key] for key in kept}
    return [], answer


def list_layers(model: str = "", filter: str = "") -> Answer:
    """Return the layers at the end of a stage, or those that match a filter."""
    settings = answers.resolve(from_api(model=model))
    layers = answers.list_layers(model)
    found = [each for each in layers if _matches(filter, each["name"], each["kind"]) and (filter or each["stage"])]
    if filter and not found:
        raise Refused(messages.no_match("layer", filter, [each["name"] for each in layers]))
    shown = [{key: value for key, value in each.items() if key != "default"} for each in found[:MOST_LAYERS]]
    return [], {
        "model": settings.loaded.name,
        "default": settings.loaded.default,
        "total": len(layers),
        "layers": shown,
        "omitted": len(found) - len(shown),
    }


def list_methods(model: str = "", filter: str = "", name: str = "") -> Answer:
    """Return the methods that support a model, by group, with the line of the page.

    Without a filter, methods with a caution are only named, so that the answer is short.
    """
    settings = answers.resolve(from_api(model=model, method=name))
    supported = {method.name for method in model_cache.list_methods(settings.loaded)}
    wanted = {settings.method.name} if name else supported
    groups: dict[str, dict[str, str]] = {}
    cautions = []
    for method in picker.sorted_methods():
        title, line = lines.GROUP_TITLES[picker.group_of(method)], picker.line(method)
        texts = (method.name, method.title, method.family, title, line, method.summary)
        if method.name not in wanted or not _matches(filter, *texts):
            continue
        if method.caution:
            cautions.append(method.name)
        if not method.caution or filter or name:
            groups.setdefault(title, {})[method.name] = line.rstrip(".")
    if not groups and not cautions:
        raise Refused(messages.no_match("method", filter, supported))
    answer: dict[str, Any] = {
        "model": settings.loaded.name,
        "default": model_cache.default_method(settings.loaded).name,
        "groups": [{"title": title, "methods": methods} for title, methods in groups.items()],
        "cautions": cautions,
    }
    if name:
        answer["details"] = answers.describe_method(settings.method)
        answer["details"]["options"] = [_option(option) for option in answer["details"]["options"]]
    return [], answer


def _option(option: dict[str, Any]) -> dict[str, Any]:
    """Return an option without empty properties."""
    kept = {key: option[key] for key in ("name", "default", "kind", "help")}
    kept |= {key: option[key] for key in ("low", "high", "step") if option[key] is not None}
    return kept | {key: option[key] for key in ("choices", "pair") if option[key]}


def _matches(words: str, *texts: str) -> bool:
    """Return whether every word of a filter occurs in one of the texts."""
    text = "\n".join(texts).casefold()
    return all(word in text for word in words.casefold().split())


def _check(name: str, value: Any, schema: Schema) -> None:
    """Check the type of an argument.

    Errors   Refused
    """
    allowed = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kinds, phrases = zip(*(TYPES[each] for each in allowed), strict=True)
    is_valid = isinstance(value, kinds) and not isinstance(value, bool)
    if is_valid and isinstance(value, list):
        is_valid = all(type(item) is int for item in value)
    if not is_valid:
        raise Refused(messages.wrong_type(name, " or ".join(phrases), value))


def _open(path: str | Path) -> Image.Image:
    with Image.open(path) as image:
        image.load()
        return image


def _text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


def _names(*names: str) -> dict[str, Schema]:
    texts = {"model": messages.MODEL, "method": messages.METHOD, "layer": messages.LAYER, "bands": messages.BANDS}
    return {name: _text(texts[name]) for name in names}


def all_tools() -> list[Tool]:
    """Return the tools."""
    image = {"image": _text(messages.IMAGE.format(examples=", ".join(examples.all_examples())))}
    search = {"filter": _text(messages.FILTER)}
    chosen = {
        "type": "array",
        "items": {"type": "integer"},
        "description": messages.CHANNELS.format(most=MOST_CHANNELS),
    }
    count = {
        "type": "integer",
        "minimum": 1,
        "maximum": MOST_CHANNELS,
        "default": CHANNELS,
        "description": messages.COUNT.format(most=MOST_CHANNELS),
    }
    return [
        Tool(
            explain,
            "Explain an image",
            messages.EXPLAIN,
            image
            | _names("model", "method", "layer")
            | {"target": {"type": ["string", "integer"], "description": messages.TARGET}}
            | {"options": {"type": "object", "description": messages.OPTIONS}}
            | _names("bands"),
            schemas.EXPLANATION,
            ["image"],
        ),
        Tool(
            feature_maps,
            "Show feature maps",
            messages.FEATURE_MAPS,
            image
            | _names("model", "layer")
            | {"channels": chosen, "count": count}
            | {"sort": _text(messages.SORT, enum=list(answers.SORTS), default="activation")}
            | _names("bands"),
            schemas.CHANNELS,
            ["image"],
        ),
        Tool(
            list_models,
            "List models",
            messages.LIST_MODELS,
            search | {"name": _text(messages.ONE_MODEL)},
            schemas.MODELS,
            downloads=False,
        ),
        Tool(
            list_layers,
            "List layers",
            messages.LIST_LAYERS,
            _names("model") | {"filter": _text(messages.FILTER_LAYERS)},
            schemas.LAYERS,
        ),
        Tool(
            list_methods,
            "List methods",
            messages.LIST_METHODS,
            _names("model") | search | {"name": _text(messages.ONE_METHOD)},
            schemas.METHODS,
        ),
    ]
