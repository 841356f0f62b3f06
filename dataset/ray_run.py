"""Many machines: Ray Data reads and decodes batches in tasks, and explains them in actors that hold the network once.

A batch has the pictures that it has on one machine, so its rows are equal. Rows return to the machine that asked, which
writes them as they come: workers share no disk with it but that of the pictures, and what is there already is not asked
for again. Ray repeats tasks and begins actors again when a worker or a machine is lost.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataset.errors import Refused
from dataset.items import Item, is_local
from dataset.pictures import Decode, Decoded, Reading
from dataset.run import Job, Report, Summary
from dataset.settings import Settings
from dataset.shards import open_run

if TYPE_CHECKING:
    from models import Model

BLOCKS = 2000
"""Tasks of reading that Ray plans at most; where there are more batches, a task reads several."""
READING = 0.5
"""CPUs of a task that reads: half of its time goes into waiting for the disk or the network."""
SHARE = 0.8
"""Of the CPUs that explain; the others decode."""
ROOMS = ("dataset", "explainers", "models", "ui")
"""Sent to the workers, which need the packages of the extra `ray` alone."""

Batch = tuple[int, int, list[Item]]


@dataclass(frozen=True)
class Workers:
    """Actors with a network: how many at most (None: as many as there is room for), and CPUs and GPUs of each.

    Fractions share one; with GPUs the network runs on CUDA. `cpus` None: as many as torch has threads here, and on a
    GPU one. An actor has as many threads as CPUs: sums in another number of threads differ in their last bit.
    """

    most: int | None = None
    cpus: float | None = None
    gpus: float = 0


def run(
    job: Job,
    *,
    decode: Decode,
    address: str | None = None,
    workers: Workers | None = None,
    report: Report | None = None,
) -> Summary:
    """Explain all pictures of a job that are not explained yet on a Ray cluster, and write its manifest.

    `address` is what `ray.init` takes; without one Ray is started on this machine, and stopped after. `report` is
    called after each batch; raising in it ends the run, and what is done stays.

    Errors   Refused where there is no cluster, where it is too small or cannot read the pictures, and where the disk is
             full; those of the library
    """
    began = time.perf_counter()
    todo = [] if job.shards.is_finished else list(job.missing())
    new = sum(len(items) for _, _, items in todo)
    if todo:
        with connected(address):
            fitted = fit(workers or Workers())
            _check_files(todo[0][2])
            _write(job, todo, results(job, todo, decode, fitted), report)
    seconds = time.perf_counter() - began
    counts = open_run(job.shards.folder).manifest["counts"] if job.shards.is_finished else job.finish(seconds)
    return Summary(job.shards.folder, dict(counts), new, time.perf_counter() - began)


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


def results(job: Job, todo: list[Batch], decode: Decode, workers: Workers) -> Iterator[dict[str, Any]]:
    """Shard, place, number of pictures and pickled rows of every batch, as they are finished."""
    import ray

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    options = ray.data.DataContext.get_current()
    options.enable_progress_bars = False
    options.target_max_block_size = 1  # a batch is a block: it is explained while the next one is decoded
    batches = [{"shard": shard, "place": place, "items": pickle.dumps(items)} for shard, place, items in todo]
    data = ray.data.from_items(batches, override_num_blocks=min(len(batches), BLOCKS))
    read = data.map(_reading(Reading(decode, job.model.preparation)), num_cpus=READING)
    explained = read.map(
        Explaining,  # type: ignore[arg-type]  # a class is an actor
        fn_constructor_args=(ray.put(job.model), job.settings, workers),
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers.most, initial_size=workers.most),
        num_cpus=workers.cpus,
        num_gpus=workers.gpus,
    )
    yield from explained.iter_rows()


def _reading(reading: Reading) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def read(batch: dict[str, Any]) -> dict[str, Any]:
        decoded = reading[pickle.loads(batch["items"])]
        return {"shard": batch["shard"], "place": batch["place"], "decoded": pickle.dumps(decoded)}

    return read


class Explaining:
    """The actor: it has the network once, and explains one batch after the other."""

    def __init__(self, model: Any, settings: Settings, workers: Workers) -> None:
        import ray
        import torch

        from dataset.explaining import Explainer

        torch.set_num_threads(max(1, round(workers.cpus or 1)))
        loaded: Model = ray.get(model)
        self._explain = Explainer(loaded, settings, "cuda" if workers.gpus else "cpu")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The rows of a batch; an error of the library travels in their place, and is raised where the run began."""
        decoded: Decoded = pickle.loads(batch["decoded"])
        rows: list[dict[str, Any]] | Exception
        try:
            rows = self._explain(decoded)
        except Exception as error:
            rows = _portable(error)
        count = len(decoded.items)
        return {"shard": batch["shard"], "place": batch["place"], "pictures": count, "rows": pickle.dumps(rows)}


def _portable(error: Exception) -> Exception:
    """The error, where it can travel; otherwise its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """A cluster for as long as the block; one that is connected to already stays so.

    Errors   Refused where Ray is not installed, and where nothing answers at the address
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Devices of actors without a GPU stay as they are: Ray's future default, and its warning.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise Refused('--engine ray needs Ray, which is not installed: pip install "hooklens[ray]".') from None
    if ray.is_initialized():
        yield
        return
    root = Path(__file__).resolve().parent.parent
    own: dict[str, Any] = {"address": address}
    if address is None:
        own = {"address": "local", "num_cpus": 1 + (os.cpu_count() or 1), "include_dashboard": False}
    modules = {"py_modules": [str(root / room) for room in ROOMS], "excludes": ["__pycache__"]}
    try:
        ray.init(**own, runtime_env=modules, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise Refused(f"No Ray cluster answers at {address or 'this machine'}: {reason}") from None
    try:
        yield
    finally:
        ray.shutdown()


def fit(workers: Workers) -> Workers:
    """As many workers as the cluster has room for beside the tasks that read.

    Errors   Refused where it has none for a single one
    """
    import ray
    import torch

    there = ray.cluster_resources()  # type: ignore[no-untyped-call]
    cpus, gpus = there.get("CPU", 0), there.get("GPU", 0)
    own = workers.cpus or (1 if workers.gpus else torch.get_num_threads())
    if cpus < own + READING or gpus < workers.gpus:
        raise Refused(
            f"The cluster has {cpus:g} CPUs and {gpus:g} GPUs; a worker takes {own:g} and {workers.gpus:g}, reading "
            f"{READING:g} CPUs. Add machines, or let workers take less."
        )
    room = int((cpus - READING) / own)
    room = min(room, int(gpus / workers.gpus)) if workers.gpus else max(1, min(room, int(cpus * SHARE / own)))
    return Workers(min(workers.most or room, room), own, workers.gpus)


def _check_files(items: list[Item]) -> None:
    """Errors   Refused where a machine of the cluster has not the pictures that this one has"""
    here = [item.url for item in items if is_local(item.url) and os.path.exists(item.url)]
    if not here:
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=0)
    def has(path: str) -> bool:
        return os.path.exists(path)

    for node in ray.nodes():  # type: ignore[no-untyped-call]
        if node["Alive"] and node["Resources"].get("CPU"):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
            if not ray.get(has.options(scheduling_strategy=there).remote(here[0])):
                raise Refused(
                    f"The machine {node['NodeManagerAddress']} of the cluster has no {here[0]}. Put the pictures on a "
                    "disk that all machines share, or give the address of a store, such as s3://…"
                )
