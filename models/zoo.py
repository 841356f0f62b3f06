"""The models of all sources by name; HOOKLENS_MODELS limits them, HOOKLENS_MODEL sets the default (`settings`).

`auto` is what HOOKLENS_MODEL names, else the first model that needs no download: the one on board, else a cached one.
"""

from __future__ import annotations

import difflib

from models import settings
from models.downloads import Progress
from models.model import Model
from models.sources import SOURCES
from models.sources.source import ModelInfo, ModelUnavailable, Source


def list_models() -> list[ModelInfo]:
    """The models of all sources, the one on board first; only those that HOOKLENS_MODELS offers.

    Returns  new entries; `cached` is checked at every call, which is cheap once a file's checksum is known.
    """
    return [info for source in SOURCES for info in source.list() if settings.offers(info.name)]


def default_name(wanted: str | None = None) -> str:
    """The default model: `wanted` (a flag), else HOOKLENS_MODEL, else the first that is ready, else the first."""
    name = settings.first_model(wanted)
    if name != settings.AUTO:
        return name
    names = [name for source in SOURCES for name in source.names().values()]
    return first_ready() or next(filter(settings.offers, names), names[0])


def first_ready() -> str | None:
    """The first offered model that needs no download; None where there is none."""
    return next(
        (info.name for source in SOURCES for info in source.list() if settings.offers(info.name) and info.cached), None
    )


def missing_onboard() -> str:
    """How to install the model on board, where it is offered and missing; else empty."""
    offered = (source for source in SOURCES if any(map(settings.offers, source.names())))
    return next(filter(None, (source.missing() for source in offered)), "")


def labels(name: str = "auto") -> list[str]:
    """A model's class names in the order of its outputs, where possible without loading it.

    Errors   ModelUnavailable for an unknown name.
    """
    source, name = _find(name)
    return [*source.labels(name)]


def load_model(name: str = "auto", *, progress: Progress | None = None) -> Model:
    """Load a network with its own weights, preprocessing and class names; download the weights where not cached.

    `progress(done, total)` is called with bytes during a download, in the calling thread; an exception in it stops the
    download. The model on board is never downloaded.

    Returns  a Model in evaluation mode with frozen parameters
    Errors   ModelUnavailable; the sentence names the models that are ready
    """
    source, name = _find(name)
    try:
        model = source.load(name, progress)
    except ModelUnavailable as error:
        raise ModelUnavailable(f"{str(error).rstrip('.')}; {_ready()}.") from error
    model.network.eval().requires_grad_(False)
    return model


def source_of(name: str) -> Source:
    """The source that a model comes from.

    Errors   ModelUnavailable for an unknown name
    """
    return _find(name)[0]


def _find(name: str) -> tuple[Source, str]:
    """Source and listed name of a model.

    Errors   ModelUnavailable for an unknown name, and for one that HOOKLENS_MODELS does not offer
    """
    name = default_name() if name == settings.AUTO else name
    known = {alias: (source, listed) for source in SOURCES for alias, listed in source.names().items()}
    if name not in known:
        near = difflib.get_close_matches(name, [alias for alias in known if settings.offers(known[alias][1])], 3)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ModelUnavailable(f"There is no model {name!r}: {hint}list_models() gives every name.")
    source, listed = known[name]
    if not settings.offers(listed):
        offered = ", ".join(sorted(settings.offered_models()))
        raise ModelUnavailable(f"This host does not offer {listed!r}; it offers: {offered}.")
    return source, listed


def _ready() -> str:
    """The models that need no download, as the end of a sentence."""
    names = [info.name for info in list_models() if info.cached]
    return f"ready at once: {', '.join(names)}" if names else "no other model is ready"
