"""FiftyOne: a folder for `fiftyone.Dataset.from_dir(folder, dataset_type=fiftyone.types.LegacyFiftyOneDataset)`.

    samples.json           one object per image: classes, probability, heatmap
    metadata.json          the settings of the run
    data/                  the images
    fields/heatmap/        the heatmaps

This format does not depend on the version of FiftyOne's database, as the newer `FiftyOneDataset` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from saliscope.runs.export.record import Record
from saliscope.runs.finished.finished_run import FinishedRun


def write(folder: Path, run: FinishedRun, records: Iterable[Record]) -> None:
    """Write samples as they come."""
    for name in ("data", "fields/heatmap"):
        (folder / name).mkdir(parents=True)
    info = {"saliscope": run.data.settings, "source": run.data.manifest.get("source")}
    content = {"name": "saliscope", "media_type": "image", "info": info}
    (folder / "metadata.json").write_text(json.dumps(content, default=str), encoding="utf-8")
    with open(folder / "samples.json", "w", encoding="utf-8") as file:
        file.write('{"samples": [')
        for number, record in enumerate(records):
            sample = _sample(record, record.save(folder / "data", folder / "fields" / "heatmap", number))
            file.write((", " if number else "") + "\n" + json.dumps(sample, allow_nan=False))
        file.write("\n]}\n")


def _sample(record: Record, name: str) -> dict[str, Any]:
    columns = record.columns
    sample: dict[str, Any] = {"_cls": "Sample", "filepath": f"data/{name}", "tags": [], "_media_type": "image"}
    sample |= {
        "prediction": _classification(columns["prediction"], columns["probability"]),
        "ground_truth": _classification(columns["label"], None),
        "explained": _classification(columns["target"], None),
    }
    sample |= {name: columns[name] for name in ("path", "correct", "score", "label_probability")}
    sample["findings"] = record.row["findings"] or []
    if record.heatmap is not None:
        path = f"fields/heatmap/{name}.png"
        sample["heatmap"] = {"_cls": "Heatmap", "tags": [], "map_path": path, "range": [0, 255]}
        sample |= {"heatmap_low": record.heatmap.low, "heatmap_high": record.heatmap.high}
    return sample


def _classification(label: str | None, confidence: float | None) -> dict[str, Any] | None:
    if label is None:
        return None
    return {"_cls": "Classification", "tags": [], "label": label} | (
        {} if confidence is None else {"confidence": confidence}
    )
