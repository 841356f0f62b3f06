"""Live instances of a class, for objects that the tensors they act on do not refer to."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LiveInstances(Generic[T]):
    """The live instances of a class and its subclasses; searched again only if their number may have changed."""

    def __init__(self, kind: type[T]) -> None:
        self._kind: type[Any] = kind
        self._counts: tuple[int, ...] = ()
        self._known: list[weakref.ref[T]] = []

    def get(self) -> list[T]:
        kinds = [self._kind]
        for kind in kinds:  # grows during iteration
            kinds.extend(kind.__subclasses__())
        # Every instance holds a reference to its class, so a search over all objects is rarely needed.
        counts = tuple(sys.getrefcount(kind) for kind in kinds)
        alive = [instance for each in self._known if (instance := each()) is not None]
        if counts != self._counts or len(alive) < len(self._known):
            known, wanted = set(map(id, alive)), set(kinds)
            alive += [each for each in gc.get_objects() if type(each) in wanted and id(each) not in known]
            self._known, self._counts = [weakref.ref(instance) for instance in alive], counts
        return alive

    def add(self, instance: T) -> None:
        """Add an instance that a search may miss, since objects frozen with `gc.freeze` are not listed."""
        if all(each() is not instance for each in self._known):
            self._known = [*self._known, weakref.ref(instance)]
