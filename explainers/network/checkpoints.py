"""Checkpointed segments of a network, run as if they were not checkpointed.

`torch.utils.checkpoint` drops a segment's graph and runs the segment again in the backward pass: the reentrant kind
without a graph in the forward pass, so that what a hook inside it starts is lost; both kinds without the hooks and
rules of the pass. An explanation keeps its graph for one backward pass, so nothing is gained by running twice.

While any call is under way, the two functions that torch's `checkpoint` rests on first ask whether the calling thread
is in a call: then the segment runs directly. Every other thread gets what torch does. After the last call torch's own
functions are back.
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
    """Replaces torch's two functions while at least one call is under way; `in_call` is asked in the calling thread."""

    def __init__(self, in_call: Callable[[], Any]) -> None:
        self._lock, self._calls = threading.Lock(), 0
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

    def count(self, step: int) -> None:
        """A call begins, 1, or has ended, -1."""
        with self._lock:
            self._calls += step
            if self._calls == 1 and step == 1:
                self._apply, self._generator = CheckpointFunction.apply, getattr(checkpoint, _GENERATOR)
                CheckpointFunction.apply = self._direct[0]
                setattr(checkpoint, _GENERATOR, self._direct[1])
            elif self._calls == 0:
                del CheckpointFunction.apply
                setattr(checkpoint, _GENERATOR, self._generator)
