"""What users give: parameters as an optimizer accepts them, by a shell pattern or a layer, and the scaler of the loss.

A `torch.amp.GradScaler` multiplies the loss, and so every gradient. The optimizer divides by the scale after the
backward pass, so hooks receive scaled gradients. A tensor does not show whether its loss was scaled; the scaler is
therefore an option, and it is required if the process has one in use.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from explainers.errors import BadOption, WrongType, shorten
from explainers.hooks.distributed import inspect_wrappers, refuse_sharded
from explainers.hooks.live import LiveInstances
from explainers.hooks.locate import find_hook_point, unwrap
from explainers.options import LayerName

Params = nn.Module | Tensor | Mapping[str, Any] | Iterable[Any]


def gather(params: Params, instead: str) -> dict[str, Tensor]:
    """Return the tensors that require grad, without duplicates, by name or, if unnamed, by index.

    `instead` is what to write if they are sharded.

    Errors   BadOption if no tensor requires grad, or they are sharded over processes; WrongType for other objects
    """
    if isinstance(params, nn.Module):
        inspect_wrappers(params, instead)
    tensors: dict[str, Tensor] = {}
    known: set[int] = set()
    for name, tensor in _named(params):
        if not isinstance(tensor, Tensor):
            raise WrongType(
                f"{shorten(tensor)} is not a tensor. Pass what an optimizer accepts, such as model.parameters()."
            )
        refuse_sharded(tensor, instead)
        if tensor.requires_grad and id(tensor) not in known:
            known.add(id(tensor))
            tensors[name] = tensor
    if not tensors:
        raise BadOption("None of the tensors requires grad, so they have no gradient. Call requires_grad_() on some.")
    return tensors


@contextmanager
def not_sharded_inside(params: Any, instead: str) -> Iterator[None]:
    """Raise an error after the block if it sharded the model, since hooks of the block stay on the old parameters."""
    yield
    if isinstance(params, nn.Module):
        inspect_wrappers(params, f"Shard the model before the block. {instead}")


def _named(params: Params) -> Iterator[tuple[str, Any]]:
    if isinstance(params, nn.Module):
        yield from unwrap(params).named_parameters()
    elif isinstance(params, Tensor):
        yield "0", params
    elif isinstance(params, Mapping):
        yield from params.items()
    elif not isinstance(params, Iterable) or isinstance(params, str):
        raise WrongType(
            f"params={shorten(params)} are not parameters. Pass what an optimizer accepts, such as model.parameters()."
        )
    else:
        for number, item in enumerate(params):
            if isinstance(item, Mapping) and "params" in item:
                yield from ((f"{number}.{name}", tensor) for name, tensor in _named(item["params"]))
            elif isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
                yield item[0], item[1]
            else:
                yield str(number), item


def match_parameters(model: nn.Module, pattern: LayerName, instead: str) -> dict[str, nn.Parameter]:
    """Return the parameters whose dotted names match a shell pattern, or those of a layer, without duplicates.

    `instead` is what to write if they are sharded.

    Errors   BadOption with the three nearest names if no name matches, for a layer without parameters, or if they are
             sharded over processes; LayerNotFound for a module that is not part of the model
    """
    inspect_wrappers(model, instead)
    inner = unwrap(model)
    names = dict(inner.named_parameters(remove_duplicate=False))
    if isinstance(pattern, nn.Module):
        pattern = find_hook_point(inner, pattern).name or "*"
    layers = dict(inner.named_modules(remove_duplicate=False))
    if isinstance(pattern, str) and pattern in layers and next(layers[pattern].parameters(), None) is None:
        raise BadOption(f"Layer {pattern!r} has no parameters. Give a layer that has some, or a shell pattern.")
    unique = {names[name]: name for name in reversed(match_names(pattern, names))}
    return {name: parameter for parameter, name in reversed(unique.items())}


def match_names(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that match a shell pattern, or if there is none, those of parameters of layers that match it.

    Errors   BadOption with the three nearest names if there is no match; WrongType if the pattern is not a string
    """
    if not isinstance(pattern, str):
        raise WrongType(f"{shorten(pattern)} is not a layer or a pattern. Give a name or a shell pattern: 'layer4.*'.")
    names = list(names)
    matches = [name for name in names if fnmatchcase(name, pattern)]
    matches = matches or [name for name in names if any(fnmatchcase(layer, pattern) for layer in _layers_of(name))]
    if not matches:
        layers = [] if set(pattern) & set("*?[") else [layer for name in names for layer in _layers_of(name)]
        known = dict.fromkeys([*layers, *names])
        near = ", ".join(repr(name) for name in difflib.get_close_matches(pattern, known, n=3, cutoff=0.0))
        raise BadOption(
            f"No parameter or layer name matches {shorten(pattern)}. "
            + (f"The nearest names are {near}; '*' matches anything." if near else "There are no parameters.")
        )
    return matches


def _layers_of(name: str) -> list[str]:
    """Return the names of the layers that contain a parameter, the outermost first."""
    parts = name.split(".")[:-1]
    return [".".join(parts[: k + 1]) for k in range(len(parts))]


Scaler = GradScaler | Literal[False] | None

_scalers = LiveInstances(GradScaler)


def scale_of(scaler: Scaler, function: str) -> Callable[[Tensor], Tensor | float]:
    """Return a function that returns the scale of a gradient, which it calls in the backward pass.

    Errors   WrongType if `scaler` is not a GradScaler, False or None; BadOption for None if a scaler is in use, also
             raised by the returned function
    """
    if scaler is not None and scaler is not False and not isinstance(scaler, GradScaler):
        raise WrongType(f"Invalid scaler={scaler!r}. Pass a torch.amp.GradScaler, or False if the loss is not scaled.")

    def check() -> None:
        # A scaler that has not scaled any loss has no tensor for its scale yet.
        if scaler is None and any(each.is_enabled() and each._scale is not None for each in _scalers.get()):
            raise BadOption(
                f"The process uses a torch.amp.GradScaler, so gradients may be scaled. Call {function}(..., "
                "scaler=scaler) to use their unscaled values, or scaler=False if this loss is not scaled."
            )

    def scale(gradient: Tensor) -> Tensor | float:
        check()
        if not isinstance(scaler, GradScaler) or not scaler.is_enabled():
            return 1.0
        # `get_scale` would wait for the device.
        return scaler.scale(torch.ones((), device=gradient.device))

    check()
    return scale
