"""Pictures decoded in worker processes, a batch at a time, in order.

A picture that cannot be read is a sentence in its place, never an end: the others of its batch are decoded as ever.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dataset.errors import Refused
from dataset.items import Item, read

if TYPE_CHECKING:
    from models import Preparation

Decode = Callable[[bytes], Image.Image]
"""A picture file's bytes to its photograph; raises ValueError with a sentence for what it refuses."""
AHEAD = 2
"""Batches that each worker has ready."""


@dataclass(frozen=True)
class Decoded:
    """A batch: `images` [n, C, H, W] of the items without an error, in order; hashes and errors one an item."""

    items: list[Item]
    images: Tensor
    hashes: list[str | None]
    errors: list[str | None]


@dataclass(frozen=True)
class Reading(Dataset[Decoded]):
    """Reads, decodes and prepares; picklable, so that worker processes have it."""

    decode: Decode
    preparation: Preparation

    def __getitem__(self, batch: Sequence[Item]) -> Decoded:
        images: list[Tensor] = []
        hashes: list[str | None] = []
        errors: list[str | None] = []
        for item in batch:
            digest, error = None, None
            try:
                data = read(item)
                digest = hashlib.sha256(data).hexdigest()
                images.append(self.preparation.tensor(self.decode(data)))
            except Exception as reason:  # damaged files make decoders raise a dozen kinds of error
                error = sentence(reason)
            hashes.append(digest)
            errors.append(error)
        size = self.preparation.size
        empty = torch.empty(0, self.preparation.channels, *size)
        return Decoded(list(batch), torch.cat(images) if images else empty, hashes, errors)


def sentence(error: Exception) -> str:
    """What a row says of a picture that could not be read."""
    if isinstance(error, (Refused, ValueError)) and str(error):
        return str(error).partition("\n")[0]
    if isinstance(error, OSError) and error.strerror:
        return f"The file could not be read: {error.strerror}."
    return f"The file could not be read ({type(error).__name__})."


def decoded(
    batches: Iterable[Sequence[Item]], decode: Decode, preparation: Preparation, workers: int
) -> Iterator[Decoded]:
    """Every batch in order, by `workers` processes, or here where there are none."""
    reading = Reading(decode, preparation)
    if not workers:
        yield from map(reading.__getitem__, batches)
        return
    # Processes begun afresh: a fork of one whose threads have computed may wait for a lock for ever.
    loader: DataLoader[Decoded] = DataLoader(
        reading,
        batch_size=None,
        sampler=batches,
        num_workers=workers,
        prefetch_factor=AHEAD,
        worker_init_fn=_ends_with_its_parent,
        multiprocessing_context="spawn" if sys.platform == "win32" else "forkserver",
    )
    yield from loader


def _ends_with_its_parent(_: int) -> None:
    """Ctrl+C ends the process that asked; its workers end with it, however it ends, without a word of their own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    """torch looks at the process above, which here is the server of forks: it stays when ours is killed."""
    parent.join()
    os._exit(1)
