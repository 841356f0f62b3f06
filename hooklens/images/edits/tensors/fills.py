"""What a region is filled with: blur, the mean, noise, another image, or its surroundings."""

from __future__ import annotations

import torch
from torch import Tensor

from explainers.perturbation.baselines import baseline_of
from hooklens.errors import Refused
from hooklens.images.edits import messages

ACCURACY = 4e-4
"""Largest change of a pixel, in units of the range of the image, at which inpainting ends; 1/255 is one gray level."""
STEPS = 2000
COARSEST = 8  # pixels of the shorter side at which inpainting starts


def cover_image(pixels: Tensor, fill: str, second: Tensor | None = None) -> Tensor:
    """Return the image of which a region shows a part: the blurred image, its mean color, noise, or a second image.

    `pixels` [1, C, H, W], in any unit. "blur" has σ of a sixteenth of the shorter side, "mean" is the mean of each
    channel, and "noise" is uniform from the minimum to the maximum of the image, with a fixed seed.

    Errors   Refused for a second image that is missing or has another shape
    """
    if fill != "image":
        return baseline_of(pixels, fill)
    if second is None:
        raise Refused(messages.NO_SECOND)
    if second.shape != pixels.shape:
        raise Refused(messages.other_size(tuple(second.shape[1:]), tuple(pixels.shape[1:])))
    return second


def fill_region(pixels: Tensor, mask: Tensor, fill: str, second: Tensor | None = None) -> Tensor:
    """Return the image [1, C, H, W] with its region `mask` [H, W] filled; all other pixels keep their exact values.

    Errors   Refused as `cover_image` and `inpaint`
    """
    cover = inpaint(pixels, mask) if fill == "inpaint" else cover_image(pixels, fill, second)
    return torch.where(mask, cover, pixels)


def inpaint(pixels: Tensor, mask: Tensor) -> Tensor:
    """Return the image [1, C, H, W] in which each pixel of the region `mask` [H, W] is the mean of its neighbors.

    The neighbors are up to four pixels: above, below, left and right. This is the smoothest continuation of the
    surroundings: a linear ramp is continued exactly. It is solved by conjugate gradients, coarse to fine.

    Errors   Refused if the region is the whole image

    Example
        >>> ramp = torch.arange(16.0).expand(1, 1, 16, 16)
        >>> mask = torch.zeros(16, 16, dtype=torch.bool)
        >>> mask[4:9, 4:9] = True
        >>> torch.allclose(inpaint(ramp, mask), ramp, atol=0.01)
        True
    """
    if bool(mask.all()):
        raise Refused(messages.ALL)
    if not bool(mask.any()):
        return pixels
    rows, columns = (mask.any(1 - axis).nonzero()[:, 0] for axis in (0, 1))
    height, width = mask.shape
    inner = (
        slice(max(0, int(rows[0]) - 1), min(height, int(rows[-1]) + 2)),  # the region and its neighbors
        slice(max(0, int(columns[0]) - 1), min(width, int(columns[-1]) + 2)),
    )
    span = float(pixels.max() - pixels.min()) or 1.0
    result = pixels.clone()
    result[0][:, inner[0], inner[1]] = _solve(pixels[0][:, inner[0], inner[1]], mask[inner], span)
    return result


def _solve(pixels: Tensor, mask: Tensor, span: float) -> Tensor:
    """Return the pixels [C, H, W] with the means of the neighbors inside the mask; at least one pixel is outside."""
    start, accuracy = _coarse(pixels, mask, span), ACCURACY * span
    inside = mask.to(pixels.dtype)
    x = torch.where(mask, start, pixels)
    residual = (_sum_of_neighbors(x) - _degrees(mask, pixels) * x) * inside
    direction, degrees = residual.clone(), _degrees(mask, pixels)
    size = residual.square().sum((1, 2), keepdim=True)
    for _ in range(STEPS):
        if not bool((residual.abs() > 0).any()):
            break
        applied = (degrees * direction - _sum_of_neighbors(direction)) * inside
        curvature = (direction * applied).sum((1, 2), keepdim=True)
        step = torch.where(curvature > 0, size / curvature.clamp(min=torch.finfo(x.dtype).tiny), 0.0)
        x = x + step * direction
        residual = residual - step * applied
        if float((step * direction).abs().max()) < accuracy and float(residual.abs().max()) < accuracy / 16:
            break
        new = residual.square().sum((1, 2), keepdim=True)
        direction = residual + new / size.clamp(min=torch.finfo(x.dtype).tiny) * direction
        size = new
    return x


def _coarse(pixels: Tensor, mask: Tensor, span: float) -> Tensor:
    """Return the solution at half the resolution, enlarged; at the coarsest one, the mean of the known pixels."""
    known = (~mask).to(pixels.dtype)
    if min(mask.shape) <= COARSEST:
        mean = (pixels * known).sum((1, 2), keepdim=True) / known.sum()
        return mean.expand_as(pixels)
    weight = _halve(known)
    small = _halve(pixels * known) / weight.clamp(min=1e-6)
    solved = _solve(small, weight == 0, span) if bool((weight == 0).any()) else small
    return torch.nn.functional.interpolate(solved[None], mask.shape, mode="bilinear")[0]


def _halve(planes: Tensor) -> Tensor:
    """Return the means of 2 x 2 pixels of [C, H, W] or [H, W]."""
    return torch.nn.functional.avg_pool2d(planes[None], 2, ceil_mode=True, count_include_pad=False)[0]


def _sum_of_neighbors(x: Tensor) -> Tensor:
    total = torch.zeros_like(x)
    total[:, 1:] += x[:, :-1]
    total[:, :-1] += x[:, 1:]
    total[:, :, 1:] += x[:, :, :-1]
    total[:, :, :-1] += x[:, :, 1:]
    return total


def _degrees(mask: Tensor, pixels: Tensor) -> Tensor:
    """Return the number of neighbors of each pixel, [1, H, W]."""
    return _sum_of_neighbors(torch.ones(1, *mask.shape, dtype=pixels.dtype))
