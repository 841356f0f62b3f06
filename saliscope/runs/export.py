"""Export the images of a run that could be read, with their maps as heatmaps, to the formats of other tools.

hf        Parquet shards with images, for `datasets.load_dataset(folder)`
coco      images/, heatmaps/, and annotations.json, in which the highest part of each map is the region of its
          class: all pixels with at least half of the largest value of the map, which must be positive
fiftyone  a folder for `fiftyone.Dataset.from_dir(folder, dataset_type=fiftyone.types.LegacyFiftyOneDataset)`, with
          samples.json, metadata.json, data/ and fields/heatmap/. This format does not depend on the version of
          FiftyOne's database, as the newer `FiftyOneDataset` does.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet as pq

from saliscope.errors import Refused
from saliscope.images.pixels import encode
from saliscope.runs.finished_run import FinishedRun
from saliscope.runs.formats import as_numbers
from saliscope.runs.results import ExportResult, Progress
from saliscope.runs.rows import SCHEMA, Floats, map_of
from saliscope.runs.shards import refuse_disk_errors
from saliscope.zoo import Preparation

ROWS = 32
"""Rows that are read at once, with their images."""
COLUMNS = "path label prediction probability label_probability correct target score".split()
"""The columns of a row that every format has."""
SIDE = 512
"""Maximum length of the longer side of a heatmap; a larger one has no more detail than a map."""
HALF = 0.5
SHARD = 2**28
"""Bytes of images and heatmaps per shard."""


def export(run: FinishedRun, to: str, out: str | Path, *, progress: Progress | None = None) -> ExportResult:
    """Copy the images that are still available with their rows and heatmaps into a new folder.

    Args     to: "hf" for Hugging Face datasets, "coco" or "fiftyone"
    Errors   Refused for an unknown format, a folder with files, a network that is not available, a run without images
             that are available, and a full disk

    Example
        >>> run.export("hf", "dataset").written
        2
    """
    if to not in FORMATS:
        raise Refused(f"Unknown format {to!r}. Use {', '.join(FORMATS)}.")
    folder = Path(out).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{str(folder)!r} already exists and is not an empty folder. Choose another one.")
    preparation = run.model.preparation  # it determines the region of a map
    written = missing = 0

    def records() -> Iterator[Record]:
        nonlocal written, missing
        for start, table in run.data.batches(SCHEMA.names, ROWS):
            for row in table.filter(table["error"].is_null()).to_pylist():
                data = run.read(row["path"], row["sha256"])
                image = run.decode(data)
                if data is None or image is None:
                    missing += 1
                else:
                    yield Record(row, data, image.size, preparation)
                    written += 1
            if progress is not None:
                progress(start + len(table), len(run.data))

    is_new = not folder.exists()
    with refuse_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            FORMATS[to](folder, run, records())
            if not written:
                raise Refused(f"None of the images of the run is in {run.source!r} anymore. Restore them there.")
        except BaseException:  # so that the same command can run again
            shutil.rmtree(folder, ignore_errors=True)
            if not is_new:
                folder.mkdir(exist_ok=True)
            raise
    return ExportResult(folder, to, written, missing)


@dataclass(frozen=True, eq=False)
class Heatmap:
    """A map as gray pixels `[h, w]`: 0 is `low` and 255 is `high`, in the unit of the map.

    `low` is 0, or −`high` for a map with negative values, for which 127.5 is 0. Pixels outside the part of the image
    that the network received have the value 0 of the map.
    """

    pixels: NDArray[np.uint8]
    low: float
    high: float


def place(values: Floats, box: tuple[float, float, float, float], size: tuple[int, int]) -> Floats:
    """Return a map `[h, w]` at its position in an image of this width and height, with 0 outside of it."""
    left, top, right, bottom = (round(edge * side) for edge, side in zip(box, size * 2, strict=True))
    inner = max(1, right - left), max(1, bottom - top)
    whole = Image.new("F", size)
    whole.paste(Image.fromarray(values.astype(np.float32)).resize(inner, Image.Resampling.BILINEAR), (left, top))
    return np.asarray(whole, dtype=np.float64)


def heatmap(values: Floats, preparation: Preparation, size: tuple[int, int]) -> Heatmap:
    """Return the heatmap of a map `[h, w]` for an image of this width and height."""
    scale = min(1.0, SIDE / max(size))
    small = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    placed = place(values, preparation.window(*size), small)
    high = float(np.abs(values).max()) or 1.0
    low = -high if values.min() < 0 else 0.0
    return Heatmap(np.round((placed - low) / (high - low) * 255).clip(0, 255).astype(np.uint8), low, high)


class Record:
    """A row with the bytes of its image, its width and height, and its map `[h, w]`, 0 where it is not finite.

    `png` is the heatmap of the map, and `columns` are those of every format; NaN and infinite numbers are None.
    """

    def __init__(self, row: dict[str, Any], data: bytes, size: tuple[int, int], preparation: Preparation) -> None:
        self.row, self.data, self.size = row, data, size
        self.columns = {name: as_numbers(row[name]) for name in COLUMNS}
        self.values = np.nan_to_num(map_of(row).astype(np.float64), posinf=0, neginf=0)
        found = heatmap(self.values, preparation, size)
        self.png = encode(Image.fromarray(found.pixels), "PNG")
        self.range = {"heatmap_low": found.low, "heatmap_high": found.high}

    def save(self, images: Path, heatmaps: Path, number: int) -> str:
        """Copy the image, and write its heatmap to another folder with `.png` after its name.

        Returns  the name of the copy, which is unique and valid on every system
        """
        path = PurePosixPath(self.row["path"])
        stem = re.sub(r"[^\w.-]+", "_", path.stem, flags=re.ASCII).strip("._")[:60] or "image"
        suffix = path.suffix.lower() if re.fullmatch(r"\.[a-z0-9]{1,5}", path.suffix.lower()) else ".img"
        name = f"{number:08d}-{stem}{suffix}"
        (images / name).write_bytes(self.data)
        (heatmaps / f"{name}.png").write_bytes(self.png)
        return name


# Hugging Face

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FEATURES: dict[str, tuple[pa.DataType, dict[str, Any]]] = {
    **dict.fromkeys(("image", "heatmap"), (_IMAGE, {"_type": "Image"})),
    **dict.fromkeys(("path", "label", "prediction", "target"), (pa.string(), {"dtype": "string", "_type": "Value"})),
    **dict.fromkeys(
        ("probability", "label_probability", "score", "heatmap_low", "heatmap_high"),
        (pa.float64(), {"dtype": "float64", "_type": "Value"}),
    ),
    "correct": (pa.bool_(), {"dtype": "bool", "_type": "Value"}),
}
_TABLE = pa.schema([(name, kind) for name, (kind, _) in FEATURES.items()]).with_metadata(
    {"huggingface": json.dumps({"info": {"features": {name: feature for name, (_, feature) in FEATURES.items()}}})}
)
README = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*.parquet
---
Images with predictions of {model} and maps of {method}.
A pixel p of `heatmap` is heatmap_low + p / 255 * (heatmap_high - heatmap_low).
"""


def _write_huggingface(folder: Path, run: FinishedRun, records: Iterable[Record]) -> None:
    """Write a shard as soon as it is full."""
    (folder / "README.md").write_text(README.format(**run.data.settings), encoding="utf-8")
    (folder / "data").mkdir()
    numbers, records = itertools.count(), iter(records)
    while rows := list(_first_shard(records)):
        path = folder / "data" / f"train-{next(numbers):05d}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, _TABLE), path, row_group_size=100)


def _first_shard(records: Iterator[Record]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the next shard."""
    size = 0
    for record in records:
        image, heat = {"bytes": record.data, "path": record.row["path"]}, {"bytes": record.png, "path": None}
        yield {**record.columns, "image": image, "heatmap": heat, **record.range}
        size += len(record.data) + len(record.png)
        if size >= SHARD:
            return


# COCO


def _write_coco(folder: Path, run: FinishedRun, records: Iterable[Record]) -> None:
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
        images.append(image | {"heatmap": f"heatmaps/{name}.png", **record.range})
        if (region := _region(record, run.model.preparation)) is not None:
            index, text = record.row["target_index"], str(record.row["target"])
            if index is None or index >= len(names):  # a sentence, or a class without a name
                index = known.setdefault(text, len(categories) + 1) - 1
                if index == len(categories):
                    categories.append({"id": index + 1, "name": text, "supercategory": ""})
            ids = {"id": len(annotations) + 1, "image_id": number, "category_id": index + 1}
            annotations.append(ids | region)
    info = {"description": "Written by Saliscope", "settings": run.data.settings}
    content = {"info": info, "images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations.json").write_text(json.dumps(content, allow_nan=False), encoding="utf-8")


def _region(record: Record, preparation: Preparation) -> dict[str, Any] | None:
    """Return the region of a map as an annotation, or None if none of its values is positive."""
    placed = place(record.values, preparation.window(*record.size), record.size)
    if placed.max() <= 0:
        return None
    inside = placed >= HALF * placed.max()
    left, top, right, bottom = Image.fromarray(inside).getbbox() or (0, 0, 0, 0)
    return {
        "bbox": [left, top, right - left, bottom - top],
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
    lengths = np.diff([0, *changes, len(flat)]).tolist()
    return [0, *lengths] if flat[0] else lengths


# FiftyOne


def _write_fiftyone(folder: Path, run: FinishedRun, records: Iterable[Record]) -> None:
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
    for field, column in (("prediction", "prediction"), ("ground_truth", "label"), ("explained", "target")):
        known = {"_cls": "Classification", "tags": [], "label": columns[column]}
        sample[field] = None if columns[column] is None else known
    if sample["prediction"] and columns["probability"] is not None:
        sample["prediction"]["confidence"] = columns["probability"]
    sample |= {name: columns[name] for name in ("path", "correct", "score", "label_probability")}
    sample["findings"] = record.row["findings"] or []
    path = f"fields/heatmap/{name}.png"
    sample["heatmap"] = {"_cls": "Heatmap", "tags": [], "map_path": path, "range": [0, 255]}
    return sample | record.range


FORMATS: dict[str, Callable[[Path, FinishedRun, Iterable[Record]], None]] = {
    "fiftyone": _write_fiftyone,
    "hf": _write_huggingface,
    "coco": _write_coco,
}
