"""`python -m benchmarks.data_sets --photos FOLDER`: images per second of a run, with and without maps.

Both pipelines read, decode and prepare the images in worker processes and write rows; "forward" does not compute maps.
They alternate, and the result is the median of their ratios. --memory N repeats the images of the folder up to N, and
prints the resident memory after each tenth.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import explainers
from explainers.explanation.result import Explanation
from saliscope.datasets import run
from saliscope.datasets.items import Item
from saliscope.datasets.settings import Settings


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data_sets", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--photos", required=True, help="a source of images")
    parser.add_argument("--limit", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--memory", type=int, help="number of images of one long run")
    arguments = parser.parse_args()
    explainers.keep_freed_memory()
    if arguments.memory:
        memory(arguments)
    else:
        ratios(arguments)


def decode(data: bytes) -> Image.Image:
    """Decode without the guard of the page."""
    import io  # runs in worker processes

    return Image.open(io.BytesIO(data)).convert("RGB")


def ratios(arguments: argparse.Namespace) -> None:
    """Print images per second, with and without maps."""
    found: dict[str, list[float]] = {"forward": [], "grad_cam": []}
    explain = explainers.explain
    for turn in range(arguments.rounds + 1):
        for name in found:
            with tempfile.TemporaryDirectory() as folder:
                job = run.prepare(
                    Settings(batch_size=arguments.batch_size), arguments.photos, folder, limit=arguments.limit
                )
                explainers.explain = explain if name == "grad_cam" else forward_only  # type: ignore[assignment]
                seconds = timed(job, arguments.workers)
            if turn:  # the first round is a warm-up
                found[name].append(len(job.items) / seconds)
    explainers.explain = explain
    for name, speeds in found.items():
        print(f"{name}: {statistics.median(speeds):.1f} images per second ({min(speeds):.1f} to {max(speeds):.1f})")
    each = [a / b for a, b in zip(found["grad_cam"], found["forward"], strict=True)]
    print(f"grad_cam / forward: {statistics.median(each):.2f} ({', '.join(f'{one:.2f}' for one in each)})")


def timed(job: run.Job, workers: int) -> float:
    """Return the seconds of a run without its first batch, since worker processes take seconds to start."""
    seen: list[tuple[float, int]] = []
    run.run(job, decode=decode, workers=workers, report=lambda done, total: seen.append((time.perf_counter(), done)))
    (start, first), (end, last) = seen[1], seen[-1]
    return (end - start) * last / (last - first)


def forward_only(method: str, network: Any, images: torch.Tensor, *_: Any, **options: Any) -> Explanation:
    """Return an `Explanation` with an empty map."""
    with torch.inference_mode():
        scores = network(images)
    target = scores.argmax(1).tolist()
    nothing = torch.zeros(len(images), 1, 1)
    empty: list[Any] = [[] for _ in target]
    return Explanation(method, None, target, {}, nothing, nothing, scores, [{} for _ in target], empty, 0.0)


def memory(arguments: argparse.Namespace) -> None:
    """Print the resident memory during a long run."""
    with tempfile.TemporaryDirectory() as folder:
        job = run.prepare(Settings(batch_size=arguments.batch_size), arguments.photos, folder)
        items = [
            Item(f"{k:07d}/{item.path}", item.label, item.url, item.offset, item.size, item.row)
            for k, item in zip(range(arguments.memory), itertools.cycle(job.items), strict=False)
        ]
        job = replace(job, listing=replace(job.listing, items=items))
        step = max(1, len(items) // 10)
        shown = 0

        def report(done: int, total: int) -> None:
            nonlocal shown
            if done >= shown + step or done == total:
                shown = done
                print(f"{done:,} images: {resident():.0f} MB", flush=True)

        start = time.perf_counter()
        run.run(job, decode=decode, workers=arguments.workers, report=report)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        size = sum(part.stat().st_size for part in Path(folder).glob("*.parquet")) / len(items)
        print(
            f"peak {peak:.0f} MB, {len(items) / (time.perf_counter() - start):.1f} per second, {size:.0f} bytes per row"
        )


def resident() -> float:
    """Return the resident megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
