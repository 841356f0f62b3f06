"""Live instances of a class, for objects that the tensors they act on do not refer to."""

from __future__ import annotations

import gc
import weakref
from sys import getrefcount
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LiveInstances(Generic[T]):
    """The live instances of a class and its subclasses; searched again only if their number may have changed."""

    def __init__(self, kind: type[T]) -> None:
        self._kinds: tuple[type[Any], ...] = (kind,)
        self._counts: tuple[int, ...] = ()
        self._known: list[weakref.ref[T]] = []

    def get(self) -> list[T]:
        alive = [instance for each in self._known if (instance := each()) is not None]
        if len(alive) == len(self._known) and self._counts == self._references():
            return alive
        return self._search(alive)

    def _references(self) -> tuple[int, ...]:
        """Return the number of references to each class: every instance and every subclass holds one."""
        return tuple(map(getrefcount, self._kinds))

    def _search(self, alive: list[T]) -> list[T]:
        """Return the instances among all objects, and those that are known to be alive."""
        self._kinds = _with_subclasses(self._kinds[0])
        # Before the search, so that an instance created meanwhile is found by the next call.
        self._counts = self._references()
        known = set(map(id, alive))
        alive += [each for each in gc.get_objects() if type(each) in self._kinds and id(each) not in known]
        self._known = [weakref.ref(instance) for instance in alive]
        return alive

    def add(self, instance: T) -> None:
        """Add an instance that a search may miss, since objects frozen with `gc.freeze` are not listed."""
        if all(each() is not instance for each in self._known):
            self._known = [*self._known, weakref.ref(instance)]


def _with_subclasses(kind: type[Any]) -> tuple[type[Any], ...]:
    kinds = [kind]
    for each in kinds:  # grows during iteration
        kinds.extend(each.__subclasses__())
    return tuple(kinds)
