"""Pair the rows of two runs by path, or by the content of the images, in batches.

Only a number of 16 bytes per row of the second run is in memory, so that the order of the rows does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from saliscope.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from saliscope.datasets.run_data import RunData

    Integers = NDArray[np.int64]

PATH, CONTENT = "path", "sha256"
KEYS = (PATH, CONTENT)


@dataclass
class Pairing:
    """Iterate over it to get the pairs; the counts are complete at the end.

    `only_b` has the rows of the second run without a counterpart; `repeated` counts images that have the same key as an
    earlier one and were left out.
    """

    a: RunData
    b: RunData
    key: str = PATH
    paired: int = 0
    only_a: int = 0
    repeated: int = 0
    found: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        if self.key not in KEYS:
            raise Refused(f"Unknown key {self.key!r}. Match images by {' or '.join(KEYS)}.")
        self.hashes, self.rows, self.found = self._index()

    def _index(self) -> tuple[NDArray[np.uint64], Integers, NDArray[np.bool_]]:
        """Return the sorted hashes of the keys of the second run, their rows, and an array for the rows that are found.

        Errors   Refused if a path occurs twice
        """
        parts = [_hashes(table[self.key].to_pylist()) for _, table in self.b.batches([self.key])]
        hashes = np.concatenate([np.zeros(0, dtype=np.uint64), *parts])
        found = np.zeros(len(hashes), dtype=bool)
        rows = np.argsort(hashes, kind="stable")
        rows = rows[hashes[rows] != NOTHING]
        hashes = hashes[rows]
        first = np.ones(len(hashes), dtype=bool)
        first[1:] = hashes[1:] != hashes[:-1]
        if self.key == PATH:
            self._refuse_repeated(rows[~first], self.b)
        else:
            found[rows[~first]] = True  # not reported as missing in the first run
            self.repeated += int((~first).sum())
        return hashes[first], rows[first].astype(np.int64), found

    def _refuse_repeated(self, rows: Integers, run: RunData) -> None:
        if len(rows):
            path = run.take(rows[:1], [PATH])[PATH][0].as_py()
            raise Refused(
                f"{str(run.folder)!r} is damaged: it has several rows of {path!r}. Run saliscope explain again."
            )

    def __call__(self, names: Sequence[str]) -> Iterator[tuple[Integers, Integers, pa.Table, pa.Table]]:
        """Yield row numbers and these columns of both runs for pairs; for rows of A alone, the table of B is empty."""
        columns = tuple(dict.fromkeys((*names, self.key)))
        for start, table in self.a.batches(columns):
            keys = table[self.key]
            rows = self._find(_hashes(keys.to_pylist()))
            known = np.flatnonzero(rows >= 0)
            others = self.b.take(rows[known], columns)
            equal = np.array(keys.take(known).to_pylist(), dtype=object) == np.array(
                others[self.key].to_pylist(), dtype=object
            )
            fresh = self._mark(rows[known]) & equal
            left_out = np.zeros(len(table), dtype=bool)
            left_out[known[equal & ~fresh]] = True
            if self.key == PATH:
                self._refuse_repeated(start + np.flatnonzero(left_out), self.a)
            self.repeated += int(left_out.sum())
            others = others.filter(fresh)
            known = known[fresh]
            self.paired += len(known)
            yield start + known, rows[known], table.take(known), others
            left_out[known] = True
            alone = np.flatnonzero(~left_out)
            self.only_a += len(alone)
            if len(alone):
                yield start + alone, np.full(len(alone), -1), table.take(alone), others.slice(0, 0)

    def _find(self, hashes: NDArray[np.uint64]) -> Integers:
        """Return the rows of the second run with these hashes, or -1."""
        if not len(self.hashes):
            return np.full(len(hashes), -1)
        place = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where((self.hashes[place] == hashes) & (hashes != NOTHING), self.rows[place], -1)

    def _mark(self, rows: Integers) -> NDArray[np.bool_]:
        """Mark rows of the second run as found, and return which of them were not found before."""
        fresh = ~self.found[rows]
        _, first = np.unique(rows, return_index=True)
        is_first = np.zeros(len(rows), dtype=bool)
        is_first[first] = True
        self.found[rows] = True
        return fresh & is_first

    @property
    def only_b(self) -> Integers:
        """The rows of the second run without a counterpart."""
        return np.flatnonzero(~self.found)


NOTHING = np.uint64(0)
"""The hash of a missing key: images that could not be read have no content to compare."""


def _hashes(keys: Sequence[str | None]) -> NDArray[np.uint64]:
    digests = b"".join(
        bytes(8) if key is None else hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for key in keys
    )
    return np.frombuffer(digests, dtype="<u8")
