"""Non-negative factors of a layer's activations: a few directions in channel space, and where each of them is."""

from __future__ import annotations

import torch
from torch import Tensor

from explainers.perturbation.rng import PerImageGenerators

# Sweeps over all factors, fewer once a sweep moves the maps by less than this share of their size.
_SWEEPS = 200
_STILL = 1e-4
_ATTEMPTS, _SHORT = 4, 15


def factors_of(planes: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """`planes` (k, h, w) as a sum of `count` factors: maps (count, h, w) >= 0 times directions (count, k) of length 1.

    Directions are >= 0 but for what is below zero in the activations: each channel's lowest negative value is taken
    off first. Factors stand in the order of their size. Factors of a fit are not unique: `seed` decides which.

    Source   Lee & Seung 1999; coordinate descent of Cichocki & Phan 2009, algorithm 2
    """
    rows = (planes - lowest(planes)[:, None, None]).flatten(1).T.double()
    draws = PerImageGenerators(1, seed)
    # Two places may begin as one factor and never part, so the best of several short attempts goes on.
    tried = [_fit(rows, *_start(rows, count, draws), _SHORT) for _ in range(_ATTEMPTS if count > 1 else 1)]
    maps, directions = _fit(rows, *min(tried, key=lambda each: float((rows - each[0] @ each[1]).norm())), _SWEEPS)
    lengths = directions.norm(dim=1)
    directions = (directions / lengths[:, None]).where(lengths[:, None] > 0, 0)
    maps = maps * lengths
    order = maps.norm(dim=0).sort(descending=True, stable=True).indices
    return maps.T[order].view(count, *planes.shape[1:]).to(planes), directions[order].to(planes)


def lowest(planes: Tensor) -> Tensor:
    """Each channel's lowest value where that is negative, else 0, (k,)."""
    return planes.flatten(1).amin(1).clamp(max=0)


def _start(rows: Tensor, count: int, draws: PerImageGenerators) -> tuple[Tensor, Tensor]:
    size = (rows.mean() / count).sqrt()
    maps = draws.uniform(0, len(rows), count)
    directions = draws.uniform(0, count, rows.shape[1])
    return maps.to(rows) * size, directions.to(rows) * size


def _fit(rows: Tensor, maps: Tensor, directions: Tensor, sweeps: int) -> tuple[Tensor, Tensor]:
    """rows (cells, k) ~ maps (cells, f) @ directions (f, k), one column after the other, none below 0."""
    for _ in range(sweeps):
        before = maps.clone()
        _improve(maps, rows @ directions.T, directions @ directions.T)
        _improve(directions.T, rows.T @ maps, maps.T @ maps)
        if float((maps - before).norm()) <= _STILL * float(before.norm()):
            break
    return maps, directions


def _improve(columns: Tensor, wanted: Tensor, overlap: Tensor) -> None:
    """Least squares for each column while the others stand still, in place."""
    parts = zip(columns.unbind(1), wanted.unbind(1), overlap.unbind(1), overlap.diagonal().tolist(), strict=True)
    for column, own, others, size in parts:
        if size > 0:
            column.add_(torch.addmv(own, columns, others, alpha=-1), alpha=1 / size).clamp_(min=0)
