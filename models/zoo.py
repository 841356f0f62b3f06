"""The models by name: `embedded`, and every classifier of torchvision with each of its weights.

`resnet50` means a network with its default weights, `resnet50:IMAGENET1K_V1` the same with others. `auto` is what
HOOKLENS_MODEL names, else a ResNet-50 that is already in torch's cache, else `embedded`.

    ModelUnavailable(RuntimeError)   no such model, or its weights cannot be had now; names those that can
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torchvision
from torch.overrides import TorchFunctionMode
from torchvision.models import WeightsEnum, get_model, get_model_weights

from models import downloads, embedded
from models.downloads import Fetch, Progress
from models.embedded import network as embedded_network
from models.model import Model, Preparation
from models.titles import title_of

EMBEDDED = "embedded"
BETTER = "resnet50"
"""What `auto` prefers to the embedded model wherever it is cached or can be fetched."""
VARIABLE = "HOOKLENS_MODEL"


class ModelUnavailable(RuntimeError):
    """A model that cannot be had; the sentence names those that can."""


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model before it is loaded."""

    name: str
    title: str
    weights: str
    """Name of the weights in torchvision's own table."""
    classes: int
    megabytes: float
    """Size of the file of weights."""
    side: int
    """Height and width of the input in pixels."""
    cached: bool
    """True when it can be loaded without a network."""
    accuracy: float | None
    """First guesses that were right, in per cent: on ImageNet's validation pictures, for `embedded` on its own."""


def list_models() -> list[ModelInfo]:
    """Every model there is: `embedded` first, then torchvision's by name.

    Returns  fresh entries; `cached` is worked out anew, which is cheap once a file's sum has been seen.
    """
    return [_embedded_info(), *(_info(name, weights) for name, weights in _table().items())]


def default_name(wanted: str | None = None) -> str:
    """The model to begin with: `wanted` (a flag), HOOKLENS_MODEL, a cached ResNet-50, `embedded`; first come."""
    for name in (wanted, os.environ.get(VARIABLE)):
        if name and name != "auto":
            return name
    return next((name for name in _better_names() if _is_cached(_table()[name])), EMBEDDED)


def labels(name: str = "auto") -> list[str]:
    """The names of a model's classes in the order of its outputs, without loading it.

    Errors   ModelUnavailable where there is no model of that name.
    """
    weights = _weights(name)
    return embedded.labels() if weights is None else list(weights.meta["categories"])


def load_model(name: str = "auto", *, progress: Progress | None = None) -> Model:
    """Load a network with its own weights, preparation and labels, fetching the weights where they are not cached.

    `progress(done, total)` is called with bytes while they arrive, in the calling thread; what it raises ends the wait.

    Returns  a Model in evaluation mode with frozen parameters. `embedded` never touches the network.
    Errors   ModelUnavailable, in one sentence that names the models that are ready.
    """
    name = _resolved(name)
    weights = _weights(name)
    if weights is None:
        return _load_embedded()
    try:
        downloads.fetch(title_of(name), weights.url, progress)
    except downloads.FetchFailed as error:
        raise ModelUnavailable(f"{str(error).rstrip('.')}; ready at once: {', '.join(_ready())}.") from error
    # The file is there and its sum is right, so that torchvision's own builder finds it and downloads nothing.
    with _without_drawing():
        network = get_model(name.partition(":")[0], weights=weights, progress=False)
    return _model(name, network, list(weights.meta["categories"]), _preparation(weights))


def fetch_better(wanted: str | None = None) -> Fetch | None:
    """Begin to fetch ResNet-50 in the background, for those who were given `embedded` because nothing else was there.

    Returns  the Fetch to look at now and then (`state`, `done`, `total`); its name is what load_model takes once it
             is "whole". It never raises, and where there is no network it ends as "failed" without a word. None when
             nothing is to be done: `wanted` (a flag) or HOOKLENS_MODEL names a model, a ResNet-50 is here already, or
             downloads are off.
    """
    named = {wanted, os.environ.get(VARIABLE)} - {None, "", "auto"}
    if named or downloads.offline() or default_name() != EMBEDDED:
        return None
    return downloads.start(BETTER, _table()[BETTER].url)


def _better_names() -> list[str]:
    return [name for name in _table() if name.partition(":")[0] == BETTER]


@cache
def _table() -> dict[str, WeightsEnum]:
    """Every classifier of torchvision with each of its weights; the default ones under the bare name, first."""
    table = {}
    for name in torchvision.models.list_models(module=torchvision.models):
        default = get_model_weights(name).DEFAULT
        for weights in sorted(get_model_weights(name), key=lambda member: member is not default):
            # Weights without categories (one of VGG-16's) serve as features for detectors and classify nothing.
            if weights.meta["categories"]:
                table[name if weights is default else f"{name}:{weights.name}"] = weights
    return table


def _resolved(name: str) -> str:
    return default_name() if name == "auto" else name


def _weights(name: str) -> WeightsEnum | None:
    """The weights of that name, None for `embedded`."""
    name = _resolved(name)
    if name == EMBEDDED:
        return None
    table = _table()
    if name in table:
        return table[name]
    network, _, given = name.partition(":")
    if network in table and given == table[network].name:
        return table[network]
    near = difflib.get_close_matches(name, [EMBEDDED, *table], 3)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise ModelUnavailable(f"There is no model {name!r}: {hint}list_models() gives every name.")


def _ready() -> list[str]:
    return [info.name for info in list_models() if info.cached]


def _is_cached(weights: WeightsEnum) -> bool:
    return downloads.cached(weights.url, round(weights.meta["_file_size"] * 2**20))


def _info(name: str, weights: WeightsEnum) -> ModelInfo:
    return ModelInfo(
        name=name,
        title=title_of(name),
        weights=weights.name,
        classes=len(weights.meta["categories"]),
        megabytes=round(weights.meta["_file_size"] * 2**20 / 1e6, 1),
        side=weights.transforms().crop_size[0],
        cached=_is_cached(weights),
        accuracy=weights.meta["_metrics"]["ImageNet-1K"]["acc@1"],
    )


def _embedded_info() -> ModelInfo:
    return ModelInfo(
        name=EMBEDDED,
        title=title_of(EMBEDDED),
        weights=EMBEDDED,
        classes=len(embedded.labels()),
        megabytes=round(embedded.WEIGHTS.stat().st_size / 1e6, 1),
        side=embedded_network.SIDE,
        cached=True,
        accuracy=embedded.top1(),
    )


def _preparation(weights: WeightsEnum) -> Preparation:
    own = weights.transforms()
    return Preparation(own.crop_size[0], own.resize_size[0], tuple(own.mean), tuple(own.std), own.interpolation)


def _load_embedded() -> Model:
    names = embedded.labels()
    state = torch.load(embedded.WEIGHTS, weights_only=True)
    with _without_drawing():
        network = embedded_network.build(len(names))
    network.load_state_dict(state)  # half precision on disk, single in memory
    side = embedded_network.SIDE
    return _model(EMBEDDED, network, names, Preparation(side, side, embedded_network.MEAN, embedded_network.STD))


def _model(name: str, network: torch.nn.Module, names: list[str], preparation: Preparation) -> Model:
    return Model(name, network.eval().requires_grad_(False), names, preparation)


class _without_drawing(TorchFunctionMode):
    """Leave out the random start of every weight that is about to be overwritten.

    It takes most of the time of building a network (ConvNeXt-T 2.5 s), and drawing would move the caller's generator.
    The mode belongs to the thread, so that whoever builds a network meanwhile is not disturbed.
    """

    DRAWING = frozenset({"normal_", "uniform_", "trunc_normal_", "kaiming_normal_", "kaiming_uniform_"})

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in self.DRAWING:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
