"""An image of an export."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saliscope.runs.export.heatmaps import Heatmap

COLUMNS = "path label prediction probability label_probability correct target score".split()
"""The columns of a row that every format has."""


@dataclass(frozen=True, eq=False)
class Record:
    """A row with the bytes of its image, its width and height, and its map `[h, w]` and heatmap if it has one."""

    row: dict[str, Any]
    data: bytes
    size: tuple[int, int]
    values: NDArray[np.float64] | None
    heatmap: Heatmap | None

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that every format has; NaN and infinite numbers are None."""
        return {name: _finite(self.row[name]) for name in COLUMNS}

    def file_name(self, number: int) -> str:
        """Return a unique name for a copy of the image that is valid on every system."""
        path = PurePosixPath(self.row["path"])
        stem = re.sub(r"[^\w.-]+", "_", path.stem, flags=re.ASCII).strip("._")[:60] or "image"
        suffix = path.suffix.lower() if re.fullmatch(r"\.[a-z0-9]{1,5}", path.suffix.lower()) else ".img"
        return f"{number:08d}-{stem}{suffix}"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value
