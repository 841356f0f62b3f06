"""Class indices: their conversion and checks, and the scores of chosen classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadTarget, WrongType, shorten
from explainers.options import whole_number, whole_numbers


def count_mismatch(given: str, count: int, instead: str) -> BadTarget:
    """Return the error for a number of classes, embeddings or masks that differs from the number of images."""
    return BadTarget(f"{given} given for {count} image{'s' * (count > 1)}. Give {instead} or one for each image.")


def class_indices(classes: Any) -> int | tuple[int, ...]:
    """Convert integers, sequences, tensors and arrays to one class for all images, or one class per image.

    Errors   BadTarget for a negative class or a tensor that does not hold class indices; WrongType for anything else
    """
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
