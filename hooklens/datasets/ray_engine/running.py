"""The process that starts the run: it holds the lock, and writes the rows if the workers cannot write to the folder.

Ray is only used in that other process. It can therefore be restarted if the cluster has shrunk, and Ray's output stays
in its own logs.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import pickle
import sys
import sysconfig
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import explainers
import hooklens
from hooklens.datasets.decoding import Decode
from hooklens.datasets.items import Item
from hooklens.datasets.ray_engine.driver import LOST, drive
from hooklens.datasets.ray_engine.task import PATIENCE, Task, Workers
from hooklens.datasets.run import Job, Report, Summary
from hooklens.errors import Refused

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
    """Explain all unfinished images of a job on a Ray cluster, and write its manifest.

    `address` is passed to `ray.init`; if it is None, Ray is started on this machine and stopped afterwards. `report` is
    called after each batch. An exception in it stops the run; finished batches are kept. `patience` is the number of
    seconds without a result after which the work of a lost machine is given to others.

    Errors   Refused if there is no cluster, if it is too small or cannot read the images, and if the disk is full;
             those of `explainers`
    """
    start = time.perf_counter()
    if importlib.util.find_spec("ray") is None:
        raise Refused('--engine ray needs Ray, which is not installed. Install it with: pip install "hooklens[ray]".')
    workers = _with_threads(workers or Workers())
    with job.shards.writing():
        todo = [] if job.shards.is_finished else list(job.missing())
        new = sum(len(items) for _, _, items in todo)
        while todo:
            numbers = {shard for shard, _, _ in todo}
            shards = {shard: (len(job.batches(shard)), job.labels(shard)) for shard in numbers}
            out = str(job.shards.folder if not job.shards.store.local else Path(job.shards.folder).absolute())
            task = Task(job.model, job.settings, todo, decode, address, workers, patience, out, shards)
            _write(job, todo, _receive(task), report)
            todo = list(job.missing())
        counts = job.stored_counts() or job.finish(time.perf_counter() - start)
    return Summary(job.shards.folder, counts, new, time.perf_counter() - start)


def _with_threads(workers: Workers) -> Workers:
    import torch  # torch takes seconds to start

    return (
        workers
        if workers.cpus is not None
        else replace(workers, cpus=1 if workers.resolve(0).gpus else torch.get_num_threads())
    )


def _receive(task: Task) -> Iterator[dict[str, Any]]:
    """Yield what the process sends, until it is done or gives up because machines were lost."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    pickled = _pickle(task)
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
            f"The process connected to Ray ended (exit code {process.exitcode}). Finished batches are kept. Run the "
            "same command again."
        ) from None
    finally:
        here.close()
        _end(process)


def _pickle(task: Task) -> bytes:
    """Return the pickled task, including the classes of the user's own modules, which workers do not have."""
    from ray import cloudpickle  # pickle cannot serialize local functions of a network

    modules = _user_modules()
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(task))
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _user_modules() -> list[ModuleType]:
    """Return the imported modules that are neither installed packages nor part of this project."""
    paths = sysconfig.get_paths()
    folders = {Path(paths[kind]).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {Path(str(package.__file__)).resolve().parent for package in (hooklens, explainers)}

    def is_installed(file: Path) -> bool:
        if not file.is_absolute():  # modules that torch makes, such as torch.ops
            return True
        file = file.resolve()  # as the folders: a clone or an environment may be behind a link
        return not folders.isdisjoint(file.parents) or not {"site-packages", "dist-packages"}.isdisjoint(file.parts)

    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items() if name != "__main__"}
    return [sys.modules[name] for name, file in files.items() if file and not is_installed(Path(file))]


def _end(process: Any) -> None:
    """Let the process end by itself first, so that Ray stops what it started on this machine."""
    process.join(5)
    if process.is_alive():
        process.terminate()
        process.join(15)
    if process.is_alive():
        process.kill()
        process.join()


def _write(job: Job, batches: list[Batch], results: Iterator[dict[str, Any]], report: Report | None) -> None:
    """Write every batch once, in any order, or note that a worker has written it; close complete shards."""
    left: dict[int, set[int]] = defaultdict(set)
    for shard, index, _ in batches:
        left[shard].add(index)
    done, warned = len(job.items) - sum(len(items) for _, _, items in batches), set[str]()
    for result in results:
        shard = result["shard"]
        if "commit" in result:
            if isinstance(result["commit"], Exception):
                raise result["commit"]
            job.shards.check_lock()
            job.shards.add_shard(shard, result["commit"])
            continue
        index, rows = result["index"], pickle.loads(result["rows"])
        if (warning := result.get("warning")) and warning not in warned:
            warned.add(warning)
            warnings.warn(warning, stacklevel=2)
        if isinstance(rows, Exception):
            raise rows
        if index not in left[shard]:
            continue
        left[shard].discard(index)
        if rows is None:  # a worker has written them, and writes the shard
            job.shards.add_batch(shard, index)
        else:
            job.shards.write_batch(shard, index, rows)
            if not left[shard]:
                job.close(shard)
        done += result["count"]
        if report is not None:
            report(done, len(job.items))
