"""What the engine answers, step by step; a question is a `Request` (request.py). Nothing here computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    import torch

    import explainers
    import models
    from explainers.targets import Target


TOP = 5  # classes listed


class Refused(ValueError):
    """A request that cannot be answered; its text is one sentence for the visitor."""


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
    reasons: dict[tuple[str, str | None], str | None] = field(default_factory=dict)
    """Why a method is not offered at a layer, for those asked about: the network does not change while it is here."""

    @property
    def finds(self) -> bool:
        """Whether the network finds things in a picture (regions, objects) instead of naming the whole."""
        return self.model.task != "classification"

    def name_of(self, label: int) -> str:
        """A class's name; its number where the network has more classes than names."""
        return self.names[label] if 0 <= label < len(self.names) else str(label)


MIN_SCORE = "min_score"
"""The option of every request to a detector: detections below this score are left out."""


@dataclass(frozen=True)
class BandChoice:
    """Which three bands of a picture are shown, counted from 1, and what was done with its values."""

    three: tuple[int, int, int]
    count: int
    about: str
    """The number of bands, their type, their size and the range of their values."""
    use: str
    """What the network gets of the bands; empty where there is nothing to choose."""

    @property
    def text(self) -> str:
        """As a `Request` asks for it: "3,2,1 of 5"."""
        return f"{','.join(map(str, self.three))} of {self.count}"


@dataclass(frozen=True)
class Window:
    """The part of a picture that the network sees: left, top, right and bottom in parts of it."""

    box: tuple[float, float, float, float]
    aspect: float
    """The whole picture's width over its height."""

    @classmethod
    def of(cls, model: models.Model, photo: Image.Image) -> Window:
        """What this network sees of a picture."""
        return cls(model.preparation.window(*photo.size), photo.width / photo.height)


@dataclass(frozen=True)
class Settings:
    """A request with its names resolved. `target` None means the top prediction, or the first thing found."""

    loaded: Loaded
    layer: str
    target: int | None
    method: explainers.Method
    options: dict[str, Any]
    notes: tuple[str, ...] = ()
    bands: BandChoice | None = None
    """Of a picture of bands, once it was opened."""
    rank: int = 0
    """Which thing of that class, counted from 1; 0 for the strongest detection, or all pixels of the class."""

    window: Window | None = None
    """What of the picture the network sees, once it was opened."""
    key: str = ""
    """Equal for questions with the same answer, see `ui/maps/kept.py`."""
    subject: str = ""
    """Equal for questions about the same thing in the same picture, see there."""

    unit: tuple[str, int] | None = None
    """A layer and the number of its channel, whose mean is explained instead of a class."""

    @property
    def method_options(self) -> dict[str, Any]:
        """The options that are the method's own."""
        return {name: value for name, value in self.options.items() if name in self.method.options}

    @property
    def min_score(self) -> float:
        return float(self.options.get(MIN_SCORE, 0.5))

    @property
    def takes_layer(self) -> bool:
        return self.method.takes_layer

    @property
    def names(self) -> dict[str, str]:
        """The fields of a `Request` that ask for just this."""
        target = "" if self.target is None else ranked(self.loaded.name_of(self.target), self.rank)
        if self.unit:
            target = unit_name(*self.unit)
        return {"model": self.loaded.name, "layer": self.layer, "target": target, "method": self.method.name}


def ranked(name: str, rank: int) -> str:
    """The name of one of several things of a class, as a request writes it: "dog#2"."""
    return f"{name}#{rank}" if rank else name


def unit_name(layer: str, channel: int) -> str:
    """The name of a channel, as a request writes it where it is explained: "channel 12 of head"."""
    return f"channel {channel} of {layer}"


@dataclass(frozen=True)
class Found:
    """A detection, or pixels of one class: all of them, or a connected region."""

    name: str
    """As a request's target: "dog", "dog#2"."""
    label: int
    rank: int
    share: float
    """The score of a detection; the part of the picture's pixels."""
    box: tuple[float, float, float, float]
    """Left, top, right and bottom in parts of what the network saw."""
    target: Target = field(repr=False)
    mask: torch.Tensor | None = field(default=None, repr=False)
    """Its pixels [h, w]; None for a detection."""


@dataclass(frozen=True)
class Scene:
    """What a segmentation network or a detector finds in the picture; comes before any map.

    `chosen` is the one to be explained; None where nothing is found, as `sentence` says.
    """

    settings: Settings
    seen: Image.Image
    found: tuple[Found, ...]
    chosen: Found | None
    sentence: str = ""
    remedy: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """What is explained: its name, the index of its class, and the target for the library."""

    name: str
    label: int
    target: int | Target = field(repr=False)


@dataclass(frozen=True)
class Waiting:
    """Nothing to show yet; why, and the fraction done where that is known."""

    sentence: str
    fraction: float | None = None


@dataclass(frozen=True)
class Refining:
    """A long method in progress: its map so far."""

    settings: Settings
    seen: Image.Image
    map: torch.Tensor | None
    fraction: float
    seconds: float
    left: float
    """Seconds until its deadline."""
    scene: Scene | None = None

    @property
    def name(self) -> str:
        """What is being explained; empty for the top prediction."""
        return self.scene.chosen.name if self.scene and self.scene.chosen else self.settings.names["target"]


@dataclass(frozen=True)
class Answer:
    """A map [h, w] and its explanation. `share` is below 1 where the visitor or the deadline ended the work."""

    settings: Settings
    seen: Image.Image
    explanation: explainers.Explanation
    probabilities: torch.Tensor | None
    """Softmax of the network's scores, [K]; None where there is a `scene`."""
    map: torch.Tensor
    plane: int = 0
    """Which of `planes` the map is."""
    share: float = 1.0
    by_visitor: bool = False
    scene: Scene | None = None

    @property
    def planes(self) -> int:
        """How many planes the method gives; 0 where it gives one map."""
        return len(self.explanation.raw[0]) if self.settings.method.planes else 0

    @property
    def target(self) -> int:
        """The class that was explained; the top class, where a channel was."""
        if self.probabilities is None:
            return self.thing.label
        return int(self.probabilities.argmax()) if self.settings.target is None else self.settings.target

    @property
    def names(self) -> dict[str, str]:
        """The fields of a `Request` that ask for just this; a target that was not found is none of them."""
        names = self.settings.names
        return {**names, "target": self.name} if self.scene and names["target"] else names

    @property
    def thing(self) -> Found:
        """The detection or region that was explained, where there is a `scene`."""
        assert self.scene is not None and self.scene.chosen is not None, "an answer without a target"
        return self.scene.chosen

    @property
    def name(self) -> str:
        """What was explained, as a request's target."""
        if self.settings.unit:
            return unit_name(*self.settings.unit)
        return self.thing.name if self.scene else self.settings.loaded.names[self.target]

    @property
    def top(self) -> list[tuple[int, float]]:
        """The most likely classes and their probabilities."""
        if self.probabilities is None:
            return []
        top = self.probabilities.topk(min(TOP, len(self.probabilities)))
        return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))

    @property
    def confidence(self) -> float:
        """The probability of the target; the score of a detection; the part of the pixels."""
        return self.thing.share if self.probabilities is None else float(self.probabilities[self.target])

    @property
    def options(self) -> dict[str, Any]:
        """The options that method and network took, defaults included."""
        own = {name: value for name, value in self.settings.options.items() if name not in self.settings.method.options}
        return own | {n: value for n, value in self.explanation.options.items() if n in self.settings.method.options}


@dataclass(frozen=True)
class Stages:
    """The same picture and class at every stage of the network: maps by layer."""

    settings: Settings
    seen: Image.Image
    maps: dict[str, torch.Tensor]


Step = Waiting | Scene | Refining | Answer | Stages | Settings
