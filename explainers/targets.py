"""Targets: the scalar score per image that a method explains, computed from the model's output.

A target is a small frozen dataclass that maps the model's output to scores [N]. `as_target` converts the forms that a
caller may give (an int, a list, a Target, a function); default_targets.py chooses one if none is given. Classes are
fixed once, from the clean images, so that every noisy or masked variant of an image is scored for the same class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadTarget, WrongType, shorten
from explainers.options import LayerName, whole_number, whole_numbers
from explainers.outputs import no_scores, scores_in

TargetFunction = Callable[[Any], Tensor]
TargetLike = int | Sequence[int] | Tensor | TargetFunction | None


class Target:
    """Base class of all targets."""

    @property
    def reads_probability(self) -> bool:
        """Whether the target needs to know how the network's scores become probabilities."""
        return False

    def __call__(self, output: Any) -> Tensor:
        """Return one score per image, [N]."""
        raise WrongType(f"{type(self).__name__} does not define __call__, which scores an output.")

    def rows(self, image_indices: Sequence[int]) -> Target:
        """Return the same target for a batch whose row b is a variant of image `image_indices[b]`."""
        return self

    def with_score(self, score: str | None) -> Target:
        """Return the same target for a network whose scores become probabilities by `score`, unless it has its own."""
        return self

    def check(self, count: int) -> None:
        """Check, before any computation, that the target has one score for each of `count` images.

        Errors   BadTarget
        """


ThroughLike = tuple[LayerName, int | Sequence[int]] | Target
"""A layer and one or more of its channels, `through=("layer3", [17])`, or a `Direction` or `Concept` of a layer."""


@dataclass(frozen=True)
class OfClasses(Target):
    """A target that reads one class for all images, or one class per image."""

    classes: int | tuple[int, ...]

    def __init__(self, classes: int | Sequence[int] | Tensor) -> None:
        object.__setattr__(self, "classes", class_indices(classes))

    def rows(self, image_indices: Sequence[int]) -> Target:
        if isinstance(self.classes, int):
            return self
        return replace(self, classes=tuple(self.classes[i] for i in image_indices))

    def check(self, count: int) -> None:
        if not isinstance(self.classes, int) and len(self.classes) != count:
            raise count_mismatch(f"{len(self.classes)} classes were", count, "one class for all (an int)")


class Logit(OfClasses):
    """The model's score of a class: an int for all images, or one class per image."""

    def __call__(self, output: Any) -> Tensor:
        """Return the scores [N], in the model's units (logits)."""
        return select(scores_of(output), self.classes)


@dataclass(frozen=True)
class _Function(Target):
    function: TargetFunction

    def __call__(self, output: Any) -> Tensor:
        return self.function(output)

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", None) or shorten(self.function)


def as_target(target: Any, count: int | None = None) -> Target:
    """Convert a class, several classes, a target or a function to a `Target`, checked for `count` images if given.

    Errors   WrongType for anything else; BadTarget for invalid classes, or a number of classes other than `count`
    """
    if isinstance(target, type):
        raise WrongType(f"target is the class {target.__name__}; give an instance, such as Logit(3).")
    if not callable(target):
        target = Logit(target)
    elif not isinstance(target, Target):
        return _Function(target)
    is_valid = isinstance(target, Logit) and (isinstance(target.classes, int) or len(target.classes) == count)
    if count is not None and not is_valid:
        target.check(count)
    return target


def evaluate(target: Target, output: Any, count: int) -> Tensor:
    """Compute the target's scores [count] and check their shape."""
    scores = target(output)
    if not isinstance(scores, Tensor) or scores.shape != (count,):
        found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise BadTarget(f"The target returned {found}; it must return one score for each image: shape ({count},).")
    return scores


def describe_target(target: Target, count: int) -> list[int] | str:
    """Return class indices if the target is a `Logit`, else its repr."""
    if isinstance(target, Logit):
        return [target.classes] * count if isinstance(target.classes, int) else list(target.classes)
    return repr(target)


def count_mismatch(given: str, count: int, instead: str) -> BadTarget:
    """Return the error for a number of classes, embeddings or masks that differs from the number of images."""
    return BadTarget(f"{given} given for {count} image{'s' * (count > 1)}. Give {instead} or one for each image.")


def class_indices(classes: Any) -> int | tuple[int, ...]:
    """Convert integers, sequences, tensors and arrays to one class for all images, or one class per image.

    Errors   BadTarget for a negative class or a tensor that does not hold class indices; WrongType for anything else
    """
    if type(classes) is int and classes >= 0:
        return classes
    if isinstance(classes, Tensor):
        if classes.is_floating_point() or classes.dtype == torch.bool or classes.ndim > 1 or classes.is_meta:
            raise BadTarget(
                f"target is a {classes.dtype} tensor of shape {tuple(classes.shape)} on {classes.device}; "
                "give class indices as a 1-d LongTensor."
            )
        if classes.ndim == 1 and min(indices := classes.tolist(), default=0) >= 0:
            return tuple(indices)
    one = whole_number(classes)
    several = whole_numbers(classes) if one is None else (one,)
    if several is None:
        raise WrongType(
            f"target is {shorten(classes)}; give a class index, one index for each image, a Target such as Logit(3), "
            "or a function from the model's output to [N]."
        )
    for index in several:
        if index < 0:
            raise BadTarget(f"Class {index} is negative. Give class indices from 0.")
    return several if one is None else one


def select(scores: Tensor, classes: int | tuple[int, ...]) -> Tensor:
    """Return the scores [N] of one class, or of one class per image.

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


def out_of_range(index: int, count: int) -> str:
    return f"Class {index} does not exist: the model returns {count} scores, so classes are 0 to {count - 1}."


def scores_of(output: Any) -> Tensor:
    """Return the scores [N, K] of a model's output: a tensor, or an object with `logits` (GoogLeNet's named tuple).

    Errors   BadTarget, which suggests a target function for this output
    """
    scores = output if isinstance(output, Tensor) else scores_in(output)
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        raise no_scores(output)
    return scores
