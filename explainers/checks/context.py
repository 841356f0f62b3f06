"""An explainer under trial: fresh models and images for it, and the ways in which a promise is found broken."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from explainers.checks.fixtures import changes, snapshot, tiny, tiny_transformer

Outcome = tuple[float | None, str]
CLOSE = 1e-4
"""Relative distance that rounding may make in float32."""


class Fail(Exception):
    """The promise is broken; `figure` is what was measured."""

    def __init__(self, sentence: str, figure: float | None = None) -> None:
        super().__init__(sentence)
        self.figure = figure


class Skip(Exception):
    """The promise does not apply here."""


@dataclass
class Trial:
    """The callable under trial, with fresh models and images for it."""

    function: Callable[..., Tensor]
    given: nn.Module | None
    pictures: Tensor | None
    options: dict[str, Any]
    own: bool = field(init=False)

    def __post_init__(self) -> None:
        self.own = self.given is None
        self.name = str(getattr(self.function, "name", None) or getattr(self.function, "__name__", repr(self.function)))
        inner = getattr(self.function, "function", self.function)
        self.keywords = set(inspect.signature(inner).parameters)
        if self.own:
            # The built-in pictures are small and the promises many: a few steps and samples show all there is to see.
            few = {"window": 6, "stride": 4, "steps": 6, "samples": 12}
            self.options = {**{name: value for name, value in few.items() if name in self.keywords}, **self.options}

    def model(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        model = self.built_in() if self.given is None else copy.deepcopy(self.given)
        return model.eval().to(dtype)

    def built_in(self, channels: int = 3) -> nn.Module:
        """The small residual network, or the small transformer for methods that cannot explain that one."""
        needs = getattr(self.function, "needs", None)
        made = tiny(channels)
        return tiny_transformer(channels) if needs is not None and needs(made) else made

    def images(self, dtype: torch.dtype = torch.float32, channels: int | None = None) -> Tensor:
        if self.pictures is not None:
            return self.pictures.detach().clone().to(dtype)
        if channels is None:
            first = next((m for m in self.model().modules() if isinstance(m, nn.Conv2d)), None)
            channels = first.in_channels if first else 3
        size = (20, 16) if self.own else (64, 48)
        noise = torch.randn(3, channels, *size, generator=torch.Generator().manual_seed(1))
        return (noise + torch.tensor([-1.0, 0.0, 1.0]).view(3, 1, 1, 1)).to(dtype)

    def call(self, model: nn.Module, images: Tensor, target: Any = None, **options: Any) -> Tensor:
        return self.function(model, images, target, **{**self.options, **options})

    def plain(self, target: Any = None, **options: Any) -> Tensor:
        return self.call(self.model(), self.images(), target, **options)

    def kind(self, result: Tensor) -> str:
        """As declared, else read from the shape."""
        declared = getattr(self.function, "returns", None)
        if isinstance(declared, str):
            return declared
        images = self.images()
        shapes: dict[tuple[int, ...], str] = {tuple(images.shape): "pixels", (3, *images.shape[2:]): "heat"}
        return shapes.get(tuple(result.shape), {2: "channels", 3: "grid", 4: "features"}.get(result.ndim, "unknown"))

    def signed(self) -> dict[str, Any]:
        """A ReLU may blank a map, and two blank maps always agree."""
        return {"relu": False} if "relu" in self.keywords else {}

    def reads_class(self) -> bool:
        if getattr(self.function, "reads_class", True) is False:
            return False
        return not torch.equal(self.plain(0, **self.signed()), self.plain(1, **self.signed()))


def distance_of(a: Tensor, b: Tensor) -> float:
    """||a - b|| / ||b||, infinite where the shapes differ, NaN where one holds NaN."""
    if a.shape != b.shape:
        return float("inf")
    size = float(b.double().norm())
    return float((a.double() - b.double()).norm()) / (size or 1.0)


def agree(actual: Tensor, expected: Tensor, what: str, bound: float = CLOSE) -> Outcome:
    distance = distance_of(actual, expected)
    if not distance <= bound:
        raise Fail(f"{what} differ: relative distance {distance:.2g}, allowed {bound:g}.", distance)
    return distance, f"{what} agree."


def untouched(model: nn.Module, images: Tensor, act: Callable[[], Any], when: str) -> None:
    before = snapshot(model, images)
    act()
    left = changes(before, snapshot(model, images))
    if left:
        raise Fail(f"Changed {when}: {', '.join(left)}.", len(left))


CHECKS: dict[str, Callable[[Trial], Outcome]] = {}
"""All promises by name in the order in which they run; the first decides whether the others make sense."""


def promise(check: Callable[[Trial], Outcome]) -> Callable[[Trial], Outcome]:
    """Enter a check into `CHECKS`."""
    CHECKS[check.__name__] = check
    return check
