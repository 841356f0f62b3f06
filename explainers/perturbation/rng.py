"""Random numbers that belong to a picture: neither its neighbours in the batch nor the chunk size change them.

Every picture has a generator of its own, seeded alike, and every row is drawn by a call of its own: torch fills large
and small tensors in different orders, so ten rows drawn at once are not ten rows drawn one after the other. Global
generators are never touched. Numbers come on the CPU in float32 (integers in int64), whatever the network runs in, so
that one seed means the same map on every device and in every precision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class PerImageGenerators:
    """The random numbers of `count` pictures, from one seed."""

    def __init__(self, count: int, seed: int) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for _ in range(count)]

    def normal(self, picture: int, rows: int, *shape: int) -> Tensor:
        """[rows, *shape] from the standard normal distribution, the picture's next ones."""
        return self._rows(rows, lambda: torch.randn(shape, generator=self._generators[picture], dtype=torch.float32))

    def uniform(self, picture: int, rows: int, *shape: int) -> Tensor:
        """[rows, *shape] evenly from [0, 1), the picture's next ones."""
        return self._rows(rows, lambda: torch.rand(shape, generator=self._generators[picture], dtype=torch.float32))

    def integers(self, picture: int, rows: int, high: int, *shape: int) -> Tensor:
        """[rows, *shape] whole numbers from 0 to `high` - 1, the picture's next ones."""
        return self._rows(rows, lambda: torch.randint(high, shape, generator=self._generators[picture]))

    def permutations(self, picture: int, rows: int, size: int) -> Tensor:
        """[rows, size] orders of `size` things, the picture's next ones."""
        return self._rows(rows, lambda: torch.randperm(size, generator=self._generators[picture]))

    @staticmethod
    def _rows(rows: int, draw: Callable[[], Tensor]) -> Tensor:
        return torch.stack([draw() for _ in range(rows)])
