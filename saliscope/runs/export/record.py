"""An image of an export, and its map as a gray image of the whole photo."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from saliscope.images.pixels import encode
from saliscope.runs.formats import as_numbers
from saliscope.runs.rows import Floats
from saliscope.zoo import Preparation

COLUMNS = "path label prediction probability label_probability correct target score".split()
"""The columns of a row that every format has."""
SIDE = 512
"""Maximum length of the longer side of a heatmap; a larger one has no more detail than a map."""


@dataclass(frozen=True, eq=False)
class Heatmap:
    """A map as gray pixels `[h, w]`: 0 is `low` and 255 is `high`, in the unit of the map.

    `low` is 0, or −`high` for a map with negative values, for which 127.5 is 0. Pixels outside the part of the image
    that the network received have the value 0 of the map.
    """

    pixels: NDArray[np.uint8]
    low: float
    high: float

    def png(self) -> bytes:
        """Return the pixels as a PNG file."""
        return encode(Image.fromarray(self.pixels), "PNG")


def place(values: Floats, box: tuple[float, float, float, float], size: tuple[int, int]) -> Floats:
    """Return a map `[h, w]` at its position in an image of this width and height, with 0 outside of it."""
    width, height = size
    left, top, right, bottom = (round(edge * side) for edge, side in zip(box, (width, height) * 2, strict=True))
    inner = max(1, right - left), max(1, bottom - top)
    scaled = np.asarray(Image.fromarray(values.astype(np.float32)).resize(inner, Image.Resampling.BILINEAR))
    whole = np.zeros((height, width))
    x, y = max(left, 0), max(top, 0)
    part = scaled[y - top : height - top, x - left : width - left]
    whole[y : y + part.shape[0], x : x + part.shape[1]] = part
    return whole


def heatmap(values: Floats, preparation: Preparation, size: tuple[int, int]) -> Heatmap:
    """Return the heatmap of a map `[h, w]` for an image of this width and height."""
    values = np.where(np.isfinite(values), values, 0.0)
    scale = min(1.0, SIDE / max(size))
    small = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    placed = place(values, preparation.window(*size), small)
    high = float(np.abs(values).max()) or 1.0
    low = -high if values.min() < 0 else 0.0
    return Heatmap(np.round((placed - low) / (high - low) * 255).clip(0, 255).astype(np.uint8), low, high)


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
        return {name: as_numbers(self.row[name]) for name in COLUMNS}

    def save(self, images: Path, heatmaps: Path, number: int) -> str:
        """Copy the image, and write its heatmap to another folder with `.png` after its name.

        Returns  the name of the copy, which is unique and valid on every system
        """
        path = PurePosixPath(self.row["path"])
        stem = re.sub(r"[^\w.-]+", "_", path.stem, flags=re.ASCII).strip("._")[:60] or "image"
        suffix = path.suffix.lower() if re.fullmatch(r"\.[a-z0-9]{1,5}", path.suffix.lower()) else ".img"
        name = f"{number:08d}-{stem}{suffix}"
        (images / name).write_bytes(self.data)
        if self.heatmap is not None:
            (heatmaps / f"{name}.png").write_bytes(self.heatmap.png())
        return name
