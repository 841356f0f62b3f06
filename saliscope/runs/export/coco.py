"""COCO: images, heatmaps, and annotations.json, in which the highest part of each map is the region of its class.

The region has all pixels with at least half of the largest value of the map, which must be positive.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saliscope.runs.export.heatmaps import place
from saliscope.runs.export.record import Record
from saliscope.runs.finished.finished_run import FinishedRun

HALF = 0.5


class CocoWriter:
    """Writes images as they come, and the annotations at the end."""

    def __init__(self, folder: Path, run: FinishedRun) -> None:
        self.folder, self.preparation = folder, run.model.preparation
        self.settings = run.data.settings
        self.images: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        names = run.data.manifest.get("classes") or []
        self.categories = [{"id": k + 1, "name": name, "supercategory": ""} for k, name in enumerate(names)]
        self.known = {name: k + 1 for k, name in reversed(list(enumerate(names)))}
        for name in ("images", "heatmaps"):
            (folder / name).mkdir()

    def add(self, record: Record) -> None:
        """Copy an image, and add its annotation."""
        number, columns = len(self.images) + 1, record.columns
        name = record.file_name(number - 1)
        (self.folder / "images" / name).write_bytes(record.data)
        width, height = record.size
        image = {"id": number, "file_name": f"images/{name}", "width": width, "height": height, **columns}
        if record.heatmap is not None and record.values is not None:
            (self.folder / "heatmaps" / f"{name}.png").write_bytes(record.heatmap.png())
            image |= {"heatmap": f"heatmaps/{name}.png"}
            image |= {"heatmap_low": record.heatmap.low, "heatmap_high": record.heatmap.high}
            self._annotate(record, number)
        self.images.append(image)

    def _annotate(self, record: Record, number: int) -> None:
        """Add the region of a map, if any of its values is positive."""
        values = np.where(np.isfinite(record.values), record.values, 0.0)  # type: ignore[arg-type]
        placed = place(values, self.preparation.window(*record.size), record.size)
        if placed.max() <= 0:
            return
        inside = placed >= HALF * placed.max()
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        left, top = int(columns[0]), int(rows[0])
        index = record.row["target_index"]
        text = str(record.row["target"])
        category = index + 1 if index is not None and index < len(self.known) else self._category(text)
        self.annotations.append(
            {
                "id": len(self.annotations) + 1,
                "image_id": number,
                "category_id": category,
                "bbox": [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1],
                "area": int(inside.sum()),
                "segmentation": {"size": [*inside.shape], "counts": run_lengths(inside)},
                "iscrowd": 1,
                "score": record.columns["probability"],
            }
        )

    def _category(self, name: str) -> int:
        """Return the category of a sentence, or of a class without a name."""
        if name not in self.known:
            self.known[name] = len(self.categories) + 1
            self.categories.append({"id": self.known[name], "name": name, "supercategory": ""})
        return self.known[name]

    def close(self) -> None:
        """Write the annotations."""
        content = {
            "info": {"description": "Written by Saliscope", "settings": self.settings},
            "images": self.images,
            "annotations": self.annotations,
            "categories": self.categories,
        }
        (self.folder / "annotations.json").write_text(json.dumps(content, allow_nan=False), encoding="utf-8")


def run_lengths(mask: NDArray[np.bool_]) -> list[int]:
    """Return the run lengths of a mask `[h, w]` in columns, beginning with pixels outside, as in COCO.

    Example
        >>> run_lengths(np.array([[True, False], [True, True]]))
        [0, 2, 1, 1]
    """
    flat = mask.flatten(order="F")
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    edges = np.concatenate([[0], changes, [len(flat)]])
    lengths = np.diff(edges).tolist()
    return [0, *lengths] if flat[0] else lengths
