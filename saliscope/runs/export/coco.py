"""COCO: images, heatmaps, and annotations.json, in which the highest part of each map is the region of its class.

The region has all pixels with at least half of the largest value of the map, which must be positive.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saliscope.runs.export.record import Record, place
from saliscope.runs.finished.finished_run import FinishedRun
from saliscope.zoo import Preparation

HALF = 0.5


def write(folder: Path, run: FinishedRun, records: Iterable[Record]) -> None:
    """Write images as they come, and the annotations at the end."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    names = run.data.manifest.get("classes") or []
    categories = [{"id": k + 1, "name": name, "supercategory": ""} for k, name in enumerate(names)]
    known = {name: k + 1 for k, name in reversed(list(enumerate(names)))}
    for kind in ("images", "heatmaps"):
        (folder / kind).mkdir()
    for number, record in enumerate(records, 1):
        name = record.save(folder / "images", folder / "heatmaps", number - 1)
        width, height = record.size
        image = {"id": number, "file_name": f"images/{name}", "width": width, "height": height, **record.columns}
        if record.heatmap is not None:
            image |= {"heatmap": f"heatmaps/{name}.png"}
            image |= {"heatmap_low": record.heatmap.low, "heatmap_high": record.heatmap.high}
        if (region := _region(record, run.model.preparation)) is not None:
            index, text = record.row["target_index"], str(record.row["target"])
            if index is None or index >= len(names):  # a sentence, or a class without a name
                index = known.setdefault(text, len(categories) + 1) - 1
                if index == len(categories):
                    categories.append({"id": index + 1, "name": text, "supercategory": ""})
            ids = {"id": len(annotations) + 1, "image_id": number, "category_id": index + 1}
            annotations.append(ids | region)
        images.append(image)
    content = {
        "info": {"description": "Written by Saliscope", "settings": run.data.settings},
        "images": images,
        "annotations": annotations,
        "categories": categories,
    }
    (folder / "annotations.json").write_text(json.dumps(content, allow_nan=False), encoding="utf-8")


def _region(record: Record, preparation: Preparation) -> dict[str, Any] | None:
    """Return the region of a map as an annotation, or None if none of its values is positive."""
    if record.values is None:
        return None
    values = np.where(np.isfinite(record.values), record.values, 0.0)
    placed = place(values, preparation.window(*record.size), record.size)
    if placed.max() <= 0:
        return None
    inside = placed >= HALF * placed.max()
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    left, top = int(columns[0]), int(rows[0])
    return {
        "bbox": [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1],
        "area": int(inside.sum()),
        "segmentation": {"size": [*inside.shape], "counts": run_lengths(inside)},
        "iscrowd": 1,
        "score": record.columns["probability"],
    }


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
