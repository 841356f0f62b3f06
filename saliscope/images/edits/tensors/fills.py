"""What a region is filled with: blur, the mean, noise, another image, or its surroundings."""

from __future__ import annotations

import torch
from torch import Tensor

from explainers import baseline_of, impute
from saliscope.errors import Refused
from saliscope.images.edits import messages


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

    The neighbors are up to eight pixels, with weights 1/6 (adjacent) and 1/12 (diagonal), as in the metric ROAD
    (`explainers.impute`). This continues the surroundings smoothly: a linear ramp stays a ramp.

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
    return impute(pixels, mask[None]) if bool(mask.any()) else pixels
