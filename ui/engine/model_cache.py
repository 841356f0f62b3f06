"""The loaded networks; the models and methods to choose from.

torch is first imported here, in the background after the page has been served; requests wait until `ready` is set.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from models import settings
from ui import words
from ui.engine.messages import Loaded, Refused, Waiting
from ui.engine.runs import Run

if TYPE_CHECKING:
    import explainers
    import models

CAPACITY = 3
MAPS = ("grid", "pixels", "heat", "features")
DEFAULTS = ("grad_cam", "hires_cam")
"""The first method for a class of a picture, and for a thing in it: Grad-CAM weighs whole channels, so that its map of
one object lights up all objects of that class; HiResCAM keeps each cell's own gradient.
"""
COMPARING = frozenset({"finer_cam"})
"""Methods that compare a class's score with those of other classes: an object or a region has one score alone."""

log = logging.getLogger("hooklens")
wanted = threading.Event()
ready = threading.Event()
_started = 0.0
_requested = settings.AUTO
_own: Mapping[str, Any] = {}
_errors: list[str] = []
_loaded: OrderedDict[str, Loaded] = OrderedDict()
_lock = threading.RLock()


def start(model: str = settings.AUTO, delay: float = 3.0, own: Mapping[str, Any] | None = None) -> None:
    """Import torch and load the first model in a thread, as soon as a page is open or after `delay` seconds.

    `model` is the owner's to name: `timm:`, `hf:` or a function of their own too; `own` is what `models.add` takes.
    """
    global _started, _requested, _own
    _requested, _own = model or settings.AUTO, own or {}

    def load() -> None:
        global _started
        wanted.wait(delay)
        _started = time.monotonic()
        try:
            _prepare()
        except Exception as error:  # the page reports it, whatever it is
            log.error("the first model was not loaded", exc_info=error)
            _errors.append(words.not_loaded(error))
        ready.set()

    threading.Thread(target=load, name="engine", daemon=True).start()


def _prepare() -> None:
    import explainers  # imported here so that the first request does not wait for it
    import models  # torch takes seconds to start

    explainers.keep_freed_memory()
    name = ""
    try:
        name = models.add(settings.first_model(_requested), **_own) if _own else models.default_name(_requested)
        if name == models.first_ready() and (missing := models.missing_onboard()):
            _errors.append(missing)
        _errors.extend(load(name).model.notes)
    except models.ModelUnavailable as error:
        log.error("%s", error)
        _errors.append(words.plain(str(error)))
        if (other := models.first_ready()) and other != name:
            load(other)


def has(name: str) -> bool:
    """Whether this model is loaded."""
    return name in _loaded


def first_model() -> str:
    """The default model; empty where none could be loaded."""
    return next(iter(_loaded), "")


def requested_model() -> str:
    """The model requested at the start by the flag or HOOKLENS_MODEL; else "auto"."""
    return settings.first_model(_requested)


def loading_error() -> str:
    """What went wrong while loading the default model; else empty."""
    return " ".join(_errors)


def wait(run: Run | None = None, model: str = "") -> Iterator[Waiting]:
    """Yield a line every half second until torch is imported and the default model loaded.

    Errors   Refused where no model could be loaded and `model` names none
    """
    wanted.set()
    while not ready.wait(0.5):
        if run and run.cancelled:
            raise Refused(words.STOPPED_WAITING)
        yield Waiting(words.loading(time.monotonic() - _started if _started else 0.0))
    if not _loaded and not model:
        raise Refused(loading_error())


def load(name: str, progress: Callable[[int, int], None] | None = None) -> Loaded:
    """The model of that name, loaded once, after a download if needed; the default and the last few loaded are kept.

    The name may be a visitor's: only offered ones are loaded.
    """
    import torch  # torch takes seconds to start

    import explainers  # torch takes seconds to start
    import models  # torch takes seconds to start

    with _lock:
        if name in _loaded:
            return _loaded[name]
    model = models.load_offered(name, progress=progress)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = model.network.to(device)
    picture = torch.zeros(1, model.channels, *model.size, device=device)
    layers = explainers.list_layers(network, picture, spatial=True)
    titles = {info.name: info.title for info in models.list_models()}
    default = explainers.default_layer(network, picture)
    loaded = Loaded(name, titles.get(name, name), model, _distinct(model.labels), layers, default, device)
    with _lock:
        _loaded[name] = loaded
        for old in list(_loaded)[1:-CAPACITY]:  # the first stays: it is the default
            del _loaded[old]
    return loaded


def _distinct(labels: list[str]) -> list[str]:
    counts: dict[str, int] = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    return [f"{label} ({i})" if counts[label] > 1 else label for i, label in enumerate(labels)]


def list_models() -> list[models.ModelInfo]:
    """Every offered model, the one on board first."""
    import models  # torch takes seconds to start

    return models.list_models()


def list_methods(loaded: Loaded, layer: str | None = None) -> list[explainers.Method]:
    """The methods that return a map for this model at this layer."""
    import explainers  # torch takes seconds to start

    return [m for m in explainers.METHODS.values() if m.returns in MAPS and why_not(m, loaded, layer) is None]


def default_method(loaded: Loaded, listed: list[str]) -> str:
    """The first choice among the methods listed for this model."""
    wanted = DEFAULTS[loaded.finds]
    return wanted if wanted in listed else listed[0]


def why_not(method: explainers.Method, loaded: Loaded, layer: str | None = None) -> str | None:
    """None where the method can explain this model at this layer, else a sentence that says why not."""
    if loaded.finds and method.name in COMPARING:
        return words.COMPARES_CLASSES
    asked = method.name, layer or None
    if asked not in loaded.reasons:
        loaded.reasons[asked] = method.applies(loaded.model.network, layer or None)
    return loaded.reasons[asked]
