"""The models of all sources by name. SALISCOPE_MODELS limits them, SALISCOPE_MODEL sets the default (see `settings`).

`auto` is the model that SALISCOPE_MODEL names, or else the first model that needs no download: the built-in one, or a
cached one. Names that read files or run code (`timm:`, `hf:`, `package.module:factory`) are accepted from programs and
from the owner of a host (command line, environment variables). Names that visitors of a page send are only looked up
in the list (`load_offered`).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path

from saliscope.names import did_you_mean, nearest
from saliscope.zoo import checkpoints, overrides, settings, variants
from saliscope.zoo.downloads import Progress
from saliscope.zoo.model import Model
from saliscope.zoo.names import split_name
from saliscope.zoo.overrides import Labels, Overrides
from saliscope.zoo.registered import Registered, public_name
from saliscope.zoo.sources import SOURCES, model_files
from saliscope.zoo.sources.source import ModelInfo, ModelUnavailable, OpenSource, Source, UnknownModel

_ADDED: dict[str, Registered] = {}
"""Models registered with `add`, by public name."""
_SETTINGS: dict[str, Registered] = {}
"""Models that SALISCOPE_MODEL or SALISCOPE_MODELS names or has named, by the name in the variable."""


def list_models() -> list[ModelInfo]:
    """Return the offered models: the owner's own models, then those of all sources, with the built-in one first.

    Returns  new entries. `cached` and `offline` are checked at every call, which is fast once the checksum of a file is
             known. A model that cannot be downloaded is listed, because its network accepts your own weights.
    """
    listed: dict[str, ModelInfo] = {}
    for source in SOURCES:
        for info in source.list():
            if settings.offers(info.name):
                # A model file may have the name of another model.
                listed.setdefault(info.name, _with_offline(info, source, info.name))
    own = [_with_offline(entry.info(), entry.source, entry.source_name) for entry in _registered().values()]
    return [*own, *listed.values()]


def _with_offline(info: ModelInfo, source: Source, name: str) -> ModelInfo:
    """Return the properties with whether the model needs a download that is forbidden."""
    needed = info.fetched and not info.cached
    return dataclasses.replace(info, offline=True) if needed and not source.may_download(name) else info


def add(
    name: str,
    *,
    weights: str | Path | None = None,
    labels: Labels | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    size: int | tuple[int, int] | None = None,
    score: str | None = None,
) -> str:
    """Offer your own model on the page and in the API, without loading it; arguments as for `load_model`.

    Returns  its public name, without the folders of this machine
    Errors   ModelUnavailable for an unknown name
    """
    custom = Overrides(weights, labels, mean, std, size, score)
    source = _open_source(name)
    model_source, source_name = (source, name) if source else _listed(name)
    public = public_name(source_name)
    if public in _known():
        public += f"+{Path(custom.weights).stem if custom.weights else 'own'}"
    _ADDED[public] = Registered(public, source_name, model_source, custom)
    return public


def default_name(wanted: str | None = None) -> str:
    """Return the default model: `wanted` (an option), SALISCOPE_MODEL, the first ready model, or the first model.

    If it is the owner's own model, it is offered from now on, under the public name that is returned.
    """
    name = settings.first_model(wanted)
    if name != settings.AUTO:
        public = {entry.source_name: public for public, entry in _registered().items()}
        return public.get(name, name) if name in public or not _open_source(name) else add(name)
    names = [name for source in SOURCES for name in source.names().values()]
    return first_ready() or [*filter(settings.offers, names), *_registered(), names[0]][0]


def first_ready() -> str | None:
    """Return the first offered model that needs no download, or None."""
    ready = (info.name for source in SOURCES for info in source.list() if settings.offers(info.name) and info.cached)
    first = (name for name, entry in _registered().items() if entry.info().cached)
    return next(ready, None) or next(first, None)


def missing_built_in() -> str:
    """Return how to install the built-in model if it is offered but not installed, or else an empty string."""
    return model_files.SOURCE.missing() if settings.offers(model_files.BUILT_IN) else ""


def labels(name: str = "auto") -> list[str]:
    """Return the class names of a model in the order of its outputs, without loading the model if possible.

    Errors   ModelUnavailable for an unknown name
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
    score: str | None = None,
    progress: Progress | None = None,
) -> Model:
    """Load a network with its weights, preprocessing and class names; download the weights if they are not cached.

    `name` is a name from `list_models`, `timm:NAME`, `hf:NAME` or `hf:FOLDER`, or for your own network
    `package.module:factory` or `folder/file.py:factory`. The other arguments replace what comes with the model:
    `weights` is a .safetensors file or a state dict saved with torch.save; `labels` is a list or a file; `mean` and
    `std` apply to pixels in [0, 1] and have one value per channel; `size` is in pixels, an integer or (height, width);
    `score` says how scores become probabilities, as in `explainers.explain`, if it is not detected. Size, mean, std
    and score can also be part of the name: `NAME?size=96x64&score=sigmoid`.
    Missing settings get defaults, which are reported in `notes` and as a warning.

    `progress(done, total)` is called with bytes during a download, in the calling thread; an exception in it stops the
    download. The built-in model is never downloaded.

    Returns  a Model in evaluation mode with frozen parameters
    Errors   ModelUnavailable, whose message lists the models that are ready or everything that does not match
    """
    name, changes = split_name(name)
    custom = Overrides(weights, labels, mean, std, size, score)
    name = default_name() if name == settings.AUTO else name
    entry = None if custom else _registered().get(name)
    if entry:
        model = entry.update(_load(entry.source, entry.source_name, entry.custom, progress))
    else:
        model = _load(*_source(name), custom, progress)
    if changes:
        return variants.change_settings(model, changes)
    for note in model.notes:
        warnings.warn(note, stacklevel=2)
    return model


def load_offered(name: str, *, progress: Progress | None = None) -> Model:
    """Load a model that a visitor named: as `load_model`, but only names from `list_models` and their aliases.

    For any other name, nothing is imported and no file is read.

    Errors   ModelUnavailable; the message for a name that is not offered is the same as for an unknown name
    """
    base, _ = split_name(name)
    if base not in _registered() and base != settings.AUTO:
        _listed(base)
    return load_model(name, progress=progress)


def _load(source: Source, name: str, custom: Overrides, progress: Progress | None) -> Model:
    """Load a model from its source and apply the user's overrides.

    Errors   ModelUnavailable
    """
    is_listed = not custom and not isinstance(source, OpenSource)
    try:
        names = None if custom.labels is None else overrides.read_labels(custom.labels)
        if custom.weights is None:
            model = source.load(name, progress)
        else:
            model = source.build(name, len(names) if names else None)
        if not custom and source.is_tested(name) and model.tokenize is None:
            model.network.eval().requires_grad_(False)
            return model
        loaded = [] if custom.weights is None else checkpoints.load(model.network, custom.weights)
        notes = [f"{Path(custom.weights).name}: {', '.join(loaded)}."] if custom.weights and loaded else []
        return overrides.complete(model, custom, names, notes)
    except (ModelUnavailable, checkpoints.BadCheckpoint, overrides.BadOverride) as error:
        reason = str(error).rstrip(".")
        end = "" if reason.endswith("?") else "."
        raise ModelUnavailable(f"{reason}{end} {_ready(name)}." if is_listed else f"{reason}{end}") from error


def source_of(name: str) -> Source:
    """Return the source of a listed or registered model.

    Errors   ModelUnavailable for an unknown name
    """
    entry = _registered().get(name)
    return entry.source if entry else _listed(name)[0]


def _registered() -> dict[str, Registered]:
    """Return the owner's own models by public name: those added with `add` and those in the environment variables."""
    entries = dict(_ADDED)
    known = {entry.source_name for entry in entries.values()}
    for name in [*sorted(settings.offered_models()), settings.first_model()]:
        source = _open_source(name)
        if source and name not in known:
            public = public_name(name)
            entries[public] = _SETTINGS.setdefault(name, Registered(public, name, source, Overrides()))
    return entries


def _known() -> dict[str, tuple[Source, str]]:
    """Return every accepted name of a listed model, with its source and its listed name."""
    return {alias: (source, listed) for source in reversed(SOURCES) for alias, listed in source.names().items()}


def _open_source(name: str) -> OpenSource | None:
    """Return the source of a name that is not listed. `resnet50:UNKNOWN` is a wrong name of a listed model."""
    known = _known()
    if name in known or name.partition(":")[0] in known:
        return None
    return next((source for source in SOURCES if isinstance(source, OpenSource) and source.accepts(name)), None)


def _source(name: str) -> tuple[Source, str]:
    """Return the source and the listed name of any model that a program may name.

    Errors   ModelUnavailable for an unknown name, and for a name that SALISCOPE_MODELS does not offer
    """
    entry = _registered().get(name)
    if entry:
        return entry.source, entry.source_name
    source = _open_source(name)
    if source is None:
        return _listed(name)
    _check_offered(name)
    return source, name


def _listed(name: str) -> tuple[Source, str]:
    """Return the source and the listed name of a model in the list.

    Errors   ModelUnavailable for an unknown name, and for a name that SALISCOPE_MODELS does not offer
    """
    known = _known()
    if name not in known:
        names = [*_registered(), *(alias for alias in known if settings.offers(known[alias][1]))]
        hint = did_you_mean(map(repr, nearest(name, names)))
        raise UnknownModel(f"Unknown model {name!r}. {hint}".strip())
    source, listed = known[name]
    _check_offered(listed)
    return source, listed


def _check_offered(name: str) -> None:
    """Check that SALISCOPE_MODELS offers a model.

    Errors   ModelUnavailable
    """
    if not settings.offers(name):
        offered = ", ".join(sorted(map(public_name, settings.offered_models())))
        raise ModelUnavailable(f"Model {name!r} is not offered by this host. Available: {offered}.")


def _ready(failed: str) -> str:
    """Return which models other than `failed` need no download, for the end of a message."""
    names = [info.name for info in list_models() if info.cached and info.name != failed]
    return f"Available without a download: {', '.join(names)}" if names else "No other model is available offline"
