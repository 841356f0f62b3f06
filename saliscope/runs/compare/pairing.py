"""Pair the rows of two runs by path, or by the content of the images, in any order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from saliscope.errors import Refused
from saliscope.runs.rows import Integers
from saliscope.runs.run_data import RunData

PATH, CONTENT = "path", "sha256"
KEYS = (PATH, CONTENT)


@dataclass(frozen=True, eq=False)
class Pairing:
    """The rows of two runs: `a` and `b` `[n]` are those of the images in A in order, and -1 in `b` for those without a
    counterpart; `only_b` those of the images that are only in B.

    `repeated` counts images with the key of an earlier one in the same run, which are left out. An image that could not
    be read has no content to compare.
    """

    key: str
    a: Integers
    b: Integers
    only_b: Integers
    repeated: int

    @property
    def paired(self) -> int:
        """The number of images in both runs."""
        return int((self.b >= 0).sum())


def pair(a: RunData, b: RunData, key: str = PATH) -> Pairing:
    """Return the pairs of two runs.

    Errors   Refused for an unknown key, and if a path occurs twice in a run
    """
    if key not in KEYS:
        raise Refused(f"Unknown key {key!r}. Match images by {' or '.join(KEYS)}.")
    keys = [run.columns([key])[key] for run in (a, b)]
    encoded = pa.chunked_array([*keys[0].chunks, *keys[1].chunks], pa.string()).dictionary_encode()
    codes = np.concatenate([np.zeros(0, np.int32), *(each.indices.fill_null(-1) for each in encoded.chunks)])
    count, (own, others) = int(codes.max(initial=-1)) + 1, np.split(codes, [len(keys[0])])
    del encoded
    first, first_b = _first(own, count), _first(others, count)
    found = first_b[own]
    again = (first[own] != np.arange(len(own))) & (found >= 0)
    again_b = (first_b[others] != np.arange(len(others))) & (others >= 0)
    if key == PATH:
        _refuse_repeated(a, keys[0], again)
        _refuse_repeated(b, keys[1], again_b)
    alone = ~again_b
    alone[found[found >= 0]] = False
    repeated = int(again.sum() + again_b.sum())
    return Pairing(key, np.flatnonzero(~again), found[~again], np.flatnonzero(alone), repeated)


def _first(codes: NDArray[np.int32], count: int) -> Integers:
    """Return the first place of each code, or -1; the last entry is that of the code -1, a missing key."""
    first = np.full(count + 1, -1)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    first[-1] = -1
    return first


def _refuse_repeated(run: RunData, paths: pa.ChunkedArray, again: NDArray[np.bool_]) -> None:
    if again.any():
        path = paths[int(again.argmax())].as_py()
        raise Refused(f"{str(run.folder)!r} is damaged: it has several rows of {path!r}. Run saliscope explain again.")
