"""What is explained: one scalar score per image, computed from the model's output.

A target is a small frozen dataclass, callable on the model's output, that gives [N]. `fix` turns any form that a
caller may give (None, an int, a list, a Target, a function) into one; classes are fixed once, from the clean images, so
that every noisy or masked variant of an image is scored for the same class.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadTarget
from explainers.options import LayerName

TargetFunction = Callable[[Any], Tensor]
TargetLike = int | Sequence[int] | Tensor | TargetFunction | None


class Target:
    """Base class of all targets."""

    def __call__(self, output: Any) -> Tensor:
        """One score a picture, [N]."""
        raise TypeError(f"{type(self).__name__} does not say how to score an output.")

    def rows(self, pictures: Sequence[int]) -> Target:
        """The same target for a batch whose rows are variants of these images."""
        return self


@dataclass(frozen=True)
class _OfClasses(Target):
    classes: int | tuple[int, ...]

    def __init__(self, classes: int | Sequence[int] | Tensor) -> None:
        object.__setattr__(self, "classes", _class_indices(classes))

    def rows(self, pictures: Sequence[int]) -> Target:
        if isinstance(self.classes, int):
            return self
        return type(self)([self.classes[i] for i in pictures])


class Logit(_OfClasses):
    """The model's own score of a class: an int for all pictures, or one class a picture."""

    def __call__(self, output: Any) -> Tensor:
        """[N], in the model's units (logits)."""
        return _picked(scores_of(output), self.classes)


class Probability(_OfClasses):
    """Softmax probability of a class. It saturates: near 0 and 1 its gradient vanishes, the logit's does not."""

    def __call__(self, output: Any) -> Tensor:
        """[N], in [0, 1]."""
        return _picked(scores_of(output).softmax(1), self.classes)


class LogProbability(_OfClasses):
    """Logarithm of the softmax probability of a class."""

    def __call__(self, output: Any) -> Tensor:
        """[N], at most 0."""
        return _picked(scores_of(output).log_softmax(1), self.classes)


@dataclass(frozen=True)
class Contrast(Target):
    """Logit of `class_` minus the mean logit of `against`: evidence for the one that is not evidence for the others."""

    class_: int
    against: int | tuple[int, ...]

    def __init__(self, class_: int, against: int | Sequence[int]) -> None:
        object.__setattr__(self, "class_", _class_indices(class_))
        object.__setattr__(self, "against", _class_indices(against))

    def __call__(self, output: Any) -> Tensor:
        """[N], in logits."""
        scores = scores_of(output)
        others = (self.against,) if isinstance(self.against, int) else self.against
        for index in (self.class_, *others):
            _picked(scores, index)
        return scores[:, self.class_] - scores[:, list(others)].mean(1)


@dataclass(frozen=True)
class Sum(Target):
    """The sum of several targets."""

    targets: tuple[Target, ...]

    def __init__(self, *targets: Target | int) -> None:
        object.__setattr__(self, "targets", tuple(Logit(t) if isinstance(t, int) else t for t in targets))

    def __call__(self, output: Any) -> Tensor:
        """[N]."""
        return torch.stack([target(output) for target in self.targets]).sum(0)

    def __repr__(self) -> str:
        return f"Sum({', '.join(map(repr, self.targets))})"

    def rows(self, pictures: Sequence[int]) -> Target:
        return Sum(*(each.rows(pictures) for each in self.targets))


@dataclass(frozen=True)
class Unit(Target):
    """The activation of one channel of a layer; the forward pass ends at that layer.

    `at` is a cell (row, column), "max" for the strongest cell of each clean picture, or None for the channel's mean.
    """

    layer: LayerName
    channel: int
    at: tuple[int, int] | str | None = None
    cells: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    def fixed(self, maps: Tensor, count: int) -> Unit:
        """With "max" resolved to the strongest cell of each image, so that its variants are scored at the same one."""
        channel, at = self._channel(maps), self.at
        height, width = channel.shape[1:]
        if at is None:
            return self
        if isinstance(at, str):
            if at != "max":
                raise BadTarget(f"at={at!r} is not possible. Give None, a cell (row, column), or 'max'.")
            peaks = channel.flatten(1).argmax(1).tolist()
            return replace(self, cells=tuple(divmod(peak, width) for peak in peaks))
        if len(at) != 2 or not (0 <= at[0] < height and 0 <= at[1] < width):
            raise BadTarget(
                f"Cell {at} does not exist: layer {self.layer!r} has rows 0 to {height - 1} and columns 0 to "
                f"{width - 1}."
            )
        return replace(self, cells=((int(at[0]), int(at[1])),) * count)

    def __call__(self, output: Any) -> Tensor:
        """[N], in the layer's own units; `output` is the layer's, [N, K, h, w]."""
        channel = self._channel(output)
        if not self.cells:
            return channel.mean((1, 2))
        rows, columns = zip(*self.cells, strict=True)
        return channel[range(len(channel)), rows, columns]

    def rows(self, pictures: Sequence[int]) -> Target:
        return replace(self, cells=tuple(self.cells[i] for i in pictures)) if self.cells else self

    def _channel(self, maps: Tensor) -> Tensor:
        maps = maps[:, :, None, None] if maps.ndim == 2 else maps
        if isinstance(self.channel, bool) or not 0 <= self.channel < maps.shape[1]:
            raise BadTarget(_no_channel(self.channel, self.layer, maps.shape[1]))
        return maps[:, self.channel]


def unit(layer: LayerName, channel: int, at: tuple[int, int] | str | None = None) -> Unit:
    """A target: channel `channel` of `layer`, at a cell (row, column), at its strongest cell ("max"), or its mean.

    Returns  a `Unit`, for every gradient and perturbation method

    Example
        >>> saliency(model, images, unit("layer3", channel=17, at="max")).shape
        torch.Size([1, 3, 224, 224])
    """
    return Unit(layer, channel, at)


@dataclass(frozen=True)
class Through(Target):
    """`target`, with gradients that flow through the chosen channels of `layer` only.

    Where every path passes the layer, the maps of all channels sum to the target's own map.
    """

    target: TargetLike
    layer: LayerName
    channels: tuple[int, ...]

    def __init__(self, target: TargetLike, layer: LayerName, channels: int | Sequence[int]) -> None:
        chosen = (channels,) if isinstance(channels, int) else tuple(channels)
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "layer", layer)
        object.__setattr__(self, "channels", chosen)

    def only(self, gradient: Tensor, axis: int) -> Tensor:
        """The gradient at the layer, zero in all other channels.

        Errors   BadTarget for a channel that does not exist
        """
        count = gradient.shape[axis]
        for channel in self.channels:
            if isinstance(channel, bool) or not isinstance(channel, int) or not 0 <= channel < count:
                raise BadTarget(_no_channel(channel, self.layer, count))
        kept = torch.zeros_like(gradient).movedim(axis, 0)
        chosen = list(dict.fromkeys(self.channels))
        kept[chosen] = gradient.movedim(axis, 0)[chosen]
        return kept.movedim(0, axis)


@dataclass(frozen=True)
class _Function(Target):
    function: TargetFunction

    def __call__(self, output: Any) -> Tensor:
        return self.function(output)

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


def fix(target: TargetLike, output: Any, count: int) -> Target:
    """The target with its classes fixed: None becomes each picture's top class in `output`.

    Errors   BadTarget for a class out of range, a wrong number of classes, or an output that is not [N, K]
    """
    if target is None:
        return Logit(scores_of(output).argmax(1))
    if callable(target):
        if not isinstance(target, Target):
            return _Function(target)
        if isinstance(target, Unit):
            return target.fixed(output, count)
        if not isinstance(target, _OfClasses):
            return target
    else:
        target = Logit(target)
    given = target.classes
    if not isinstance(given, int) and len(given) != count:
        raise BadTarget(
            f"{len(given)} classes were given for {count} image{'s' * (count > 1)}. "
            "Give one class for all (an int) or one for each image."
        )
    _picked(scores_of(output), given)
    return target


def evaluate(target: Target, output: Any, count: int) -> Tensor:
    """The target's [count] scores, checked."""
    scores = target(output)
    if not isinstance(scores, Tensor) or scores.shape != (count,):
        found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise BadTarget(f"The target gave {found}; it must give one score for each image: shape ({count},).")
    return scores


def scores_of(output: Any) -> Tensor:
    """The [N, K] scores in a model's output (a tensor, or what has `logits`, as GoogLeNet's named tuple)."""
    scores = output if isinstance(output, Tensor) else getattr(output, "logits", output)
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        found = (
            f"a tensor of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(output).__name__}"
        )
        raise BadTarget(
            f"The model gave {found}, not scores [N, K]. Give a target function that turns this output into one score "
            "for each image, for example lambda output: output['out'][:, 3].mean((1, 2))."
        )
    return scores


def described(target: Target, count: int) -> list[int] | str:
    """Class indices where the target is plain logits, else its repr."""
    if isinstance(target, Logit):
        return [target.classes] * count if isinstance(target.classes, int) else list(target.classes)
    return repr(target)


def _class_indices(classes: int | Sequence[int] | Tensor) -> int | tuple[int, ...]:
    if isinstance(classes, Tensor):
        if classes.is_floating_point() or classes.dtype == torch.bool or classes.ndim > 1:
            raise BadTarget(
                f"target is a {classes.dtype} tensor of shape {tuple(classes.shape)}; "
                "give class indices as a 1-d LongTensor."
            )
        if classes.ndim == 1 and bool((classes >= 0).all()):
            return tuple(classes.tolist())
        classes = classes.tolist()
    if isinstance(classes, (list, tuple, range)):
        return tuple(_class_index(each, classes) for each in classes)
    return _class_index(classes, classes)


def _class_index(index: Any, given: Any) -> int:
    # `__index__` admits NumPy's integers and single-element integer tensors; a bool is a mistake.
    if isinstance(index, bool) or not hasattr(index, "__index__") or (isinstance(index, Tensor) and index.ndim):
        raise TypeError(
            f"target is {given!r}; give a class index, one index for each image, a Target such as Logit(3), "
            "or a function from the model's output to [N]."
        )
    index = operator.index(index)
    if index < 0:
        raise BadTarget(f"Class {index} is negative; classes count from 0.")
    return index


def _picked(scores: Tensor, classes: int | tuple[int, ...]) -> Tensor:
    """The scores [N] of one class, or of one class a picture.

    Errors   BadTarget for a class that the scores do not have
    """
    count = scores.shape[1]
    if isinstance(classes, int) and classes < count:
        return scores[:, classes]
    for index in (classes,) if isinstance(classes, int) else classes:
        if index >= count:
            raise BadTarget(out_of_range(index, count))
    columns = torch.tensor(classes, device=scores.device).expand(len(scores))
    return scores.gather(1, columns[:, None])[:, 0]


def _no_channel(channel: Any, layer: LayerName, count: int) -> str:
    return f"Channel {channel!r} does not exist: layer {layer!r} has channels 0 to {count - 1}."


def out_of_range(index: int, count: int) -> str:
    return f"Class {index} does not exist: the model gives {count} scores, so classes are 0 to {count - 1}."
