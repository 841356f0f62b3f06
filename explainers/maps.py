"""Pure functions on maps: another size, one value a pixel, agreement by rank.

Maps are `[N, h, w]`, attributions of single input values `[N, C, H, W]`. Nothing scales, clips or looks at a model.
"""

from __future__ import annotations

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
    planes = _at_least_float32(maps)[:, None]
    if mode == "bilinear":
        return functional.interpolate(planes, (height, width), mode="bilinear", align_corners=False)[:, 0]
    # torch's plain "nearest" takes the cell at the pixel's corner and so shifts the map by up to half a cell.
    exact = "nearest-exact" if mode == "nearest" else mode
    return functional.interpolate(planes, (height, width), mode=exact)[:, 0]


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


def _at_least_float32(values: Tensor) -> Tensor:
    """Leave float64 alone and widen everything else: half precision would show as steps in a picture."""
    return values if values.dtype == torch.float64 else values.float()
