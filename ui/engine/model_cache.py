"""Networks that are ready, loaded in the background; and what there is to choose from.

torch is imported here for the first time, after the page has been served; until `ready` is set every request waits.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ui import words
from ui.engine.messages import Loaded, Refused, Waiting
from ui.engine.runs import Run

if TYPE_CHECKING:
    import explainers
    import models

KEPT_MODELS = 3
MAPS = ("grid", "pixels", "heat", "features")

wanted = threading.Event()
ready = threading.Event()
_started = 0.0
_wish = "auto"
_trouble: list[str] = []
_shelf: OrderedDict[str, Loaded] = OrderedDict()
_lock = threading.RLock()


def start(wish: str = "auto", delay: float = 3.0) -> None:
    """Import torch and load the first model in a thread, as soon as a page is open or after `delay` seconds."""
    global _started, _wish
    _wish = wish or "auto"

    def load() -> None:
        global _started
        wanted.wait(delay)
        _started = time.monotonic()
        try:
            _prepare()
        except Exception as error:  # whatever it is, the page must be able to say it
            _trouble.append(words.not_loaded(error))
        ready.set()

    threading.Thread(target=load, name="engine", daemon=True).start()


def _prepare() -> None:
    import explainers  # noqa: F401  imported here so that the first request does not wait for it
    import models  # torch takes seconds to start

    name = models.default_name(_wish if _wish != "auto" else None)
    if name == models.first_ready() and (missing := models.missing_onboard()):
        _trouble.append(missing)
    try:
        load(name)
    except models.ModelUnavailable as error:
        _trouble.append(words.plain(str(error)))
        if other := models.first_ready():
            load(other)


def has(name: str) -> bool:
    """Whether this model can be used at once."""
    return name in _shelf


def first_model() -> str:
    """The model that a visitor gets who names none; empty where none could be loaded."""
    return next(iter(_shelf), "")


def wish() -> str:
    """The model that was asked for at the start: by a flag, or by HOOKLENS_MODEL; else "auto"."""
    return _wish if _wish != "auto" else os.environ.get("HOOKLENS_MODEL") or "auto"


def trouble() -> str:
    """What went wrong while loading the first model; empty when nothing did."""
    return " ".join(_trouble)


def wait(run: Run | None = None, model: str = "") -> Iterator[Waiting]:
    """Yield a line every half second until torch and the first model are there.

    Errors   Refused where no model could be loaded, and none was named that might be fetched.
    """
    wanted.set()
    while not ready.wait(0.5):
        if run and run.asked:
            raise Refused(words.STOPPED_WAITING)
        yield Waiting(words.loading(time.monotonic() - _started if _started else 0.0))
    if not _shelf and not model:
        raise Refused(trouble())


def load(name: str, progress: Callable[[int, int], None] | None = None) -> Loaded:
    """The model of that name, from the shelf or fetched; the shelf keeps the few that were used last."""
    import torch  # torch takes seconds to start

    import explainers  # torch takes seconds to start
    import models  # torch takes seconds to start

    with _lock:
        if name in _shelf:
            return _shelf[name]
    model = models.load_model(name, progress=progress)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = model.network.to(device)
    picture = torch.zeros(1, 3, model.side, model.side, device=device)
    layers = explainers.list_layers(network, picture, spatial=True)
    titles = {info.name: info.title for info in models.list_models()}
    default = explainers.default_layer(network, picture)
    loaded = Loaded(name, titles.get(name, name), model, _distinct(model.labels), layers, default, device)
    with _lock:
        _shelf[name] = loaded
        for old in list(_shelf)[1:-KEPT_MODELS]:  # the first stays: it is everybody's default
            del _shelf[old]
    return loaded


def _distinct(labels: list[str]) -> list[str]:
    counts: dict[str, int] = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    return [f"{label} ({i})" if counts[label] > 1 else label for i, label in enumerate(labels)]


def list_models() -> list[models.ModelInfo]:
    """Every model that this host offers, the one on board first."""
    import models  # torch takes seconds to start

    return models.list_models()


def list_methods(loaded: Loaded, layer: str | None = None) -> list[explainers.Method]:
    """The methods that make a map for this model at this layer."""
    import explainers  # torch takes seconds to start

    network = loaded.model.network
    return [m for m in explainers.METHODS.values() if m.returns in MAPS and m.applies(network, layer or None) is None]
