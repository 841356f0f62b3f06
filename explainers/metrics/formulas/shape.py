"""Metrics that do not use the model: the sparseness of the map, and its overlap with a given region.

a  values of the map at the image's size     (n pixels)
M  pixels inside the region                  boxes or masks, as `region=` of `evaluate`

A map can have good values here without explaining the model: a sparse map is not necessarily better, and a network may
have good reasons to use pixels outside the object.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from explainers.dtypes import to_float64
from explainers.metrics.metric import Measurement, Trial, metric
from explainers.options import Range

_ARRAS = "Arras et al. 2022, arXiv:2003.07258"


@metric(
    title="Sparseness",
    question="Is the map concentrated on few pixels?",
    source="Chalasani et al. 2020, arXiv:1810.06583",
    unit="Gini index",
    higher=None,
)
def sparseness(trial: Trial) -> Measurement:
    """Sparseness: the Gini index of the values' magnitudes.

        1 - 2 Σ_k (|a|_(k) / Σ|a|) (n - k + 1/2) / n,  |a|_(1) <= ... <= |a|_(n)

    Returns  (r), from 0 (all magnitudes equal) to 1 - 1/n (a single nonzero pixel); no unit. NaN for a map of zeros
    Source   Chalasani et al. 2020, arXiv:1810.06583; Hurley & Rickard 2009, arXiv:0811.4706

    Example
        >>> evaluate(model, images, "grad_cam", metrics=["sparseness"]).values["sparseness"].shape
        torch.Size([1])
    """
    sizes = to_float64(trial.maps.flatten(1)).abs().sort(dim=1).values
    count = sizes.shape[1]
    weights = (count - torch.arange(count, dtype=torch.float64, device=sizes.device) - 0.5) / count
    totals = sizes.sum(1)
    return Measurement(1 - 2 * (sizes * weights).sum(1) / totals).exclude(totals == 0, "the map is zero everywhere")


@metric(
    title="Complexity",
    question="Over how many pixels is the map spread?",
    source="Bhatt et al. 2020, definition 4, arXiv:2005.00631",
    unit="nats",
    higher=None,
)
def complexity(trial: Trial) -> Measurement:
    """Complexity: the entropy of the pixels' shares of the map, by magnitude.

        -Σ_i p_i ln p_i,  p_i = |a_i| / Σ|a|

    exp(complexity) is the number of pixels of a uniform map with the same entropy.

    Returns  (r), from 0 (a single nonzero pixel) to ln n (all magnitudes equal), in nats. NaN for a map of zeros
    Source   Bhatt et al. 2020, definition 4, arXiv:2005.00631

    Example
        >>> evaluate(model, images, "grad_cam", metrics=["complexity"]).values["complexity"].shape
        torch.Size([1])
    """
    sizes = to_float64(trial.maps.flatten(1)).abs()
    totals = sizes.sum(1, keepdim=True)
    entropies = torch.special.entr(sizes / totals).sum(1)
    return Measurement(entropies).exclude(totals[:, 0] == 0, "the map is zero everywhere")


@metric(
    title="Pointing game",
    videos=False,
    question="Is the highest point of the map on the object?",
    source="Zhang et al. 2018, arXiv:1608.00507",
    unit="share of hits",
    higher=True,
    region=True,
)
def pointing_game(
    trial: Trial,
    *,
    tolerance: Annotated[float, Range(0, 4096, 1, help="distance in pixels that still counts as a hit")] = 15,
) -> Measurement:
    """Pointing game: whether the map's highest pixel is in the region, or at most `tolerance` pixels outside it.

    Distances are Euclidean, between the centers of pixels; the authors use 15 pixels at about 224 px. If several pixels
    share the maximum, the value is the share of them that hit: the expected value of a random choice, and for a
    constant map the share of the image within the tolerance.

    Returns  (r), 1 for a hit and 0 for a miss, in between for ties; the mean over images is the accuracy. NaN if the
             tolerance includes the whole image
    Errors   BadOption
    Source   Zhang et al. 2018, arXiv:1608.00507

    Example
        >>> box = torch.tensor([[60, 40, 180, 200]])
        >>> evaluate(model, images, "grad_cam", metrics=["pointing_game"], region=box).values["pointing_game"].shape
        torch.Size([1])
    """
    maps, inside = trial.maps.flatten(1), _regions(trial)
    everywhere = within(inside, tolerance).flatten(1).all(1) & ~inside.flatten(1).all(1)
    near = within(inside, tolerance)[trial.image_indices].flatten(1)
    highest = maps == maps.amax(1, keepdim=True)
    hits = to_float64(highest & near).sum(1) / to_float64(highest).sum(1)
    return Measurement(hits).exclude(
        everywhere[trial.image_indices], f"every pixel is at most {tolerance:g} pixels from the region"
    )


@metric(
    title="Relevance mass",
    question="How much of the map's positive evidence is on the object?",
    source=_ARRAS,
    unit="share of the positive sum",
    higher=True,
    region=True,
)
def relevance_mass(trial: Trial) -> Measurement:
    """Relevance mass accuracy: the share of the positive values that is inside the region.

        Σ_{i in M} a_i⁺ / Σ_i a_i⁺

    Negative values, which are evidence against the class, count as zero. For a constant map, the value is the region's
    share of the image.

    Returns  (r), in [0, 1]; NaN if no value is positive
    Source   Arras et al. 2022, arXiv:2003.07258

    Example
        >>> box = torch.tensor([[60, 40, 180, 200]])
        >>> evaluate(model, images, "grad_cam", metrics=["relevance_mass"], region=box).values["relevance_mass"].shape
        torch.Size([1])
    """
    positive, inside = to_float64(trial.maps.flatten(1)).clamp(min=0), _regions(trial)[trial.image_indices].flatten(1)
    total = positive.sum(1)
    shares = Measurement((positive * inside.to(positive.device)).sum(1) / total)
    return shares.exclude(total == 0, "the map has no positive values")


@metric(
    title="Relevance rank",
    question="Are the highest pixels on the object?",
    source=_ARRAS,
    unit="share of the region",
    higher=True,
    region=True,
)
def relevance_rank(trial: Trial) -> Measurement:
    """Relevance rank accuracy: the share of the map's K highest pixels that are in the region of K pixels.

        |the K highest pixels ∩ M| / K,  K = |M|

    If several pixels share the K-th value, the result is the mean over all choices, so that for a constant map it is
    the region's share of the image.

    Returns  (r), in [0, 1]
    Source   Arras et al. 2022, arXiv:2003.07258

    Example
        >>> box = torch.tensor([[60, 40, 180, 200]])
        >>> evaluate(model, images, "grad_cam", metrics=["relevance_rank"], region=box).values["relevance_rank"].shape
        torch.Size([1])
    """
    maps, inside = trial.maps.flatten(1), _regions(trial)[trial.image_indices].flatten(1)
    sizes = inside.sum(1, keepdim=True)
    last = maps.sort(dim=1, descending=True).values.gather(1, sizes - 1)
    above, equal = to_float64(maps > last), to_float64(maps == last)
    sizes, inside = sizes.to(above.device), inside.to(above.device)
    chosen = above + equal * (sizes - above.sum(1, keepdim=True)) / equal.sum(1, keepdim=True)
    return Measurement((chosen * inside).sum(1) / sizes[:, 0])


def within(masks: Tensor, reach: float) -> Tensor:
    """Return the pixels whose centers are at most `reach` pixels from a pixel of the mask, for masks [N, H, W]."""
    height, width = masks.shape[1:]
    near, columns = masks.clone(), torch.arange(width, device=masks.device)
    before = functional.pad(masks.int().cumsum(2), (1, 0))  # number of mask pixels to the left of each column
    for down in range(min(int(reach), height - 1) + 1):
        side = int(math.sqrt(reach * reach - down * down))
        first, last = (columns - side).clamp(min=0), (columns + side + 1).clamp(max=width)
        wide = before[..., last] > before[..., first]
        near[:, down:] |= wide[:, : height - down]
        near[:, : height - down] |= wide[:, down:]
    return near


def _regions(trial: Trial) -> Tensor:
    assert trial.region is not None, "evaluate requires a region for these metrics"
    return trial.region
