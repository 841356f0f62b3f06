"""The argument of every check: the method under test with fresh models and images, and helpers for comparisons."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from explainers.checks.fixtures import changes, snapshot, tiny, tiny_transformer
from explainers.errors import shorten
from explainers.keywords import signature_of

T = TypeVar("T")
Outcome = tuple[float | None, str]
CLOSE = 1e-4
"""Relative distance that float32 rounding may cause."""


class Fail(Exception):
    """Raised if a check fails; `figure` is the measured value."""

    def __init__(self, sentence: str, figure: float | None = None) -> None:
        super().__init__(sentence)
        self.figure = figure


class Skip(Exception):
    """Raised if a check does not apply to the method."""


@dataclass
class Context:
    """The method under test, with fresh models and images. The built-in ones are used if none are given."""

    function: Callable[..., Tensor]
    user_model: nn.Module | None
    user_images: Tensor | None
    options: dict[str, Any]
    is_built_in: bool = field(init=False)
    _networks: dict[int, nn.Module] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.is_built_in = self.user_model is None
        name = getattr(self.function, "name", None) or getattr(self.function, "__name__", shorten(self.function))
        self.name = str(name)
        inner = getattr(self.function, "function", self.function)
        self.keywords = set(signature_of(inner).parameters)
        if self.is_built_in:
            # A few steps and samples are enough for the small built-in images, and keep the many checks fast.
            small = {"window": 6, "stride": 4, "steps": 6, "samples": 12}
            self.options = {**{name: value for name, value in small.items() if name in self.keywords}, **self.options}

    def model(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        model = self.built_in() if self.user_model is None else copy.deepcopy(self.user_model)
        return model.eval().to(dtype)

    def built_in(self, channels: int = 3) -> nn.Module:
        """Return the small residual network, or the small transformer for methods that need attention."""
        if channels not in self._networks:
            needs = getattr(self.function, "needs", None)
            network = tiny(channels)
            attends = needs is not None and needs(network)
            self._networks[channels] = tiny_transformer(channels) if attends else network
        return copy.deepcopy(self._networks[channels])

    def images(self, dtype: torch.dtype = torch.float32, channels: int | None = None) -> Tensor:
        if self.user_images is not None:
            return self.user_images.detach().clone().to(dtype)
        size = (20, 16) if self.is_built_in else (64, 48)
        noise = torch.randn(3, channels or self._channels, *size, generator=torch.Generator().manual_seed(1))
        return (noise + torch.tensor([-1.0, 0.0, 1.0]).view(3, 1, 1, 1)).to(dtype)

    @cached_property
    def _channels(self) -> int:
        """The channels of an image."""
        first = next((m for m in self.model().modules() if isinstance(m, nn.Conv2d)), None)
        return first.in_channels if first else 3

    def call(self, model: nn.Module, images: Tensor, target: Any = None, **options: Any) -> Tensor:
        return self.function(model, images, target, **{**self.options, **options})

    def fresh(self, target: Any = None, **options: Any) -> Tensor:
        """Call the method with a fresh model and fresh images."""
        return self.call(self.model(), self.images(), target, **options)

    def kind(self, result: Tensor) -> str:
        """Return the kind of result, as declared or inferred from its shape."""
        declared = getattr(self.function, "returns", None)
        if isinstance(declared, str):
            return declared
        images = self.images()
        shapes: dict[tuple[int, ...], str] = {tuple(images.shape): "pixels", (3, *images.shape[2:]): "heat"}
        return shapes.get(tuple(result.shape), {2: "channels", 3: "grid", 4: "features"}.get(result.ndim, "unknown"))

    def signed(self) -> dict[str, Any]:
        """Return options for a signed map, because two maps that a ReLU set to zero always agree."""
        return {"relu": False} if "relu" in self.keywords else {}

    @cached_property
    def reads_class(self) -> bool:
        """Whether the map depends on the target class."""
        if getattr(self.function, "reads_class", True) is False:
            return False
        model = self.model()
        first, second = (self.call(model, self.images(), target, **self.signed()) for target in (0, 1))
        return not torch.equal(first, second)


def distance_of(a: Tensor, b: Tensor) -> float:
    """Return ||a - b|| / ||b||, infinity if the shapes differ; NaN propagates."""
    if a.shape != b.shape:
        return float("inf")
    norm = float(b.double().norm())
    return float((a.double() - b.double()).norm()) / (norm or 1.0)


def agree(actual: Tensor, expected: Tensor, what: str, bound: float = CLOSE) -> Outcome:
    distance = distance_of(actual, expected)
    if not distance <= bound:
        raise Fail(f"{what} differ: relative distance {distance:.2g}, at most {bound:g} is allowed.", distance)
    return distance, f"{what} agree."


def unchanged(model: nn.Module, images: Tensor, act: Callable[[], T], when: str) -> T:
    """Return the result of `act`; fail if it changes the state of the model, the images or the process."""
    before = snapshot(model, images)
    result = act()
    if changed := changes(before, snapshot(model, images)):
        raise Fail(f"Changed {when}: {', '.join(changed)}.", len(changed))
    return result


Checked = Callable[[Context, nn.Module, Tensor], Outcome]
"""A check gets a fresh model and fresh images of the context."""
CHECKS: dict[str, Checked] = {}
"""All checks by name, in order. If the first one fails, the others are skipped."""


def check(function: Checked) -> Checked:
    """Register a check in `CHECKS` under the name of its function."""
    CHECKS[function.__name__] = function
    return function
