"""Random numbers per image, independent of the other images in the batch and of the chunk size.

Every image has its own generator, all with the same seed, and every row is sampled in a separate call: torch fills
large and small tensors in different orders, so sampling ten rows at once differs from sampling them one by one. Global
generators are never used. Numbers are sampled on the CPU in float32 (integers in int64), so that a seed gives the same
map on every device and in every precision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class PerImageGenerators:
    """Generators of random numbers for `count` images, all from one seed."""

    def __init__(self, count: int, seed: int) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for _ in range(count)]

    def normal(self, index: int, rows: int, *shape: int) -> Tensor:
        """Return the image's next [rows, *shape] samples of the standard normal distribution."""
        return self._rows(rows, lambda: torch.randn(shape, generator=self._generators[index], dtype=torch.float32))

    def uniform(self, index: int, rows: int, *shape: int) -> Tensor:
        """Return the image's next [rows, *shape] samples of the uniform distribution on [0, 1)."""
        return self._rows(rows, lambda: torch.rand(shape, generator=self._generators[index], dtype=torch.float32))

    def integers(self, index: int, rows: int, high: int, *shape: int) -> Tensor:
        """Return the image's next [rows, *shape] integers from 0 to `high` - 1."""
        return self._rows(rows, lambda: torch.randint(high, shape, generator=self._generators[index]))

    def permutations(self, index: int, rows: int, size: int) -> Tensor:
        """Return the image's next [rows, size] permutations of 0 to `size` - 1."""
        return self._rows(rows, lambda: torch.randperm(size, generator=self._generators[index]))

    @staticmethod
    def _rows(rows: int, draw: Callable[[], Tensor]) -> Tensor:
        return torch.stack([draw() for _ in range(rows)])
