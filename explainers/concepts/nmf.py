"""Non-negative factors of the cells of many images: parts that add up, as in CRAFT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from explainers.concepts.dictionaries import Dictionary, Fit
from explainers.dtypes import to_cpu_float64
from explainers.methods.cams.nmf import update_columns

_STARTS, _SHORT = 4, 15
"""Number of random initial values, and the sweeps after which only the best of them is continued."""
_SWEEPS, _TOLERANCE = 200, 1e-4
_SEARCH = 300
"""Maximum number of sweeps that look for the active concepts of a cell."""
_NUMBERS = 2**22
"""Maximum number of values of the equations that are solved at once."""


@dataclass(frozen=True, eq=False)
class NonNegativeFactors(Dictionary):
    """Non-negative directions with non-negative activations: u = argmin |x - b - u d|², u >= 0."""

    sampled: ClassVar[int] = 2**11  # the activations of more cells take seconds

    def encode(self, cells: Tensor) -> Tensor:
        rows = to_cpu_float64(cells - self.offset.to(cells)).flatten(0, -2)
        k, directions = len(self.directions), to_cpu_float64(self.directions)
        gram = directions @ directions.T
        products = rows @ directions.T
        # Once the active concepts are known, the activations solve linear equations, which also have the gradient.
        parts = [_solve(part, gram) for part in products.split(max(1, _NUMBERS // k**2))]
        return torch.cat(parts).reshape(*cells.shape[:-1], k).to(cells)


def _solve(products: Tensor, gram: Tensor) -> Tensor:
    """Return the non-negative least-squares solutions [P, k] for products [P, k] of the rows with the directions."""
    codes = _search(products.detach(), gram)
    active = (codes > 0).to(products)
    both = active[:, :, None] * active[:, None]
    unused = torch.diag_embed(1 - active + 1e-10 * float(gram.diagonal().mean()))
    exact = torch.linalg.solve(gram * both + unused, (products * active)[..., None])[..., 0]
    # Nearly equal directions have no accurate solution.
    is_exact = (exact - codes).abs().amax(1, keepdim=True) <= 0.01 * codes.amax(1, keepdim=True)
    return torch.where(is_exact, exact.clamp(min=0), codes)


def _search(products: Tensor, gram: Tensor) -> Tensor:
    """Return non-negative activations by coordinate descent, accurate enough to know which are above 0."""
    codes = torch.zeros_like(products)
    for _ in range(_SEARCH):
        before = codes.clone()
        update_columns(codes, products, gram)
        if float((codes - before).abs().max()) <= 1e-10 * float(codes.abs().max()):
            break
    return codes


class NmfFit(Fit):
    """Non-negative factorization of cells [P, K] by coordinate descent; a step is a sweep over all factors.

    A channel with negative values is shifted by its minimum first. The first steps compare several random initial
    values. The result is not unique: `seed` determines these values.

    Source   Cichocki & Phan 2009, algorithm 2
    """

    def __init__(self, cells: Tensor, k: int, seed: int, state: dict[str, Any] | None = None) -> None:
        wide = to_cpu_float64(cells)
        self.offset = wide.amin(0).clamp(max=0)
        self.rows, self.k, self.seed = wide - self.offset, k, seed
        self.codes, self.factors, self.change = wide.new_zeros(len(wide), k), wide.new_zeros(k, wide.shape[1]), 1.0
        self.best, self.rest = (self.codes, self.factors), float("inf")
        self.starts = _STARTS if k > 1 else 1
        self.steps = self.starts * _SHORT + _SWEEPS
        for name, value in (state or {}).items():
            setattr(self, name, tuple(each.clone() for each in value) if isinstance(value, tuple) else value)
        self.codes, self.factors = self.codes.clone(), self.factors.clone()

    @property
    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("done", "codes", "factors", "change", "best", "rest")}

    def step(self) -> None:
        start, sweep = divmod(self.done, _SHORT)
        is_start = start < self.starts
        if is_start and sweep == 0:
            self.codes, self.factors = self._initial(start)
        before = self.codes.clone()
        update_columns(self.codes, self.rows @ self.factors.T, self.factors @ self.factors.T)
        update_columns(self.factors.T, self.rows.T @ self.codes, self.codes.T @ self.codes)
        self.change = float((self.codes - before).norm()) / max(float(before.norm()), 1e-300)
        self.done += 1
        if is_start and sweep == _SHORT - 1:
            self._compare(is_last=start == self.starts - 1)

    def is_converged(self) -> bool:
        return self.done > self.starts * _SHORT and self.change <= _TOLERANCE

    def _initial(self, start: int) -> tuple[Tensor, Tensor]:
        """Return the random initial values of one of the starts."""
        generator, size = torch.Generator().manual_seed(self.seed), (self.rows.mean() / self.k).sqrt()
        for _ in range(start + 1):
            codes, factors = (
                size * torch.rand(like.shape, generator=generator, dtype=torch.float64)
                for like in (self.codes, self.factors)
            )
        return codes, factors

    def _compare(self, is_last: bool) -> None:
        """Keep the factors if they are the best so far; after the last start, continue with the best."""
        rest = float((self.rows - self.codes @ self.factors).norm())
        if rest < self.rest:
            self.rest, self.best = rest, (self.codes, self.factors)
        if is_last:
            self.codes, self.factors = (each.clone() for each in self.best)
            self.best = self.codes[:0], self.factors

    @property
    def _shown(self) -> Tensor:
        """The factors so far: those of the best finished start, or of the current one."""
        is_first = self.done < _SHORT or self.done >= self.starts * _SHORT
        return self.factors if is_first else self.best[1]

    @property
    def directions(self) -> Tensor:
        lengths = self._shown.norm(dim=1, keepdim=True)
        return (self._shown / lengths).where(lengths > 0, 0)

    def result(self) -> NonNegativeFactors:
        kept = self._shown.norm(dim=1) > 0  # a factor without a value would have no direction
        return NonNegativeFactors(self.offset, self.directions[kept]).sorted(self.rows + self.offset)
