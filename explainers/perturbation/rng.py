"""Random numbers per image, independent of the other images in the batch, of the chunk size and of the device.

Every image has its own generators, all with the same seed. Noise, a number for each value of an image, is computed on
the device of the images by a counter-based generator (threefry.py), so that it is equal on every device, and an
accelerator does not wait for the CPU. All other numbers are few; torch's generator samples them on the CPU. Global
generators are never used. Numbers are float32 (integers int64), so that a seed gives the same map in every precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from explainers.perturbation import threefry


class PerImageGenerators:
    """Generators of random numbers for `count` images, all from one seed; `device` is that of the noise."""

    def __init__(self, count: int, seed: int, device: torch.device | str = "cpu") -> None:
        self._seed, self._device = seed, torch.device(device)
        self._generators = [torch.Generator().manual_seed(seed) for _ in range(count)]
        self._rows = [0] * count
        # Images at the same row get the same numbers, which are computed once.
        self._latest: tuple[tuple[object, ...], Tensor] | None = None

    def normal_noise(self, index: int, rows: int, *shape: int) -> Tensor:
        """Return the image's next [rows, *shape] samples of the standard normal distribution, on the device."""
        return self._noise(threefry.normal, index, rows, shape)

    def uniform_noise(self, index: int, rows: int, *shape: int) -> Tensor:
        """Return the image's next [rows, *shape] samples of the uniform distribution on [0, 1), on the device."""
        return self._noise(threefry.uniform, index, rows, shape)

    def uniform(self, index: int, rows: int, *shape: int) -> Tensor:
        """Return the image's next [rows, *shape] samples of the uniform distribution on [0, 1), on the CPU."""
        return self._draw(rows, lambda: torch.rand(shape, generator=self._generators[index], dtype=torch.float32))

    def integers(self, index: int, rows: int, high: int, *shape: int) -> Tensor:
        """Return the image's next [rows, *shape] integers from 0 to `high` - 1, on the CPU."""
        return self._draw(rows, lambda: torch.randint(high, shape, generator=self._generators[index]))

    def permutations(self, index: int, rows: int, size: int) -> Tensor:
        """Return the image's next [rows, size] permutations of 0 to `size` - 1, on the CPU."""
        return self._draw(rows, lambda: torch.randperm(size, generator=self._generators[index]))

    def _noise(self, kind: Callable[..., Tensor], index: int, rows: int, shape: tuple[int, ...]) -> Tensor:
        start = self._rows[index]
        self._rows[index] += rows
        key = kind, start, rows, shape
        if self._latest is not None and self._latest[0] == key:
            return self._latest[1]
        self._latest = None
        found = kind(self._seed, start, rows, math.prod(shape), self._device).view(rows, *shape)
        if len(self._rows) > 1:
            self._latest = key, found
        return found

    @staticmethod
    def _draw(rows: int, draw: Callable[[], Tensor]) -> Tensor:
        # One call for each row: torch fills large and small tensors in different orders.
        return torch.stack([draw() for _ in range(rows)])
