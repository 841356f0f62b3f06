"""Run checkpointed segments of a network without checkpointing.

`torch.utils.checkpoint` discards a segment's graph and runs the segment again in the backward pass, without the hooks
and rules of the pass. The reentrant variant also runs the forward pass without a graph, so a graph started by a hook
inside it is lost. An explanation keeps its graph for one backward pass, so it gains nothing from checkpointing.

While a call is in progress, the two functions behind torch's `checkpoint` are replaced: if the calling thread is in a
call, the segment runs directly; other threads run torch's code. The originals are restored after the last call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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
    """Replace torch's two functions while a call is in progress; `in_call` is evaluated in the calling thread."""

    def __init__(self, in_call: Callable[[], Any]) -> None:
        self._lock, self._calls = threading.RLock(), set[Any]()
        self._is_replaced = False
        self._apply: Any = None
        self._generator: Any = None

        def reentrant(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
            return function(*args) if in_call() else self._apply(function, preserve_rng_state, *args)

        def not_reentrant(*args: Any, **kwargs: Any) -> Iterator[None]:
            if in_call():
                yield  # torch calls the segment here
            else:
                yield from self._generator(*args, **kwargs)

        self._direct = reentrant, not_reentrant

    def enter(self, call: Any) -> None:
        """Replace torch's functions until `call`, and all others that entered, leave."""
        with self._lock:
            self._calls.add(call)
            if not self._is_replaced:
                self._apply, self._generator = CheckpointFunction.apply, getattr(checkpoint, _GENERATOR)
                self._is_replaced = True
                CheckpointFunction.apply = self._direct[0]
                setattr(checkpoint, _GENERATOR, self._direct[1])

    def leave(self, call: Any) -> None:
        """Restore torch's functions if no other call needs the replacements; it may be repeated after an interrupt."""
        with self._lock:
            self._calls.discard(call)
            if self._is_replaced and not self._calls:
                if "apply" in vars(CheckpointFunction):
                    del CheckpointFunction.apply
                setattr(checkpoint, _GENERATOR, self._generator)
                self._is_replaced = False
