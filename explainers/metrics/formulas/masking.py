"""Metrics that hide pixels in the order of the map and watch the score.

f  score      of the class, as a probability unless asked for otherwise
n  pixels     of the image; after step k of s the floor(k n / s) highest are hidden (deletion) or shown (insertion)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from explainers.metrics.metric import Measured, Trial, metric

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
