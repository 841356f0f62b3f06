"""The task that is sent to the cluster."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from saliscope.runs.decoding import Decode
from saliscope.runs.items import Item
from saliscope.runs.settings import Settings
from saliscope.runs.shards.planning import Finished, plan
from saliscope.runs.sources import Partition
from saliscope.zoo import Model

READING = 0.5
"""CPUs of a task that reads and decodes: half of its time is spent waiting for the disk or the network."""
LISTING = 0.25
"""CPUs of a task that lists, and of one that writes."""
PATIENCE = 60.0
"""Seconds without a result after which the work of a lost machine is given to others."""


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
class Batch:
    """An unfinished batch of a shard that has `left` unfinished ones of `batches`.

    If nothing is left, the shard only has to be written, and there are no images.
    """

    shard: int
    index: int
    items: list[Item]
    left: int
    batches: int


@dataclass(frozen=True)
class End:
    """The end of a partition: its number of shards, and its images in batches that were already finished."""

    partition: int
    shards: int
    finished: int


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


def list_partition(number: int, partition: Partition, settings: Settings, finished: Finished) -> Iterator[Batch | End]:
    """Yield the unfinished batches of a partition in order, and its end.

    Errors   Refused if the source cannot be listed, or if it has changed since its batches were finished
    """
    shards = done = 0
    for shard in plan(number, partition(), settings.shard, settings.batch_size):
        missing = finished.missing(shard)
        done += len(shard) - sum(len(items) for _, items in missing)
        for index, items in missing:
            yield Batch(shard.number, index, items, len(missing), len(shard.batches))
        if not missing and shard.number not in finished.shards:
            yield Batch(shard.number, -1, [], 0, len(shard.batches))
        shards += 1
    yield End(number, shards, done)


def picklable(error: Exception) -> Exception:
    """Return the error if it can be pickled, or else a RuntimeError with its message."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
