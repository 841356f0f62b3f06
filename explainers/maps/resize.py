"""Pure functions on maps: another size, a smooth picture of few cells, one value a pixel, agreement by rank.

Maps are `[N, h, w]`, attributions of single input values `[N, C, H, W]`. Nothing scales, clips or looks at a model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

MODES = ("bilinear", "nearest", "area")
REDUCTIONS = ("sum", "abs_max", "norm")


def resize(maps: Tensor, size: tuple[int, int], mode: str = "bilinear") -> Tensor:
    """Bring maps to another height and width; the centres of the cells stay where they are.

    Returns  `[N, H, W]`, float32 (float64 for float64 maps). "bilinear" interpolates between cell centres
             (`align_corners=False`) and holds the border value outside them; "nearest" repeats the cell that covers
             the pixel; "area" averages all that a pixel covers, for making maps smaller. No value is clipped, and
             none leaves the range of the map.
    Errors   ValueError for another shape, mode, or a size below 1.
    """
    if maps.ndim != 3:
        raise ValueError(f"resize takes maps [N, h, w], not {tuple(maps.shape)}; a single map m is m[None].")
    if mode not in MODES:
        raise ValueError(f"There is no mode {mode!r}; choose one of {', '.join(MODES)}.")
    height, width = (int(side) for side in size)
    if height < 1 or width < 1:
        raise ValueError(f"The size {tuple(size)} has no pixels; give (height, width), both at least 1.")
    planes = at_least_float32(maps)[:, None]
    if mode == "bilinear":
        return functional.interpolate(planes, (height, width), mode="bilinear", align_corners=False)[:, 0]
    # torch's plain "nearest" takes the cell at the pixel's corner and so shifts the map by up to half a cell.
    exact = "nearest-exact" if mode == "nearest" else mode
    return functional.interpolate(planes, (height, width), mode=exact)[:, 0]


def enlarge(maps: Tensor, size: tuple[int, int], *, smooth: bool = True) -> Tensor:
    """Draw maps of few cells smoothly at another height and width, for looking at them.

    A monotone cubic curve through the cell centres, first along rows, then along columns: no value leaves the range of
    the cells on either side, so a map has no peak that is not its own, and between two zeros stays zero; plain bicubic
    interpolation promises neither. A side that becomes shorter is averaged. `smooth=False` repeats the cell in which
    each pixel's centre lies.

    Returns  `[N, H, W]`, float32 (float64 for float64 maps). A value that is not a number is spread to all that lies
             between it and the next cells.
    Errors   ValueError for another shape or a size below 1.
    Source   Fritsch & Carlson 1980, with the mean of both steps as a cell's slope, limited to three times either
    """
    if maps.ndim != 3 or min(size) < 1:
        raise ValueError(f"enlarge takes maps [N, h, w] and a size of at least 1 x 1, not {tuple(maps.shape)}, {size}.")
    height, width = size
    rows = _along(at_least_float32(maps), width, smooth)
    return _along(rows.transpose(1, 2), height, smooth).transpose(1, 2)


def _along(maps: Tensor, side: int, smooth: bool) -> Tensor:
    """The last dimension at another length."""
    cells = maps.shape[2]
    if side == cells:
        return maps
    if not smooth:
        return maps[..., (2 * torch.arange(side, device=maps.device) + 1) * cells // (2 * side)]
    if side < cells:
        return functional.adaptive_avg_pool2d(maps, (maps.shape[1], side))
    at = (torch.arange(side, dtype=torch.float64, device=maps.device) + 0.5) * cells / side - 0.5
    left = at.floor()
    t = (at - left).to(maps.dtype)
    a, b, c, d = (maps[..., (left.long() + step).clamp(0, cells - 1)] for step in (-1, 0, 1, 2))
    a, d = torch.where(a.isnan(), b, a), torch.where(d.isnan(), c, d)
    rise = c - b
    start, end = _slope(b - a, rise), _slope(rise, d - c)
    return b + t * (start + t * (3 * rise - 2 * start - end + t * (start + end - 2 * rise)))


def _slope(before: Tensor, after: Tensor) -> Tensor:
    """The slope at a cell between two steps: their mean, at most three times either; 0 at a peak, a pit and a zero."""
    mean = (before + after) / 2
    steepest = 3 * before.abs().minimum(after.abs())
    return torch.where(before * after > 0, mean.minimum(steepest).maximum(-steepest), 0.0)


def blur(maps: Tensor, sigma: float) -> Tensor:
    """Gaussian blur with a standard deviation of `sigma` cells; the border's values go on outside.

    Returns  `[N, h, w]`, float32 (float64 for float64 maps); the kernel ends at three standard deviations.
    Errors   ValueError for another shape or a sigma that is not above 0.
    """
    if maps.ndim != 3 or not sigma > 0:
        raise ValueError(f"blur takes maps [N, h, w] and a sigma above 0, not {tuple(maps.shape)}, {sigma!r}.")
    planes = at_least_float32(maps)[:, None]
    radius = math.ceil(3 * sigma)
    steps = torch.arange(-radius, radius + 1, dtype=planes.dtype, device=planes.device)
    kernel = torch.exp(-(steps**2) / (2 * sigma**2))
    kernel = kernel / kernel.sum()
    wide = functional.pad(planes, (radius,) * 4, mode="replicate")
    rows = functional.conv2d(wide, kernel[None, None, None])
    return functional.conv2d(rows, kernel[None, None, :, None])[:, 0]


def reduce_channels(pixels: Tensor, how: str = "sum") -> Tensor:
    """Make one value a pixel out of one value a colour channel.

    Returns  `[N, H, W]`: "sum" keeps signs and the total, so that completeness still holds; "abs_max" is the largest
             magnitude among the channels (Simonyan et al. 2013); "norm" the Euclidean length.
    Errors   ValueError for another shape or reduction.
    """
    if pixels.ndim != 4:
        raise ValueError(f"reduce_channels takes values [N, C, H, W], not {tuple(pixels.shape)}.")
    if how == "sum":
        return pixels.sum(dim=1)
    if how == "abs_max":
        return pixels.abs().amax(dim=1)
    if how == "norm":
        lengths: Tensor = torch.linalg.vector_norm(pixels, dim=1)
        return lengths
    raise ValueError(f"There is no reduction {how!r}; choose one of {', '.join(REDUCTIONS)}.")


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Agree in order, whatever the scale: Spearman's correlation of each pair of maps over all cells.

    Returns  `[N]` float64 in [-1, 1]; equal values share their mean rank. NaN where a map is constant or not finite,
             because no order exists there.
    Errors   ValueError when the shapes differ.
    Source   Spearman 1904; with ties: Pearson's correlation of mean ranks.
    """
    if a.shape != b.shape or a.ndim < 2:
        raise ValueError(f"Maps of one shape [N, ...] are compared, not {tuple(a.shape)} with {tuple(b.shape)}.")
    ranks_a, ranks_b = (_centred_ranks(maps.detach().flatten(1)) for maps in (a, b))
    lengths = torch.linalg.vector_norm(ranks_a, dim=1) * torch.linalg.vector_norm(ranks_b, dim=1)
    agreement = (ranks_a * ranks_b).sum(dim=1) / lengths
    ordered = a.flatten(1).isfinite().all(dim=1) & b.flatten(1).isfinite().all(dim=1)
    return torch.where(ordered, agreement.clamp(-1, 1), torch.nan)


def _centred_ranks(rows: Tensor) -> Tensor:
    """Rank each row's values, ties by their mean rank, with the mean rank taken off."""
    rows = rows.double().contiguous()
    ordered = rows.sort(dim=1).values
    below = torch.searchsorted(ordered, rows, right=False)
    upto = torch.searchsorted(ordered, rows, right=True)
    ranks = (below + upto - 1).double() / 2
    return ranks - (rows.shape[1] - 1) / 2


def at_least_float32(values: Tensor) -> Tensor:
    """Leave float64 alone and widen everything else: half precision would show as steps in a picture."""
    return values if values.dtype == torch.float64 else values.float()
