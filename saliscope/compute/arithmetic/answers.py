"""Data classes of the arithmetic of one value. Nothing here computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import explainers
from saliscope.compute.answers import Settings


@dataclass(frozen=True)
class Operation:
    """A step after the sum of products, as in the `steps` of an `explainers.ValueTrace`."""

    kind: str
    name: str
    before: float
    after: float
    numbers: dict[str, float]


@dataclass(frozen=True)
class Product:
    """One product: its input `channel`, the row and column of the input (None if not a patch), and both factors."""

    channel: int | None
    cell: tuple[int, int] | None
    inside: bool
    input: float
    weight: float


@dataclass(frozen=True)
class Arithmetic:
    """The sum of products of one value, the operations after it, and the strongest path back."""

    kind: str
    name: str
    value: float
    computed: float
    total: float
    """The sum of all products, without the bias."""
    bias: float
    count: int
    largest: list[Product]
    others: float
    """The sum of the products that are not listed."""
    operations: list[Operation]
    path: tuple[explainers.PathStep, ...]
    first_channel: int
    inputs: torch.Tensor | None
    """The patch [C, kh, kw] of a convolution that is larger than 1 × 1, else None."""
    weights: torch.Tensor | None
    inside: torch.Tensor | None
    kernels: torch.Tensor | None
    """All kernels [K, 3, kh, kw] of a convolution of a color image, else None."""
    kernel: int = 0
    """The number of the kernel of this value among them."""


@dataclass(frozen=True)
class ValueOf:
    """The arithmetic of the value of a channel at a cell of the maps."""

    settings: Settings
    number: int
    cell: tuple[int, int]
    arithmetic: Arithmetic
