"""A shallow copy of a network in evaluation mode: new module objects that share every parameter and buffer.

References to modules of the network lead to their copies in the copy: in lists and dicts of stages, bound methods,
`functools.partial` objects, closures and hooks. An instance may replace its `forward` by any of them. References that
are not recognized still lead to the original; original_modules.py detects whether the network uses them.
"""

from __future__ import annotations

import copy
import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import UnsupportedModel
from explainers.hooks.calls import active_hooks
from explainers.hooks.locate import unwrap

Parameters = Callable[[nn.Module], Mapping[str, Tensor | None]]
"""Returns the parameters of a module's copy by name."""


def shallow_copy(
    model: nn.Module, parameters: Parameters | None = None, copies: dict[int, nn.Module] | None = None
) -> nn.Module:
    """Copy the module tree in evaluation mode. Only inference tensors, which autograd does not accept, are copied.

    The user's backward hooks are not copied. `parameters` returns the parameters of each module's copy, if they are
    not those of the module. The copies are added to `copies` by id of the original.

    Errors   UnsupportedModel if a scripted part is in training mode
    """
    found: dict[int, nn.Module] = {} if copies is None else copies
    whole = _Copies(parameters, found).copy(model)
    follow = _Follow(found)
    for twin in found.values():
        for name, value in twin.__dict__.items():
            if type(value) not in _PLAIN and name not in ("_modules", "_parameters", "_buffers"):
                twin.__dict__[name] = follow(value)
    return whole


class _Copies:
    """Copies of modules by id of the original. Nothing refers to it in a cycle, so copied tensors are freed at once."""

    def __init__(self, parameters: Parameters | None, found: dict[int, nn.Module]) -> None:
        self.parameters, self.found = parameters, found

    def copy(self, module: nn.Module) -> nn.Module:
        if self.found and isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            self.found[id(module)] = _OneDevice(self.copy(module.module))
            return self.found[id(module)]
        module = unwrap(module)
        if id(module) in self.found:
            return self.found[id(module)]
        if isinstance(module, torch.jit.ScriptModule):
            if self.found:  # a part; the mode of a network that is scripted as a whole is checked elsewhere
                _refuse_training(module)
            return self._scripted(module)
        twin = self.found[id(module)] = object.__new__(type(module))
        twin.__dict__.update(module.__dict__)
        twin.__dict__.update(training=False, _compiled_call_impl=None)
        for name, value in module.__dict__.items():
            if name in ("_parameters", "_buffers"):
                table = self.parameters(module) if self.parameters and name == "_parameters" else value
                twin.__dict__[name] = {key: _ordinary(tensor) for key, tensor in table.items()}
            elif name in ("_backward_hooks", "_backward_pre_hooks"):
                twin.__dict__[name] = type(value)()
            elif name.endswith("_hooks") and isinstance(value, dict):  # some networks use such names
                own = twin.__dict__[name] = value.copy()
                for key in own.keys() - active_hooks(own).keys():
                    del own[key]
        children = module._modules.items()
        twin._modules = {name: child if child is None else self.copy(child) for name, child in children}
        return twin

    def _scripted(self, module: torch.jit.ScriptModule) -> nn.Module:
        """Return a deep copy: compiled code reads its own tensors, and has no hooks."""
        twin: nn.Module = copy.deepcopy(module)
        self.found.update(zip(map(id, module.modules()), twin.modules(), strict=True))
        return twin


class _OneDevice(nn.Module):
    """Runs a part of a network that the original runs on several devices; the layers in it keep their names."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.training = module, False

    def forward(self, *args: Any, **keywords: Any) -> Any:
        return self.module(*args, **keywords)


def _refuse_training(module: torch.jit.ScriptModule) -> None:
    if any(getattr(each, "training", False) for each in module.modules()):
        raise UnsupportedModel(
            "A scripted part of the model is in training mode, which cannot be changed for one call. Call model.eval() "
            "first."
        )


def _ordinary(tensor: Tensor | None) -> Tensor | None:
    """Return the tensor, or a copy that autograd accepts if it was created in inference mode."""
    if tensor is None or not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        return tensor.detach().clone()


class _Follow:
    """Replace the modules of `copies`, by id of the original, in a value; return the value itself if it has none."""

    def __init__(self, copies: Mapping[int, nn.Module]) -> None:
        self.copies = copies
        self.found: dict[int, tuple[Any, Any]] = {}
        """Value and replacement by id; the value is kept, so that no other one gets its id."""

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or (kind in _CONTAINERS and not value):
            return value
        if isinstance(value, nn.Module):
            return self.copies.get(id(unwrap(value)), value)
        if id(value) not in self.found:
            self.found[id(value)] = value, value  # a value that contains itself keeps this reference
            self.found[id(value)] = value, self._replace(value)
        return self.found[id(value)][1]

    def _replace(self, value: Any) -> Any:
        if isinstance(value, types.MethodType):
            owner, own = self(value.__self__), self(value.__func__)
            return value if owner is value.__self__ and own is value.__func__ else types.MethodType(own, owner)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, functools.partial):
            function, args, keywords = self(value.func), self(value.args), self(value.keywords)
            if function is value.func and args is value.args and keywords is value.keywords:
                return value
            return functools.partial(function, *args, **keywords)
        if type(value) in (list, tuple):
            items = [item if type(item) in _PLAIN else self(item) for item in value]
            return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
        if type(value) in (dict, OrderedDict):  # tables of hooks are ordered
            entries = [(key, self(item)) for key, item in value.items()]
            return value if all(value[key] is item for key, item in entries) else type(value)(entries)
        return value

    def _function(self, function: types.FunctionType) -> Callable[..., Any]:
        """Return the function with the copies in its closure and defaults; a compiled function runs uncompiled."""
        compiled = getattr(function, "_torchdynamo_orig_callable", None)
        if compiled is not None:
            replaced: Callable[..., Any] = self(compiled)
            return replaced
        cells = tuple(map(self._cell, function.__closure__ or ()))
        defaults, named = self(function.__defaults__), self(function.__kwdefaults__)
        same = all(a is b for a, b in zip(cells, function.__closure__ or (), strict=True))
        if same and defaults is function.__defaults__ and named is function.__kwdefaults__:
            return function
        copy = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells or None)
        copy.__kwdefaults__ = named
        copy.__dict__.update(function.__dict__)
        return copy

    def _cell(self, cell: types.CellType) -> types.CellType:
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            return cell
        followed = self(value)
        return cell if followed is value else types.CellType(followed)


_PLAIN = frozenset({bool, int, float, str, type(None), Tensor, nn.Parameter})
_CONTAINERS = frozenset({dict, OrderedDict, list, tuple})
