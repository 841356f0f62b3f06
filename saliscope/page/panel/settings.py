"""The left column: its values for resolved settings and for an address, and previews of images."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from saliscope import zoo
from saliscope.compute import messages, model_cache
from saliscope.compute.answers import LoadedModel, Scene, Settings
from saliscope.compute.channels import network
from saliscope.compute.objects import messages as object_messages
from saliscope.compute.rail.network import drawing
from saliscope.compute.request import Request
from saliscope.errors import Refused
from saliscope.images import examples, uploads
from saliscope.images.decoder import pool
from saliscope.page.components import list_columns, view
from saliscope.page.elements import Props, example_image, names
from saliscope.page.files import address
from saliscope.page.methods import picker as methods
from saliscope.page.panel import parts, preprocessing
from saliscope.page.wire import Updates


def restore(question: Request, query: Mapping[str, str], example: examples.Example | None) -> Updates:
    """Return the image, class, options and bands of an address; the lists follow with the settings."""
    image: dict[str, Any]
    if example:
        image = example_image(example)
    elif question.image:
        image = {"image": question.image, "src": address(question.image)}
    else:
        image = {"image": None, "src": ""}
    chosen: Updates = {part: Props(value=getattr(question, name)) for name, part in parts.CHOICES.items()}
    return {
        parts.IMAGE: image,
        parts.PIN: query.get("pin") == "1",
        parts.BANDS: {"text": question.bands},
        **chosen,
        **preview(question),
    }


def preview(question: Request) -> Updates:
    """Return an image of the selected bands if browsers do not support the file, or no update."""
    if not question.image or not uploads.is_upload(question.image):
        return {}
    loaded = model_cache.load(question.model) if question.model and model_cache.has(question.model) else None
    channels = loaded.model.channels if loaded else None
    with contextlib.suppress(Refused):  # the answer reports the error
        shown = pool.preview_image(uploads.read(question.image), channels, question.bands)
        return {parts.IMAGE: {"image": question.image, **view.jpeg(shown)}} if shown else {}
    return {}


def update(settings: Settings, question: Request, form: dict[str, Any]) -> Updates:
    """Return the differences between a form and the settings of its request.

    The form has the model, layer and method of its lists with its options, see `from_form`.
    """
    given = form.get("options")
    known: dict[str, Any] = given if isinstance(given, dict) else {}
    loaded, chosen = settings.loaded, settings.names
    listed = {name: chosen[name] for name in ("model", "layer", "method")}
    is_new = known.get("model") != loaded.name
    updates: Updates = {}
    if is_new:
        updates |= list_models(loaded)
        updates[parts.PREPROCESSING] = preprocessing.pack(loaded)
        updates[parts.CROP] = preprocessing.crop(loaded)
        updates[parts.LAYER] = Props(names=layers(loaded), value=chosen["layer"])
        updates[parts.METHOD] = methods.update(settings)
        updates[parts.TARGET] = _classes(settings, question)
        updates["network"] = drawing(loaded)
    else:
        for name in ("layer", "method", *(() if settings.refusal else ("target",))):  # the user corrects a sentence
            if getattr(question, name) != chosen[name]:
                updates[parts.CHOICES[name]] = Props(value=chosen[name])
    if settings.unit and not loaded.encodes_text:  # no list of classes has it
        updates[parts.TARGET] = Props(
            names=names([(messages.TOP_CHOICE, ""), chosen["target"], *loaded.names]),
            value=chosen["target"],
            title=messages.CLASS_LABEL,
        )
    if listed != {name: known.get(name) for name in listed} or settings.options != known.get("values"):
        updates[parts.OPTIONS] = {**listed, "schema": view.schema(settings), "values": settings.options}
    return updates


def _classes(settings: Settings, question: Request) -> Props:
    """Return the list of classes or objects of a network, or the field for sentences."""
    loaded, target = settings.loaded, settings.names["target"]
    first = object_messages.STRONGEST.get(loaded.model.task, messages.TOP_CHOICE)
    listed = [target] * bool(target) if loaded.detects_objects else loaded.names
    return Props(
        names=names([(first, ""), *listed]),
        value=question.target if settings.refusal else target,
        title=object_messages.OBJECTS[loaded.model.task][1] if loaded.detects_objects else messages.CLASS_LABEL,
        sentences=loaded.encodes_text,
    )


def receptive_fields(loaded: LoadedModel) -> Updates:
    """Add the receptive fields to the list of layers once per model; this can take a second."""
    if loaded.fields:
        return {}
    network.measure_stages(loaded)
    return {parts.LAYER: Props(names=layers(loaded))} if loaded.fields else {}


def objects(step: Scene, question: Request) -> Updates:
    """Update the choices to the detected objects."""
    first = object_messages.STRONGEST[step.settings.loaded.model.task]
    value = step.chosen.name if step.chosen and question.target else ""
    return {parts.TARGET: Props(names=names([(first, ""), *(item.name for item in step.objects)]), value=value)}


def list_models(chosen: LoadedModel | None = None) -> Updates:
    """Update the list of models, with the error of loading the first one, if any, and select a model."""
    infos = zoo.list_models()
    networks = {info.name for info in infos}
    # The list shows only a hundred names at first, so alternative weights come after all networks.
    infos.sort(key=lambda info: info.name.partition(":")[0] in networks - {info.name})
    infos.sort(key=lambda info: info.offline)  # those that are neither on the disk nor can be downloaded come last
    listed = [(messages.model_choice(info), info.name, list_columns.model_columns(info)) for info in infos]
    if chosen and chosen.name not in networks:  # with other settings, which no list has
        listed.insert(0, (chosen.title, chosen.name, [chosen.title]))
    error = model_cache.loading_error()
    selected = {"value": chosen.name} if chosen else {}
    return {
        parts.MODEL: Props(names=listed, **selected),
        parts.NOTICE: {"items": [{"sentence": error}] if error else []},
    }


def layers(loaded: LoadedModel) -> list[tuple[str, str, list[str]]]:
    """Return the choices of layers: the stages, last first, then all other layers in call order."""
    stages = [layer for layer in loaded.layers if layer.stage or layer.name == loaded.default]
    rest = [layer for layer in loaded.layers if layer not in stages]
    ordered = [*reversed(stages), *rest]
    return [(messages.layer_choice(layer), layer.name, list_columns.layer_columns(layer, loaded)) for layer in ordered]
