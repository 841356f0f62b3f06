"""The machine that asks: it writes the rows that a process connected to the cluster sends.

Ray lives in that process alone: it can be ended and begun anew when the cluster has shrunk, and what Ray prints stays
in its own logs.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import pickle
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dataset.errors import Refused
from dataset.items import Item
from dataset.pictures import Decode
from dataset.ray_run.driver import LOST, drive
from dataset.ray_run.task import PATIENCE, Task, Workers
from dataset.run import Job, Report, Summary
from dataset.shards import open_run

Batch = tuple[int, int, list[Item]]


def run(
    job: Job,
    *,
    decode: Decode,
    address: str | None = None,
    workers: Workers | None = None,
    report: Report | None = None,
    patience: float = PATIENCE,
) -> Summary:
    """Explain all pictures of a job that are not explained yet on a Ray cluster, and write its manifest.

    `address` is what `ray.init` takes; without one Ray is started on this machine, and stopped after. `report` is
    called after each batch; raising in it ends the run, and what is done stays. `patience` is how many seconds without
    a result are waited for a lost machine before its work is given to the others.

    Errors   Refused where there is no cluster, where it is too small or cannot read the pictures, and where the disk is
             full; those of the library
    """
    began = time.perf_counter()
    if importlib.util.find_spec("ray") is None:
        raise Refused('--engine ray needs Ray, which is not installed: pip install "hooklens[ray]".')
    todo = [] if job.shards.is_finished else list(job.missing())
    new = sum(len(items) for _, _, items in todo)
    asked = _with_threads(workers or Workers())
    while todo:
        _write(job, todo, _sent(Task(job.model, job.settings, todo, decode, address, asked, patience)), report)
        todo = list(job.missing())
    seconds = time.perf_counter() - began
    counts = open_run(job.shards.folder).manifest["counts"] if job.shards.is_finished else job.finish(seconds)
    return Summary(job.shards.folder, dict(counts), new, time.perf_counter() - began)


def _with_threads(workers: Workers) -> Workers:
    import torch

    return (
        workers if workers.cpus is not None else replace(workers, cpus=1 if workers.gpus else torch.get_num_threads())
    )


def _sent(task: Task) -> Iterator[dict[str, Any]]:
    """What the process sends, until it is done or gives up because machines were lost."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    from ray import cloudpickle  # a network may have functions of its own, which pickle alone refuses

    pickled = cloudpickle.dumps(task)
    process = context.Process(target=drive, args=(there, pickled), daemon=True)
    process.start()
    there.close()
    try:
        while True:
            message = here.recv()
            if message is None or message == LOST:
                return
            if isinstance(message, Exception):
                raise message
            yield message
    except EOFError:
        process.join()
        raise Refused(
            f"The process that speaks with Ray ended (code {process.exitcode}). What is done is kept: run the same "
            "command again."
        ) from None
    finally:
        here.close()
        _end(process)


def _end(process: Any) -> None:
    """Ray's own end first, which stops what it started on this machine."""
    process.join(5)
    if process.is_alive():
        process.terminate()
        process.join(15)
    if process.is_alive():
        process.kill()
        process.join()


def _write(job: Job, todo: list[Batch], found: Iterator[dict[str, Any]], report: Report | None) -> None:
    """Every batch once, in whatever order they come; a shard is closed with its last."""
    left: dict[int, set[int]] = defaultdict(set)
    for shard, place, _ in todo:
        left[shard].add(place)
    done = len(job.items) - sum(len(items) for _, _, items in todo)
    for result in found:
        shard, place, rows = result["shard"], result["place"], pickle.loads(result["rows"])
        if isinstance(rows, Exception):
            raise rows
        if place not in left[shard]:
            continue
        job.shards.keep(shard, place, rows)
        left[shard].discard(place)
        if not left[shard]:
            job.shards.close(shard, len(job.batches(shard)))
        done += result["pictures"]
        if report is not None:
            report(done, len(job.items))
