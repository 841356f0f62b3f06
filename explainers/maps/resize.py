"""Pure functions on maps: resizing, blur, reduction over channels, similarity of two maps, fusion of several layers.

Maps are `[N, h, w]`, attributions of input values `[N, C, H, W]`; those of videos and volumes `[N, t, h, w]` and
`[N, C, T, H, W]`. No function normalizes or clips values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from explainers.dtypes import float64_device, to_float64
from explainers.errors import BadOption, check_type, shorten, wrong_type
from explainers.maps.arrays import check_cells
from explainers.options import check_choice, check_keywords, whole_numbers
from explainers.perturbation.baselines import blur_axis
from explainers.placement import Placement, Placements, place, place_each

MODES = ("bilinear", "cubic", "nearest", "area")
REDUCTIONS = ("sum", "abs_max", "norm")


def resize(maps: Tensor, size: tuple[int, ...], mode: str = "bilinear", *, placement: Placements = None) -> Tensor:
    """Resize maps to another height and width, or frames, height and width.

    The first and the last cell keep their share of the size: cell i of n covers [i/n, (i+1)/n] of a side, and its value
    is that of its center (`align_corners=False`). No value is normalized, clipped or outside the range of the map.

        "bilinear"  interpolates linearly along each axis between centers, and repeats the border value outside of them
        "cubic"     monotone cubic interpolation between centers, for display: values between zeros are 0, unlike with
                    bicubic interpolation; a side that becomes shorter is averaged
        "nearest"   repeats the cell that covers the pixel's center
        "area"      averages the cells that a pixel covers, for smaller sizes

    For maps of a layer's cells, give its `Layer.placement` or `Explanation.placement`: where the network crops, pads,
    flips or shifts its input, the cells are moved there first, and what the layer does not cover is 0 (`place`).

    Returns  `[N, H, W]` or `[N, T, H, W]`, float32 (float64 for float64 maps); NaN propagates to neighboring cells
    Errors   BadOption for another shape or mode, a size below 1, or a placement of another layer; those of `place`
    Source   Fritsch & Carlson 1980 ("cubic"), with the mean of both steps as a cell's slope, limited to three times
             either

    Example
        >>> cam = grad_cam(model, images, 281)
        >>> resize(cam, (224, 224)).shape
        torch.Size([1, 224, 224])
    """
    if not isinstance(maps, Tensor) or maps.ndim not in (3, 4):
        given = tuple(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
        raise BadOption(f"resize takes maps [N, h, w] or [N, t, h, w], not {given}. For a single map m, give m[None].")
    check_cells(maps)
    check_choice("mode", mode, MODES)
    sides = whole_numbers(size)
    if sides is None or len(sides) != maps.ndim - 1 or min(sides) < 1:
        names = "(height, width), both" if maps.ndim == 3 else "(frames, height, width), all"
        raise BadOption(f"Invalid size {shorten(size)} for maps {tuple(maps.shape)}. Give {names} at least 1.")
    if isinstance(placement, Sequence) and len(placement) == len(maps) > 0:  # the placed maps may differ in size
        return torch.cat([resize(one[None], size, mode) for one in place_each(_to_float(maps), placement)])
    resized = place(_to_float(maps), placement)
    if resized.shape[1:] == sides:
        return resized.clone()
    if mode == "area":
        return functional.interpolate(resized[:, None], sides, mode="area")[:, 0]
    along = {"bilinear": _lerp_axis, "cubic": _cubic_axis, "nearest": _repeat_axis}[mode]
    for axis in range(maps.ndim - 1, 0, -1):  # rows last: whole rows are copied
        if resized.shape[axis] != sides[axis - 1]:
            resized = along(resized, axis, sides[axis - 1])
    return resized


def _lerp_axis(maps: Tensor, axis: int, side: int) -> Tensor:
    """Interpolate linearly along an axis; unlike torch's interpolation, the result is exact between equal cells."""
    cells = maps.shape[axis]
    at = _centers(side, cells, maps.device).clamp(0, cells - 1)
    first = at.long()
    weights = (at - first).to(maps).view(-1, *[1] * (maps.ndim - 1 - axis))
    first = first.to(maps.device)
    after = maps.index_select(axis, (first + 1).clamp(max=cells - 1))
    return maps.index_select(axis, first).lerp_(after, weights)  # in place: 1,280 maps at 224 px take 257 MB


def _centers(side: int, cells: int, device: torch.device) -> Tensor:
    """Return the centers of `side` pixels in units of cells, float64, on the CPU if the device has no float64."""
    return (torch.arange(side, dtype=torch.float64, device=float64_device(device)) + 0.5) * cells / side - 0.5


def _repeat_axis(maps: Tensor, axis: int, side: int) -> Tensor:
    """Repeat cells along an axis; torch's "nearest" takes the cell at the pixel's corner."""
    return maps.index_select(axis, (2 * torch.arange(side, device=maps.device) + 1) * maps.shape[axis] // (2 * side))


def _cubic_axis(maps: Tensor, axis: int, side: int) -> Tensor:
    """Interpolate along an axis without new extrema, or average to fewer cells."""
    cells, lines = maps.shape[axis], maps.transpose(axis, -1)
    if side < cells:
        means = functional.adaptive_avg_pool1d(lines.flatten(0, -2), side)
        return means.view(*lines.shape[:-1], side).transpose(axis, -1)
    at = _centers(side, cells, maps.device)
    left = at.floor()
    t = (at - left).to(maps)
    first = left.long().to(maps.device)
    a, b, c, d = (lines[..., (first + step).clamp(0, cells - 1)] for step in (-1, 0, 1, 2))
    a, d = torch.where(a.isnan(), b, a), torch.where(d.isnan(), c, d)
    rise = c - b
    start, end = _slope(b - a, rise), _slope(rise, d - c)
    return (b + t * (start + t * (3 * rise - 2 * start - end + t * (start + end - 2 * rise)))).transpose(axis, -1)


def _slope(before: Tensor, after: Tensor) -> Tensor:
    """Return the slope at a cell: the mean of the steps on both sides, at most three times either; 0 at an extremum."""
    mean = (before + after) / 2
    steepest = 3 * before.abs().minimum(after.abs())
    return torch.where(before * after > 0, mean.minimum(steepest).maximum(-steepest), 0.0)


def blur(maps: Tensor, sigma: float) -> Tensor:
    """Apply a Gaussian blur with σ = `sigma` cells and replicated borders.

    Returns  `[N, h, w]`, float32 (float64 for float64 maps); the kernel ends at 3 σ.
    """
    for axis in (2, 1):
        maps = blur_axis(_to_float(maps), axis, sigma, math.ceil(3 * sigma))
    return maps


def reduce_channels(pixels: Tensor, how: str = "sum") -> Tensor:
    """Reduce the color channels of attributions to one value per pixel.

    Returns  `[N, H, W]`: "sum" keeps signs and the total, so completeness still holds; "abs_max" is the largest
             magnitude over the channels (Simonyan et al. 2013); "norm" is the Euclidean norm.
    """
    if how == "sum":
        return pixels.sum(dim=1)
    if how == "abs_max":
        return pixels.abs().amax(dim=1)
    norms: Tensor = torch.linalg.vector_norm(pixels, dim=1)
    return norms


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Compute Spearman's rank correlation of each pair of maps over all cells.

    `a` and `b` are batches of maps of the same shape, [N, ...].

    Returns  `[N]` float64 in [-1, 1], on the CPU if the device has no float64; ties get their mean rank. NaN if a map
             is constant or not finite.
    Errors   WrongType; BadOption if the shapes differ.
    Source   Spearman 1904; with ties: Pearson's correlation of mean ranks.

    Example
        >>> maps = grad_cam(model, images, 281)
        >>> rank_correlation(maps, 2 * maps)
        tensor([1.], dtype=torch.float64)
    """
    for name, maps in (("a", a), ("b", b)):
        if not isinstance(maps, Tensor):
            raise wrong_type(name, maps, "a tensor of maps [N, ...]")
        if maps.layout != torch.strided or maps.is_complex() or not maps.numel():
            check_cells(maps, name)  # says what is wrong
    if a.shape != b.shape or a.ndim < 2:
        raise BadOption(f"The maps have shapes {tuple(a.shape)} and {tuple(b.shape)}. Give the same shape [N, ...].")
    rows = torch.stack((to_float64(a.detach().flatten(1)), to_float64(b.detach().flatten(1))))
    ordered, order = rows.sort(dim=-1)
    count = rows.shape[-1]
    position = torch.arange(count, device=rows.device).expand_as(rows)
    is_new = ordered[..., 1:] != ordered[..., :-1]
    edge = torch.ones_like(rows[..., :1], dtype=torch.bool)
    # Ties get their mean rank. A run of ties starts at each new value and ends before the next one.
    start = torch.where(torch.cat([edge, is_new], -1), position, 0).cummax(-1).values
    end = torch.where(torch.cat([is_new, edge], -1), position, count).flip(-1).cummin(-1).values.flip(-1)
    ranks = (start + end - (count - 1)).double() / 2  # centered on their mean, (n - 1) / 2
    first, second = torch.empty_like(ranks).scatter_(-1, order, ranks)
    lengths = torch.linalg.vector_norm(first, dim=1) * torch.linalg.vector_norm(second, dim=1)
    finite = rows.isfinite().all(dim=2).all(dim=0)
    return torch.where(finite, ((first * second).sum(dim=1) / lengths).clamp(-1, 1), torch.nan)


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Compute the structural similarity of each pair of maps, scaled to a largest magnitude of 1; 1 for equal maps.

        SSIM = (2 μ_a μ_b + C_1)(2 σ_ab + C_2) / ((μ_a² + μ_b² + C_1)(σ_a² + σ_b² + C_2)),  C_i = (K_i L)²

    μ, σ² and σ_ab are computed under a Gaussian window of 11 x 11 cells with σ = 1.5; the index is the mean over all
    windows that lie inside the map (smaller maps have a smaller window). K = 0.01 and 0.03. Maps are compared as a
    diverging color map draws them, (map / max |map| + 1) / 2, with range L = 1. If zero were not in the middle, a map
    and its negative would have opposite means and opposite structures, whose product is positive.

    Returns  `[N]` float64 in [-1, 1], on the CPU if the device has no float64; a map of zeros is uniform gray. NaN if a
             map is not finite.
    Source   Wang et al. 2004, eq. 13, doi:10.1109/TIP.2003.819861
    """
    x, y = (_scale_to_unit(maps) for maps in (a, b))
    means = _window_means(torch.cat([x, y, x * x, y * y, x * y]))
    mean_x, mean_y, xx, yy, xy = means.split(len(x))
    c1, c2 = 0.01**2, 0.03**2
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
        size = min(11, maps.shape[axis])
        steps = torch.arange(size, dtype=maps.dtype, device=maps.device) - (size - 1) / 2
        kernel = torch.exp(-(steps**2) / (2 * 1.5**2))
        kernel = (kernel / kernel.sum()).view(1, 1, *((-1, 1) if axis == 1 else (1, -1)))
        maps = functional.conv2d(maps[:, None], kernel)[:, 0]
    return maps


def _to_float(values: Tensor) -> Tensor:
    """Convert half precision, which would show as steps, to float32; keep float64. Keeps the graph, unlike `passes`."""
    return values if values.dtype == torch.float64 else values.float()


FUSIONS = ("mean", "product")


@check_keywords
def fuse(
    maps: Mapping[str, Tensor] | Sequence[Tensor],
    how: str = "mean",
    *,
    size: tuple[int, ...] | None = None,
    placements: Sequence[Placement | None] | None = None,
) -> Tensor:
    """Combine the maps (n, h, w) of several layers: resize each, then combine them cell by cell.

    "mean" keeps signs and units; layers with larger values weigh more. "product" is the product of the rectified maps,
    each divided by its maximum in the image, so that layers weigh equally; it is 0 for a map without positive values.
    `placements` has the `Layer.placement` of each map, needed where the network crops, pads, flips or shifts its input.

    Returns  (n, H, W) at `size`, (height, width) or (frames, height, width), by default the size of the finest map;
             for "product" in [0, 1]
    Errors   BadOption without maps, if the maps have different numbers of images, for an unknown `how`, or another
             number of placements; those of `resize`
    Source   product: Domeniconi et al. 2026, arXiv:2605.14641

    Example
        >>> maps = sweep("layer_cam", model, images, 281, layers=["layer3", "layer4"])
        >>> fuse(maps, "product").shape
        torch.Size([1, 14, 14])
    """
    check_type("maps", maps, (Mapping, Sequence), "a mapping or a list of maps [N, h, w]")
    layers = list(maps.values()) if isinstance(maps, Mapping) else list(maps)
    check_choice("how", how, FUSIONS)
    forms = {(m.ndim, len(m)) if isinstance(m, Tensor) and m.ndim in (3, 4) else None for m in layers}
    if len(forms) != 1 or None in forms:
        shapes = ", ".join(str(tuple(m.shape)) if isinstance(m, Tensor) else type(m).__name__ for m in layers) or "none"
        raise BadOption(f"The maps have shapes {shapes}. Give one or more maps [N, h, w] of the same N images.")
    for each in layers:
        check_cells(each)
    check_type("placements", placements, (Sequence, type(None)), "a list with a placement or None for each map")
    where = [None] * len(layers) if placements is None else list(placements)
    if len(where) != len(layers):
        raise BadOption(f"{len(where)} placements were given for {len(layers)} maps. Give one for each, or None.")
    if how == "product":  # max(m, 0) / max m for each image; NaN propagates
        highest = [m.relu().amax(tuple(range(1, m.ndim)), keepdim=True) for m in layers]
        layers = [(m.relu() / top).where(top != 0, 0) for m, top in zip(layers, highest, strict=True)]
    layers = [place(m, at) for m, at in zip(layers, where, strict=True)]
    if size is None:
        size = tuple(max(sides) for sides in zip(*(m.shape[1:] for m in layers), strict=True))
    resized = torch.stack([resize(m, size) for m in layers])
    return resized.mean(0) if how == "mean" else resized.prod(0)
