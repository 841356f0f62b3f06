"""Non-negative matrix factorisation of a layer's activations: channel directions, and a map of each."""

from __future__ import annotations

import torch
from torch import Tensor

from explainers.perturbation.rng import PerImageGenerators

# Sweeps over all factors at most, and the relative change of the maps below which they stop.
_SWEEPS = 200
_TOLERANCE = 1e-4
# Random initialisations, and the sweeps after which the best of them goes on.
_ATTEMPTS, _SHORT = 4, 15


def factors_of(planes: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """`planes` (k, h, w) ≈ Σ_f maps_f directions_f: maps (count, h, w) >= 0, directions (count, k) of length 1.

    Directions are >= 0; where a channel has negative activations, its minimum is subtracted first. Factors are ordered
    by norm. The factorisation is not unique: `seed` chooses the initial values.

    Source   Lee & Seung 1999; coordinate descent of Cichocki & Phan 2009, algorithm 2
    """
    rows = (planes - lowest(planes)[:, None, None]).flatten(1).T.double()
    draws = PerImageGenerators(1, seed)
    # Two objects may start in one factor and never separate, so the best of several short attempts goes on.
    attempts = [_fit(rows, *_start(rows, count, draws), _SHORT) for _ in range(_ATTEMPTS if count > 1 else 1)]
    maps, directions = _fit(rows, *min(attempts, key=lambda fit: float((rows - fit[0] @ fit[1]).norm())), _SWEEPS)
    lengths = directions.norm(dim=1)
    directions = (directions / lengths[:, None]).where(lengths[:, None] > 0, 0)
    maps = maps * lengths
    order = maps.norm(dim=0).sort(descending=True, stable=True).indices
    return maps.T[order].view(count, *planes.shape[1:]).to(planes), directions[order].to(planes)


def lowest(planes: Tensor) -> Tensor:
    """Each channel's minimum where that is negative, else 0, (k,)."""
    return planes.flatten(1).amin(1).clamp(max=0)


def _start(rows: Tensor, count: int, draws: PerImageGenerators) -> tuple[Tensor, Tensor]:
    size = (rows.mean() / count).sqrt()
    maps = draws.uniform(0, len(rows), count)
    directions = draws.uniform(0, count, rows.shape[1])
    return maps.to(rows) * size, directions.to(rows) * size


def _fit(rows: Tensor, maps: Tensor, directions: Tensor, sweeps: int) -> tuple[Tensor, Tensor]:
    """rows (positions, k) ≈ maps (positions, f) @ directions (f, k), one column after the other, all >= 0."""
    for _ in range(sweeps):
        before = maps.clone()
        _improve(maps, rows @ directions.T, directions @ directions.T)
        _improve(directions.T, rows.T @ maps, maps.T @ maps)
        if float((maps - before).norm()) <= _TOLERANCE * float(before.norm()):
            break
    return maps, directions


def _improve(columns: Tensor, products: Tensor, gram: Tensor) -> None:
    """Non-negative least squares for each column with the others fixed, in place."""
    parts = zip(columns.unbind(1), products.unbind(1), gram.unbind(1), gram.diagonal().tolist(), strict=True)
    for column, product, overlaps, square in parts:
        if square > 0:
            column.add_(torch.addmv(product, columns, overlaps, alpha=-1), alpha=1 / square).clamp_(min=0)
