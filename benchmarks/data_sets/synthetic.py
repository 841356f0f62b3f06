"""`python -m benchmarks.data_sets.synthetic --rows 1000000`: time and memory of a report on a synthetic run.

The run has random predictions of a thousand classes, five probabilities and a map of 7 x 7 cells per image, in shards
of 512 rows as `saliscope explain` writes them. Its images do not exist, so that only the rows are measured.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

from benchmarks import options
from saliscope.runs.rows import SCHEMA
from saliscope.runs.settings import SHARD, WNIDS

CLASSES, TOP, GRID = 1000, 5, 7


def main() -> None:
    """Print the results."""
    rows = options(__doc__, rows=1_000_000).rows
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
        shown = [_row(random, k, names) for k in range(number * shard, min((number + 1) * shard, rows))]
        pq.write_table(pa.Table.from_pylist(shown, SCHEMA), folder / part, compression="zstd")
    settings = {"model": "synthetic", "method": "grad_cam", "layer": None, "target": "predicted", "options": {}}
    settings |= {"where": "", "labels_and_preprocessing": "synthetic"}
    manifest = {"settings": settings, "weights_sha256": "0" * 64, "classes": names, "score": "softmax"}
    manifest |= {"source": "nowhere", "counts": {"images": rows}, "parts": parts}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _row(random: np.random.Generator, number: int, names: list[str]) -> dict[str, Any]:
    label = number * 7919 % CLASSES  # the same labels in every run
    top = [label, *((label + random.integers(1, CLASSES, TOP - 1)) % CLASSES).tolist()]
    p = np.sort(random.dirichlet(np.ones(TOP + 1)))[:0:-1].tolist()
    correct = bool(random.random() >= 0.25)
    if not correct:
        top[:2] = top[1], label
    first = names[top[0]]
    row = {"path": f"{WNID[label]}/{number:08d}.jpg", "sha256": f"{number:064x}", "correct": correct, "seconds": 0.01}
    row |= {"label": names[label], "label_index": label, "label_probability": p[top.index(label)]}
    row |= {"prediction": first, "prediction_index": top[0], "probability": p[0]}
    row |= {"target": first, "target_index": top[0], "score": float(np.log(p[0])), "findings": [], "finding_texts": []}
    row["top5"] = [{"class": names[k], "index": k, "probability": share} for k, share in zip(top, p, strict=True)]
    values = random.gamma(1.0, 1.0, (GRID, GRID)).astype("<f2")
    return row | {"map": values.tobytes(), "map_scale": 1.0, "map_height": GRID, "map_width": GRID}


WNID = WNIDS.read_text("ascii").split()


if __name__ == "__main__":
    main()
