"""The loaded networks, and the available models and methods.

The first network is loaded in the background after the page is served. Requests wait until `ready` is set.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

import explainers
from saliscope import limits, zoo
from saliscope.compute import messages
from saliscope.compute.answers import LoadedModel, Waiting
from saliscope.compute.jobs import memory
from saliscope.compute.jobs.runs import Run
from saliscope.errors import Refused, told
from saliscope.zoo import devices, settings
from saliscope.zoo.names import split_device, split_name
from saliscope.zoo.sources.source import UnknownModel
from saliscope.zoo.variants import change_settings

CAPACITY = 3
MAPS = ("grid", "pixels", "heat", "features")
DEFAULTS = ("grad_cam", "hires_cam")
"""The default method for a class, and for an object or region.

Grad-CAM weights whole channels, so its map of one object highlights all objects of that class. HiResCAM uses the
gradient of each cell.
"""
FOR_SENTENCES = "grad_eclip"
"""The default method for a network with a text encoder, for which it was designed."""
WITHOUT_LAYER = "integrated_gradients"
"""The default method for a network without layers that have a grid, such as one of linear layers."""
QUICK = ("grad_cam", "saliency")
"""Methods for the maps of a comparison if that of the page is not possible, best first."""
COMPARING = frozenset({"finer_cam"})
"""Methods that compare the scores of several classes, which do not support objects or regions."""

log = logging.getLogger("saliscope")
ready = threading.Event()
device_name = "auto"
_started = 0.0
_requested = settings.AUTO
_own: Mapping[str, Any] = {}
_errors: list[str] = []
_compared: set[str] = set()
"""Devices whose results were compared with the CPU's."""
_failure = ""
loaded_models: OrderedDict[str, LoadedModel] = OrderedDict()
_lock = threading.RLock()


def start(model: str = settings.AUTO, own: Mapping[str, Any] | None = None) -> None:
    """Load the first model in a thread.

    `model` may also be `timm:`, `hf:` or a custom function; `own` has the keyword arguments of `zoo.add`. A failure to
    load a model with a name or with `own` is not logged, because the caller reports `failure()`.
    """
    global _started, _requested, _own
    _requested, _own = model or settings.AUTO, own or {}

    def load() -> None:
        global _started, _failure
        _started = time.monotonic()
        try:
            _prepare()
        except Exception as error:  # the page reports any error
            log.error("could not load the first model", exc_info=error)
            _failure = messages.not_loaded(error)
            _errors.append(_failure)
        ready.set()
        memory.release()  # of reading the weights

    threading.Thread(target=load, name="engine", daemon=True).start()


def use_device(name: str) -> None:
    """Choose the device of all networks by its name, before the first one is loaded."""
    global device_name
    device_name = name


def device_of_call(loaded: LoadedModel) -> torch.device:
    """Return the device on which a call of a network runs: on ZeroGPU, the GPU that the call has."""
    return devices.choose(device_name) if limits.SHARED_GPU else loaded.device


def _prepare() -> None:
    global _failure
    explainers.keep_freed_memory()
    name = ""
    try:
        name = zoo.add(settings.first_model(_requested), **_own) if _own else zoo.default_name(_requested)
        if name == zoo.first_ready() and (missing := zoo.missing_built_in()):
            _errors.append(missing)
        load(name)
    except zoo.ModelUnavailable as error:
        if _requested == settings.AUTO and not _own:  # otherwise the caller raises `failure()`
            log.error("%s", error)
        _failure = messages.plain(str(error))  # for the owner; visitors read the other one
        _errors.append(messages.plain(why_unavailable(name, error)))
        if (other := zoo.first_ready()) and other != name:
            load(other)


def has(name: str) -> bool:
    """Return whether this model is loaded."""
    return name in loaded_models


def first_model() -> str:
    """Return the default model, or an empty string if none could be loaded."""
    return next(iter(loaded_models), "")


def requested_model() -> str:
    """Return the model requested by --model or SALISCOPE_MODEL, or "auto"."""
    return settings.first_model(_requested)


def loading_error() -> str:
    """Return the errors of loading the default model, or an empty string."""
    return " ".join(_errors)


def failure() -> str:
    """Return why the requested model could not be loaded, or an empty string."""
    return _failure


def wait(run: Run | None = None, model: str = "") -> Iterator[Waiting]:
    """Yield a status every 0.5 s until the default model is loaded.

    Errors   Refused if no model could be loaded and `model` is empty
    """
    while not ready.wait(0.5):
        if run and run.cancelled:
            raise Refused(messages.STOPPED_WAITING)
        yield Waiting(messages.loading(time.monotonic() - _started if _started else 0.0))
    if not loaded_models and not model:
        raise Refused(loading_error())


def load(name: str, progress: Callable[[int, int], None] | None = None) -> LoadedModel:
    """Load a model, after a download if needed; the default model and the last few models stay in memory.

    The name may come from a user, so only offered models are loaded.
    """
    with _lock:
        if name in loaded_models:
            return loaded_models[name]
    base, changes = split_name(name)
    others, wanted = split_device(changes)
    if others and wanted:  # shares the network that is on the device
        changed = change_settings(load(f"{base}?device={wanted}", progress).model, others)
        model = dataclasses.replace(changed, name=name)
    elif changes:  # shares the loaded network, except on another device
        model = change_settings(load(base, progress).model, changes)
    else:
        model = zoo.load_offered(name, progress=progress)
    # ZeroGPU has a GPU only during a call, which moves the network (network_calls.py).
    device = torch.device("cpu") if limits.SHARED_GPU else devices.choose(wanted or device_name)
    is_new = devices.full_name(device) not in _compared
    _compared.add(devices.full_name(device))
    if is_new and (warning := devices.compare(model, device)):
        log.warning("%s", warning)
        _errors.append(warning)
    network = model.network.to(device)
    images = torch.zeros(1, model.channels, *model.size, device=device)
    layers = explainers.list_layers(network, images, spatial=True)
    titles = {info.name: info.title for info in zoo.list_models()}
    title = titles.get(base, base)
    try:
        default = explainers.default_layer(network, images)
    except explainers.NoSpatialOutput:
        default = ""  # such as a network of linear layers: only methods without a layer explain it
    score = model.score_kind if model.task == "classification" else "softmax"
    loaded = LoadedModel(
        name,
        f"{title} ({messages.changed_settings(changes)})" if changes else title,
        model,
        _distinct(model.labels),
        layers,
        default,
        device,
        score=score,
    )
    with _lock:
        loaded_models[name] = loaded
        _forget_old()
    return loaded


def _forget_old() -> None:
    """Remove the oldest models above the limits; the first is the default and stays, as does the last one."""
    for old in list(loaded_models)[1:-CAPACITY]:
        del loaded_models[old]
    while len(loaded_models) > 2 and sum(map(_size, loaded_models.values())) > limits.NETWORKS:
        del loaded_models[list(loaded_models)[1]]


def _size(loaded: LoadedModel) -> int:
    return sum(weights.numel() * weights.element_size() for weights in loaded.model.network.parameters())


def _distinct(labels: list[str]) -> list[str]:
    counts: dict[str, int] = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    return [f"{label} ({i})" if counts[label] > 1 else label for i, label in enumerate(labels)]


def why_unavailable(name: str, error: zoo.ModelUnavailable) -> str:
    """Return why a model cannot be used and what a visitor can do about it, who cannot call functions of Python."""
    if isinstance(error, UnknownModel):
        return messages.choose_listed(error.reason)
    infos = zoo.list_models()
    info = next((each for each in infos if each.name == split_name(name)[0]), None)
    if info is None or info.cached or not info.fetched or not settings.offline():
        if (text := told(error)) != str(error):
            log.error("could not load %s", name, exc_info=error)
        return text
    return messages.not_on_server(info.title, [each.title for each in infos if each.cached])


def list_methods(loaded: LoadedModel) -> list[explainers.Method]:
    """Return the methods that return a map for this model."""
    return [m for m in explainers.METHODS.values() if m.returns in MAPS and why_not(m, loaded) is None]


def default_method(loaded: LoadedModel) -> explainers.Method:
    """Return the default method for this model."""
    available = {method.name: method for method in list_methods(loaded)}
    wanted = [DEFAULTS[loaded.detects_objects], WITHOUT_LAYER]
    if loaded.encodes_text:
        wanted.insert(0, FOR_SENTENCES)
    return next(available[name] for name in [*wanted, *available] if name in available)


def quick_method(wanted: explainers.Method, *models: LoadedModel) -> explainers.Method | None:
    """Return a method if it is quick, has one map and supports these models, or else another such method, or None."""
    for method in (wanted, *(explainers.METHODS[name] for name in QUICK)):
        if not (method.long or method.planes) and all(why_not(method, loaded) is None for loaded in models):
            return method
    return None


def why_not(method: explainers.Method, loaded: LoadedModel) -> str | None:
    """Return why the method does not support this model, or None if it does; no reason depends on the layer."""
    if loaded.detects_objects and method.name in COMPARING:
        return messages.COMPARES_CLASSES
    if method.takes_layer and not loaded.layers:
        return messages.NO_GRID
    if method.name not in loaded.reasons:
        loaded.reasons[method.name] = method.applies(loaded.model.network)
    return loaded.reasons[method.name]
