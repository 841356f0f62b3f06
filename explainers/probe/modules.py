"""What a network has that may need the guard: modules that are not registered, and buffers that it may write."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn


def find_unregistered(model: nn.Module) -> list[nn.Module]:
    """Return the modules that the attributes of a model's modules refer to, but that are not registered in it.

    Containers, partial objects, functions with their closures and defaults, and instances of ordinary classes are
    searched. The number of visited values is limited.
    """
    registered = {id(module) for module in model.modules()}
    found: dict[int, nn.Module] = {}
    seen: dict[int, Any] = {}
    queue = [value for module in model.modules() for name, value in module.__dict__.items() if name not in _TABLES]
    for value in queue:  # grows during iteration
        if isinstance(value, _PLAIN) or id(value) in seen or len(seen) > _MOST_VALUES:
            continue
        seen[id(value)] = value
        if isinstance(value, nn.Module):
            if id(value) not in registered:
                found.update((id(module), module) for module in value.modules())
        else:
            queue.extend(_parts(value))
    return list(found.values())


_TABLES = ("_modules", "_parameters", "_buffers")
_PLAIN = (str, int, float, complex, bytes, bool, type(None), type, Tensor, torch.dtype, torch.device, types.ModuleType)
_MOST_VALUES = 20_000


def _parts(value: Any) -> Iterable[Any]:
    """Return the values to which a value refers."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if isinstance(value, types.MethodType):
        return value.__self__, value.__func__
    if isinstance(value, types.FunctionType):
        return [*_contents(value), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    return list(getattr(value, "__dict__", {}).values())


def _contents(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a variable that is not assigned yet
            yield cell.cell_contents


def may_write(module: nn.Module) -> bool:
    """Return whether the forward pass of a module could write to its buffers in evaluation mode."""
    if isinstance(module, torch.jit.ScriptModule):
        return bool(module._buffers)
    # An exported graph keeps its buffers in modules of the class nn.Module.
    is_ordinary = type(module) is not nn.Module and type(module).__module__.startswith("torch.nn.")
    return not is_ordinary and bool(module.__dict__.get("_buffers"))
