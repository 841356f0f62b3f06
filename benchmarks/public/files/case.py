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


def case(group: str, name: str, expected: str, make: Callable[..., bytes] | bytes, *given: Any, **named: Any) -> Case:
    """Return a case whose file is given, or made by a call."""
    return Case(group, name, functools.partial(make if callable(make) else lambda: make, *given, **named), expected)


@functools.cache
def seeds() -> list[bytes]:
    """Return one small file of every kind, also with bands."""
    found = [*fuzz_seeds(), npy_file(values("u2", 5)), npy_file(values("f4", 3))]
    found += [tiff_file(values("u2", 5), layout=layout, packed=True) for layout in ("interleaved", "separate", "pages")]
    found += [tiff_file(values("f4", 4), big=True, tile=16, packed=True, predictor=3, order=">")]
    return found


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any = os.system, *given: Any) -> None:
        self.call = function, given or ("touch hostile",)

    def __reduce__(self) -> Any:
        return self.call
