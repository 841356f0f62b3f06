"""Metrics that measure how the score changes when pixels are hidden in the order of the map.

f  score      of the class, as a probability by default
n  pixels     of the image; after step k of s the floor(k n / s) highest are hidden (deletion) or shown (insertion)
L  the map    scaled to [0, 1] by its minimum and maximum, for metrics that use its values and not only the ranks
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from explainers.call.scores import at_least_float32
from explainers.dtypes import to_float64
from explainers.metrics.metric import Measurement, Trial, metric
from explainers.options import Range
from explainers.perturbation.baselines import extremes
from explainers.perturbation.imputation import impute
from explainers.perturbation.rng import PerImageGenerators

_PETSIUK = "Petsiuk et al. 2018, section 4.1, arXiv:1806.07421"


@metric(
    title="Deletion",
    question="How quickly does the score fall when the highest pixels are removed first?",
    source=_PETSIUK,
    unit="mean probability",
    higher=False,
    score="probability",
    curve=True,
    forwards=lambda options: options["steps"] - 1,
)
def deletion(trial: Trial) -> Measurement:
    """Deletion: the area under the score curve as pixels are replaced by the baseline, highest first.

        mean over k = 0..s (trapezoidal rule) of f(x with its floor(k n / s) highest pixels replaced)

    Returns  (r), in the score's unit, lower is better; curves (r, steps + 1) from the image to the baseline
    Source   Petsiuk et al. 2018, section 4.1, arXiv:1806.07421

    Example
        >>> evaluate(model, images, grad_cam(model, images), metrics=["deletion"]).values["deletion"].shape
        torch.Size([1])
    """
    return _curves(trial, "deletion")


@metric(
    title="Insertion",
    question="How quickly does the score rise when the highest pixels are inserted first?",
    source=_PETSIUK,
    unit="mean probability",
    higher=True,
    score="probability",
    curve=True,
    forwards=lambda options: options["steps"] - 1,
)
def insertion(trial: Trial) -> Measurement:
    """Insertion: the area under the score curve as pixels of the image are inserted into the baseline, highest first.

        mean over k = 0..s (trapezoidal rule) of f(baseline with the floor(k n / s) highest pixels of x)

    Returns  (r), in the score's unit, higher is better; curves (r, steps + 1) from the baseline to the image
    Source   Petsiuk et al. 2018, section 4.1, arXiv:1806.07421

    Example
        >>> evaluate(model, images, grad_cam(model, images), metrics=["insertion"]).curves["insertion"].shape
        torch.Size([1, 21])
    """
    return _curves(trial, "insertion")


def _curves(trial: Trial, kind: str) -> Measurement:
    """Return the curves of all rows, [R, steps + 1], and the areas under them, by the trapezoidal rule in float64.

    The pixels that deletion leaves of a map are those that insertion shows first of its negative. If the trial contains
    both, as for random controls, the curve of one is that of the other reversed (if s does not divide n, except for one
    pixel).
    """
    image_scores, baseline_scores = trial.endpoint_scores
    key = "curves", type(trial.target).__name__
    known: dict[str, Tensor] = trial.cache.setdefault(key, {})
    other = known.get("insertion" if kind == "deletion" else "deletion")
    mirrors = {} if other is None else trial.mirrors
    total = trial.settings.steps
    counts = [k * trial.ranks[0].numel() // total for k in range(1, total)]
    image, cover = (trial.images, trial.baseline) if kind == "insertion" else (trial.baseline, trial.images)

    def make(row: int, steps: Sequence[int]) -> Tensor:
        rank = trial.ranks[row]
        first = rank < torch.tensor([counts[k] for k in steps], device=image.device).view(-1, *[1] * rank.ndim)
        index = trial.image_indices[row]
        return torch.where(first[:, None], image[index], cover[index])

    rows = [row for row in range(len(trial.maps)) if row not in mirrors]
    inner = trial.scores(len(counts), make, rows)
    start, end = (baseline_scores, image_scores) if kind == "insertion" else (image_scores, baseline_scores)
    found = torch.cat([start[:, None], inner, end[:, None]], 1)
    if other is not None:
        for row, mirror in mirrors.items():
            found[row] = other[mirror].flip(0)
    known[kind] = found
    return Measurement(torch.trapezoid(to_float64(found), dx=1 / total).to(found), found)


_CHATTOPADHAY = "Chattopadhay et al. 2018, section 4.1, arXiv:1710.11063"


@metric(
    title="Average drop",
    question="How much of the score is lost when the image is multiplied by its map?",
    source=_CHATTOPADHAY,
    unit="share of the score",
    higher=False,
    score="probability",
    forwards=lambda options: 1,
)
def average_drop(trial: Trial) -> Measurement:
    """Average drop: the share of the score that is lost when the image is multiplied by its map.

        max(0, f(x) - f(L x)) / f(x);  over several images their mean, which the paper gives in percent

    L x is the network's input times the map, so hidden parts are zero in the network's units, not a baseline.

    Returns  (r), in [0, 1], lower is better; NaN for a constant map, and if the score is not above 0
    Source   Chattopadhay et al. 2018, section 4.1, arXiv:1710.11063

    Example
        >>> evaluate(model, images, grad_cam(model, images), metrics="average_drop").values["average_drop"].shape
        torch.Size([1])
    """
    full, masked = trial.image_scores, _masked_scores(trial)
    found = (full - masked).clamp(min=0) / full
    reason = "the score is not above 0, so a share of it is undefined"
    return _exclude_constant(trial, Measurement(found).exclude(~(full > 0), reason))


@metric(
    title="Average increase",
    question="Does the score rise when the image is multiplied by its map?",
    source=_CHATTOPADHAY,
    unit="share of the images",
    higher=True,
    score="probability",
    forwards=lambda options: 1,
)
def average_increase(trial: Trial) -> Measurement:
    """Average increase: 1 if the image times its map has a higher score than the image, else 0.

        f(L x) > f(x);  over several images their mean, which the paper calls increase in confidence

    Returns  (r), 0 or 1, higher is better; NaN for a constant map
    Source   Chattopadhay et al. 2018, section 4.1, arXiv:1710.11063

    Example
        >>> evaluate(model, images, grad_cam(model, images), metrics="average_increase").values.keys()
        dict_keys(['average_increase'])
    """
    full, masked = trial.image_scores, _masked_scores(trial)
    return _exclude_constant(trial, Measurement((masked > full).to(full).where(masked.isfinite(), torch.nan)))


@metric(
    title="Average gain",
    question="How much of the missing probability is gained when the image is multiplied by its map?",
    source="Zhang et al. 2024 (Opti-CAM), arXiv:2301.07002",
    unit="share of the missing probability",
    higher=True,
    score="probability",
    forwards=lambda options: 1,
)
def average_gain(trial: Trial) -> Measurement:
    """Average gain: the share of the missing probability that the image times its map gains.

        max(0, f(L x) - f(x)) / (1 - f(x))

    Returns  (r), in [0, 1], higher is better; NaN for a constant map, and if the score is not a probability below 1
    Source   Zhang et al. 2024 (Opti-CAM), arXiv:2301.07002

    Example
        >>> evaluate(model, images, grad_cam(model, images), metrics="average_gain").values["average_gain"].shape
        torch.Size([1])
    """
    full, masked = trial.image_scores, _masked_scores(trial)
    found = (masked - full).clamp(min=0) / (1 - full)
    reason = "the score is not a probability below 1"
    return _exclude_constant(trial, Measurement(found).exclude(~((full >= 0) & (full < 1)), reason))


def _masked_scores(trial: Trial) -> Tensor:
    """Return the scores [R] of the images times their maps; NaN if the call stopped before they were computed."""
    key = "masked", type(trial.target).__name__
    if key not in trial.cache:
        pixels = tuple(range(1, trial.maps.ndim))
        low, high = trial.maps.amin(pixels, keepdim=True), trial.maps.amax(pixels, keepdim=True)
        scaled = ((trial.maps - low) / (high - low)).nan_to_num(nan=1.0)

        def make(row: int, variants: Sequence[int]) -> Tensor:
            image = trial.images[trial.image_indices[row]]
            return (image * scaled[row].to(image))[None]

        trial.cache[key] = trial.scores(1, make)[:, 0]
    found: Tensor = trial.cache[key]
    return found


def _exclude_constant(trial: Trial, found: Measurement) -> Measurement:
    """Set constant maps, which cannot be scaled to [0, 1], to NaN."""
    flat = trial.maps.flatten(1)
    return found.exclude(flat.amax(1) == flat.amin(1), "the map is constant, so it cannot be scaled to [0, 1]")


@metric(
    title="ROAD",
    videos=False,
    question="Does imputing the highest pixels lower the score more than imputing the lowest?",
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
    sigma: Annotated[float, Range(0, 1, help="standard deviation of noise, as a share of the image's range")] = 0.01,
) -> Measurement:
    """ROAD: how much lower the score is without the highest pixels than without the lowest, both imputed.

        mean over l = 1..levels of (f(x without its m lowest) - f(x without its m highest)) / 2,
        m = floor(l n / (levels + 1))

    Removed pixels are set to the weighted means of their neighbors, solved jointly, plus noise (noisy linear
    imputation), so that the shape of the mask gives the network little information. A map and its negative have
    opposite values.

    Returns  (r), in [-1, 1] / 2 of the score, higher is better; curves (r, levels)
    Source   Rong et al. 2022, arXiv:2202.00449; both orders in one value, as in ROADCombined of pytorch-grad-cam

    Example
        >>> evaluate(model, images, grad_cam(model, images), metrics="road", controls=False).curves["road"].shape
        torch.Size([1, 4])
    """
    size = trial.ranks[0].numel()
    counts = [level * size // (levels + 1) for level in range(1, levels + 1)]
    x = at_least_float32(trial.images)
    deviation = sigma * extremes(x)[1]
    # The noise of a level is the same for all rows and orders of an image.
    samples = PerImageGenerators(1, trial.settings.seed, x.device).normal_noise(0, levels, *x.shape[1:])

    def make(row: int, variants: Sequence[int]) -> Tensor:
        rank, image = trial.ranks[row], trial.image_indices[row]
        # Each level has two variants: the first removes the highest pixels, the second the lowest.
        removed = torch.stack([rank >= size - counts[v // 2] if v % 2 else rank < counts[v // 2] for v in variants])
        filled = impute(x[image].expand(len(variants), -1, -1, -1), removed)
        grain = samples[[v // 2 for v in variants]].to(x) * deviation[image]
        return torch.where(removed[:, None], filled + grain, x[image]).to(trial.images)

    later = {row: mirror for row, mirror in trial.mirrors.items() if row > mirror}
    scores = trial.scores(2 * levels, make, [row for row in range(len(trial.maps)) if row not in later])
    highest, lowest = scores[:, 0::2], scores[:, 1::2]
    curves = (lowest - highest) / 2
    for row, mirror in later.items():
        curves[row] = -curves[mirror]
    return Measurement(curves.mean(1), curves)
