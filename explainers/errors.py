"""Exceptions of the library.

    ExplainerError (ValueError)
    ├── BadImages             images that are not a finite float batch [N, C, H, W]
    ├── BadTarget             a class out of range, a wrong number of targets, scores that are not [N, K]
    ├── BadOption             an option outside its range or choices, or an unknown one
    ├── LayerNotFound         a layer that does not exist or did not run
    ├── LayerRanRepeatedly    a plain name for a module that runs more than once in a forward pass
    ├── NoSpatialOutput       a layer whose output has no height and width
    ├── UnsupportedModel      a scripted, traced or exported network that does not support the hooks a method needs
    └── UnsupportedOperation  an operation that a modified backward rule does not cover

Every message says what was given, what is accepted, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ExplainerError(ValueError):
    """Base class of the library's exceptions; a `ValueError`."""


class BadImages(ExplainerError):
    """Raised if the images are not a finite float batch [N, C, H, W]."""


class BadTarget(ExplainerError):
    """Raised if the target does not match the model's scores or the number of images."""


class BadOption(ExplainerError):
    """Raised if an option is unknown, or outside its range or choices."""


class LayerNotFound(ExplainerError):
    """Raised if no layer has that name, or if it did not run in this forward pass."""


class LayerRanRepeatedly(ExplainerError):
    """Raised if a plain name is ambiguous because the module runs more than once in a forward pass."""


class NoSpatialOutput(ExplainerError):
    """Raised if the layer's output has no height and width."""


class UnsupportedModel(ExplainerError):
    """Raised if the kind of model (scripted, traced, exported) does not support what the method needs."""


class UnsupportedOperation(ExplainerError):
    """Raised if a modified backward rule is not defined for an operation of the network."""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return `"Did you mean 'a', 'b' or 'c'? "` with up to three close matches from `names`, or an empty string."""
    found = difflib.get_close_matches(name, list(names), n=3, cutoff=0.4)
    if not found:
        return ""
    quoted = [repr(each) for each in found]
    head = ", ".join(quoted[:-1])
    return f"Did you mean {f'{head} or ' if head else ''}{quoted[-1]}? "


def no_module(model: object) -> TypeError:
    """Return the error for a model that is not an nn.Module."""
    return TypeError(
        f"model is a {type(model).__name__}; give an nn.Module that maps images [N, C, H, W] to scores [N, K]."
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out: a dedicated exception class on accelerators, an allocator message on the CPU."""
    message = str(error).lower()
    phrases = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
    is_memory_error = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_memory_error or (isinstance(error, RuntimeError) and any(phrase in message for phrase in phrases))
