"""The one loop of all slow methods: chunks, progress, stop and time budget.

A method gives the number of variants and a function that adds a range of them to its result; the loop chooses the batch
size and the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from explainers.errors import BadOption


@dataclass(frozen=True)
class Partial:
    """Progress of a long method: `fraction` in [0, 1], `done` of `total` variants, and its best `map` so far."""

    fraction: float
    map: Tensor | None
    done: int
    total: int


Progress = Callable[[Partial], Any]
"""Called after each chunk; returning False ends the method with its best map so far, raising ends it with nothing."""

# Values of input at once. Measured on two cores with ResNet-18 at 224 px and a small network at 64 px: larger
# chunks are no faster, and the memory of the widest layer grows with them.
_VALUES = 2_500_000


@dataclass
class Loop:
    """The cost options of a long method."""

    batch_size: int | None = None
    progress: Progress | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        size = self.batch_size
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise BadOption(
                f"batch_size={size!r} is not possible. Give a whole number of at least 1, or None to have it chosen."
            )
        if self.budget is not None and not self.budget > 0:
            raise BadOption(f"budget={self.budget!r} is not possible. Give seconds above 0, or None for no limit.")

    def rows(self, images: Tensor, cost: int = 1) -> int:
        """Batch size: as given, or as many rows as a fixed amount of memory holds.

        `cost` of a row in forward passes, 2 with a backward pass: smaller batches give a first map sooner.
        """
        return self.batch_size or max(4, min(64, _VALUES // max(1, cost * images[0].numel())))

    def run(
        self,
        total: int,
        at_once: int,
        work: Callable[[range], None],
        best: Callable[[], Tensor],
        finished: Callable[[], bool] | None = None,
    ) -> int:
        """Call `work` with ranges that cover `range(total)`; returns how many variants were done when it ended.

        `finished` says after a chunk whether those done are enough, though fewer than `total`.
        """
        began = time.monotonic()
        done = 0
        while done < total:
            chunk = range(done, min(total, done + max(1, at_once)))
            work(chunk)
            done = chunk.stop
            if finished is not None and finished():
                total = done
            if self.progress is not None and self.progress(Partial(done / total, best(), done, total)) is False:
                break
            if self.budget is not None and time.monotonic() - began >= self.budget:
                break
        return done
