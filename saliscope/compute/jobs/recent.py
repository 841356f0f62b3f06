"""A cache of the newest results, shared by all users."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")
MAX_CACHED = 64


class Recent(Generic[T]):
    """The newest entries by key; several threads may use it."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, T] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> T | None:
        """Return an entry, or None."""
        with self._lock:
            return self._entries.get(key)

    def put(self, key: str, value: T) -> None:
        """Add an entry and remove the oldest ones."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > MAX_CACHED:
                self._entries.popitem(last=False)
