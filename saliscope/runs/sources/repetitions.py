"""Find paths that a long list has twice, without keeping the paths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LARGEST = 2**21
"""Hashes in one sorted array; larger ones need too much memory while they are merged."""


class Repetitions:
    """The 64-bit hashes of all paths so far, in sorted arrays: eight bytes per path.

    Two of ten million different paths have the same hash with a probability of 3 in a million.
    """

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.int64]] = []

    def add(self, paths: Sequence[str]) -> int | None:
        """Add different paths; return the index of one that was added before, or None."""
        new = np.fromiter(map(hash, paths), np.int64, len(paths))
        for known in self._arrays:
            at = np.searchsorted(known, new)
            found = known[np.minimum(at, len(known) - 1)] == new
            if found.any():
                return int(found.argmax())
        self._arrays.append(np.sort(new))
        while len(self._arrays) > 1 and len(self._arrays[-1]) >= len(self._arrays[-2]):
            if len(self._arrays[-1]) + len(self._arrays[-2]) > LARGEST:
                break
            merged = np.concatenate([self._arrays.pop(), self._arrays.pop()])
            merged.sort()
            self._arrays.append(merged)
        return None
