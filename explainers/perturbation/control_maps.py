"""Maps that do not depend on a network: random cells, edges, and a centered blob."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from explainers.call.scores import at_least_float32
from explainers.perturbation.rng import PerImageGenerators


def random_map(images: Tensor, cells: int = 7, seed: int = 0) -> Tensor:
    """Return the random control [N, H, W] of images [N, C, H, W].

    Along the third axis of videos and volumes there are as many cells as along the shorter side, or one per frame.
    """
    frames, side = images.shape[2:-2], min(images.shape[-2:])
    indices = [_cell_indices(count, count, cells) for count in frames]
    indices += [_cell_indices(length, side, cells) for length in images.shape[-2:]]
    generators = PerImageGenerators(len(images), seed)
    shape = [int(index.max()) + 1 for index in indices]
    values = torch.cat([generators.uniform(index, 1, *shape) for index in range(len(images))])
    for axis, index in enumerate(indices, 1):
        values = values.index_select(axis, index)
    return values.to(at_least_float32(images))


def _cell_indices(size: int, side: int, cells: int) -> Tensor:
    return torch.arange(size) * min(cells, side) // side


def edge_map(images: Tensor) -> Tensor:
    """Return the edge control [N, H, W] of images [N, C, H, W]; of videos and volumes, that of each frame."""
    if images.ndim == 5:
        return edge_map(images.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(images), -1))
    x = at_least_float32(images)
    planes = functional.pad(x.flatten(0, 1)[:, None], (1, 1, 1, 1), mode="replicate")
    kernel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]).to(x) / 8
    with torch.autocast(x.device.type, enabled=False):  # of the caller
        slopes = functional.conv2d(planes, torch.stack([kernel, kernel.T])[:, None])
    return torch.linalg.vector_norm(slopes.unflatten(0, x.shape[:2]), dim=(1, 2))


def center_map(images: Tensor, width: float = 0.25) -> Tensor:
    """Return the center control [N, H, W] of images [N, C, H, W]."""
    profiles = [
        torch.exp(-(((torch.arange(size, dtype=torch.float64) + 0.5) / size - 0.5) ** 2) / (2 * width**2))
        for size in images.shape[2:]
    ]
    blob = profiles[0]
    for profile in profiles[1:]:
        blob = blob[..., None] * profile
    return blob.to(at_least_float32(images)).expand(len(images), *blob.shape).clone()
