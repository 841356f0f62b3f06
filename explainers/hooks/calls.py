"""Register hooks on modules, and count the calls of each module within one forward pass and thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from explainers.hooks.locate import HookPoint
from explainers.hooks.records import only_tensor, with_only_tensor

_THREAD = "_explainers_thread"
"""Attribute of each hook: the thread in which it acts."""
Edit = Callable[[Any], Any]
"""Receives a value and returns its replacement; None keeps the value."""


class Calls:
    """Count the calls of each hooked module within one forward pass of the model, in the thread that created this.

    The hooks are removed when `stack` is closed; `on_start` is called when a forward pass of the model starts.
    """

    def __init__(self, model: nn.Module, stack: ExitStack, on_start: Callable[[], None] | None = None) -> None:
        self.thread = threading.get_ident()
        self.counts: dict[int, int] = {}
        self._on_start = on_start

        def start(module: nn.Module, inputs: Any) -> None:
            if threading.get_ident() == self.thread:
                self.counts.clear()
                if self._on_start:
                    self._on_start()

        vars(start)[_THREAD] = self.thread
        stack.callback(model.register_forward_pre_hook(start, prepend=True).remove)

    def before(self, stack: ExitStack, point: HookPoint, act: Callable[[int, tuple[Any, ...]], Any]) -> None:
        """Call `act(k, inputs)` before each call k of the point's module, or only before the call it names."""
        thread, counts, key = self.thread, self.counts, -1 - id(act)

        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
            if threading.get_ident() != thread:
                return None
            k = counts.get(key, 0)
            counts[key] = k + 1
            return act(k, inputs) if point.call in (None, k) else None

        vars(hook)[_THREAD] = thread
        stack.callback(point.module.register_forward_pre_hook(hook).remove)

    def after(self, stack: ExitStack, point: HookPoint, act: Callable[[int, Any], Any]) -> None:
        """Call `act(k, output)` after each call k of the point's module, or only after the call it names."""
        thread, counts, key = self.thread, self.counts, id(act)

        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
            if threading.get_ident() != thread:
                return None
            k = counts.get(key, 0)
            counts[key] = k + 1
            return act(k, output) if point.call in (None, k) else None

        vars(hook)[_THREAD] = thread
        stack.callback(point.module.register_forward_hook(hook).remove)


def active_hooks(hooks: Mapping[int, Any]) -> dict[int, Any]:
    """Return the hooks of a module without those of calls in other threads, which do nothing in this one."""
    here = threading.get_ident()
    return {key: hook for key, hook in dict(hooks).items() if getattr(hook, _THREAD, here) == here}


def inner_points(network: nn.Module) -> list[HookPoint]:
    """Return the points of all modules inside a network except for compiled code, in which no hook fires."""
    modules = network.named_modules()
    return [HookPoint(name, each) for name, each in modules if name and not isinstance(each, torch.jit.ScriptModule)]


@contextmanager
def replaced_outputs(network: nn.Module, edits: Iterable[tuple[HookPoint, Edit]]) -> Iterator[None]:
    """Replace the output of each point by the result of its function inside the block; points belong to `network`.

    If an output contains a single tensor, such as a tuple of a tensor and None, the function receives that tensor and
    returns its replacement.
    """
    with ExitStack() as stack:
        calls = Calls(network, stack)
        for point, edit in edits:
            calls.after(stack, point, lambda k, out, e=edit: e(out) if isinstance(out, Tensor) else _inside(out, e))  # type: ignore[misc]
        yield


def _inside(output: Any, edit: Edit) -> Any:
    tensor = only_tensor(output)
    return edit(output) if tensor is None else with_only_tensor(output, edit(tensor))
