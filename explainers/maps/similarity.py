"""Visual similarity of two maps: the structural similarity index. For ranks see `rank_correlation` in resize.py."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from explainers.dtypes import to_float64
from explainers.errors import BadOption

_WINDOW, _SIGMA = 11, 1.5
_K1, _K2 = 0.01, 0.03


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Compute the structural similarity of each pair of maps, scaled to a largest magnitude of 1; 1 for equal maps.

        SSIM = (2 μ_a μ_b + C_1)(2 σ_ab + C_2) / ((μ_a² + μ_b² + C_1)(σ_a² + σ_b² + C_2)),  C_i = (K_i L)²

    μ, σ² and σ_ab are computed under a Gaussian window of 11 x 11 cells with σ = 1.5; the index is the mean over all
    windows that lie inside the map (smaller maps have a smaller window). K = 0.01 and 0.03. Maps are compared as a
    diverging color map draws them, (map / max |map| + 1) / 2, with range L = 1. If zero were not in the middle, a map
    and its negative would have opposite means and opposite structures, whose product is positive.

    Returns  `[N]` float64 in [-1, 1], on the CPU if the device has no float64; a map of zeros is uniform gray. NaN if a
             map is not finite.
    Errors   BadOption if the shapes differ or are not [N, h, w]
    Source   Wang et al. 2004, eq. 13, doi:10.1109/TIP.2003.819861
    """
    if a.shape != b.shape or a.ndim != 3:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise BadOption(f"The maps have shapes {shapes}. Give two tensors of the same shape [N, h, w].")
    x, y = (_scale_to_unit(maps) for maps in (a, b))
    count = len(x)
    moments = _window_means(torch.cat([x, y, x * x, y * y, x * y]))
    mean_x, mean_y, xx, yy, xy = moments.split(count)
    c1, c2 = _K1**2, _K2**2
    numerator = (2 * mean_x * mean_y + c1) * (2 * (xy - mean_x * mean_y) + c2)
    denominator = (mean_x**2 + mean_y**2 + c1) * (xx - mean_x**2 + yy - mean_y**2 + c2)
    return (numerator / denominator).mean((1, 2))


def _scale_to_unit(maps: Tensor) -> Tensor:
    """Scale to [0, 1] in float64: zero becomes 0.5, the largest magnitude 0 or 1."""
    maps = to_float64(maps.detach())
    largest = maps.abs().amax((1, 2), keepdim=True)
    return maps / largest.where(largest != 0, 1) / 2 + 0.5


def _window_means(maps: Tensor) -> Tensor:
    """Return the weighted mean under each window that lies inside the maps [B, h, w]."""
    for axis in (1, 2):
        size = min(_WINDOW, maps.shape[axis])
        steps = torch.arange(size, dtype=maps.dtype, device=maps.device) - (size - 1) / 2
        kernel = torch.exp(-(steps**2) / (2 * _SIGMA**2))
        kernel = (kernel / kernel.sum()).view(1, 1, *((-1, 1) if axis == 1 else (1, -1)))
        maps = functional.conv2d(maps[:, None], kernel)[:, 0]
    return maps
