"""The images of a finished run, which links name by their SHA-256.

The page sets how to find them (`saliscope serve --run FOLDER`); this package does not depend on `saliscope.runs`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

find: Callable[[str], Path | None] = dict[str, Path]().get
"""Return the file of an image by its SHA-256, or None if the run does not have it; without a run, always None."""


def is_digest(name: str) -> bool:
    """Return whether a name is a SHA-256 and not the name of an example."""
    return re.fullmatch("[0-9a-f]{64}", name) is not None
