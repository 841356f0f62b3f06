"""One hostile file, and what all groups of files share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.band_files import npy_file, tiff_file, values
from tests.support.image_files import fuzz_seeds

VALID, REFUSED, EITHER = "opened", "refused", "either"


@dataclass(frozen=True)
class Case:
    """One file, made when it is needed, and the expected outcome."""

    group: str
    name: str
    make: Callable[[], bytes]
    expected: str = EITHER


def case(group: str, name: str, expected: str, function: Callable[..., bytes], *values: Any, **options: Any) -> Case:
    """Return a case whose file is made by a call."""
    return Case(group, name, functools.partial(function, *values, **options), expected)


@functools.cache
def seeds() -> list[bytes]:
    """Return one small file of every kind, also with bands."""
    found = [*fuzz_seeds(), npy_file(values("u2", 5)), npy_file(values("f4", 3))]
    found += [tiff_file(values("u2", 5), layout=layout, packed=True) for layout in ("interleaved", "separate", "pages")]
    found += [tiff_file(values("f4", 4), big=True, tile=16, packed=True, predictor=3, order=">")]
    return found


class Command:
    """An object whose pickle creates a file."""

    def __reduce__(self) -> Any:
        return os.system, ("touch hostile",)
