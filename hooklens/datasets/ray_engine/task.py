"""The task that is sent to the cluster."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hooklens.datasets.decoding import Decode
from hooklens.datasets.items import Item
from hooklens.datasets.settings import Settings

if TYPE_CHECKING:
    from hooklens.zoo import Model

READING = 0.5
"""CPUs of a reading task: half of its time is spent waiting for the disk or the network."""
PATIENCE = 60.0
"""Seconds without a result after which the work of a lost machine is given to others."""


@dataclass(frozen=True)
class Workers:
    """Actors with a network: their maximum number (None: as many as fit), and the CPUs and GPUs of each.

    With fractions, several actors share a device. `cpus` None means the number of threads of torch on this machine, or
    1 with GPUs. An actor has as many threads as CPUs, because sums with another number of threads differ in their last
    bits. `device` is the kind of device in each actor, without a number, because Ray assigns the devices of a machine.
    Actors on CUDA and XPU have at least one GPU; with GPUs, "cpu" means CUDA. "auto" uses the GPUs of the cluster if it
    has any.
    """

    most: int | None = None
    cpus: float | None = None
    gpus: float = 0
    device: str = "cpu"

    def resolve(self, gpus: float) -> Workers:
        """Return the workers for a cluster with this number of GPUs."""
        wants_one = self.device in ("cuda", "xpu") or (self.device == "auto" and gpus >= 1)
        own = self.gpus or float(wants_one)
        return replace(self, gpus=own, device="cuda" if own and self.device == "cpu" else self.device)


@dataclass(frozen=True)
class Task:
    """What to explain, and how: shard, index and images of every batch.

    `out` is the folder or URL of the run if the workers write the rows, or None if they send them back. `shards` has
    the number of batches of each shard, and the labels of its images.
    """

    model: Model
    settings: Settings
    batches: list[tuple[int, int, list[Item]]]
    decode: Decode
    address: str | None
    workers: Workers
    patience: float = PATIENCE
    out: str | None = None
    shards: Mapping[int, tuple[int, list[str | None]]] = field(default_factory=dict)


def picklable(error: Exception) -> Exception:
    """Return the error if it can be pickled, or else a RuntimeError with its message."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
