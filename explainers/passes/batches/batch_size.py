"""Automatic batch sizes of slow methods: a function of the network, the image size, the device and its memory.

They do not depend on a clock, because backends compute a row slightly differently in batches of other sizes: with equal
sizes, equal calls give equal maps, bit by bit.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from explainers.layers.flow.cost import Cost
from explainers.layers.profile import profile
from explainers.network.eval_view import EvalView
from explainers.passes.batches.memory import free, reused_bytes

SECONDS = 0.5
"""Typical duration of a chunk on two CPU cores. On these, ResNet-18 at 224 and 64 px and a small network are as fast
with such chunks as with larger ones. Progress, cancellation and budget take effect after each chunk.
"""
# A slow network still gets `_FEW` rows, up to `_LONGEST` seconds: single rows cost a quarter more each.
_FEW, _LONGEST = 4, 2.0
# Time of the variants as a multiple of the fixed cost of a chunk, which then takes at most a third of the time.
_AMORTIZED = 2.0
# Rows that an accelerator computes at least in the time in which two CPU cores compute one.
_ACCELERATOR = 50
# Fraction of the free memory that a chunk may take.
_SHARE = 0.5
# Cost per value of the image if the operations are unknown (scripted and exported networks): that of ResNet-18.
_UNKNOWN = Cost(12_000, 150, 21)


@dataclass(frozen=True)
class Estimate:
    """The cost of a row of a network, and that of the layers before the requested one, on a device."""

    network: Cost
    before: Cost
    images: int
    device: torch.device

    def rows(self, passes: int, largest: int, *, half: bool = False) -> int:
        """Return how many rows to run at once, each of which takes as long as `passes` forward passes.

        With `half`, tensors have half of their size. On the CPU, the tensors are small enough to reuse freed memory.
        """
        size = self.network.largest // (2 if half else 1)
        reused = reused_bytes() // max(1, size) if self.device.type == "cpu" else sys.maxsize
        seconds = self.images * passes * self.network.seconds
        return self._limit(min(_fitting(self._faster(seconds), 0.0), max(1, reused)), passes, largest)

    def suffix_rows(self, passes: int, largest: int) -> int:
        """Return how many rows to run at once behind the requested layer; the layers before it run once a chunk."""
        prefix = self.images * self.before.seconds
        seconds = max(0.0, self.images * self.network.seconds - prefix)
        return self._limit(_fitting(self._faster(passes * seconds), self._faster(prefix)), passes, largest)

    def _faster(self, seconds: float) -> float:
        return seconds if self.device.type == "cpu" else seconds / _ACCELERATOR

    def _limit(self, rows: int, passes: int, largest: int) -> int:
        """Return the rows that fit into memory, with all tensors of the graph if there is a backward pass."""
        size = self.network.written if passes > 1 else 4 * self.network.largest
        room = _power_of_two(_SHARE * free(self.device)) // max(1, size)
        return max(1, min(rows, largest, room or largest))


def estimate(view: EvalView, images: Tensor, layer: str | None = None) -> Estimate:
    """Return the cost of a row, from the profile of the network; `layer` is the requested layer."""
    network, before = Cost(*(images[0].numel() * each for each in _UNKNOWN)), Cost()
    if view.kind is None:
        layers = profile(view, images)
        network, before = layers.cost, before if layer is None else layers.costs.get(layer, before)
    return Estimate(network, before, len(images), images.device)


def _fitting(seconds: float, prefix: float) -> int:
    """Return how many rows of `seconds` run in the target duration, given the fixed cost of a chunk."""
    seconds = max(seconds, 1e-6)
    fits = max(SECONDS, _AMORTIZED * prefix) / seconds
    return _power_of_two(max(fits, min(_FEW, _LONGEST / seconds)))


def _power_of_two(number: float) -> int:
    """Return the largest power of two up to a number; backends prepare for each batch size, so few are used."""
    return 1 << max(0, int(math.log2(max(1, number))))
