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
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from explainers.errors import UnsupportedModel
from explainers.hooks.distributed import ORDINARY_COPY


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
            raise UnsupportedModel(
                f"{self.kind} runs a {type(module).__name__} in training mode that is not registered as a submodule "
                "(it is kept in a list, a closure or another object), so model.eval() does not change its mode. "
                "Register it as a submodule, for example in an nn.ModuleList, and call model.eval(), or call eval() on "
                "it directly."
            )

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


@functools.lru_cache(maxsize=512)
def _module_names(code: types.CodeType) -> tuple[str | None, tuple[str, ...]]:
    """Return the first argument of a function, and the free and global variables that it reads."""
    first = code.co_varnames[0] if code.co_argcount else None
    loaded = (each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
    return first, (*code.co_freevars, *dict.fromkeys(loaded))
