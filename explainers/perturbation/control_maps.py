"""Maps that do not depend on a network: random cells, edges, and a centered blob."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from explainers.passes.tensors import at_least_float32
from explainers.perturbation.rng import PerImageGenerators


def random_map(images: Tensor, cells: int = 7, seed: int = 0) -> Tensor:
    """Return the random control [N, H, W] of images [N, C, H, W]."""
    height, width = images.shape[-2:]
    side = min(height, width)
    rows, columns = _cell_indices(height, side, cells), _cell_indices(width, side, cells)
    generators = PerImageGenerators(len(images), seed)
    shape = int(rows.max()) + 1, int(columns.max()) + 1
    values = torch.cat([generators.uniform(index, 1, *shape) for index in range(len(images))])
    return values[:, rows[:, None], columns].to(at_least_float32(images))


def _cell_indices(size: int, side: int, cells: int) -> Tensor:
    return torch.arange(size) * min(cells, side) // side


def edge_map(images: Tensor) -> Tensor:
    """Return the edge control [N, H, W] of images [N, C, H, W]."""
    x = at_least_float32(images)
    planes = functional.pad(x.flatten(0, 1)[:, None], (1, 1, 1, 1), mode="replicate")
    kernel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]).to(x) / 8
    slopes = functional.conv2d(planes, torch.stack([kernel, kernel.T])[:, None])
    return torch.linalg.vector_norm(slopes.unflatten(0, x.shape[:2]), dim=(1, 2))


def center_map(images: Tensor, width: float = 0.25) -> Tensor:
    """Return the center control [N, H, W] of images [N, C, H, W]."""
    profiles = [
        torch.exp(-(((torch.arange(size, dtype=torch.float64) + 0.5) / size - 0.5) ** 2) / (2 * width**2))
        for size in images.shape[-2:]
    ]
    blob = profiles[0][:, None] * profiles[1]
    return blob.to(at_least_float32(images)).expand(len(images), -1, -1).clone()
