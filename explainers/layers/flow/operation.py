"""One call of a tensor operation, and what its rule returns: the axes of its outputs, and how they read its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from torch import Tensor

from explainers.layers.flow.axes import OTHER, SPATIAL, Axes, Axis


class Reads(IntEnum):
    """How an output depends on the positions of an input."""

    EXTRA = 1
    """Only on extra entries: the class token is selected."""
    SAME = 2
    """Each output position on the same input position, or its neighborhood."""
    ALL = 3
    """Each part of the output on all input positions: pooling, keys and values of an attention."""


@dataclass(frozen=True)
class Operation:
    """One call of an operation; `axes` are those of `inputs`, None if an input does not depend on the image."""

    name: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    inputs: list[Tensor]
    axes: list[Axes | None]
    outputs: list[Tensor]

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """Return an argument by its position or name."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)

    @property
    def first(self) -> Axes:
        """The axes of the first input."""
        return self.axes[0] or (OTHER,) * self.inputs[0].ndim

    @property
    def shape(self) -> Sequence[int]:
        """The shape of the first input."""
        return self.inputs[0].shape


Result = tuple[list[Axes], list[Reads]]
Rule = Callable[[Operation], Result]


def alike(operation: Operation, axes: Axes, reads: Reads = Reads.SAME) -> Result:
    """Return the same axes for every output, and the same dependence on every input."""
    return [axes] * len(operation.outputs), [reads] * len(operation.inputs)


def dims_of(given: Any, count: int) -> set[int]:
    """Return dimensions as a set of nonnegative indices; None or an empty list means all."""
    if given is None or (isinstance(given, (list, tuple)) and not given):
        return set(range(count))
    return {d % count for d in (given if isinstance(given, (list, tuple)) else (given,))} if count else set()


def contracted(axes: Sequence[Axis]) -> Reads:
    """Return how an output without these axes reads them."""
    return Reads.ALL if any(axis.kinds & SPATIAL for axis in axes) else Reads.SAME


def along(axis: Axis) -> bool:
    return bool(axis.kinds & SPATIAL)
