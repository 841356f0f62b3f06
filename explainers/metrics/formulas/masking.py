"""Metrics that hide pixels by the map and watch the score.

f  score      of the class, as a probability unless asked for otherwise
n  pixels     of the image; after step k of s the floor(k n / s) highest are hidden (deletion) or shown (insertion)
L  the map    scaled to [0, 1] by its minimum and maximum, where values count and not their ranks alone
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from explainers.metrics.metric import Measured, Trial, metric
from explainers.options import Range
from explainers.passes.run import at_least_float32
from explainers.perturbation.baselines import extremes
from explainers.perturbation.imputation import impute
from explainers.perturbation.rng import PerImageGenerators

_PETSIUK = "Petsiuk et al. 2018, section 4.1, arXiv:1806.07421"


@metric(
    title="Deletion",
    question="How soon does the score fall when the highest pixels go first?",
    source=_PETSIUK,
    unit="mean probability",
    higher=False,
    score="probability",
    curve=True,
    forwards=lambda options: options["steps"] - 1,
)
def deletion(trial: Trial) -> Measured:
    """Deletion: the area under the score as pixels become the baseline, highest first.

        mean over k = 0..s (trapezoidal rule) of f(x with its floor(k n / s) highest pixels replaced)

    Returns  (r), in the score's unit, lower is better; curves (r, steps + 1) from the image to the baseline
    Source   Petsiuk et al. 2018, section 4.1, arXiv:1806.07421

    Example
        >>> evaluate(model, images, grad_cam(model, images), metrics=["deletion"]).values["deletion"].shape
        torch.Size([1])
    """
    return _area(_curves(trial, "deletion"))


@metric(
    title="Insertion",
    question="How soon does the score rise when the highest pixels come first?",
    source=_PETSIUK,
    unit="mean probability",
    higher=True,
    score="probability",
    curve=True,
    forwards=lambda options: options["steps"] - 1,
)
def insertion(trial: Trial) -> Measured:
    """Insertion: the area under the score as pixels of the image return into the baseline, highest first.

        mean over k = 0..s (trapezoidal rule) of f(baseline with the floor(k n / s) highest pixels of x)

    Returns  (r), in the score's unit, higher is better; curves (r, steps + 1) from the baseline to the image
    Source   Petsiuk et al. 2018, section 4.1, arXiv:1806.07421

    Example
        >>> evaluate(model, images, grad_cam(model, images), metrics=["insertion"]).curves["insertion"].shape
        torch.Size([1, 21])
    """
    return _area(_curves(trial, "insertion"))


def _area(curves: Tensor) -> Measured:
    return Measured(area(curves).to(curves), curves)


def area(curves: Tensor) -> Tensor:
    """The area under curves [..., points] over [0, 1], by the trapezoidal rule, in float64."""
    return torch.trapezoid(curves.double(), dx=1 / (curves.shape[-1] - 1))


def _curves(trial: Trial, kind: str) -> Tensor:
    """The curves of all rows, [R, steps + 1].

    What deletion leaves of a map is what insertion shows first of its negative: where the trial holds both, as it does
    of random controls, one curve backwards is the other's (where s does not divide n, but for one pixel).
    """
    whole, empty = trial.ends
    key = "curves", type(trial.target).__name__
    known: dict[str, Tensor] = trial.kept.setdefault(key, {})
    other = known.get("insertion" if kind == "deletion" else "deletion")
    twins = {} if other is None else trial.mirrors
    counts = [k * trial.ranks[0].numel() // trial.steps for k in range(1, trial.steps)]
    image, cover = (trial.images, trial.baseline) if kind == "insertion" else (trial.baseline, trial.images)

    def make(row: int, steps: Sequence[int]) -> Tensor:
        first = trial.ranks[row] < torch.tensor([counts[k] for k in steps], device=image.device).view(-1, 1, 1)
        picture = trial.pictures[row]
        return torch.where(first[:, None], image[picture], cover[picture])

    rows = [row for row in range(len(trial.maps)) if row not in twins]
    inner = trial.scores(len(counts), make, rows)
    begin, end = (empty, whole) if kind == "insertion" else (whole, empty)
    found = torch.cat([begin[:, None], inner, end[:, None]], 1)
    if other is not None:
        for row, twin in twins.items():
            found[row] = other[twin].flip(0)
    known[kind] = found
    return found


_CHATTOPADHAY = "Chattopadhay et al. 2018, section 4.1, arXiv:1710.11063"


@metric(
    title="Average drop",
    question="How much of the score is lost where the image is dimmed by its map?",
    source=_CHATTOPADHAY,
    unit="share of the score",
    higher=False,
    score="probability",
    forwards=lambda options: 1,
)
def average_drop(trial: Trial) -> Measured:
    """Average drop: the share of the score that is lost when the image is multiplied by its map.

        max(0, f(x) - f(L x)) / f(x);  over several images their mean, which the paper gives in per cent

    L x is the network's input times the map, so that dark parts are zeros in the network's units, not a baseline.

    Returns  (r), in [0, 1], lower is better; NaN for a constant map, and where the score is not above 0
    Source   Chattopadhay et al. 2018, section 4.1, arXiv:1710.11063

    Example
        >>> evaluate(model, images, grad_cam(model, images), metrics="average_drop").values["average_drop"].shape
        torch.Size([1])
    """
    full, dimmed = trial.whole, _dimmed(trial)
    found = (full - dimmed).clamp(min=0) / full
    why = "the score is not above 0, so a share of it means nothing"
    return _scaled(trial, Measured(found).but(~(full > 0), why))


@metric(
    title="Average increase",
    question="Does the score rise when the image is dimmed by its map?",
    source=_CHATTOPADHAY,
    unit="share of the images",
    higher=True,
    score="probability",
    forwards=lambda options: 1,
)
def average_increase(trial: Trial) -> Measured:
    """Average increase: 1 where the image times its map has a higher score than the image, else 0.

        f(L x) > f(x);  over several images their mean, which the paper calls increase in confidence

    Returns  (r), 0 or 1, higher is better; NaN for a constant map
    Source   Chattopadhay et al. 2018, section 4.1, arXiv:1710.11063

    Example
        >>> evaluate(model, images, grad_cam(model, images), metrics="average_increase").values.keys()
        dict_keys(['average_increase'])
    """
    full, dimmed = trial.whole, _dimmed(trial)
    return _scaled(trial, Measured((dimmed > full).to(full).where(dimmed.isfinite(), torch.nan)))


@metric(
    title="Average gain",
    question="How much of the missing probability is gained where the image is dimmed by its map?",
    source="Zhang et al. 2024 (Opti-CAM), arXiv:2301.07002",
    unit="share of the missing probability",
    higher=True,
    score="probability",
    forwards=lambda options: 1,
)
def average_gain(trial: Trial) -> Measured:
    """Average gain: the share of the missing probability that the image times its map gains.

        max(0, f(L x) - f(x)) / (1 - f(x))

    Returns  (r), in [0, 1], higher is better; NaN for a constant map, and where the score is no probability below 1
    Source   Zhang et al. 2024 (Opti-CAM), arXiv:2301.07002

    Example
        >>> evaluate(model, images, grad_cam(model, images), metrics="average_gain").values["average_gain"].shape
        torch.Size([1])
    """
    full, dimmed = trial.whole, _dimmed(trial)
    found = (dimmed - full).clamp(min=0) / (1 - full)
    why = "the score is no probability below 1"
    return _scaled(trial, Measured(found).but(~((full >= 0) & (full < 1)), why))


def _dimmed(trial: Trial) -> Tensor:
    """Scores [R] of the images times their maps; NaN where the call ended before."""
    key = "dimmed", type(trial.target).__name__
    if key not in trial.kept:
        low, high = trial.maps.amin((1, 2), keepdim=True), trial.maps.amax((1, 2), keepdim=True)
        scaled = ((trial.maps - low) / (high - low)).nan_to_num(nan=1.0)

        def make(row: int, variants: Sequence[int]) -> Tensor:
            image = trial.images[trial.pictures[row]]
            return (image * scaled[row].to(image))[None]

        trial.kept[key] = trial.scores(1, make)[:, 0]
    found: Tensor = trial.kept[key]
    return found


def _scaled(trial: Trial, found: Measured) -> Measured:
    """NaN for constant maps, which cannot be scaled to [0, 1]."""
    flat = trial.maps.flatten(1)
    return found.but(flat.amax(1) == flat.amin(1), "the map is constant, so it has no scale from 0 to 1")


@metric(
    title="ROAD",
    question="Does the score suffer more when the highest pixels are imputed than when the lowest are?",
    source="Rong et al. 2022, arXiv:2202.00449",
    unit="probability",
    higher=True,
    score="probability",
    curve=True,
    forwards=lambda options: 2 * options["levels"],
)
def road(
    trial: Trial,
    *,
    levels: Annotated[int, Range(1, 99, help="fractions removed, evenly spaced; 4: 20, 40, 60 and 80%")] = 4,
    noise: Annotated[float, Range(0, 1, help="standard deviation, as a share of the image's range")] = 0.01,
) -> Measured:
    """ROAD: how much lower the score is without the highest pixels than without the lowest, both imputed.

        mean over l = 1..levels of (f(x without its m lowest) - f(x without its m highest)) / 2,
        m = floor(l n / (levels + 1))

    Removed pixels are the weighted means of their neighbours, solved together, plus noise (noisy linear imputation), so
    that the shape of the hole tells the network little. A map and its negative have opposite values.

    Returns  (r), in [-1, 1] / 2 of the score, higher is better; curves (r, levels)
    Source   Rong et al. 2022, arXiv:2202.00449; both orders in one number as pytorch-grad-cam's
             ROADCombined

    Example
        >>> evaluate(model, images, grad_cam(model, images), metrics="road", controls=False).curves["road"].shape
        torch.Size([1, 4])
    """
    size = trial.ranks[0].numel()
    counts = [level * size // (levels + 1) for level in range(1, levels + 1)]
    x = at_least_float32(trial.images)
    sigma = noise * extremes(x)[1]
    # The noise of a level is the same for all rows and orders of an image.
    drawn = PerImageGenerators(1, trial.seed).normal(0, levels, *x.shape[1:])

    def make(row: int, variants: Sequence[int]) -> Tensor:
        rank, picture = trial.ranks[row], trial.pictures[row]
        # Of two variants of a level, the first is without the highest pixels, the second without the lowest.
        removed = torch.stack([rank >= size - counts[v // 2] if v % 2 else rank < counts[v // 2] for v in variants])
        filled = impute(x[picture].expand(len(variants), -1, -1, -1), removed)
        grain = drawn[[v // 2 for v in variants]].to(x) * sigma[picture]
        return torch.where(removed[:, None], filled + grain, x[picture]).to(trial.images)

    later = {row: twin for row, twin in trial.mirrors.items() if row > twin}
    scores = trial.scores(2 * levels, make, [row for row in range(len(trial.maps)) if row not in later])
    highest, lowest = scores[:, 0::2], scores[:, 1::2]
    curves = (lowest - highest) / 2
    for row, twin in later.items():
        curves[row] = -curves[twin]
    return Measured(curves.mean(1), curves)
