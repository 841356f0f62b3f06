"""The stages on the cluster, in the order of the rows: list, decode, explain, write. A row of Ray Data is a batch.

Ray runs all of them at the same time and lets a stage wait if the next one is slower, so that the images that are in
memory are few. Its dashboard shows them by the names of the functions here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import torch

from saliscope.runs.decoding import Decode, ImageReader
from saliscope.runs.explaining import Explainer
from saliscope.runs.run import explained
from saliscope.runs.settings import Classes, Settings
from saliscope.runs.shards.planning import Batch, Finished, list_partition
from saliscope.runs.shards.writing import ShardFiles, commit_name
from saliscope.runs.sources import Partition
from saliscope.runs.stores import open_store
from saliscope.zoo import Model, devices

with contextlib.suppress(ImportError):  # ray is an extra
    import ray

READING = 0.5
"""CPUs of a task that reads and decodes: half of its time is spent waiting for the disk or the network."""
LISTING = 0.25
"""CPUs of a task that lists, and of one that writes."""
PATIENCE = 60.0
"""Seconds without a result after which the work of a lost machine is given to others."""
GROUPS = 2000
"""Maximum number of tasks that list; if there are more partitions, a task lists several."""
NAME = "saliscope explain"


@dataclass(frozen=True)
class Workers:
    """Actors with a network: their number, and the CPUs and GPUs of each.

    There are `least` of them at first, and `most` if batches wait (None: as many as fit). With fractions, several
    actors share a device. `cpus` None means the number of threads of torch on this machine, or 1 with GPUs. An actor
    has as many threads as CPUs, because sums with another number of threads differ in their last bits. `device` is the
    kind of device in each actor, without a number, because Ray assigns the devices of a machine. Actors on CUDA and XPU
    have at least one GPU; with GPUs, "cpu" means CUDA. "auto" uses the GPUs of the cluster if it has any.
    """

    most: int | None = None
    cpus: float | None = None
    gpus: float = 0
    device: str = "cpu"
    least: int = 1

    def resolve(self, gpus: float) -> Workers:
        """Return the workers for a cluster with this number of GPUs."""
        wants_one = self.device in ("cuda", "xpu") or (self.device == "auto" and gpus >= 1)
        own = self.gpus or float(wants_one)
        return replace(self, gpus=own, device="cuda" if own and self.device == "cpu" else self.device)


@dataclass(frozen=True)
class Task:
    """What to explain, and how. `out` is the folder or URL of the run if the workers write the rows, or None if they
    send them back.
    """

    model: Model
    settings: Settings
    partitions: Sequence[tuple[int, Partition]]
    """The partitions with their numbers. They are listed on the cluster."""
    finished: Finished
    decode: Decode
    address: str | None
    workers: Workers
    patience: float = PATIENCE
    out: str | None = None


def picklable(error: Exception) -> Exception:
    """Return the error if it can be pickled, or else a RuntimeError with its message."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def results(task: Task) -> Iterator[dict[str, Any]]:
    """Yield the results of the stages in the order of completion.

    A batch has what `Batch.result` returns, and errors, stamp, warning, whether the cluster closes its shard and, if it
    does not, the rows. A shard that is written has shard and commit, the end of a partition has end and shards, a
    failure has error.
    """
    closing, started, names = list[Any](), set[int](), ray.put(task.model.labels)
    close = ray.remote(num_cpus=0, max_retries=3)(close_shard).options(name="write_shard")
    for row in build(task).iter_rows():
        result = pickle.loads(row["value"])
        result["closes"] = task.out is not None
        yield result
        shard = result.get("shard")
        if result["closes"] and shard is not None and task.finished.add(result) and shard not in started:
            started.add(shard)
            closing.append(close.remote(task.out, shard, result["batches"], names))
        if closing:
            done, closing = ray.wait(closing, num_returns=len(closing), timeout=0)
            yield from ray.get(done)
    while closing:
        done, closing = ray.wait(closing)
        yield from ray.get(done)


def build(task: Task) -> ray.data.Dataset:
    """Return the stages as a dataset, which Ray computes when its rows are read."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    options = ray.data.DataContext.get_current()
    options.enable_progress_bars = False
    options.target_max_block_size = 1  # one batch per block, so that a batch is explained while the next one is decoded
    workers = task.workers
    one: dict[str, Any] = {"batch_size": 1, "batch_format": "pyarrow"}  # Ray needs a size for stages with GPUs
    # Different numbers of CPUs keep Ray from running two stages in one task.
    groups = [task.partitions[k::GROUPS] for k in range(min(len(task.partitions), GROUPS))]
    data = ray.data.from_arrow([_row(group) for group in groups])
    known = {"finished": ray.put(task.finished), "settings": task.settings}
    data = data.map_batches(list_images, fn_kwargs=known, num_cpus=LISTING, **one)
    reader = {"reader": ImageReader(task.decode, task.model.preparation)}
    data = data.map_batches(decode_images, fn_kwargs=reader, num_cpus=READING, **one)
    data = data.map_batches(
        Explain,  # Ray runs a class as an actor
        fn_constructor_args=(ray.put(task.model), task.settings, workers),
        concurrency=(workers.least, workers.most),
        num_cpus=workers.cpus,
        num_gpus=workers.gpus,
        **one,
    )
    if task.out is not None:
        data = data.map_batches(write_rows, fn_kwargs={"out": task.out}, num_cpus=LISTING, **one)
    data.set_name(NAME)
    return data


def list_images(row: pa.Table, finished: Any, settings: Settings) -> Iterator[pa.Table]:
    """Yield the batches and the ends of some partitions."""
    known = ray.get(finished)
    for number, partition in _load(row):
        try:
            for found in list_partition(number, partition, settings, known):
                yield _row(found)
        except Exception as error:  # the source cannot be listed
            yield _row({"error": picklable(error)})


def _row(value: Any) -> pa.Table:
    """Return a row of Ray Data: partitions, a batch, its result with the decoded images, or a result to pass on."""
    return pa.table({"value": pa.array([pickle.dumps(value)], pa.large_binary())})


def _load(row: pa.Table) -> Any:
    return pickle.loads(row["value"][0].as_buffer())


def decode_images(row: pa.Table, reader: ImageReader) -> pa.Table:
    """Return a batch with its decoded images, or other rows as they are."""
    batch = _load(row)
    return _row((batch.result(), reader[batch.items])) if isinstance(batch, Batch) else row


class Explain:
    """An actor that loads the network once and explains batches."""

    def __init__(self, model: Any, settings: Settings, workers: Workers) -> None:
        torch.set_num_threads(max(1, round(workers.cpus or 1)))
        loaded: Model = ray.get(model)
        device = devices.choose(workers.device)
        self._warning = devices.compare(loaded, device)
        self._explain = Explainer(loaded, settings, str(device))

    def __call__(self, row: pa.Table) -> pa.Table:
        """Return the rows of a batch, or an error, which the starting process raises."""
        value = _load(row)
        if not isinstance(value, tuple):
            return row
        result, decoded = value
        try:
            rows = self._explain(decoded)
        except Exception as error:
            return _row({"error": picklable(error)})
        return _row({**result, "warning": self._warning, **explained(decoded, rows)})


def write_rows(row: pa.Table, out: str) -> pa.Table:
    """Write the rows of a batch, and return its result without them."""
    result = _load(row)
    if "rows" not in result:
        return row
    try:
        files = ShardFiles(open_store(out))
        files.write_batch(result["shard"], result["index"], result.pop("rows"), result["stamp"])
    except Exception as error:
        result = {"error": picklable(error)}
    return _row(result)


def close_shard(out: str, shard: int, batches: int, names: list[str]) -> dict[str, Any]:
    """Write the Parquet file and the commit of a shard, and return the commit, or the error.

    This runs in a task on any machine, because the rows are not sent to the process that started the run.
    """
    files = ShardFiles(open_store(out))
    try:
        commit = files.close(shard, batches, Classes(names))
    except Exception as error:
        # A task of a process that has given up may have written the shard and deleted its batches.
        content = files.store.read(commit_name(shard))
        if content is None:
            return {"error": picklable(error)}
        commit = json.loads(content)
    return {"shard": shard, "commit": commit}
