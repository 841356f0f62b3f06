"""The images of a finished run, which links name by their SHA-256.

The page registers how to find them (`saliscope serve --run FOLDER`); this package does not depend on `saliscope.runs`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

_DIGEST = re.compile("[0-9a-f]{64}")
_find: Callable[[str], Path | None] | None = None


def register(find: Callable[[str], Path | None]) -> None:
    """Set the function that returns the file of an image by its SHA-256, or None if the run does not have it."""
    global _find
    _find = find


def is_digest(name: str) -> bool:
    """Return whether a name is a SHA-256 and not the name of an example."""
    return _DIGEST.fullmatch(name) is not None


def find(digest: str) -> Path | None:
    """Return the file of an image of the run, or None if no run has it."""
    return _find(digest) if _find is not None and is_digest(digest) else None
