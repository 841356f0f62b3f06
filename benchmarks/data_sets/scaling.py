"""`python -m benchmarks.data_sets.scaling --photos FOLDER`: the cost of an image, and Ray with one and two workers.

The costs are those of docs/scale.md, in time of one core: to read, decode and prepare an image, to explain it, to
serialize it for another process, and to write its row. Speeds of Ray exclude its start: they are measured after the
first eighth of the images. With --wait a batch waits as for a slow GPU, so that a machine with few cores shows the
overhead of the engine.
"""

from __future__ import annotations

import argparse
import io
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from saliscope.datasets import ray_engine, run
from saliscope.datasets.decoding import DecodedBatch, ImageReader
from saliscope.datasets.explaining import Explainer
from saliscope.datasets.settings import Settings
from saliscope.datasets.shards.planning import Stamp


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data_sets.scaling", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--photos", required=True, help="a source of images")
    parser.add_argument("--limit", type=int, default=256)
    parser.add_argument("--method", default="grad_cam")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--wait", type=float, default=0, help="seconds that a batch waits, to simulate a slow GPU")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2], help="empty: only the costs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings = Settings(method=arguments.method, batch_size=arguments.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        costs(run.prepare(settings, arguments.photos, folder, limit=arguments.limit))
    speeds: dict[int, float] = {}
    for workers in arguments.workers:
        with tempfile.TemporaryDirectory() as folder:
            job = run.prepare(settings, arguments.photos, folder, limit=arguments.limit)
            if arguments.wait:
                job.model.network.register_forward_pre_hook(lambda *_: time.sleep(arguments.wait))
            speeds[workers] = speed(job, workers)
        print(f"Ray, {workers} worker{'s' * (workers > 1)}: {speeds[workers]:.1f} images per second", flush=True)
    if len(speeds) > 1:
        few, many = min(speeds), max(speeds)
        print(f"{few} to {many} workers: {speeds[many] / speeds[few]:.2f} times as fast")


def decode(data: bytes) -> Image.Image:
    """Decode without the guard of the page."""
    return Image.open(io.BytesIO(data)).convert("RGB")


def costs(job: run.Job) -> None:
    """Print milliseconds of one core and bytes per image."""
    count = len(job.items)
    batches = [(shard, index, items) for shard, index, items in job.missing()]
    reading, explain = ImageReader(decode, job.model.preparation), Explainer(job.model, job.settings)
    explain(reading[batches[0][2]])  # warm-up
    decoded: list[DecodedBatch] = []
    print(f"read, decode, prepare: {_each(lambda: decoded.extend(reading[b] for *_, b in batches), count):.2f} ms")
    rows: list[list[dict[str, object]]] = []
    print(f"explain: {_each(lambda: rows.extend(map(explain, decoded)), count):.2f} ms")
    sent: list[bytes] = []
    print(f"serialize and deserialize: {_each(lambda: sent.extend(map(_packed, decoded)), count):.2f} ms", end=", ")
    print(f"{sum(map(len, sent)) / count / 1e3:.0f} kB")

    def write() -> None:
        for (shard, index, items), own in zip(batches, rows, strict=True):
            job.shards.write_batch(shard, index, own, Stamp.of(items))
        job.finish(0)

    print(f"write: {_each(write, count):.2f} ms", end=", ")
    size = sum(part.stat().st_size for part in Path(job.shards.folder).glob("*.parquet"))
    print(f"{size / count:.0f} bytes per row", flush=True)


def _packed(batch: DecodedBatch) -> bytes:
    data = pickle.dumps(batch)
    pickle.loads(data)
    return data


def _each(work: Callable[[], object], count: int) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) / count * 1e3


def speed(job: run.Job, workers: int) -> float:
    """Return images per second after the start."""
    seen: list[tuple[float, int]] = []
    ray_engine.run(
        job,
        decode=decode,
        workers=ray_engine.Workers(most=workers, cpus=1),
        report=lambda done, _: seen.append((time.perf_counter(), done)),
    )
    start, first = next(each for each in seen if each[1] >= len(job.items) / 8)
    end, last = seen[-1]
    return (last - first) / (end - start)


if __name__ == "__main__":
    main()
