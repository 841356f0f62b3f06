"""The models by name: `efficientnet_lite0`, which is on board, and every classifier of torchvision with its weights.

`resnet50` means a network with its default weights, `resnet50:IMAGENET1K_V1` the same with others. `auto` is what
HOOKLENS_MODEL names, else the model on board, else the first that is already in torch's cache. HOOKLENS_MODELS, names
between commas, limits a host to those.

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
from torchvision.transforms import InterpolationMode

from models import cache_limit, downloads, efficientnet_lite
from models.downloads import Progress
from models.model import Model, Preparation
from models.titles import title_of

ONBOARD = "efficientnet_lite0"
"""The model whose weights come with the installation; what `auto` means."""
VARIABLE = "HOOKLENS_MODEL"
ALLOWED = "HOOKLENS_MODELS"


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
    fetched: bool
    """True when the weights come from the network, False when an installed package holds them."""
    accuracy: float | None
    """Top-1 accuracy on ImageNet's validation pictures in per cent, as published with the weights."""


def list_models() -> list[ModelInfo]:
    """Every model there is: the one on board first, then torchvision's by name; only those that HOOKLENS_MODELS allows.

    Returns  fresh entries; `cached` is worked out anew, which is cheap once a file's sum has been seen.
    """
    every = [_onboard_info(), *(_info(name, weights) for name, weights in _table().items())]
    return [info for info in every if _is_allowed(info.name)]


def default_name(wanted: str | None = None) -> str:
    """The model to begin with: `wanted` (a flag), HOOKLENS_MODEL, the one on board, one that is cached; first come."""
    for name in (wanted, os.environ.get(VARIABLE)):
        if name and name != "auto":
            return name
    return first_ready() or next(filter(_is_allowed, [ONBOARD, *_table()]), ONBOARD)


def first_ready() -> str | None:
    """The first allowed model that needs no fetching: the one on board, else one that is cached; None where none is."""
    if _is_allowed(ONBOARD) and efficientnet_lite.weights_file():
        return ONBOARD
    return next((name for name in _table() if _is_allowed(name) and _is_cached(_table()[name])), None)


def missing_onboard() -> str:
    """The sentence that says how the model on board is installed, where it is missing and allowed; else empty."""
    if not _is_allowed(ONBOARD) or efficientnet_lite.weights_file():
        return ""
    return efficientnet_lite.NOT_INSTALLED


def labels(name: str = "auto") -> list[str]:
    """The names of a model's classes in the order of its outputs, without loading it.

    Errors   ModelUnavailable where there is no model of that name.
    """
    weights = _weights(name)
    return efficientnet_lite.labels() if weights is None else list(weights.meta["categories"])


def load_model(name: str = "auto", *, progress: Progress | None = None) -> Model:
    """Load a network with its own weights, preparation and labels, fetching the weights where they are not cached.

    `progress(done, total)` is called with bytes while they arrive, in the calling thread; what it raises ends the wait.

    Returns  a Model in evaluation mode with frozen parameters. The model on board is never fetched.
    Errors   ModelUnavailable, in one sentence that names the models that are ready.
    """
    name = _resolved(name)
    weights = _weights(name)
    if weights is None:
        return _load_onboard()
    try:
        with cache_limit.in_use(downloads.path_of(weights.url)):
            downloads.fetch(title_of(name), weights.url, progress)
            # The file is there and its sum is right, so that torchvision's own builder finds it and downloads nothing.
            with _without_drawing():
                network = get_model(name.partition(":")[0], weights=weights, progress=False)
    except (downloads.FetchFailed, cache_limit.BadLimit) as error:
        raise ModelUnavailable(f"{str(error).rstrip('.')}; {_ready()}.") from error
    return _model(name, network, list(weights.meta["categories"]), _preparation(weights))


def _allowed() -> set[str] | None:
    """The names that HOOKLENS_MODELS lists; None where it is not set."""
    listed = {name.strip() for name in os.environ.get(ALLOWED, "").split(",")} - {""}
    return listed or None


def _is_allowed(name: str) -> bool:
    listed = _allowed()
    return listed is None or name in listed


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
    """torchvision's weights of that name, None for the model on board.

    Errors   ModelUnavailable where there is no such model, or HOOKLENS_MODELS leaves it out
    """
    name = _resolved(name)
    table = _table()
    network, _, given = name.partition(":")
    if network in table and given == table[network].name:
        name = network
    if name != ONBOARD and name not in table:
        near = difflib.get_close_matches(name, filter(_is_allowed, [ONBOARD, *table]), 3)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ModelUnavailable(f"There is no model {name!r}: {hint}list_models() gives every name.")
    if not _is_allowed(name):
        raise ModelUnavailable(f"This host does not offer {name!r}; it offers: {', '.join(sorted(_allowed() or ()))}.")
    return None if name == ONBOARD else table[name]


def _ready() -> str:
    """The models that need no fetching, as the end of a sentence."""
    names = [info.name for info in list_models() if info.cached]
    return f"ready at once: {', '.join(names)}" if names else "no other model is ready"


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
        fetched=True,
        accuracy=weights.meta["_metrics"]["ImageNet-1K"]["acc@1"],
    )


def _onboard_info() -> ModelInfo:
    return ModelInfo(
        name=ONBOARD,
        title=title_of(ONBOARD),
        weights="TensorFlow",
        classes=1000,
        megabytes=efficientnet_lite.MEGABYTES,
        side=efficientnet_lite.SIDE,
        cached=efficientnet_lite.weights_file() is not None,
        fetched=False,
        accuracy=efficientnet_lite.TOP1,
    )


def _preparation(weights: WeightsEnum) -> Preparation:
    own = weights.transforms()
    return Preparation(own.crop_size[0], own.resize_size[0], tuple(own.mean), tuple(own.std), own.interpolation)


def _load_onboard() -> Model:
    try:
        with _without_drawing():
            network = efficientnet_lite.load()
    except efficientnet_lite.WeightsMissing as error:
        raise ModelUnavailable(f"{str(error).rstrip('.')}; {_ready()}.") from error
    own = efficientnet_lite
    preparation = Preparation(own.SIDE, own.RESIZE, own.MEAN, own.STD, InterpolationMode.BICUBIC)
    return _model(ONBOARD, network, own.labels(), preparation)


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
