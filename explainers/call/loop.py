"""The loop shared by all slow methods: chunks, progress, cancellation and time budget.

A method provides the number of variants and a function that adds a range of them to its result. The batch size follows
from the network (batch_size.py). Measured times only decide when a budget is used up. Variants do not depend on
the chunks, so the batch size only affects the speed, and the rounding of a row by the backend.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from explainers.call.batch_size import Estimate
from explainers.errors import BadOption, is_out_of_memory, shorten
from explainers.findings import counting_samples
from explainers.nested import concatenate_outputs
from explainers.placement import Placements

T = TypeVar("T")
Call = TypeVar("Call", bound=Callable[..., Any])


@dataclass(frozen=True)
class Partial:
    """Progress of a slow method: `fraction` in [0, 1], `done` of `total` variants, and the best `map` so far.

    `placement` says where the cells of the map lie, as in `Explanation`.
    """

    fraction: float
    map: Tensor | None
    done: int
    total: int
    placement: Placements = field(default=None, kw_only=True)


Progress = Callable[[Partial], Any]
"""Called after each chunk. Returning False stops with the best map so far; raising an exception stops without a map."""


def check_progress(progress: Any, takes: str = "a Partial") -> None:
    """Check that `progress` is callable or None; `takes` is what it is called with.

    Errors   BadOption
    """
    if progress is not None and not callable(progress):
        raise BadOption(f"Invalid progress={shorten(progress)}. Pass a function that takes {takes}, or None.")


_SHORTEST = 1e-6
"""Shortest plausible time of a variant in seconds."""

_largest: ContextVar[int] = ContextVar("largest", default=sys.maxsize)


@contextmanager
def largest_batch(rows: int) -> Iterator[None]:
    """Limit automatic batch sizes to `rows` inside the block.

    Unlike the option `batch_size`, smaller batches remain possible, and methods without that option are limited too.

    Returns  nothing

    Example
        >>> with largest_batch(8):
        ...     maps = rise(model, images, 281, samples=16)
        >>> maps.shape
        torch.Size([1, 224, 224])
    """
    token = _largest.set(rows)
    try:
        yield
    finally:
        _largest.reset(token)


def now(device: torch.device) -> float:
    """Return the monotonic time in seconds after the device has finished its work."""
    if device.type != "cpu":
        synchronize = getattr(getattr(torch, device.type, None), "synchronize", None)
        if synchronize is not None:
            synchronize(*[] if device.type == "mps" else [device])  # there is a single MPS device
    return time.monotonic()


class RetrySmaller(Exception):
    """Raised inside a chunk to run it and all later ones with `rows` variants."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


class StopLoop(Exception):
    """Raised inside a chunk that cannot be finished; the loop stops with the result before it."""


@dataclass
class Rows:
    """An automatic batch size: `size` variants in each chunk.

    For the budget, `seconds` is the time of a variant, as last measured, and `prefix` that of a chunk besides these.
    """

    size: int
    seconds: float
    device: torch.device
    prefix: float = 0.0


@dataclass
class Loop:
    """The cost options of a slow method. The budget starts when the object is created, so create it first.

    `start` is when the budget started, `estimate` the cost of a row, from which the batch size follows.
    """

    batch_size: int | None = None
    progress: Progress | None = None
    budget: float | None = None
    precision: str = "float32"
    """Precision of the variants: "float32", "bf16", or "auto" for bfloat16 only if it is also faster."""
    largest: int = field(default_factory=_largest.get, init=False)
    """Maximum rows of an automatic batch, and of every pass once `ran_out` is set."""
    ran_out: bool = field(default=False, init=False)
    half: bool = field(default=False, init=False)
    """Whether variants run in bfloat16."""
    ended_early: bool = field(default=False, init=False)
    """Whether a run was cancelled or ran out of budget."""

    def __post_init__(self) -> None:
        size = self.batch_size
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise BadOption(
                f"Invalid batch_size={shorten(size)}. Pass an integer of at least 1, or None to choose it "
                "automatically."
            )
        budget = self.budget
        if budget is not None and (isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget > 0):
            raise BadOption(
                f"Invalid budget={shorten(self.budget)}. Pass a number of seconds above 0, or None for no limit."
            )
        if self.progress is not None:
            check_progress(self.progress)
        self.start = time.monotonic()
        # The last measured pass: seconds in total, seconds after the requested layer, device, seconds of an image.
        self._whole, self._suffix, self._device, self.seconds_per_row = 0.0, 0.0, torch.device("cpu"), 0.0
        self.estimate: Estimate | None = None

    def one_by_one(self) -> None:
        """Limit every pass to one row, for networks that need it or whose rows affect each other."""
        self.batch_size, self.ran_out, self.largest = 1, True, 1

    def measure(self, images: Tensor, start: float, at_layer: float | None = None) -> None:
        """Record the times of a pass of the images: its start, the end of the requested layer, and its end (now)."""
        end, self._device = now(images.device), images.device
        self._whole = end - start
        self.seconds_per_row = self._whole / len(images)
        self._suffix = self._whole if at_layer is None else end - at_layer

    def measure_prefix(self, seconds: float) -> None:
        """Record how many seconds of the measured pass were spent up to the layer."""
        self._suffix = max(0.0, self._whole - seconds)

    @property
    def left(self) -> float:
        """Remaining seconds of the budget, negative once it is used up, infinite without a budget."""
        return math.inf if self.budget is None else self.start + self.budget - time.monotonic()

    def rows(self, passes: int = 1) -> int | Rows:
        """Return the variants per chunk, of all images: the given batch size, or one that follows from the network.

        `passes` is the time of a row in forward passes: 2 with a backward pass.
        """
        if self.batch_size:
            return self.batch_size
        assert self.estimate is not None, "open_run sets it"
        size = self.estimate.rows(passes, self.largest, half=self.half)
        return Rows(size, passes * self._whole, self._device)

    def suffix_rows(self, passes: int = 1, largest: int = sys.maxsize) -> int | Rows:
        """Return the same for variants of a layer's output computed from one row: at most `largest` per chunk."""
        if self.batch_size:
            return self.batch_size
        assert self.estimate is not None, "the method sets it for the layer"
        size = self.estimate.rows(passes, largest, is_suffix=True)
        return Rows(size, passes * self._suffix, self._device, self._whole - self._suffix)

    def whole(self, rows: int | Rows) -> int:
        """Return a number of rows per pass: the given one, or at least one that fits into the remaining budget."""
        if isinstance(rows, int):
            return rows
        return max(1, int(min(rows.size, (self.left - rows.prefix) / max(rows.seconds, _SHORTEST))))

    def run(
        self, total: int, at_once: int | Rows, work: Callable[[range], bool | None], best: Callable[[], Tensor]
    ) -> int:
        """Call `work` with ranges that cover `range(total)`, and return the number of variants done.

        At least one chunk is started. `work` may raise `StopLoop`, and `RetrySmaller` before it has changed its result.
        It returns True if the variants done so far are enough.
        """
        rows = at_once if isinstance(at_once, Rows) else None
        with counting_samples() as counts:
            counts.total = total
            while counts.done < counts.total:
                done = counts.done
                chunk = range(done, min(counts.total, done + self.whole(at_once)))
                start = time.monotonic()  # the device has finished the chunk before, so one wait for each is enough
                try:
                    is_enough = work(chunk)
                except RetrySmaller as retry:
                    if rows is None:
                        at_once = retry.rows
                    else:
                        rows.size = retry.rows
                    continue
                except StopLoop:
                    counts.stopped_by = "budget"
                    break
                counts.done = done = chunk.stop
                if rows is not None:
                    rows.seconds = max((now(rows.device) - start - rows.prefix) / len(chunk), 0.0)
                if is_enough:
                    counts.total = done
                is_last = done == counts.total
                if self.progress is not None:
                    partial = Partial(done / counts.total, best(), done, counts.total)
                    if self.progress(partial) is False:
                        counts.stopped_by = "" if is_last else "progress"
                        break
                # Stop if the remaining budget does not allow another variant; a given batch size is always kept.
                if self.left <= (0.0 if rows is None else rows.prefix + rows.seconds):
                    counts.stopped_by = "" if is_last else "budget"
                    break
        self.ended_early |= counts.done < counts.total
        return counts.done

    def run_in_halves(
        self, work: Callable[[Tensor, Sequence[int]], T], batch: Tensor, image_indices: Sequence[int]
    ) -> T:
        """Return `work(batch, image_indices)`; if memory runs out, split the batch in halves, down to single rows.

        Later batches use the reduced size from the start, even with a given batch size.
        """
        limit = self.largest if self.ran_out else len(batch)
        if len(batch) <= limit:
            try:
                return work(batch, image_indices)
            except Exception as error:
                if len(batch) < 2 or not is_out_of_memory(error):
                    raise
            # Outside the exception handler, whose traceback keeps the tensors of the failed pass alive.
            self.ran_out, self.largest = True, len(batch) // 2
            limit = self.largest
        starts = range(0, len(batch), limit)
        return concatenate_outputs(
            [self.run_in_halves(work, batch[i : i + limit], image_indices[i : i + limit]) for i in starts]
        )


def split_on_out_of_memory(method: Call) -> Call:
    """Decorate a method `(self, batch, image_indices, ...)` for variants to split its batch when memory runs out."""

    @wraps(method)
    def wrapper(self: Any, batch: Tensor, image_indices: Sequence[int] | None = None, **kwargs: Any) -> Any:
        loop: Loop | None = self.loop
        if loop is None or image_indices is None:
            return method(self, batch, image_indices, **kwargs)
        if not loop.ran_out:
            try:
                return method(self, batch, image_indices, **kwargs)
            except Exception as error:
                if len(batch) < 2 or not is_out_of_memory(error):
                    raise
            # Outside the exception handler, whose traceback keeps the tensors of the failed pass alive.
            loop.ran_out, loop.largest = True, len(batch) // 2
        return loop.run_in_halves(lambda part, rows: method(self, part, rows, **kwargs), batch, image_indices)

    return cast(Call, wrapper)
