"""`python -m benchmarks.data_sets --photos FOLDER`: images per second of a run, with and without maps.

Both pipelines read, decode and prepare the images in worker processes and write rows; "forward" does not compute maps.
They alternate in --rounds, and the result is the median of their ratios. --memory N repeats the images of the folder
up to N, and prints the resident memory after each tenth. --ray 1 2 runs them on Ray with one and two workers; with
--wait a batch waits these seconds as for a slow GPU, so that a machine with few cores shows the overhead of the engine.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import explainers
from benchmarks import options
from benchmarks.data_sets import decode
from explainers.explanation.result import Explanation
from saliscope.runs import ray_engine, run
from saliscope.runs.settings import Settings


def main() -> None:
    """Print the results."""
    sizes = {"limit": 512, "rounds": 3, "workers": 1, "batch_size": 16, "memory": int, "wait": 0.0}
    arguments = options(__doc__, photos=str, ray=[int], **sizes)
    if not arguments.photos:
        sys.exit("--photos FOLDER is missing: it names a source of images.")
    explainers.keep_freed_memory()
    for workers in arguments.ray or ():
        print(f"Ray, workers: {workers}, images per second: {speed(arguments, workers):.1f}", flush=True)
    if arguments.memory:
        memory(arguments)
    elif not arguments.ray:
        ratios(arguments)


def speed(arguments: argparse.Namespace, ray: int = 0) -> float:
    """Return the images per second of a run without its first eighth, since worker processes take seconds to start."""
    seen, step = [(0.0, 0)], max(1, (arguments.memory or sys.maxsize) // 10)

    def report(done: int, total: int | None) -> None:
        if done // step > seen[-1][1] // step:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{done:,} images: at most {peak:.0f} MB", flush=True)
        seen.append((time.perf_counter(), done))

    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(batch_size=arguments.batch_size)
        job = run.prepare(settings, arguments.photos, folder, limit=arguments.limit)
        if arguments.wait:
            job.model.network.register_forward_pre_hook(lambda *_: time.sleep(arguments.wait))
        workers = ray_engine.Workers(most=ray, cpus=1) if ray else arguments.workers
        (ray_engine if ray else run).run(job, decode=decode, workers=workers, report=report)
        start, first = next(each for each in seen[1:] if each[1] >= len(job.listing.items) / 8)
    end, last = seen[-1]
    if last == first:
        sys.exit("There is only one batch after the first eighth. Give more images, or a smaller --batch-size.")
    return (last - first) / (end - start)


def ratios(arguments: argparse.Namespace) -> None:
    """Print images per second, with and without maps."""
    found: dict[str, list[float]] = {"forward": [], "grad_cam": []}
    explain = explainers.explain
    for turn in range(arguments.rounds + 1):
        for name, speeds in found.items():
            explainers.explain = explain if name == "grad_cam" else forward_only  # type: ignore[assignment]
            images = speed(arguments)
            speeds += [images] * (turn > 0)  # the first round is a warm-up
    explainers.explain = explain
    for name, speeds in found.items():
        print(f"{name}: {statistics.median(speeds):.1f} images per second ({min(speeds):.1f} to {max(speeds):.1f})")
    each = [a / b for a, b in zip(found["grad_cam"], found["forward"], strict=True)]
    print(f"grad_cam / forward: {statistics.median(each):.2f} ({', '.join(f'{one:.2f}' for one in each)})")


def forward_only(method: str, network: Any, images: torch.Tensor, *_: Any, **options: Any) -> Explanation:
    """Return an `Explanation` with an empty map."""
    with torch.inference_mode():
        scores = network(images)
    target = scores.argmax(1).tolist()
    nothing = torch.zeros(len(images), 1, 1)
    empty: list[Any] = [[] for _ in target]
    return Explanation(method, None, target, {}, nothing, nothing, scores, [{} for _ in target], empty, 0.0)


def memory(arguments: argparse.Namespace) -> None:
    """Print the peak of the memory after each tenth of a long run over links to the images of a folder."""
    files = [path for path in sorted(Path(arguments.photos).rglob("*")) if path.is_file()]
    with tempfile.TemporaryDirectory() as folder:
        for k, path in zip(range(arguments.memory), itertools.cycle(files), strict=False):
            (Path(folder) / f"{k:07d}{path.suffix}").symlink_to(path.resolve())
        arguments.photos, arguments.limit = folder, None
        speed(arguments)


if __name__ == "__main__":
    main()
