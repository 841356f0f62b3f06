"""Pair the rows of two runs by path, or by the content of the images, in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from saliscope.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from saliscope.datasets.run_data import RunData

    Integers = NDArray[np.int64]

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
    keys, others = (run.columns([key])[key] for run in (a, b))
    found = _find(keys, others)
    again = (found >= 0) & _is_repeated(keys)
    again_b = _is_repeated(others)
    if key == PATH:
        _refuse_repeated(a, keys, again)
        _refuse_repeated(b, others, again_b)
    alone = ~again_b
    alone[found[found >= 0]] = False
    repeated = int(again.sum() + again_b.sum())
    return Pairing(key, np.flatnonzero(~again), found[~again], np.flatnonzero(alone), repeated)


def _find(keys: pa.ChunkedArray, among: pa.ChunkedArray) -> Integers:
    """Return the first place of each key, or -1."""
    places = pc.index_in(keys, value_set=among.combine_chunks(), skip_nulls=True)
    return np.asarray(places.fill_null(-1)).astype(np.int64)


def _is_repeated(keys: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return which keys are those of an earlier row."""
    first = _find(keys, keys)
    return (first >= 0) & (first != np.arange(len(keys)))


def _refuse_repeated(run: RunData, paths: pa.ChunkedArray, again: NDArray[np.bool_]) -> None:
    if again.any():
        path = paths[int(again.argmax())].as_py()
        raise Refused(f"{str(run.folder)!r} is damaged: it has several rows of {path!r}. Run saliscope explain again.")
