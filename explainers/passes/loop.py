"""The one loop of all slow methods: chunks, progress, stop and time budget.

A method gives the number of variants and a function that adds a range of them to its result; the loop chooses the batch
size and the end.

The batch size comes from measurement. The clean forward pass, which every method makes anyway, tells how many rows take
`SECONDS`; each chunk then tells it anew, and how much memory they took. Variants are the same whatever the chunks are,
so only the speed depends on it.
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

from explainers.errors import BadOption, is_out_of_memory
from explainers.hooks.records import map_tensors
from explainers.passes.memory import Memory, reused_bytes

T = TypeVar("T")
Call = TypeVar("Call", bound=Callable[..., Any])


@dataclass(frozen=True)
class Partial:
    """Progress of a long method: `fraction` in [0, 1], `done` of `total` variants, and its best `map` so far."""

    fraction: float
    map: Tensor | None
    done: int
    total: int


Progress = Callable[[Partial], Any]
"""Called after each chunk; returning False ends the method with its best map so far, raising ends it with nothing."""

def check_progress(progress: Any) -> None:
    """Refuse what cannot be called.

    Errors   BadOption
    """
    if progress is not None and not callable(progress):
        raise BadOption(f"progress={progress!r} is not possible. Give a function of a Partial, or None.")


SECONDS = 0.5
"""What a chunk of an automatic batch size is to take. On two cores, ResNet-18 at 224 and at 64 px and a small network
are as fast at that size as at any larger one; and progress, stop and budget act as soon.
"""

# Growth from one chunk to the next: the first may have been measured while the network was cold. Fraction of the time
# per variant that growth must save to go on, and above which a chunk was too large.
_GROWTH, _SAVING, _LOSING = 4, 0.95, 1.1
# Rows of the first chunk on the CPU, of images with more than so many values, where its tensors are not known.
# Not by time: chunks of a light network, and with them rounding, would follow the clock.
_FIRST, _LARGE = 8, 3 * 128 * 128
# A chunk shrinks where fewer than this fraction of it fit into `SECONDS`. A variant's shortest time that is believed.
_TOO_FEW, _SHORTEST = 0.7, 1e-6
# A slow network gets a few rows all the same, up to so many seconds: one at a time they cost a quarter more each.
_FEW, _LONGEST = 4, 2.0
# What is done once a chunk may take a third of its time.
_AMORTISED = 2.0

_largest: ContextVar[int] = ContextVar("largest", default=sys.maxsize)


@contextmanager
def largest_batch(rows: int) -> Iterator[None]:
    """No automatic batch size is larger inside the block."""
    token = _largest.set(rows)
    try:
        yield
    finally:
        _largest.reset(token)


def now(device: torch.device) -> float:
    """Seconds on the monotonic clock, once the device has done what it was given."""
    if device.type != "cpu":
        synchronize = getattr(getattr(torch, device.type, None), "synchronize", None)
        if synchronize is not None:
            synchronize()
    return time.monotonic()


class Smaller(Exception):
    """Raised inside a chunk that can be done again: with `rows` of them now, or with no more than that `ever`."""

    def __init__(self, rows: int, ever: bool = False) -> None:
        super().__init__(rows)
        self.rows, self.ever = rows, ever


class Ended(Exception):
    """Raised inside a chunk that cannot be finished: the loop ends with what was done before it."""


@dataclass
class Rows:
    """An automatic batch size: `size` variants in the next chunk, of `seconds` each as far as is known.

    Each chunk takes `prefix` seconds besides, however few they are.
    """

    seconds: float
    device: torch.device
    largest: int
    prefix: float = 0.0
    first: int = sys.maxsize
    size: int = field(init=False)
    _last: tuple[int, float] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.seconds = max(self.seconds, _SHORTEST)
        self.size = max(1, min(self.largest, self.first, _power_of_two(self._fits())))
        self._memory = Memory(self.device)

    def adapt(self, count: int, seconds: float) -> None:
        """Set the next size by what a chunk of `count` variants took."""
        self.seconds = max((seconds - self.prefix) / count, _SHORTEST)
        if count < self.size:
            return  # the last of the variants, or of the budget
        self.largest = min(self.largest, self._memory.most(count) or self.largest)
        last, self._last = self._last, (count, self.seconds)
        if last is not None and count > last[0] and self.seconds > _SAVING * last[1]:
            # More rows at once cost memory and save nothing.
            self.largest = min(self.largest, last[0] if self.seconds > _LOSING * last[1] else count)
        fits = self._fits()
        if fits < _TOO_FEW * count or fits >= 2 * count:
            self.size = min(_GROWTH * count, _power_of_two(fits))
        self.size = max(1, min(self.size, self.largest))

    def _fits(self) -> float:
        fits = max(SECONDS, _AMORTISED * self.prefix) / self.seconds
        return max(fits, min(_FEW, _LONGEST / self.seconds))

    def within(self, seconds: float) -> int:
        """As many rows as can be done in so many seconds, up to `size` and at least one."""
        return max(1, int(min(self.size, (seconds - self.prefix) / self.seconds)))


def _power_of_two(number: float) -> int:
    """The largest power of two up to a number: few sizes, because a backend prepares for each."""
    return 1 << max(0, int(math.log2(max(1, number))))


@dataclass
class Loop:
    """The cost options of a long method; its budget begins here, so it is made before anything else."""

    batch_size: int | None = None
    progress: Progress | None = None
    budget: float | None = None
    largest: int = field(default_factory=_largest.get, init=False)
    """Rows that an automatic batch has at most, and every pass once memory has run out, or from the start."""
    ran_out: bool = field(default=False, init=False)
    ended_early: bool = field(default=False, init=False)
    """Whether a run was stopped, or its budget over, before its end."""

    def __post_init__(self) -> None:
        size = self.batch_size
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise BadOption(
                f"batch_size={size!r} is not possible. Give a whole number of at least 1, or None to have it chosen."
            )
        budget = self.budget
        if budget is not None and (
            isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget > 0
        ):
            raise BadOption(f"budget={self.budget!r} is not possible. Give seconds above 0, or None for no limit.")
        check_progress(self.progress)
        self._began = time.monotonic()
        # Of the last measured pass: seconds, those after the layer asked for, images, device.
        self._whole, self._suffix, self._count, self._device = 0.0, 0.0, 1, torch.device("cpu")
        self._first = self._reused = sys.maxsize

    def one_by_one(self) -> None:
        """No pass takes more than one row: the network takes no other number, or a row changes those beside it."""
        self.batch_size, self.ran_out, self.largest = 1, True, 1

    def measure(self, images: Tensor, began: float, reached: float | None = None) -> None:
        """Note a pass of the images that began then, reached the layer asked for then, and has ended now."""
        ended, self._device, self._count = now(images.device), images.device, len(images)
        self._first = _FIRST if images.device.type == "cpu" and images[0].numel() > _LARGE else sys.maxsize
        self._whole = ended - began
        self._suffix = self._whole if reached is None else ended - reached

    def note_largest(self, size: int) -> None:
        """Note the bytes of the largest tensor that a row makes in the network."""
        if self._device.type == "cpu":
            self._reused = max(1, reused_bytes() // max(1, size))

    def measure_prefix(self, seconds: float) -> None:
        """Note how long of the measured pass it took to the layer."""
        self._suffix = max(0.0, self._whole - seconds)

    def affords(self, rows: int = 0) -> bool:
        """Whether the budget has time left for a pass of so many rows."""
        return self.left > rows * self._whole / self._count

    @property
    def left(self) -> float:
        """Seconds of the budget that are left, below 0 after its end; infinite without one."""
        return math.inf if self.budget is None else self._began + self.budget - time.monotonic()

    def rows(self, cost: int = 1) -> int | Rows:
        """Variants of all images in a chunk: as given, or by the measured pass.

        `cost` of a row in forward passes, 2 with a backward pass.
        """
        largest, first = min(self.largest, self._reused), self._first if self._reused == sys.maxsize else sys.maxsize
        return self.batch_size or Rows(cost * self._whole, self._device, largest, first=first)

    def suffix_rows(self, cost: int = 1, largest: int = sys.maxsize) -> int | Rows:
        """The same where one row leads to a layer and variants follow from there: at most `largest` of them."""
        return self.batch_size or Rows(cost * self._suffix, self._device, largest, self._whole - self._suffix)

    def whole(self, rows: int | Rows) -> int:
        """The rows of one pass, for work that cannot be divided otherwise later on."""
        return rows if isinstance(rows, int) else rows.within(self.left)

    def run(
        self,
        total: int,
        at_once: int | Rows,
        work: Callable[[range], None],
        best: Callable[[], Tensor],
        finished: Callable[[], bool] | None = None,
    ) -> int:
        """Call `work` with ranges that cover `range(total)`; returns how many variants were done when it ended.

        At least one chunk is begun. `work` may raise `Smaller` before it has changed anything, and `Ended`. `finished`
        says after a chunk whether those done are enough, though fewer than `total`.
        """
        rows = at_once if isinstance(at_once, Rows) else None
        done, fixed = 0, 0 if isinstance(at_once, Rows) else max(1, at_once)
        while done < total:
            chunk = range(done, min(total, done + (fixed if rows is None else rows.within(self.left))))
            try:
                self._timed(work, chunk, rows)
            except Smaller as smaller:
                fixed = min(fixed, smaller.rows)
                if rows is not None:
                    rows.size = smaller.rows
                    rows.largest = smaller.rows if smaller.ever else rows.largest
                continue
            except Ended:
                break
            done = chunk.stop
            if finished is not None and finished():
                total = done
            if self.progress is not None and self.progress(Partial(done / total, best(), done, total)) is False:
                break
            # One variant more than the budget has room for would be a chunk too many; a given batch size is kept.
            if self.left <= (0.0 if rows is None else rows.prefix + rows.seconds):
                break
        self.ended_early |= done < total
        return done

    def _timed(self, work: Callable[[range], None], chunk: range, rows: Rows | None) -> None:
        if rows is None:
            return work(chunk)
        began = now(rows.device)
        work(chunk)
        return rows.adapt(len(chunk), now(rows.device) - began)

    def in_halves(self, work: Callable[[Tensor, Sequence[int]], T], batch: Tensor, pictures: Sequence[int]) -> T:
        """`work(batch, pictures)`; where memory runs out, the joined results of its halves, down to single rows.

        Later batches are as small from the start, also those of a given batch size.
        """
        limit = self.largest if self.ran_out else len(batch)
        if len(batch) <= limit:
            try:
                return work(batch, pictures)
            except Exception as error:
                if len(batch) < 2 or not is_out_of_memory(error):
                    raise
            # Outside the handler, whose traceback holds the tensors of the failed pass.
            self.ran_out, self.largest = True, len(batch) // 2
            limit = self.largest
        starts = range(0, len(batch), limit)
        return joined([self.in_halves(work, batch[i : i + limit], pictures[i : i + limit]) for i in starts])


def halved(method: Call) -> Call:
    """A pass `(run, batch, pictures, ...)` over variants that takes their halves where memory runs out."""

    @wraps(method)
    def passing(run: Any, batch: Tensor, pictures: Sequence[int] | None = None, **named: Any) -> Any:
        if run.loop is None or pictures is None:
            return method(run, batch, pictures, **named)
        return run.loop.in_halves(lambda part, rows: method(run, part, rows, **named), batch, pictures)

    return cast(Call, passing)


def joined(parts: list[Any]) -> Any:
    """The tensors of several batches as those of one, in the tuples and dicts that hold them."""
    kept: list[list[Tensor]] = [[] for _ in parts]
    for part, tensors in zip(parts, kept, strict=True):
        map_tensors(part, tensors.append)
    whole = iter([torch.cat(pieces) for pieces in zip(*kept, strict=True)])
    return map_tensors(parts[0], lambda tensor: next(whole))
