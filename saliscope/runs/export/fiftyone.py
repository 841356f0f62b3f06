"""FiftyOne: a folder for `fiftyone.Dataset.from_dir(folder, dataset_type=fiftyone.types.LegacyFiftyOneDataset)`.

    samples.json           one object per image: classes, probability, heatmap
    metadata.json          the settings of the run
    data/                  the images
    fields/heatmap/        the heatmaps

This format does not depend on the version of FiftyOne's database, as the newer `FiftyOneDataset` does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from saliscope.runs.export.record import Record
from saliscope.runs.finished.finished_run import FinishedRun


class FiftyOneWriter:
    """Writes samples as they come."""

    def __init__(self, folder: Path, run: FinishedRun) -> None:
        self.folder, self.count = folder, 0
        for name in ("data", "fields/heatmap"):
            (folder / name).mkdir(parents=True)
        info = {"saliscope": run.data.settings, "source": run.data.manifest.get("source")}
        content = {"name": "saliscope", "media_type": "image", "info": info}
        (folder / "metadata.json").write_text(json.dumps(content, default=str), encoding="utf-8")
        self.file = open(folder / "samples.json", "w", encoding="utf-8")  # noqa: SIM115  (open until the end)
        self.file.write('{"samples": [')

    def add(self, record: Record) -> None:
        """Copy an image and write its sample."""
        columns, name = record.columns, record.file_name(self.count)
        (self.folder / "data" / name).write_bytes(record.data)
        sample: dict[str, Any] = {"_cls": "Sample", "filepath": f"data/{name}", "tags": [], "_media_type": "image"}
        sample |= {
            "prediction": _classification(columns["prediction"], columns["probability"]),
            "ground_truth": _classification(columns["label"], None),
            "explained": _classification(columns["target"], None),
        }
        sample |= {name: columns[name] for name in ("path", "correct", "score", "label_probability")}
        sample["findings"] = record.row["findings"] or []
        if record.heatmap is not None:
            file = f"{name}.png"
            (self.folder / "fields" / "heatmap" / file).write_bytes(record.heatmap.png())
            sample["heatmap"] = {"_cls": "Heatmap", "tags": [], "map_path": f"fields/heatmap/{file}", "range": [0, 255]}
            sample |= {"heatmap_low": record.heatmap.low, "heatmap_high": record.heatmap.high}
        self.file.write((", " if self.count else "") + "\n" + json.dumps(sample, allow_nan=False))
        self.count += 1

    def close(self) -> None:
        """Finish the file of samples."""
        self.file.write("\n]}\n")
        self.file.close()


def _classification(label: str | None, confidence: float | None) -> dict[str, Any] | None:
    if label is None:
        return None
    return {"_cls": "Classification", "tags": [], "label": label} | (
        {} if confidence is None else {"confidence": confidence}
    )
