"""`python -m benchmarks.data_sets.scaling --photos FOLDER`: what a picture costs, and Ray with one worker and with two.

The costs are those that docs/scale.md counts with, in time of one core: to read, decode and prepare a picture, to
explain it, to pack and unpack it for another process, and to write its row. Speeds of Ray leave out its start: they are
counted from the first eighth of the pictures on. With --wait a batch waits as for a slow GPU, so that a machine of few
cores shows what the engine itself loses.
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

from dataset import ray_run, run
from dataset.explaining import Explainer
from dataset.pictures import Decoded, Reading
from dataset.settings import Settings


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data_sets.scaling", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--photos", required=True, help="a source of pictures")
    parser.add_argument("--limit", type=int, default=256)
    parser.add_argument("--method", default="grad_cam")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--wait", type=float, default=0, help="seconds that a batch waits, in place of a slow GPU")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2], help="none: the costs alone")
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
        print(f"Ray, {workers} worker{'s' * (workers > 1)}: {speeds[workers]:.1f} pictures a second", flush=True)
    if len(speeds) > 1:
        few, many = min(speeds), max(speeds)
        print(f"{few} to {many} workers: {speeds[many] / speeds[few]:.2f} times as fast")


def decode(data: bytes) -> Image.Image:
    """Plain, without the guard of the page."""
    return Image.open(io.BytesIO(data)).convert("RGB")


def costs(job: run.Job) -> None:
    """Milliseconds of one core, and bytes, a picture."""
    count = len(job.items)
    batches = [(shard, place, items) for shard, place, items in job.missing()]
    reading, explain = Reading(decode, job.model.preparation), Explainer(job.model, job.settings)
    explain(reading[batches[0][2]])  # warms up
    decoded: list[Decoded] = []
    print(f"read, decode, prepare: {_each(lambda: decoded.extend(reading[b] for *_, b in batches), count):.2f} ms")
    rows: list[list[dict[str, object]]] = []
    print(f"explain: {_each(lambda: rows.extend(map(explain, decoded)), count):.2f} ms")
    sent: list[bytes] = []
    print(f"pack and unpack: {_each(lambda: sent.extend(map(_packed, decoded)), count):.2f} ms", end=", ")
    print(f"{sum(map(len, sent)) / count / 1e3:.0f} kB")

    def write() -> None:
        for (shard, place, _), own in zip(batches, rows, strict=True):
            job.shards.keep(shard, place, own)
        job.finish(0)

    print(f"write: {_each(write, count):.2f} ms", end=", ")
    size = sum(part.stat().st_size for part in Path(job.shards.folder).glob("*.parquet"))
    print(f"{size / count:.0f} bytes a row", flush=True)


def _packed(batch: Decoded) -> bytes:
    data = pickle.dumps(batch)
    pickle.loads(data)
    return data


def _each(work: Callable[[], object], count: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / count * 1e3


def speed(job: run.Job, workers: int) -> float:
    """Pictures a second after the start."""
    seen: list[tuple[float, int]] = []
    ray_run.run(
        job,
        decode=decode,
        workers=ray_run.Workers(most=workers, cpus=1),
        report=lambda done, _: seen.append((time.perf_counter(), done)),
    )
    begun, first = next(each for each in seen if each[1] >= len(job.items) / 8)
    ended, last = seen[-1]
    return (last - first) / (ended - begun)


if __name__ == "__main__":
    main()
