"""Rows of a gradient log, and what a diagnosis reads of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Row:
    """One gradient of `name` (a "parameter", "activation" or "tensor" with `size` values) in `step`, counted from 0.

    `statistics` are the recorded ones among `norm` (Euclidean), `mean`, `std` (as `torch.std`, 0 for a single value),
    `max` (largest magnitude) and `zero_fraction` (fraction of exact zeros). `histogram` counts the finite values in the
    bins between `edges`, or is None. `unedited` are the statistics before any hook of the tensor, or None if no hook
    changed the gradient. For complex gradients, `mean` is the magnitude of the mean, and `histogram` counts real and
    imaginary parts.
    """

    step: int
    name: str
    kind: str
    size: int
    statistics: Mapping[str, float]
    histogram: tuple[int, ...] | None = None
    edges: tuple[float, ...] | None = None
    unedited: Mapping[str, float] | None = None

    @property
    def arrived(self) -> Mapping[str, float]:
        """The statistics of the gradient before any hook changed it."""
        return self.statistics if self.unedited is None else self.unedited


@runtime_checkable
class Rows(Protocol):
    """The parts of a `GradientLog` that a diagnosis reads."""

    @property
    def rows(self) -> Sequence[Row]: ...
    @property
    def names(self) -> tuple[str, ...]: ...
