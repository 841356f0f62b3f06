"""Dictionaries: the channels x of a cell as a sum of the directions of k concepts, x ≈ b + Σ_i u_i d_i."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from explainers.dtypes import to_float64
from explainers.errors import BadOption

D = TypeVar("D", bound="Dictionary")


@dataclass(frozen=True, eq=False)
class Dictionary(ABC):
    """The directions d [k, K] of k concepts, of length 1, and the offset b [K]; both float64.

    A subclass computes the activations u of a cell.
    """

    offset: Tensor
    directions: Tensor

    sampled: ClassVar[int] = 2**20
    """Cells by which concepts are sorted and their error is measured; of more, a random part."""

    def sample(self, cells: Tensor) -> Tensor:
        """Return the cells [P, K], or a random part of many."""
        if len(cells) <= self.sampled:
            return cells
        chosen = torch.randperm(len(cells), generator=torch.Generator().manual_seed(0))[: self.sampled]
        return cells[chosen.to(cells.device)]

    @abstractmethod
    def encode(self, cells: Tensor) -> Tensor:
        """Return the activations [..., k] of the concepts in cells [..., K], with a gradient."""

    def decode(self, codes: Tensor) -> Tensor:
        """Return the cells [..., K] with these activations [..., k]."""
        return self.offset.to(codes) + codes @ self.directions.to(codes)

    def scaled(self, cells: Tensor, factors: Tensor) -> Tensor:
        """Return cells in which each concept is multiplied by its factor; the rest of a cell is kept.

        With factors [M, k], cells [1, ..., K] become [M, ..., K].
        """
        changes = (factors - 1).to(cells)
        if changes.ndim == 2:
            changes = changes.reshape(len(changes), *[1] * (cells.ndim - 2), changes.shape[1])
        return cells + (changes * self.encode(cells)) @ self.directions.to(cells)

    def unexplained(self, cells: Tensor) -> float:
        """Return the part of the variance of cells [P, K] that the concepts do not explain."""
        wide = to_float64(cells)
        rest = sum(
            float((part - self.decode(self.encode(part))).square().sum()) for part in wide.split(_rows(len(cells[0])))
        )
        return rest / float((wide - wide.mean(0)).square().sum())

    def sorted(self: D, cells: Tensor, **encoder: Callable[[Tensor], Tensor]) -> D:
        """Return the dictionary with the concepts in the order of their contribution to cells [P, K], largest first.

        `encoder` has the other tensors with an axis of concepts, each with the function that sorts it.
        """
        parts = self.sample(cells).split(_rows(len(cells[0])))
        sums = sum(self.encode(part).double().square().sum(0) for part in parts)
        assert isinstance(sums, Tensor), "there are cells"
        order = sums.sort(descending=True, stable=True).indices
        changed: dict[str, Any] = {name: pick(order) for name, pick in encoder.items()}
        return replace(self, directions=self.directions[order], **changed)


def _rows(channels: int) -> int:
    """Return how many cells to compute at once."""
    return max(1, 2**22 // channels)


@dataclass(frozen=True, eq=False)
class PrincipalComponents(Dictionary):
    """Orthogonal directions of largest variance. The activations have both signs."""

    def encode(self, cells: Tensor) -> Tensor:
        return (cells - self.offset.to(cells)) @ self.directions.to(cells).T


class Fit:
    """A fit in `steps` steps, which can be stopped after each and continued from its `state`.

    Each kind of fit has `step()`, which makes the next one, and the `directions` [k, K] and the `result()` so far.
    """

    steps: int = 1
    done: int = 0

    def is_converged(self) -> bool:
        """Return whether further steps would not change the result."""
        return False

    @property
    def state(self) -> dict[str, Any]:
        """What the next step depends on."""
        return {}


class PcaFit(Fit):
    """Principal components of cells [P, K], from the eigenvectors of their covariance.

    The sign of a component is arbitrary; here its value of largest magnitude is positive.

    Errors   BadOption for more components than channels or cells
    """

    def __init__(self, cells: Tensor, k: int) -> None:
        if k > min(cells.shape):
            raise BadOption(
                f"k={k} is too large: {len(cells)} cells with {cells.shape[1]} channels have at most "
                f"{min(cells.shape)} principal components."
            )
        self.cells, self.k = to_float64(cells), k
        self.mean = self.cells.mean(0)
        self.directions = self.cells.new_zeros(k, cells.shape[1])

    def step(self) -> None:
        centered = self.cells - self.mean
        vectors = torch.linalg.eigh(centered.T @ centered).eigenvectors.T.flip(0)[: self.k]
        peaks = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
        self.directions, self.done = vectors * peaks.sign(), 1

    def result(self) -> PrincipalComponents:
        return PrincipalComponents(self.mean, self.directions)
