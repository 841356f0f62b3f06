"""What is asked of the cluster."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataset.items import Item
from dataset.pictures import Decode
from dataset.settings import Settings

if TYPE_CHECKING:
    from models import Model

READING = 0.5
"""CPUs of a task that reads: half of its time goes into waiting for the disk or the network."""
PATIENCE = 60.0
"""Seconds without a result after which a lost machine's work is given to the others."""


@dataclass(frozen=True)
class Workers:
    """Actors with a network: how many at most (None: as many as there is room for), and CPUs and GPUs of each.

    Fractions share one; with GPUs the network runs on CUDA. `cpus` None: as many as torch has threads here, and on a
    GPU one. An actor has as many threads as CPUs: sums in another number of threads differ in their last bit.
    """

    most: int | None = None
    cpus: float | None = None
    gpus: float = 0


@dataclass(frozen=True)
class Task:
    """What is to be explained, by whom: shard, place and pictures of every batch."""

    model: Model
    settings: Settings
    batches: list[tuple[int, int, list[Item]]]
    decode: Decode
    address: str | None
    workers: Workers
    patience: float = PATIENCE


def portable(error: Exception) -> Exception:
    """The error, where it can travel; otherwise its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
