"""Exceptions of the library.

    ExplainerError (ValueError)
    ├── BadImages             images that are not a finite float batch [N, C, H, W]
    ├── BadTarget             a class out of range, a wrong number of targets, scores that are not [N, K]
    ├── BadOption             an option outside its range or choices, or an unknown one
    ├── LayerNotFound         a layer that does not exist or did not run
    ├── LayerRanRepeatedly    a plain name for a module that runs more than once in a forward pass
    ├── NoSpatialOutput       a layer whose output has no height and width
    ├── UnsupportedModel      a scripted, traced or exported network that does not support the hooks a method needs
    ├── UnsupportedOperation  an operation that a modified backward rule does not cover
    └── WrongType             an argument of the wrong type; also a `TypeError`

Every message says what was given, what is accepted, and what to do.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


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


class WrongType(ExplainerError, TypeError):
    """Raised if an argument has the wrong type; also a `TypeError`."""


@contextmanager
def errors_of(what: str) -> Iterator[None]:
    """Say in an error of the block what it is about; an empty text changes nothing."""
    try:
        yield
    except ExplainerError as error:
        if not what:
            raise
        raise type(error)(f"{what}: {error}") from error


def nearest(name: str, names: Iterable[str]) -> str:
    """Return `"Did you mean 'a', 'b' or 'c'? "` with up to three close matches from `names`, or an empty string."""
    found = difflib.get_close_matches(name, list(names), n=3, cutoff=0.4)
    if not found:
        return ""
    quoted = [repr(each) for each in found]
    head = ", ".join(quoted[:-1])
    return f"Did you mean {f'{head} or ' if head else ''}{quoted[-1]}? "


class _Short(reprlib.Repr):
    """`repr` in one line of limited length, in which networks, tensors and arrays appear by class and shape."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr1(self, x: Any, level: int) -> str:
        name = type(x).__name__
        if isinstance(x, type):
            return x.__name__
        if hasattr(x, "named_modules"):
            return f"{name}(...)"
        shape = getattr(x, "shape", None)
        if shape and hasattr(x, "dtype"):
            return f"{'array' if name == 'ndarray' else name} of shape {tuple(shape)}"
        if hasattr(x, "__qualname__"):
            return f"function {x.__qualname__}"
        return " ".join(super().repr1(x, level).split())


def shorten(value: object) -> str:
    """Return `repr(value)` for use in a message: one short line, without the contents of networks and tensors."""
    return _Short().repr(value)


_KINDS = {
    "NoneType": "None",
    "ndarray": "a NumPy array",
    "function": "a function",
    "builtin_function_or_method": "a function",
}


def kind_of(value: object) -> str:
    """Return what a value is, with its article: "a list", "an int", "a NumPy array", "None", "the class ResNet"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    if type(value).__module__.startswith("PIL."):
        return "a Pillow image"
    return _KINDS.get(name) or f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def check_type(name: str, value: object, wanted: type | tuple[type, ...], what: str) -> None:
    """Check the type of an argument; `what` says what to give instead.

    Errors   WrongType
    """
    if not isinstance(value, wanted):
        raise wrong_type(name, value, what)


def wrong_type(name: str, value: object, what: str) -> WrongType:
    """Return the error for an argument of a wrong type; `what` says what to give instead."""
    return WrongType(f"{name} is {kind_of(value)}. Give {what}.")


def no_module(model: object) -> WrongType:
    """Return the error for a model that is not an nn.Module, or a module that only contains the network."""
    parts = {name: getattr(model, name, None) for name in ("model", "network", "net", "module")}
    networks = (name for name, part in parts.items() if hasattr(part, "named_modules") and not isinstance(part, type))
    inner = next(networks, None)
    is_module = hasattr(type(model), "named_modules")
    given = f"model is {kind_of(model)}" + (" without a forward method" if is_module else "")
    if inner is not None:
        return WrongType(f"{given}, which contains the network. Pass the network itself: model.{inner}.")
    return WrongType(f"{given}; give an nn.Module that maps images [N, C, H, W] to scores [N, K].")


_OUT_OF_MEMORY = (
    "out of memory",  # the allocators of CUDA, MPS ("MPS backend out of memory") and XPU
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "status_alloc_failed",  # cuDNN and cuBLAS, which allocate their own workspace
    "unable to find an engine to execute",  # cuDNN, if no engine's workspace fits
    "unable to find a valid cudnn algorithm",
    "out_of_device_memory",  # Level Zero, below XPU
    "out_of_resources",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out: a dedicated exception class, or a RuntimeError with a message of an allocator.

    Methods then try smaller batches. The error is raised if a single row does not fit.

    Example
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError("out of memory"))
        (True, False)
    """
    message = str(error).lower()
    is_memory_error = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_memory_error or (isinstance(error, RuntimeError) and any(phrase in message for phrase in _OUT_OF_MEMORY))
