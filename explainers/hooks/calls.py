"""The calls of a layer within one forward of the model, in one thread: where every hook on a module begins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import nn

from explainers.hooks.locate import HookPoint


class Calls:
    """Counts the calls of each hooked module within one forward of the model, in one thread."""

    def __init__(self, model: nn.Module, stack: ExitStack, on_start: Callable[[], None] | None = None) -> None:
        self.thread = threading.get_ident()
        self.counts: dict[int, int] = {}
        self._on_start = on_start
        self._keep(stack, model.register_forward_pre_hook(self._begin, prepend=True))

    @staticmethod
    def _keep(stack: ExitStack, handle: Any) -> None:
        stack.callback(handle.remove)

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        if self.mine():
            self.counts.clear()
            if self._on_start:
                self._on_start()

    def mine(self) -> bool:
        return threading.get_ident() == self.thread

    def before(self, stack: ExitStack, site: HookPoint, act: Callable[[int, tuple[Any, ...]], Any]) -> None:
        """Call `act(k, inputs)` before call k of the site's module, or only before the call that was asked for."""
        counts: dict[int, int] = self.counts
        key = -1 - id(act)

        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
            if not self.mine():
                return None
            k = counts.get(key, 0)
            counts[key] = k + 1
            return act(k, inputs) if site.call in (None, k) else None

        self._keep(stack, site.module.register_forward_pre_hook(hook))

    def after(self, stack: ExitStack, site: HookPoint, act: Callable[[int, Any], Any]) -> None:
        """Call `act(k, output)` after call k of the site's module, or only after the call that was asked for."""
        counts: dict[int, int] = self.counts
        key = id(act)

        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
            if not self.mine():
                return None
            k = counts.get(key, 0)
            counts[key] = k + 1
            return act(k, output) if site.call in (None, k) else None

        self._keep(stack, site.module.register_forward_hook(hook))
