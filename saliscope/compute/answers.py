"""Data classes of the results that the engine yields for a `Request` (request.py). Nothing here runs a network."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from PIL import Image

import explainers
from saliscope import zoo
from saliscope.images.bands import BandChoice
from saliscope.zoo.names import split_name
from saliscope.zoo.text import Sentences

TOP = 5  # listed classes
PARTS = 1000
"""A stopped map whose samples are not counted has a share of this many parts."""
MEASURE = "cosine similarity"
"""The score of a sentence."""


@dataclass(frozen=True)
class LoadedModel:
    """A loaded network, with everything that the page lists about it."""

    name: str
    title: str
    model: zoo.Model
    names: list[str]
    """One distinct name per class; classes with the same label get their index appended."""
    layers: list[explainers.Layer]
    default: str
    device: torch.device
    reasons: dict[str, str | None] = field(default_factory=dict)
    """Cache of the reasons why a method does not support the network, or None if it does."""
    fields: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    """Height and width of the receptive field of the central cell of each stage in pixels, None if unknown.

    Empty until `measure_stages` of saliscope/compute/channels/network.py fills it.
    """
    score: str = "softmax"
    """How the scores of a classifier become probabilities; "logit": they do not."""

    @cached_property
    def detects_objects(self) -> bool:
        """Whether the network detects objects or regions instead of classifying the whole image."""
        return self.model.task != "classification"

    @cached_property
    def encodes_text(self) -> bool:
        """Whether the network has a text encoder, so that sentences are explained instead of classes."""
        return self.model.tokenize is not None

    @cached_property
    def has_probabilities(self) -> bool:
        """Whether the scores of a classifier become probabilities."""
        return self.score != "logit"

    @cached_property
    def measure(self) -> str:
        """The unit of a score."""
        if self.model.task == "detection":
            return "score"
        if self.encodes_text:
            return MEASURE
        return "logit" if self.detects_objects else explainers.score_unit(self.score)

    @cached_property
    def timed_name(self) -> str:
        """The name that has the times of the network: a model with another crop takes as long as the model itself.

        One with another size or on another device does not.
        """
        base, changes = split_name(self.name)
        return self.name if any(part.startswith(("size=", "device=")) for part in changes.split("&")) else base

    def known_probabilities(self, values: torch.Tensor | None) -> tuple[float, ...]:
        """Return the probabilities [K] of a classifier, and none for other scores."""
        known = self.has_probabilities and not (self.detects_objects or self.encodes_text)
        return tuple(values.tolist()) if known and values is not None else ()

    def no_preference(self, values: torch.Tensor | None) -> str:
        """Return the sentence about probabilities [K] without a preference for some class, or an empty string."""
        shares = self.known_probabilities(values)
        verdict = explainers.judge_facts(explainers.Facts().with_probabilities(shares, self.score)) if shares else None
        return verdict.sentence if verdict and verdict.code == "no_preference" else ""

    def name_of(self, label: int) -> str:
        """Return the name of a class, or its index if it has no name."""
        return self.names[label] if 0 <= label < len(self.names) else str(label)


CHANNEL = re.compile(r"channel (\d{1,6}) of (.+)")
"""A channel as the target of a request, as `unit_name` returns it."""
MIN_SCORE = "min_score"
"""An option of all detectors: detections below this score are ignored."""


@dataclass(frozen=True)
class Window:
    """The part of an image that the network sees: left, top, right and bottom as fractions of the image."""

    box: tuple[float, float, float, float]
    aspect: float
    """Width of the whole image divided by its height."""


@dataclass(frozen=True)
class AppliedEdit:
    """An edit of the image, see `saliscope/compute/erase/edit.py`, with hashes of the images that it was applied to."""

    text: str
    unedited: str
    """The hash of the crop before the edit."""
    second: str = ""
    """The hash of the crop of the second image, if the edit uses its pixels."""


@dataclass(frozen=True)
class Settings:
    """A request with its names resolved. If `target` is None, the top prediction or first object is explained."""

    loaded: LoadedModel
    layer: str
    target: int | None
    method: explainers.Method
    options: dict[str, Any]
    notes: tuple[str, ...] = ()
    bands: BandChoice | None = None
    """The bands of a multispectral image, set when it is opened."""
    rank: int = 0
    """Which object of that class, starting at 1; 0 for the strongest detection or for all pixels of the class."""

    window: Window | None = None
    """The part of the image that the network sees, set when the image is opened."""
    key: str = ""
    """Equal for requests with the same result, see `saliscope/compute/results_cache.py`."""
    subject: str = ""
    """Equal for requests about the same target in the same image, see there."""

    unit: tuple[str, int] | None = None
    """A layer and a channel whose mean is explained instead of a class."""

    sentences: Sentences | None = None
    """What is explained instead of a class if the network has a text encoder."""
    refusal: str = ""
    """Why the target is missing or invalid, for a network with a text encoder."""
    edit: AppliedEdit | None = None
    """The edit of the image, set when it is applied."""

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, or the sentences."""
        return self.sentences.listed if self.sentences else self.loaded.names

    @property
    def method_options(self) -> dict[str, Any]:
        """The options of the method."""
        return {name: value for name, value in self.options.items() if name in self.method.options}

    @property
    def method_arguments(self) -> dict[str, Any]:
        """The options of the method, and the layer if it takes one."""
        return self.method_options | ({"layer": self.layer} if self.method.takes_layer else {})

    @property
    def option_names(self) -> list[str]:
        """The names of the options of the method and of the network."""
        return [*self.method.options, *([MIN_SCORE] if self.loaded.model.task == "detection" else [])]

    @property
    def min_score(self) -> float:
        """The minimum score of detections."""
        return float(self.options.get(MIN_SCORE, 0.5))

    @property
    def measure(self) -> str:
        """The unit of the target."""
        return "activation" if self.unit else self.loaded.measure

    @property
    def names(self) -> dict[str, str]:
        """The fields of a `Request` for these settings."""
        target = "" if self.target is None else ranked(self.loaded.name_of(self.target), self.rank)
        if self.unit:
            target = unit_name(*self.unit)
        if self.sentences:
            target = self.sentences.name
        return {"model": self.loaded.name, "layer": self.layer, "target": target, "method": self.method.name}


def ranked(name: str, rank: int) -> str:
    """Return the name of one of several objects of a class, as in a request: "dog#2"."""
    return f"{name}#{rank}" if rank else name


def unit_name(layer: str, channel: int) -> str:
    """Return the name of a channel, as in the target of a request: "channel 12 of head"."""
    return f"channel {channel} of {layer}"


@dataclass(frozen=True)
class DetectedObject:
    """A detection, or pixels of one class: all of them or a connected region."""

    name: str
    """The name as the target of a request: "dog", "dog#2"."""
    label: int
    rank: int
    share: float
    """The score of a detection, or the fraction of the pixels of the image."""
    box: tuple[float, float, float, float]
    """Left, top, right and bottom as fractions of the crop."""
    target: explainers.Target = field(repr=False)
    mask: torch.Tensor | None = field(default=None, repr=False)
    """The pixels [h, w] of a region; None for a detection."""


@dataclass(frozen=True)
class Scene:
    """The objects or regions that a network detects in the image; yielded before any map.

    `chosen` is the object to explain. It is None if nothing was detected; `message` explains why.
    """

    settings: Settings
    crop: Image.Image
    objects: tuple[DetectedObject, ...]
    chosen: DetectedObject | None
    message: str = ""
    remedy: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """The explained target: its name, the index of its class, and the target for the library."""

    name: str
    label: int
    target: int | explainers.Target = field(repr=False)


@dataclass(frozen=True)
class Waiting:
    """No result yet: the reason, and the progress if known."""

    message: str
    fraction: float | None = None


class Result:
    """What the answer to a request and its partial maps have in common."""

    settings: Settings
    scene: Scene | None
    probabilities: torch.Tensor | None
    predicted: str = ""
    """The name of the top prediction if it is explained and known from the first step."""

    @property
    def detected_object(self) -> DetectedObject:
        """The explained detection or region; only valid if there is a `scene`."""
        assert self.scene is not None and self.scene.chosen is not None, "a result without a target"
        return self.scene.chosen

    @property
    def name(self) -> str:
        """The explained target as in a request; empty for the top prediction if the predictions are not known."""
        settings = self.settings
        if self.scene and self.scene.chosen:
            return self.scene.chosen.name
        if self.probabilities is None or settings.unit or settings.sentences:
            return settings.names["target"] or self.predicted
        return settings.loaded.names[self.target]

    @property
    def target(self) -> int:
        """The explained class; the top class if a channel was explained; 0 for a sentence."""
        if self.probabilities is None:
            return self.detected_object.label
        if self.settings.loaded.encodes_text:
            return 0
        return int(self.probabilities.argmax()) if self.settings.target is None else self.settings.target

    @property
    def top(self) -> list[tuple[int, float]]:
        """The most likely classes and their probabilities, or the highest scores of a network without probabilities."""
        if self.probabilities is None:
            return []
        top = self.probabilities.topk(min(TOP, len(self.probabilities)))
        return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))

    @property
    def confidence(self) -> float:
        """The probability of the target, or its score if it has none; for a region, the fraction of the pixels."""
        return self.detected_object.share if self.probabilities is None else float(self.probabilities[self.target])


@dataclass(frozen=True)
class Refining(Result):
    """The partial map of a long method in progress."""

    settings: Settings
    crop: Image.Image
    map: torch.Tensor | None
    fraction: float
    seconds: float
    left: float
    """Seconds until the time limit."""
    scene: Scene | None = None
    probabilities: torch.Tensor | None = None
    """Those of an `Answer`, in the first step of a run, so that the predictions do not wait for the map."""
    predicted: str = ""
    """The name of the top prediction if it is explained and known from the first step."""


@dataclass(frozen=True)
class Answer(Result):
    """A map [h, w] and its explanation. `share` is below 1 if the user or the time limit stopped the run."""

    settings: Settings
    crop: Image.Image
    explanation: explainers.Explanation
    probabilities: torch.Tensor | None
    """The probabilities of the classes, [K], or their scores if they have none; None if there is a `scene`.

    For a network with a text encoder, the cosine similarities to the sentences.
    """
    map: torch.Tensor
    plane: int = 0
    """Which of `planes` the map is."""
    share: float = 1.0
    by_user: bool = False
    scene: Scene | None = None
    is_mistimed: bool = False
    """Whether the run has changed the estimated time of its method."""

    @property
    def planes(self) -> int:
        """The number of planes that the method returns; 0 for a single map."""
        return len(self.explanation.raw[0]) if self.settings.method.planes else 0

    @cached_property
    def facts(self) -> explainers.Facts:
        """What is known about the map without tests."""
        loaded = self.settings.loaded
        explanation = self.explanation if self.planes else replace(self.explanation, map=self.map[None])
        found = replace(explanation.facts(0), unit=self.settings.measure)
        found = found.with_probabilities(loaded.known_probabilities(self.probabilities), loaded.score)
        if self.share < 1 and not found.is_stopped:  # its samples are not counted
            found = replace(found, done=round(self.share * PARTS), planned=PARTS)
        return found

    @cached_property
    def verdict(self) -> explainers.Verdict:
        """The verdict on the map without tests."""
        return explainers.judge_facts(self.facts)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the method and the network, including defaults."""
        own = {name: value for name, value in self.settings.options.items() if name not in self.settings.method.options}
        return own | {n: value for n, value in self.explanation.options.items() if n in self.settings.method.options}


@dataclass(frozen=True)
class Stages:
    """Grad-CAM of the same image and target as an answer, at every block of the network, by layer."""

    answer: Answer
    maps: dict[str, torch.Tensor]


Step = Waiting | Scene | Refining | Answer | Stages | Settings
