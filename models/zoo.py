"""The models of all sources by name; HOOKLENS_MODELS limits them, HOOKLENS_MODEL sets the default (`settings`).

`auto` is what HOOKLENS_MODEL names, else the first model that needs no download: the one on board, else a cached one.
Names that read files or run code (`timm:`, `hf:`, `package.module:factory`) are for programs and for the owner of a
host, by a flag or by the settings; what a visitor names is looked up in the list alone (`load_offered`).
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from pathlib import Path

from models import checkpoints, own, settings
from models.downloads import Progress
from models.model import Model
from models.own import Given, Labels
from models.registered import Registered, public_name
from models.sources import SOURCES
from models.sources.source import ModelInfo, ModelUnavailable, OpenSource, Source

_ADDED: dict[str, Registered] = {}
"""By `add`, by their public names."""
_SETTINGS: dict[str, Registered] = {}
"""Those that HOOKLENS_MODEL or HOOKLENS_MODELS names or has named, by what is written there."""


def list_models() -> list[ModelInfo]:
    """The owner's own models, then those of all sources, the one on board first; only those that are offered.

    Returns  new entries; `cached` is checked at every call, which is cheap once a file's checksum is known.
    """
    listed = [info for source in SOURCES for info in source.list() if settings.offers(info.name)]
    return [*(entry.info() for entry in _registered().values()), *listed]


def add(
    name: str,
    *,
    weights: str | Path | None = None,
    labels: Labels | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    size: int | tuple[int, int] | None = None,
) -> str:
    """Offer a model of your own on the page and in the API; arguments as for `load_model`. Nothing is loaded yet.

    Returns  its public name, without the folders of this machine
    Errors   ModelUnavailable for an unknown name
    """
    given = Given(weights, labels, mean, std, size)
    source = _open_source(name)
    found, asked = (source, name) if source else _listed(name)
    public = public_name(asked)
    if public in _known():
        public += f"+{Path(given.weights).stem if given.weights else 'own'}"
    _ADDED[public] = Registered(public, asked, found, given)
    return public


def default_name(wanted: str | None = None) -> str:
    """The default model: `wanted` (a flag), else HOOKLENS_MODEL, else the first that is ready, else the first.

    One of the owner's own is offered from then on, under the public name that is returned.
    """
    name = settings.first_model(wanted)
    if name != settings.AUTO:
        public = {entry.asked: public for public, entry in _registered().items()}
        return public.get(name, name) if name in public or not _open_source(name) else add(name)
    names = [name for source in SOURCES for name in source.names().values()]
    return first_ready() or [*filter(settings.offers, names), *_registered(), names[0]][0]


def first_ready() -> str | None:
    """The first offered model that needs no download; None where there is none."""
    ready = (info.name for source in SOURCES for info in source.list() if settings.offers(info.name) and info.cached)
    first = (name for name, entry in _registered().items() if entry.info().cached)
    return next(ready, None) or next(first, None)


def missing_onboard() -> str:
    """How to install the model on board, where it is offered and missing; else empty."""
    offered = (source for source in SOURCES if any(map(settings.offers, source.names())))
    return next(filter(None, (source.missing() for source in offered)), "")


def labels(name: str = "auto") -> list[str]:
    """A model's class names in the order of its outputs, where possible without loading it.

    Errors   ModelUnavailable for an unknown name.
    """
    name = default_name() if name == settings.AUTO else name
    if name in _registered() or _open_source(name):
        return load_model(name).labels
    source, name = _listed(name)
    return [*source.labels(name)]


def load_model(
    name: str = "auto",
    *,
    weights: str | Path | None = None,
    labels: Labels | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    size: int | tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> Model:
    """Load a network with its own weights, preprocessing and class names; download the weights where not cached.

    `name`: one of `list_models`; `timm:NAME`; `hf:NAME` or `hf:FOLDER`; `package.module:factory` or
    `folder/file.py:factory` for a network of your own. The other arguments replace what comes with it: `weights`, a
    .safetensors file or a state dict of torch.save; `labels`, a list or a file; `mean` and `std` of pixels in [0, 1],
    one a channel; `size`, pixels or (height, width). Whatever is assumed is in `notes`, and a warning.

    `progress(done, total)` is called with bytes during a download, in the calling thread; an exception in it stops the
    download. The model on board is never downloaded.

    Returns  a Model in evaluation mode with frozen parameters
    Errors   ModelUnavailable; the sentence names the models that are ready, or everything that does not fit
    """
    given = Given(weights, labels, mean, std, size)
    name = default_name() if name == settings.AUTO else name
    entry = None if given else _registered().get(name)
    if entry:
        model = entry.loaded(_load(entry.source, entry.asked, entry.given, progress))
    else:
        model = _load(*_source(name), given, progress)
    for note in model.notes:
        warnings.warn(note, stacklevel=2)
    return model


def load_offered(name: str, *, progress: Progress | None = None) -> Model:
    """`load_model` for a name that a visitor gives: only those of `list_models` and their spellings.

    For any other name nothing is imported and no file is looked for.

    Errors   ModelUnavailable, for every other name as for an unknown one
    """
    if name not in _registered() and name != settings.AUTO:
        _listed(name)
    return load_model(name, progress=progress)


def _load(source: Source, name: str, given: Given, progress: Progress | None) -> Model:
    """The model of a source with what the user said about it.

    Errors   ModelUnavailable
    """
    ours = not given and not isinstance(source, OpenSource)
    try:
        names = None if given.labels is None else own.read_labels(given.labels)
        if given.weights is None:
            model = source.load(name, progress)
        else:
            model = source.build(name, len(names) if names else None)
        if ours:
            model.network.eval().requires_grad_(False)
            return model
        said = [] if given.weights is None else checkpoints.load(model.network, given.weights)
        notes = [f"{Path(given.weights).name}: {', '.join(said)}."] if given.weights and said else []
        return own.complete(model, given, names, notes)
    except (ModelUnavailable, checkpoints.BadCheckpoint, own.Unfit) as error:
        reason = str(error).rstrip(".")
        end = "" if reason.endswith("?") else "."
        raise ModelUnavailable(f"{reason}; {_ready()}." if ours else f"{reason}{end}") from error


def source_of(name: str) -> Source:
    """The source that a listed or registered model comes from.

    Errors   ModelUnavailable for an unknown name
    """
    entry = _registered().get(name)
    return entry.source if entry else _listed(name)[0]


def _registered() -> dict[str, Registered]:
    """The owner's own models by their public names: those that were added, and those in the settings."""
    entries = dict(_ADDED)
    asked = {entry.asked for entry in entries.values()}
    for name in [*sorted(settings.offered_models()), settings.first_model()]:
        source = _open_source(name)
        if source and name not in asked:
            public = public_name(name)
            entries[public] = _SETTINGS.setdefault(name, Registered(public, name, source, Given()))
    return entries


def _known() -> dict[str, tuple[Source, str]]:
    """Every accepted spelling of a listed model, with its source and its listed name."""
    return {alias: (source, listed) for source in SOURCES for alias, listed in source.names().items()}


def _open_source(name: str) -> OpenSource | None:
    """The source of a name that no source lists; `resnet50:NOTHING` is a wrong name of a listed one."""
    known = _known()
    if name in known or name.partition(":")[0] in known:
        return None
    return next((source for source in SOURCES if isinstance(source, OpenSource) and source.accepts(name)), None)


def _source(name: str) -> tuple[Source, str]:
    """Source and listed name of any model that a program may name.

    Errors   ModelUnavailable for an unknown name, and for one that HOOKLENS_MODELS does not offer
    """
    entry = _registered().get(name)
    if entry:
        return entry.source, entry.asked
    source = _open_source(name)
    if source is None:
        return _listed(name)
    _check_offered(name)
    return source, name


def _listed(name: str) -> tuple[Source, str]:
    """Source and listed name of a model of the list.

    Errors   ModelUnavailable for an unknown name, and for one that HOOKLENS_MODELS does not offer
    """
    known = _known()
    if name not in known:
        names = [*_registered(), *(alias for alias in known if settings.offers(known[alias][1]))]
        near = difflib.get_close_matches(name, names, 3)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ModelUnavailable(
            f"There is no model {name!r}: {hint}hooklens models, or list_models(), has all."
        )
    source, listed = known[name]
    _check_offered(listed)
    return source, listed


def _check_offered(name: str) -> None:
    """Errors   ModelUnavailable for a model that HOOKLENS_MODELS does not offer"""
    if not settings.offers(name):
        offered = ", ".join(sorted(map(public_name, settings.offered_models())))
        raise ModelUnavailable(f"This host does not offer {name!r}; it offers: {offered}.")


def _ready() -> str:
    """The models that need no download, as the end of a sentence."""
    names = [info.name for info in list_models() if info.cached]
    return f"ready at once: {', '.join(names)}" if names else "no other model is ready"
