"""The settings of a network's modules, to notice that it was changed after its profile was cached.

A changed stride, depth or configuration changes the shapes of later layers without replacing a module. Reading the
settings takes about a microsecond per module, a forward pass much longer. The user's hooks are not settings, since most
of them only look; a hook that changes the size of a layer is noticed when the layer's output is read. Values of tensors
are read only if a network moves its image by them, as by a learned warp.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from explainers.network.dtypes import to_cpu_float64

Settings = list[Any]
"""Values of attributes, shapes and ids, in a fixed order; no references to modules or tensors."""

INTERNAL = frozenset(vars(nn.Module()))
PLAIN = frozenset({bool, int, float, str, type(None), torch.dtype})
_MOST_NUMBERS = 2**16
"""Size of tensors whose values are read."""
_MOST_ITEMS, _MOST_LEVELS, _MOST_VALUES = 200, 3, 1000


def read_settings(modules: Iterable[nn.Module]) -> Settings:
    """Return the settings of the modules: plain attributes, configurations, shapes of parameters."""
    found: Settings = []
    known: dict[int, Any] = {}
    for module in modules:
        table = module.__dict__
        kind = type(module)
        found.append((id(kind), None if isinstance(module, torch.jit.ScriptModule) else id(kind.forward)))
        found += [
            value if type(value) in PLAIN else summary(value, known)
            for name, value in table.items()
            if name not in INTERNAL
        ]
        for name in ("_parameters", "_buffers"):
            if tensors := table.get(name):
                found += [None if tensor is None else tensor.shape for tensor in tensors.values()]
    return found


def read_values(modules: Iterable[nn.Module]) -> list[float]:
    """Return a number for each small parameter and buffer, which depends on all of its values."""
    found = []
    for module in modules:
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is None or tensor.is_meta or tensor.is_quantized or tensor.layout != torch.strided:
                continue
            if 0 < tensor.numel() <= _MOST_NUMBERS:
                values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
                values = to_cpu_float64(values.detach()).flatten()
                found.append(float(values @ torch.arange(1.0, len(values) + 1, dtype=torch.float64)))
    return found


def summary(value: Any, known: dict[int, Any], level: int = 0) -> Any:
    """Return a comparable value without references to modules or tensors; objects that are shared are read once."""
    if type(value) is tuple:
        try:
            return hash(value)
        except TypeError:  # a tuple of lists
            pass
    if type(value) in PLAIN:
        return value
    if isinstance(value, Tensor):
        return value.shape
    if isinstance(value, nn.Module) or level >= _MOST_LEVELS or len(known) >= _MOST_VALUES:
        return id(value)
    if id(value) not in known:
        known[id(value)] = id(value)  # a value that contains itself
        if isinstance(value, dict):
            parts: list[Any] = [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            parts = list(value)
        else:
            parts = list(getattr(value, "__dict__", {}).values())
        short = parts if len(parts) <= _MOST_ITEMS else [len(parts)]
        own = [] if isinstance(value, (dict, list, tuple)) else [id(value)]
        known[id(value)] = own + [summary(part, known, level + 1) for part in short]
    return known[id(value)]
