"""What the library refuses, as one small tree.

    ExplainerError (ValueError)
    ├── BadImages             images that are not a finite float batch [N, C, H, W]
    ├── BadTarget             a class out of range, a wrong number of targets, scores that are not [N, K]
    ├── BadOption             an option outside its range or choices, or an unknown one
    ├── LayerNotFound         no such layer, or it never ran
    ├── LayerRanRepeatedly    a plain name where the module runs more than once in a forward pass
    ├── NothingSpatial        a layer without height and width to draw a map on
    ├── UnsupportedModel      scripted, traced or exported networks where inner hooks are needed
    └── UnsupportedOperation  an operation that a modified backward rule does not cover

Every message says what was given, what is possible, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ExplainerError(ValueError):
    """Base of all refusals; a `ValueError`."""


class BadImages(ExplainerError):
    """The images are not a finite float batch [N, C, H, W]."""


class BadTarget(ExplainerError):
    """The target does not fit the model's scores or the number of images."""


class BadOption(ExplainerError):
    """An option is unknown, or outside its range or choices."""


class LayerNotFound(ExplainerError):
    """No layer of that name, or it did not run in this forward pass."""


class LayerRanRepeatedly(ExplainerError):
    """The module runs more than once in a forward pass, so a plain name is ambiguous."""


class NothingSpatial(ExplainerError):
    """The layer's output has no height and width."""


class UnsupportedModel(ExplainerError):
    """The kind of model (scripted, traced, exported) does not allow what the method needs."""


class UnsupportedOperation(ExplainerError):
    """A modified backward rule is not defined for an operation of the network."""


def nearest(name: str, names: Iterable[str]) -> str:
    """`"Did you mean 'a', 'b' or 'c'? "` with the up to three nearest of `names`; empty where there are none."""
    found = difflib.get_close_matches(name, list(names), n=3, cutoff=0.4)
    if not found:
        return ""
    quoted = [repr(each) for each in found]
    head = ", ".join(quoted[:-1])
    return f"Did you mean {f'{head} or ' if head else ''}{quoted[-1]}? "


def no_module(model: object) -> TypeError:
    """The error for a model that is none."""
    return TypeError(
        f"model is a {type(model).__name__}; give an nn.Module that maps images [N, C, H, W] to scores [N, K]."
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: a class of its own on accelerators, words of the allocator on the CPU."""
    sentence = str(error).lower()
    words = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and any(word in sentence for word in words))
