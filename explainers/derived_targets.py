"""Targets besides the score of a class: probabilities, differences and sums of scores, and units of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from explainers.dtypes import to_float64
from explainers.errors import BadTarget, check_type, shorten
from explainers.options import LayerName, whole_number, whole_numbers
from explainers.probabilities import check_score, default_score, log_probability_of, no_probabilities, probabilities_of
from explainers.targets import (
    OfClasses,
    Target,
    TargetFunction,
    TargetLike,
    as_target,
    class_indices,
    scores_of,
    select,
)


@dataclass(frozen=True, init=False, repr=False)
class _OfProbabilities(OfClasses):
    score: str | None = None

    def __init__(self, classes: int | Sequence[int] | Tensor, score: str | None = None) -> None:
        super().__init__(classes)
        check_score(score)
        if score == "logit":
            raise no_probabilities()
        object.__setattr__(self, "score", score)

    @property
    def reads_probability(self) -> bool:
        return self.score is None

    def __repr__(self) -> str:
        score = "" if self.score in (None, "softmax") else f", score={self.score!r}"
        return f"{type(self).__name__}(classes={self.classes!r}{score})"

    def with_score(self, score: str | None) -> Target:
        return type(self)(self.classes, score) if self.score is None and score is not None else self

    def _scores(self, output: Any) -> Tensor:
        scores = scores_of(output)
        if self.score == "softmax" and scores.shape[1] == 1:
            raise BadTarget("The model returns one score, and the softmax of one score is always 1. Omit score.")
        return scores


class Probability(_OfProbabilities):
    """Probability of a class. It saturates: near 0 and 1 its gradient vanishes, unlike that of the logit.

    `score` says how scores become probabilities, as in `explain`: "softmax", "sigmoid", or "identity" for a network
    that returns probabilities. None: methods detect it; outside of a method it is the softmax, or the sigmoid of a
    single score.
    """

    def __call__(self, output: Any) -> Tensor:
        """Return the probabilities [N], in [0, 1]."""
        probabilities = probabilities_of(self._scores(output), self.score)
        assert probabilities is not None, "__init__ refuses the score for which there are none"
        return select(probabilities, self.classes)


class LogProbability(_OfProbabilities):
    """Logarithm of the probability of a class; `score` as in `Probability`."""

    def __call__(self, output: Any) -> Tensor:
        """Return the log-probabilities [N], at most 0."""
        scores = self._scores(output)
        if (self.score or default_score(scores.shape[1])) == "softmax":
            return select(scores.log_softmax(1), self.classes)
        return log_probability_of(select(scores, self.classes), scores, self.score)


@dataclass(frozen=True)
class Contrast(Target):
    """Logit of `class_` minus the mean logit of `against`: evidence for `class_` that does not support the others."""

    class_: int
    against: int | tuple[int, ...]

    def __init__(self, class_: int, against: int | Sequence[int]) -> None:
        own, others = class_indices(class_), class_indices(against)
        if not isinstance(own, int):
            raise BadTarget(f"class_ is {shorten(class_)}; Contrast takes one class for all images. Give an int.")
        if others in ((), own, (own,)):
            raise BadTarget(f"against is {shorten(against)}; give one class other than {own}, or several.")
        object.__setattr__(self, "class_", own)
        object.__setattr__(self, "against", others)

    def __call__(self, output: Any) -> Tensor:
        """Return the differences [N], in logits."""
        scores = scores_of(output)
        others = (self.against,) if isinstance(self.against, int) else self.against
        for index in (self.class_, *others):
            select(scores, index)
        return scores[:, self.class_] - scores[:, list(others)].mean(1)


@dataclass(frozen=True)
class Sum(Target):
    """The sum of several targets."""

    targets: tuple[Target, ...]

    def __init__(self, *targets: Target | int | Sequence[int] | Tensor | TargetFunction) -> None:
        if not targets or any(each is None for each in targets):
            raise BadTarget(f"Sum{targets!r} is not valid. Give one or more targets: Sum(Logit(3), Logit(4)).")
        given = tuple(as_target(each) for each in targets)
        for each in given:
            if isinstance(each, (LayerTarget, Through)):
                raise BadTarget(
                    f"Sum adds targets of the model's output, but {type(each).__name__} is a target of a layer. Use it "
                    "without Sum."
                )
        object.__setattr__(self, "targets", given)

    def __call__(self, output: Any) -> Tensor:
        """Return the sums [N]."""
        return torch.stack([target(output) for target in self.targets]).sum(0)

    def __repr__(self) -> str:
        return f"Sum({', '.join(map(repr, self.targets))})"

    @property
    def reads_probability(self) -> bool:
        return any(each.reads_probability for each in self.targets)

    def rows(self, image_indices: Sequence[int]) -> Target:
        return Sum(*(each.rows(image_indices) for each in self.targets))

    def with_score(self, score: str | None) -> Target:
        return Sum(*(each.with_score(score) for each in self.targets))

    def check(self, count: int) -> None:
        for each in self.targets:
            each.check(count)


class LayerTarget(Target):
    """Base class of the dataclasses that read a map of a layer, where the forward pass ends.

    `at` is a cell (row, column), or (frame, row, column) of a video, "max" for the strongest cell of each clean image,
    or None for the mean of the map. `cells` are the cells of "max", once they are known.
    """

    layer: LayerName
    at: tuple[int, ...] | str | None
    cells: tuple[tuple[int, ...], ...]

    def values(self, maps: Tensor) -> Tensor:
        """Return the map [N, h, w] that the target reads in the layer's maps [N, K, h, w]."""
        raise NotImplementedError

    def check(self, count: int) -> None:
        is_named = self.at is None or (isinstance(self.at, str) and self.at == "max")
        if not is_named and self._cell() is None:
            raise BadTarget(f"at={shorten(self.at)} is not valid. Give None, a cell (row, column), or 'max'.")

    def _cell(self) -> tuple[int, ...] | None:
        cell = None if isinstance(self.at, str) else whole_numbers(self.at)
        return cell if cell is not None and len(cell) in (2, 3) else None

    def fixed(self, maps: Tensor, count: int) -> LayerTarget:
        """Return the target with "max" resolved to the strongest cell of each image, also used for its variants."""
        channel, at = self.values(_with_cells(maps)), self.at
        sides = tuple(channel.shape[1:])
        if at is None:
            return self
        if isinstance(at, str):
            peaks = torch.unravel_index(channel.flatten(1).argmax(1), sides)
            return self._with_peaks(tuple(zip(*(indices.tolist() for indices in peaks), strict=True)))
        cell = self._cell() or ()
        if len(cell) != len(sides) or not all(0 <= index < side for index, side in zip(cell, sides, strict=True)):
            *frames, rows, columns = (f"0 to {side - 1}" for side in sides)
            first = f"frames {frames[0]}, rows {rows}" if frames else f"rows {rows}"
            raise BadTarget(f"Cell {at} does not exist: layer {shorten(self.layer)} has {first} and columns {columns}.")
        return self._with_peaks((cell,) * count)

    def __call__(self, output: Any) -> Tensor:
        """Return the activations [N], in the layer's units; `output` is the output of the layer, [N, K, h, w]."""
        channel = self.values(_with_cells(output))
        if not self.cells:
            return channel.mean(tuple(range(1, channel.ndim)))
        return channel[(range(len(channel)), *zip(*self.cells, strict=True))]

    def rows(self, image_indices: Sequence[int]) -> Target:
        return self._with_peaks(tuple(self.cells[i] for i in image_indices)) if self.cells else self

    def _with_peaks(self, cells: tuple[tuple[int, ...], ...]) -> LayerTarget:
        copied: LayerTarget = replace(cast(Any, self), cells=cells)  # a dataclass
        return copied


def _with_cells(maps: Tensor) -> Tensor:
    """Return the maps of a layer; values [N, K] of a layer without a grid get one cell."""
    return maps[:, :, None, None] if maps.ndim == 2 else maps


@dataclass(frozen=True)
class Unit(LayerTarget):
    """The activation of one channel of a layer, or of one for each image. The forward pass ends at that layer.

    `channel` and `at` are as in `unit`.
    """

    layer: LayerName
    channel: int | tuple[int, ...]
    at: tuple[int, ...] | str | None = None
    cells: tuple[tuple[int, ...], ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        return f"Unit(layer={shorten(self.layer)}, channel={self.channel}, at={self.at!r})"

    def check(self, count: int) -> None:
        channels = [self.channel] if not isinstance(self.channel, tuple) else self.channel
        if any(whole_number(each) is None for each in channels):
            raise BadTarget(f"channel={shorten(self.channel)} is not valid. Give the index of a channel, from 0.")
        if isinstance(self.channel, tuple) and len(channels) != count:
            raise BadTarget(f"There are {len(channels)} channels and {count} images. Give one channel for each image.")
        super().check(count)

    def rows(self, image_indices: Sequence[int]) -> Target:
        found = super().rows(image_indices)
        if isinstance(self.channel, tuple):
            found = replace(cast(Unit, found), channel=tuple(self.channel[i] for i in image_indices))
        return found

    def values(self, maps: Tensor) -> Tensor:
        given = self.channel if isinstance(self.channel, tuple) else (self.channel,)
        channels = [whole_number(each) for each in given]
        for channel, number in zip(given, channels, strict=True):
            if number is None or not 0 <= number < maps.shape[1]:
                raise BadTarget(_no_channel(channel, self.layer, maps.shape[1]))
        return maps[range(len(maps)), channels] if isinstance(self.channel, tuple) else maps[:, channels[0]]


def unit(layer: LayerName, channel: int | Sequence[int], at: tuple[int, ...] | str | None = None) -> Unit:
    """Create a target for one channel of a layer: at a cell (row, column), at its strongest cell ("max"), or its mean.

    `channel` is an index from 0, or a sequence with the channel of each image.

    Returns  a `Unit`, for every gradient and perturbation method

    Example
        >>> saliency(model, images, unit("layer3", channel=17, at="max")).shape
        torch.Size([1, 3, 224, 224])
    """
    return Unit(layer, tuple(channel) if isinstance(channel, Sequence) else channel, at)


@dataclass(frozen=True, eq=False)
class Direction(LayerTarget):
    """The activation along a direction of a layer: the projection of each cell's channels on `vector` [K].

    `vector` is normalized to length 1. `at` is as in `unit`. A direction is also a value of `through=`, for the part of
    a gradient that flows along it.

    Example
        >>> saliency(model, images, Direction("layer3", torch.ones(256))).shape
        torch.Size([1, 3, 224, 224])
    """

    layer: LayerName
    vector: Tensor
    at: tuple[int, ...] | str | None = None
    cells: tuple[tuple[int, ...], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_type("vector", self.vector, Tensor, "a tensor with one value for each channel [K]")
        with torch.inference_mode(False):  # an inference tensor could not be used in a graph
            vector = to_float64(self.vector.detach().clone())
            length = float(vector.norm())
            if vector.ndim != 1 or not 0 < length < float("inf"):
                raise BadTarget(
                    f"vector has shape {tuple(vector.shape)} and length {length:.3g}. Give one finite value for each "
                    "channel [K], not all 0."
                )
            object.__setattr__(self, "vector", vector / length)

    def __repr__(self) -> str:
        return f"Direction(layer={shorten(self.layer)}, {len(self.vector)} channels, at={self.at!r})"

    def values(self, maps: Tensor) -> Tensor:
        return self.activations(maps.movedim(1, -1))

    def activations(self, cells: Tensor) -> Tensor:
        """Return the activation of each cell, from its channels [..., K].

        Errors   BadTarget for another number of channels
        """
        if cells.shape[-1] != len(self.vector):
            raise BadTarget(
                f"The direction has {len(self.vector)} values, but layer {shorten(self.layer)} has {cells.shape[-1]} "
                "channels. Give the layer from which the direction was computed."
            )
        return cells @ self.vector.to(cells)

    def only(self, gradient: Tensor, cells: Tensor) -> Tensor:
        """Return the part of a gradient [..., K] at cells [..., K] that flows through the activation.

            (g · v) ∂a/∂x

        The activation a changes the cell along v, to which the gradient g assigns the effect g · v.
        """
        with torch.enable_grad():
            leaf = cells.detach().requires_grad_()
            activation = self.activations(leaf)
        along = gradient @ self.vector.to(gradient)
        return torch.autograd.grad(activation, leaf, along, materialize_grads=True)[0]


@dataclass(frozen=True)
class Through(Target):
    """`target` with gradients that flow only through the chosen channels of `layer`, or through a direction of it.

    If every path passes through the layer, the maps of all channels sum to the map of the target itself.
    """

    target: TargetLike
    layer: LayerName
    channels: tuple[int, ...] | Direction

    def __init__(self, target: TargetLike, layer: LayerName, channels: int | Sequence[int] | Direction) -> None:
        if isinstance(target, Through):
            raise BadTarget("The target is already a Through. Give through=(layer, channels) for only one layer.")
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "layer", layer)
        object.__setattr__(self, "channels", _chosen(layer, channels))

    def __repr__(self) -> str:
        return f"Through(target={shorten(self.target)}, layer={shorten(self.layer)}, channels={self.channels})"

    def check(self, count: int) -> None:
        if self.target is not None:
            as_target(self.target, count)

    def only(self, gradient: Tensor, output: Tensor, axis: int) -> Tensor:
        """Return the part of the gradient at the layer's output that flows through the channels, which are at `axis`.

        Errors   BadTarget for a channel that does not exist, or a direction with another number of channels
        """
        if isinstance(self.channels, Direction):
            return self.channels.only(gradient.movedim(axis, -1), output.movedim(axis, -1)).movedim(-1, axis)
        count = gradient.shape[axis]
        for channel in self.channels:
            if not 0 <= channel < count:
                raise BadTarget(_no_channel(channel, self.layer, count))
        kept = torch.zeros_like(gradient).movedim(axis, 0)
        chosen = list(dict.fromkeys(self.channels))
        kept[chosen] = gradient.movedim(axis, 0)[chosen]
        return kept.movedim(0, axis)


def _chosen(layer: LayerName, channels: Any) -> tuple[int, ...] | Direction:
    """Return the channels of a `Through` as a tuple, or its direction.

    Errors   BadTarget
    """
    if isinstance(channels, Direction):
        return channels
    one = whole_number(channels)
    chosen = whole_numbers(channels) if one is None else (one,)
    if not chosen:
        raise BadTarget(
            f"channels={shorten(channels)} is not valid. Give one channel of {shorten(layer)}, or several: [17]."
        )
    return chosen


def _no_channel(channel: Any, layer: LayerName, count: int) -> str:
    return f"Channel {shorten(channel)} does not exist: layer {shorten(layer)} has channels 0 to {count - 1}."
