"""Random numbers per image: independent of the other images in the batch and of the chunk size.

Every image has its own generator, all with the same seed, and every row is drawn by its own call: torch fills large and
small tensors in different orders, so ten rows drawn at once are not ten rows drawn one after the other. Global
generators are never touched. Numbers are drawn on the CPU in float32 (integers in int64), so that a seed gives the same
map on every device and in every precision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class PerImageGenerators:
    """The random numbers of `count` images, from one seed."""

    def __init__(self, count: int, seed: int) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for _ in range(count)]

    def normal(self, picture: int, rows: int, *shape: int) -> Tensor:
        """The image's next [rows, *shape] from the standard normal distribution."""
        return self._rows(rows, lambda: torch.randn(shape, generator=self._generators[picture], dtype=torch.float32))

    def uniform(self, picture: int, rows: int, *shape: int) -> Tensor:
        """The image's next [rows, *shape] from the uniform distribution on [0, 1)."""
        return self._rows(rows, lambda: torch.rand(shape, generator=self._generators[picture], dtype=torch.float32))

    def integers(self, picture: int, rows: int, high: int, *shape: int) -> Tensor:
        """The image's next [rows, *shape] integers from 0 to `high` - 1."""
        return self._rows(rows, lambda: torch.randint(high, shape, generator=self._generators[picture]))

    def permutations(self, picture: int, rows: int, size: int) -> Tensor:
        """The image's next [rows, size] permutations of 0 to `size` - 1."""
        return self._rows(rows, lambda: torch.randperm(size, generator=self._generators[picture]))

    @staticmethod
    def _rows(rows: int, draw: Callable[[], Tensor]) -> Tensor:
        return torch.stack([draw() for _ in range(rows)])
