"""Non-negative matrix factorization of a layer's activations into channel directions and their maps."""

from __future__ import annotations

import torch
from torch import Tensor

from explainers.dtypes import to_cpu_float64
from explainers.perturbation.rng import PerImageGenerators

# Maximum number of sweeps over all factors, and the relative change of the maps at which they stop.
_SWEEPS = 200
_TOLERANCE = 1e-4
# Number of random initializations, and the sweeps after which only the best of them is continued.
_ATTEMPTS, _SHORT = 4, 15


def factors_of(planes: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Factorize `planes` (k, h, w) or (k, t, h, w) ≈ Σ_f maps_f directions_f.

    Returns maps (count, h, w) >= 0 and directions (count, k) of length 1. Directions are >= 0; if a
    channel has negative activations, its minimum is subtracted first. Factors are sorted by norm. The factorization is
    not unique: `seed` determines the initial values.

    Source   Lee & Seung 1999; coordinate descent of Cichocki & Phan 2009, algorithm 2
    """
    rows = to_cpu_float64((planes.flatten(1) - lowest(planes)[:, None]).T)  # many tiny steps, one after another
    generators = PerImageGenerators(1, seed)
    # Two objects may start in one factor and never separate, so the best of several short attempts is continued.
    attempts = [_fit(rows, *_start(rows, count, generators), _SHORT) for _ in range(_ATTEMPTS if count > 1 else 1)]
    maps, directions = _fit(rows, *min(attempts, key=lambda fit: float((rows - fit[0] @ fit[1]).norm())), _SWEEPS)
    lengths = directions.norm(dim=1)
    directions = (directions / lengths[:, None]).where(lengths[:, None] > 0, 0)
    maps = maps * lengths
    order = maps.norm(dim=0).sort(descending=True, stable=True).indices
    return maps.T[order].view(count, *planes.shape[1:]).to(planes), directions[order].to(planes)


def lowest(planes: Tensor) -> Tensor:
    """Return the minimum of each channel if it is negative, else 0, (k,)."""
    return planes.flatten(1).amin(1).clamp(max=0)


def _start(rows: Tensor, count: int, generators: PerImageGenerators) -> tuple[Tensor, Tensor]:
    size = (rows.mean() / count).sqrt()
    maps = generators.uniform(0, len(rows), count)
    directions = generators.uniform(0, count, rows.shape[1])
    return maps.to(rows) * size, directions.to(rows) * size


def _fit(rows: Tensor, maps: Tensor, directions: Tensor, sweeps: int) -> tuple[Tensor, Tensor]:
    """Fit rows (positions, k) ≈ maps (positions, f) @ directions (f, k), column by column, all >= 0."""
    for _ in range(sweeps):
        before = maps.clone()
        update_columns(maps, rows @ directions.T, directions @ directions.T)
        update_columns(directions.T, rows.T @ maps, maps.T @ maps)
        if float((maps - before).norm()) <= _TOLERANCE * float(before.norm()):
            break
    return maps, directions


def update_columns(columns: Tensor, products: Tensor, gram: Tensor) -> None:
    """Update each column in place by non-negative least squares with the others fixed."""
    parts = zip(columns.unbind(1), products.unbind(1), gram.unbind(1), gram.diagonal().tolist(), strict=True)
    for column, product, overlaps, square in parts:
        if square > 0:
            column.add_(torch.addmv(product, columns, overlaps, alpha=-1), alpha=1 / square).clamp_(min=0)
