"""Detect that a copy of a network runs modules of the original, or modules that are not registered in it.

A copy in evaluation mode is only right if its forward pass runs nothing but the copy's modules. An original in training
mode would drop activations at random and update the running statistics of the user's batch norms. References that
cannot be replaced in a copy (in an object, a global variable, a weak reference) are noticed when they are used: during
the first forward pass, every torch function checks which modules its callers belong to before it runs.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from explainers.errors import UnsupportedModel
from explainers.hooks.distributed import ORDINARY_COPY

_REGISTER = (
    "Register it as a submodule, for example in an nn.ModuleList, and call model.eval(), or call eval() on it directly."
)


def guard_first_pass(network: nn.Module, model: nn.Module, *, sharded: bool = False) -> None:
    """Let the first complete forward pass of `network`, a copy of `model`, refuse modules that it must not run.

    The pass raises UnsupportedModel before the first operation of such a module.
    """
    names = {id(module): name for name, module in model.named_modules()}
    own, here = network.__dict__.get("forward"), weakref.ref(network)

    def guarded(*args: Any, **keywords: Any) -> Any:
        copy = here()
        assert copy is not None, "it is running"
        with _Watch(type(model).__name__, names, sharded=sharded):
            output = type(copy).forward(copy, *args, **keywords) if own is None else own(*args, **keywords)
        copy.__dict__.pop("forward", None)
        if own is not None:
            copy.__dict__["forward"] = own
        return output

    network.__dict__["forward"] = guarded


def run_copy(network: nn.Module, model: nn.Module, images: Tensor) -> Any:
    """Run `network`, a copy of `model`, and refuse all modules with parameters or buffers that are not part of it.

    Errors   UnsupportedModel
    """
    names = {id(module): name for name, module in model.named_modules()}
    with _Watch(type(model).__name__, names, frozenset(map(id, network.modules()))):
        return network(images)


class _Watch(TorchFunctionMode):
    """Check the callers of the calling thread's torch functions, up to the function that creates the mode.

    `names` are the names of the original's modules by id. If the ids of the copy's modules are given, no other module
    with weights may run; otherwise modules may run that are in evaluation mode, uncompiled and without backward hooks.
    """

    def __init__(
        self, kind: str, names: Mapping[int, str], copies: frozenset[int] | None = None, *, sharded: bool = False
    ) -> None:
        super().__init__()
        self.kind, self.names, self.copies, self.sharded = kind, names, copies, sharded
        self.outermost = sys._getframe(1).f_code

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code is not self.outermost:
            self._check(frame)
            frame = frame.f_back  # type: ignore[assignment]
        return func(*args, **(kwargs or {}))

    def _check(self, frame: types.FrameType) -> None:
        first, names = _module_names(frame.f_code)
        reads_mode = "training" in frame.f_code.co_names
        if first is not None:
            self._judge(frame.f_locals.get(first), reads_mode)
        if reads_mode:  # a function may read the mode of a module without calling it
            for name in names:
                self._judge(frame.f_locals.get(name, frame.f_globals.get(name)), True)

    def _judge(self, module: Any, reads_mode: bool) -> None:
        if not isinstance(module, nn.Module):
            return
        if self.copies is not None:
            if id(module) not in self.copies and (module._parameters or module._buffers):
                raise UnsupportedModel(
                    f"The copy of the network runs {self._describe(module)}, not the copy of it, so its weights cannot "
                    "be randomized. Give a network whose forward uses self and its registered submodules."
                )
        elif id(module) in self.names:
            if reason := _SHARDED if self.sharded else why_copied(module):
                raise UnsupportedModel(
                    f"{self.kind} {reason[0]}, and an explanation runs a copy of it, but the copy's forward uses "
                    f"{self._describe(module)}. {reason[1]}"
                )
        elif module.training and reads_mode:
            raise UnsupportedModel(unregistered(self.kind, module))

    def _describe(self, module: nn.Module) -> str:
        kind = type(module).__name__
        if id(module) not in self.names:
            return f"a {kind} that is not registered as a submodule"
        name = self.names[id(module)]
        return f"the original's layer {name!r} ({kind})" if name else f"the original {kind}"


_SHARDED = "is sharded over processes", ORDINARY_COPY


def why_copied(module: nn.Module) -> tuple[str, str] | None:
    """Return why an explanation runs a copy of the module, and how to avoid this; None if it runs the module itself."""
    own = module.__dict__
    if module.training:
        return "is in training mode", "Call model.eval() first."
    if own.get("_compiled_call_impl") is not None:
        return "is compiled", "Pass the model as it was before compilation."
    if own.get("_backward_hooks") or own.get("_backward_pre_hooks"):
        return "has backward hooks", "Remove them first."
    return None


def unregistered(kind: str, module: nn.Module) -> str:
    """Return the message for a module in training mode that `model.eval()` does not reach."""
    return (
        f"{kind} runs a {type(module).__name__} in training mode that is not registered as a submodule (it is kept in "
        f"a list, a closure or another object), so model.eval() does not change its mode. {_REGISTER}"
    )


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


@functools.lru_cache(maxsize=512)
def _module_names(code: types.CodeType) -> tuple[str | None, tuple[str, ...]]:
    """Return the first argument of a function, and the free and global variables that it reads."""
    first = code.co_varnames[0] if code.co_argcount else None
    loaded = (each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
    return first, (*code.co_freevars, *dict.fromkeys(loaded))
