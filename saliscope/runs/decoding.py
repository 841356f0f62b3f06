"""Decode images in worker processes, in batches and in order.

If an image cannot be read, its row contains an error message, and the other images of its batch are decoded.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from saliscope.runs.items import Item, read
from saliscope.zoo import Preparation

Decode = Callable[[bytes], Image.Image]
"""Returns the image in the bytes of a file; raises ValueError with a message if it cannot be decoded."""
AHEAD = 2
"""Batches that each worker prefetches."""


@dataclass(frozen=True)
class DecodedBatch:
    """A batch: `images` [n, C, H, W] of the items without an error, in order; one hash and one error per item."""

    items: list[Item]
    images: Tensor
    hashes: list[str | None]
    errors: list[str | None]

    @property
    def places(self) -> list[int]:
        """The index of the item of each image."""
        return [k for k, error in enumerate(self.errors) if error is None]

    def pin_memory(self) -> DecodedBatch:
        """Return the batch with images in pinned memory; the data loader calls this in its own thread."""
        return replace(self, images=self.images.pin_memory())


@dataclass(frozen=True)
class ImageReader(Dataset["DecodedBatch"]):
    """Read, decode and preprocess batches. Picklable, so that worker processes can use it."""

    decode: Decode
    preparation: Preparation

    def __getitem__(self, batch: Sequence[Item]) -> DecodedBatch:
        images: list[Tensor] = []
        hashes: list[str | None] = []
        errors: list[str | None] = []
        for item in batch:
            digest, error = None, None
            try:
                data = read(item)
                digest = hashlib.sha256(data).hexdigest()
                images.append(self.preparation.tensor(self.decode(data)))
            except Exception as reason:  # decoders raise many types of errors for damaged files
                error = error_message(reason)
            hashes.append(digest)
            errors.append(error)
        empty = torch.empty(0, self.preparation.channels, *self.preparation.size)
        return DecodedBatch(list(batch), torch.cat(images) if images else empty, hashes, errors)


def error_message(error: Exception) -> str:
    """Return the message for an image that could not be read."""
    if isinstance(error, ValueError) and str(error):
        return str(error).partition("\n")[0]
    if isinstance(error, OSError) and error.strerror:
        return f"Cannot read the file: {error.strerror}."
    return f"Cannot read the file ({type(error).__name__})."


def decode_batches(
    batches: Iterable[Sequence[Item]], decode: Decode, preparation: Preparation, workers: int, pin: bool = False
) -> Iterator[DecodedBatch]:
    """Return every decoded batch in order, using `workers` processes (0: this process).

    With `pin`, worker processes' images are in pinned memory, from which an accelerator copies while it computes.
    """
    reader = ImageReader(decode, preparation)
    if not workers:
        return map(reader.__getitem__, batches)
    # Workers are not forked from this process, because a fork may deadlock on a lock held by another thread.
    loader: DataLoader[DecodedBatch] = DataLoader(
        reader,
        batch_size=None,
        sampler=batches,
        num_workers=workers,
        pin_memory=pin,
        prefetch_factor=AHEAD,
        worker_init_fn=_exit_with_parent,
        multiprocessing_context="spawn" if sys.platform == "win32" else "forkserver",
    )
    return iter(loader)


def _exit_with_parent(_: int) -> None:
    """Ignore Ctrl+C and SIGTERM in a worker, and exit when the parent process ends for any reason.

    Both may be sent to the whole process group, but the run still needs the batches that are being decoded.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: Any) -> None:
    """Wait for the parent process; torch only watches the fork server, which survives when the parent is killed."""
    parent.join()
    os._exit(1)
