"""Undo what a call has changed, also if it is interrupted between any two instructions.

A KeyboardInterrupt may arrive after a hook is registered and before its handle is stored, or inside `__enter__` or
`__exit__` of a context manager, whose block then does not run. Two rules make this safe. An `Undo` exists before the
change that it undoes, and may run more than once. A public call restores the caller's state in two nested `finally`
blocks, and a single interrupt can prevent only one of them.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils import _python_dispatch

P = ParamSpec("P")
R = TypeVar("R")


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.pending: dict[int, weakref.ref[Undo]] = {}


_per_thread = _PerThread()
_numbers = itertools.count()


class Undo:
    """Calls `action` once it is called itself, at the end of the public call, or when nothing refers to it anymore.

    `action` must have no effect if there is nothing to undo, and must be able to finish after an interrupt.
    """

    _action: Callable[[], Any] | None = None

    def __init__(self, action: Callable[[], Any]) -> None:
        self._pending, self._number = _per_thread.pending, next(_numbers)
        self._action = action
        self._pending[self._number] = weakref.ref(self)

    def __call__(self) -> None:
        if self._action is not None:
            self._action()
        self._action = None
        self._pending.pop(self._number, None)

    def __del__(self) -> None:
        if self._action is not None:
            self()


class HookStack(ExitStack):
    """An exit stack that runs its `Undo` callbacks also if an interrupt hits another callback, or one of them."""

    def __init__(self) -> None:
        super().__init__()
        self._undos: list[Undo] = []

    def callback(self, callback: Callable[..., Any], /, *args: Any, **keywords: Any) -> Callable[..., Any]:
        if isinstance(callback, Undo):
            self._undos.append(callback)
        return super().callback(callback, *args, **keywords)

    def __exit__(self, *details: Any) -> bool:
        try:
            return bool(super().__exit__(*details))
        finally:
            for undo in self._undos:
                undo()


def undo_hook(owner: Any, table: str, hook: Callable[..., Any]) -> Undo:
    """Return the `Undo` of a hook that is going to be registered in a table of hooks of a module or tensor."""

    def remove() -> None:
        hooks = getattr(owner, table) or {}
        for key, value in list(hooks.items()):
            if value is hook:
                hooks.pop(key, None)

    return Undo(remove)


def ordinary_tensors() -> AbstractContextManager[Any]:
    """Return a context without inference mode, or one that does nothing if it is off already.

    A guard that an interrupt leaves behind would restore the mode much later, when its traceback is freed.
    """
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


class _CallState:
    """The torch state of the calling thread when a public call starts."""

    def __init__(self) -> None:
        self.restored = False
        self.number = next(_numbers)
        self.grad = torch.is_grad_enabled()
        self.function_modes = torch._C._len_torch_function_stack()
        self.dispatch_modes = torch._C._len_torch_dispatch_stack()
        self.autocast = [_autocast(device) for device in _AUTOCAST]
        self.ordinary = torch.inference_mode(False) if torch.is_inference_mode_enabled() else None

    def leave_inference_mode(self) -> None:
        if self.ordinary is not None:
            self.ordinary.__enter__()
            torch.set_grad_enabled(self.grad)

    def restore(self) -> None:
        """Undo what is left of the call, and restore the modes; the second call has no effect."""
        if self.restored:
            return
        pending = _per_thread.pending
        for number in sorted((each for each in tuple(pending) if each > self.number), reverse=True):
            undo = pending[number]()
            if undo is not None:
                undo()
        while torch._C._len_torch_function_stack() > self.function_modes:
            torch._C._pop_torch_function_stack()
        while torch._C._len_torch_dispatch_stack() > self.dispatch_modes:
            _leave_dispatch_mode()
        for device, before in zip(_AUTOCAST, self.autocast, strict=True):
            if _autocast(device) != before:
                torch.set_autocast_enabled(device, before[0])
                torch.set_autocast_dtype(device, before[1])
        guard = getattr(self.ordinary, "_inference_mode_context", None)
        if guard is not None:
            guard.__exit__(None, None, None)  # has no effect the second time
        torch.set_grad_enabled(self.grad)
        self.restored = True


_AUTOCAST = ("cpu", "cuda")


def _autocast(device: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)


def _leave_dispatch_mode() -> None:
    """Leave the innermost dispatch mode, whose own `__enter__` or `__exit__` may have been interrupted."""
    mode: Any
    count, mode = torch._C._len_torch_dispatch_stack(), _python_dispatch._get_current_dispatch_mode()
    try:
        mode.__exit__(None, None, None)
    finally:
        if torch._C._len_torch_dispatch_stack() == count:
            _python_dispatch._pop_mode()


def _close_generators(error: BaseException) -> None:
    """Clear the finished frames of an interrupted call, so that generators in them are closed now.

    The context managers in a suspended generator would restore the modes inside the call when the traceback is freed,
    after the modes of the caller were restored.
    """
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__context__  # type: ignore[assignment]
    if any(not isinstance(each, Exception) for each in chain):
        for each in chain:
            traceback.clear_frames(each.__traceback__)


def restores_state(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function so that it leaves the caller's torch state and context variables as they were."""

    @functools.wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        state = _CallState()
        try:
            try:
                state.leave_inference_mode()
                return contextvars.copy_context().run(function, *args, **keywords)
            except BaseException as error:
                _close_generators(error)
                raise
            finally:
                state.restore()
        finally:
            state.restore()

    return call
