"""Run checkpointed segments of a network without checkpointing.

`torch.utils.checkpoint` discards a segment's graph and runs the segment again in the backward pass, without the hooks
and rules of the pass. The reentrant variant also runs the forward pass without a graph, so a graph started by a hook
inside it is lost. An explanation keeps its graph for one backward pass, so it gains nothing from checkpointing.

While a call is in progress, the two functions behind torch's `checkpoint` are replaced: if the calling thread is in a
call, the segment runs directly; other threads run torch's code. The originals are restored after the last call.

Blocks that edit or record outputs or inputs are calls too: a segment that runs again after the block would run without
the edits, so its gradients would not be those of the scores, and one inside the block would be recorded twice.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

from torch.utils import checkpoint
from torch.utils.checkpoint import CheckpointFunction

# torch 2.8 has only the second of these names.
_GENERATOR = next(
    name
    for name in ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    if hasattr(checkpoint, name)
)


class DirectCheckpoints:
    """Replace torch's two functions while a call is in progress.

    Each of `calls` returns whether the calling thread is in one.
    """

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []
        self._lock, self._entered = threading.RLock(), dict[Any, int]()
        self._ran = 0
        self._is_replaced = False
        self._apply: Any = None
        self._generator: Any = None

        def reentrant(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
            return function(*args) if self._runs_directly() else self._apply(function, preserve_rng_state, *args)

        def not_reentrant(*args: Any, **kwargs: Any) -> Iterator[None]:
            if self._runs_directly():
                yield  # torch calls the segment here
            else:
                yield from self._generator(*args, **kwargs)

        self._direct = reentrant, not_reentrant

    def _runs_directly(self) -> bool:
        """Return whether the calling thread is in a call, and count its segment."""
        if not any(is_in() for is_in in self.calls):
            return False
        self._ran += 1
        return True

    def enter(self, call: Any) -> None:
        """Replace torch's functions until `call`, and all others that entered, leave."""
        with self._lock:
            self._entered[call] = self._ran
            if not self._is_replaced:
                self._apply, self._generator = CheckpointFunction.apply, getattr(checkpoint, _GENERATOR)
                self._is_replaced = True
                CheckpointFunction.apply = self._direct[0]
                setattr(checkpoint, _GENERATOR, self._direct[1])

    def leave(self, call: Any) -> bool:
        """Restore torch's functions if no other call needs the replacements, and return whether a segment ran."""
        with self._lock:
            ran = self._entered.pop(call) != self._ran
            if self._is_replaced and not self._entered:
                if "apply" in vars(CheckpointFunction):
                    del CheckpointFunction.apply
                setattr(checkpoint, _GENERATOR, self._generator)
                self._is_replaced = False
            return ran


def may_checkpoint(classes: Iterable[type]) -> bool:
    """Return whether the code of one of these classes, or of the module that defines it, mentions checkpoints."""
    for base in {base for kind in classes for base in kind.__mro__ if not base.__module__.startswith("torch.nn.")}:
        scope = vars(sys.modules.get(base.__module__, checkpoint))
        codes = (getattr(value, "__code__", None) for value in vars(base).values())
        names = (*scope, *(name for code in codes if code is not None for name in code.co_names))
        if any("checkpoint" in name for name in names) or any(value is checkpoint for value in scope.values()):
            return True
    return False


direct_checkpoints = DirectCheckpoints()
_open_edits: ContextVar[int] = ContextVar("open_edits", default=0)
direct_checkpoints.calls.append(_open_edits.get)


def run_checkpoints_directly(stack: ExitStack) -> None:
    """Run checkpointed segments of the calling thread directly until the stack is closed."""
    call = object()
    _open_edits.set(_open_edits.get() + 1)
    stack.callback(lambda: _open_edits.set(_open_edits.get() - 1))
    direct_checkpoints.enter(call)
    stack.callback(direct_checkpoints.leave, call)
