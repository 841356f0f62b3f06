"""`python -m benchmarks.data_sets.synthetic --rows 1000000`: time and memory of a report on a synthetic run.

The run has random predictions of a thousand classes, five probabilities and a map of 7 x 7 cells per image, in shards
of 512 rows as `saliscope explain` writes them. Its images do not exist, so that only the rows are measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

from saliscope.runs.rows import SCHEMA
from saliscope.runs.settings import SHARD, WNIDS

CLASSES, TOP, GRID = 1000, 5, 7


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as place:
        folder, start = Path(place), time.perf_counter()
        write_run(folder / "run", rows)
        size, seconds = sum(file.stat().st_size for file in folder.rglob("*.parquet")), time.perf_counter() - start
        print(f"{rows:,} rows, {size / 1e6:.0f} MB, written in {seconds:.0f} s", flush=True)
        command, start = ["report", folder / "run", "--out", folder / "page.html", "--offline"], time.perf_counter()
        subprocess.run([sys.executable, "-m", "saliscope", *command], check=True)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"report: {time.perf_counter() - start:.0f} s, peak memory {peak:.0f} MB")


def write_run(folder: Path, rows: int, seed: int = 0, shard: int = SHARD) -> None:
    """Write a finished run of random rows; three quarters of the predictions are correct."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    names = [f"class {k}" for k in range(CLASSES)]
    names[0] = "tench"  # by which the classes of ImageNet are recognized
    parts = [f"part-{number:05d}.parquet" for number in range(-(-rows // shard))]
    for number, part in enumerate(parts):
        shown = np.arange(number * shard, min((number + 1) * shard, rows))
        pq.write_table(_shard(random, shown, names), folder / part, compression="zstd")
    settings = {
        "model": "synthetic", "method": "grad_cam", "layer": None, "target": "predicted", "where": "", "options": {},
        "labels_and_preprocessing": "synthetic",
    }  # fmt: skip
    manifest = {
        "settings": settings, "weights_sha256": "0" * 64, "classes": names, "score": "softmax", "source": "nowhere",
        "counts": {"images": rows}, "parts": parts,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _shard(random: np.random.Generator, rows: np.ndarray, names: list[str]) -> pa.Table:
    count, texts = len(rows), pa.array(names)
    label = rows * 7919 % CLASSES  # the same labels in every run
    others = np.concatenate([np.zeros((count, 1), int), random.integers(1, CLASSES, (count, 4))], 1)
    top = (label[:, None] + others) % CLASSES
    wrong = random.random(count) < 0.25
    top[wrong] = np.roll(top[wrong], 1, axis=1)
    p = np.sort(random.dirichlet(np.ones(TOP + 1), count), axis=1)[:, :0:-1].astype(np.float32)
    maps = random.gamma(1.0, 1.0, (count, GRID, GRID)).astype("<f2")
    fields = list(SCHEMA.field("top5").type.value_type)
    classes = texts.take(pa.array(top.ravel()))
    values = zip((classes, top.ravel(), p.ravel()), fields, strict=True)
    entries = pa.StructArray.from_arrays([pa.array(each, field.type) for each, field in values], fields=fields)
    offsets = pa.array(np.arange(0, TOP * count + 1, TOP), pa.int32())
    columns = {
        "path": [f"{WNID[k]}/{row:08d}.jpg" for k, row in zip(label, rows, strict=True)],
        "sha256": [f"{row:064x}" for row in rows],
        "label": texts.take(pa.array(label)),
        "label_index": label,
        "label_probability": np.where(wrong, p[:, 1], p[:, 0]),
        "prediction": texts.take(pa.array(top[:, 0])),
        "prediction_index": top[:, 0],
        "probability": p[:, 0],
        "correct": ~wrong,
        "top5": pa.ListArray.from_arrays(offsets, entries),
        "target": texts.take(pa.array(top[:, 0])),
        "target_index": top[:, 0],
        "score": np.log(p[:, 0]),
        "findings": [[] for _ in rows],
        "finding_texts": [[] for _ in rows],
        "seconds": np.full(count, 0.01),
        "map": [each.tobytes() for each in maps],
        "map_scale": np.ones(count),
        "map_height": np.full(count, GRID),
        "map_width": np.full(count, GRID),
    }
    nothing = {field.name: pa.nulls(count, field.type) for field in SCHEMA}
    return pa.table(nothing | columns).cast(SCHEMA)


WNID = WNIDS.read_text("ascii").split()


if __name__ == "__main__":
    main()
