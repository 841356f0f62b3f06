"""What goes into the engine and what comes out of it, step by step. Nothing here computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    import torch

    import explainers
    import models


class Refused(ValueError):
    """A request that cannot be answered; its text is one sentence for the visitor."""


@dataclass(frozen=True)
class Request:
    """What a visitor asks for, by the names on the page; empty means the default."""

    picture: str | None = None
    model: str = ""
    layer: str = ""
    target: str = ""
    method: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    forgiving: bool = False
    """True when wrong names become the default without a word."""
    plane: int | None = None
    """Which plane of a method that gives several; None for the strongest."""


@dataclass(frozen=True)
class Loaded:
    """A network that is ready, with everything that the page lists about it."""

    name: str
    title: str
    model: models.Model
    names: list[str]
    """One distinct name a class; where two share a label, the number is added."""
    layers: list[explainers.Layer]
    default: str
    device: torch.device


@dataclass(frozen=True)
class Settings:
    """A request with every name found. `target` is None for "whatever the network thinks most likely"."""

    loaded: Loaded
    layer: str
    target: int | None
    method: explainers.Method
    options: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def takes_layer(self) -> bool:
        return self.method.takes_layer


@dataclass(frozen=True)
class Waiting:
    """Nothing to show yet; why, and how far it is where that is known."""

    sentence: str
    fraction: float | None = None


@dataclass(frozen=True)
class Refining:
    """A long method on its way."""

    settings: Settings
    seen: Image.Image
    map: torch.Tensor | None
    fraction: float
    seconds: float


@dataclass(frozen=True)
class Answer:
    """A map and what belongs to it. `share` is below 1 where the work was stopped, by the visitor or by the clock."""

    settings: Settings
    seen: Image.Image
    map: torch.Tensor
    raw: torch.Tensor
    target: int
    top: list[tuple[int, float]]
    confidence: float
    options: dict[str, Any]
    statistics: dict[str, Any]
    findings: list[Any]
    seconds: float
    share: float = 1.0
    by_visitor: bool = False
    plane: int = 0
    planes: int = 0
    """How many planes the method gave, of which `map` is number `plane`; 0 where it gave one map."""


@dataclass(frozen=True)
class Stages:
    """The same picture and class at every stage of the network."""

    settings: Settings
    seen: Image.Image
    maps: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Channels:
    """A page of a layer's channels, in the order that was asked for."""

    settings: Settings
    numbers: list[int]
    maps: torch.Tensor
    means: list[float]
    effects: list[float] | None
    target: int
    page: int
    pages: int
    total: int


@dataclass(frozen=True)
class Channel:
    """One channel with its numbers; `box` is what its strongest cell can see, in parts of the picture."""

    settings: Settings
    seen: Image.Image
    number: int
    map: torch.Tensor
    effect: float | None
    target: int
    box: tuple[float, float, float, float] | None


Step = Waiting | Refining | Answer | Stages | Settings | Channels | Channel
