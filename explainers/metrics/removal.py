"""`remove_brightest`: the score without the highest pixels of a map, and without as many pixels at random places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from explainers.call.current import outside_call
from explainers.call.forward_wrapper import Forward
from explainers.call.loop import Partial, Progress, check_progress
from explainers.derived_targets import Probability
from explainers.dtypes import to_float64
from explainers.errors import BadOption
from explainers.findings import pause_recording
from explainers.maps.arrays import Arrays, check_dimensions
from explainers.metrics.candidates import Maps, name_method
from explainers.metrics.metric import METRICS, EvaluationSettings, Trial
from explainers.metrics.recommendation import score_of, target_of
from explainers.metrics.run import evaluator
from explainers.options import Baseline, Choice, Precision, Range, Seed, check_keywords, options_of
from explainers.perturbation.baselines import NAMES
from explainers.perturbation.rng import PerImageGenerators
from explainers.probabilities import SCORES, WORDS
from explainers.targets import Logit, TargetLike, describe_target


@dataclass(frozen=True, eq=False)
class Removal:
    """The result of `remove_brightest` for N images.

    `mask` [N, H, W] is True where pixels were removed, and `share` [N] is their part of the pixels: less than requested
    if fewer are positive. `scores` [N] are those of the images, `without_brightest` [N] those without these pixels, and
    `without_random` [N, samples] those without as many at random places; all in `unit`. Scores are NaN if the call was
    stopped before they were computed, and if the network returns NaN.
    """

    share: Tensor
    mask: Tensor
    scores: Tensor
    without_brightest: Tensor
    without_random: Tensor
    unit: str
    target: list[int] | str

    def __repr__(self) -> str:
        n, low, high = len(self.mask), self.without_random.amin(1), self.without_random.amax(1)
        first = (
            f"{self.scores[0]:.3g}, without the brightest {self.share[0]:.1%} {self.without_brightest[0]:.3g}, without "
            f"as much at {self.without_random.shape[1]} random places {low[0]:.3g} to {high[0]:.3g}"
        )
        return f"Removal({self.unit} {first}{f'; and {n - 1} more images' * (n > 1)})"


@check_keywords
@torch.inference_mode(False)
def remove_brightest(
    model: nn.Module,
    images: Tensor,
    maps: Maps | Arrays,
    *,
    target: TargetLike = None,
    share: Annotated[float, Range(0.01, 0.99, 0.01, help="part of the pixels that is removed")] = 0.2,
    samples: Annotated[int, Range(1, 1000, help="number of random places")] = 19,
    baseline: Annotated[Baseline, Choice(*NAMES, help="replacement of removed pixels")] = "blur",
    score: Annotated[
        str, Choice("probability", *SCORES, help="score of a class; probability: detects the kind")
    ] = "probability",
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
    forward: Forward | None = None,
) -> Removal:
    """Remove the highest pixels of a map from its image, and for comparison as many at random places.

        f(x with the pixels of S from the baseline),  S = the floor(share n) highest of n pixels, if they are positive
        f(x with the pixels of S + d from the baseline),  d = one of the `samples` random shifts

    Maps, targets, scores and pixels are those of `evaluate`: f is a point of the deletion curve, and ties are broken in
    random order. Only positive values are removed, because the others are not evidence for the class. S + d has the
    same number of pixels in the same shape: S moved by a uniform random distance along each axis, and what leaves the
    image on one side enters it on the other. The distances are the same for all images. A random place may overlap S.
    If the place of S did not matter, f without S would be below all of 19 random places in 1 of 20 images at most.

    Returns  a `Removal`; it takes 2 + samples forward passes of each image, in batches, and two for checks
    Errors   BadOption for a constant map, or one without positive values, and as `evaluate`; BadImages, BadTarget
    Source   Petsiuk et al. 2018, section 4.1 (deletion), arXiv:1806.07421

    Example
        >>> found = remove_brightest(model, images, "grad_cam", share=0.1, samples=4)
        >>> found.without_brightest.shape, found.without_random.shape
        (torch.Size([1]), torch.Size([1, 4]))
    """
    for name, given in (("share", share), ("samples", samples)):
        options_of(remove_brightest)[name].check(given)
    check_progress(progress)
    checked = check_dimensions(name_method(maps), images)
    settings = EvaluationSettings(target_of({"": checked}, target), "deletion", baseline, seed=seed, forward=forward)
    settings = replace(settings, batch_size=batch_size, precision=precision, budget=budget)
    settings = replace(settings, score=score_of({"": checked}, score))
    with evaluator(model, images, settings, first={"": checked}) as judge:
        own = judge.own_maps.candidate(checked)
        resolved = judge.trial.run.scoring.target
        assert resolved is not None, "score_inputs sets it"
        trial = replace(judge.trial, candidates=[own], cache={}, metric=METRICS["deletion"])
        mask = _brightest(trial, share)

        def report(step: Partial) -> Any:
            assert progress is not None
            with outside_call(), pause_recording():
                return progress(replace(step, map=None))

        trial.loop.progress = None if progress is None else report
        found = trial.scores(2 + samples, _variants(trial, mask, samples))
        unit = "logit" if isinstance(trial.target, Logit) else "score of the target"
        if isinstance(trial.target, Probability):
            unit = WORDS.get(trial.settings.score, "probability")
        scores = found[:, 0], found[:, 1], found[:, 2:]
        removed = to_float64(mask.flatten(1)).mean(1)
        return Removal(removed, mask, *scores, unit, describe_target(resolved, len(mask)))


def _brightest(trial: Trial, share: float) -> Tensor:
    """Return the mask [N, H, W] of the highest pixels of each map, at most its positive ones.

    Errors   BadOption
    """
    flat = trial.maps.flatten(1)
    low, high = flat.amin(1), flat.amax(1)
    for n in range(len(flat)):
        what = "is constant" if bool(high[n] == low[n]) else "has no positive values" if float(high[n]) <= 0 else ""
        advice = "Use another method, layer or class."
        if what == "has no positive values":
            advice = "Give -maps to remove the evidence against the class, or maps.abs() to ignore the sign."
        if what:
            raise BadOption(f"The map of image {n} {what}, so it has no brightest part. {advice}")
    wanted = max(1, math.floor(share * flat.shape[1] + 1e-9))  # 0.29 * 100 is 28.999999999999996
    counts = (flat > 0).sum(1).clamp(max=wanted)
    return trial.ranks < counts.view(-1, *[1] * (trial.ranks.ndim - 1))


def _variants(trial: Trial, mask: Tensor, samples: int) -> Any:
    """Return the function that makes variants of an image: as it is, without its mask, and without the moved mask."""
    axes = tuple(range(mask.ndim - 1))
    uniform = PerImageGenerators(1, trial.settings.seed).uniform(0, samples, len(axes))
    distances = (uniform.double() * torch.tensor(mask.shape[1:])).long().tolist()

    def make(row: int, variants: Sequence[int]) -> Tensor:
        masks = [torch.zeros_like(mask[row]), mask[row]]
        removed = torch.stack([masks[k] if k < 2 else mask[row].roll(distances[k - 2], axes) for k in variants])
        return torch.where(removed[:, None], trial.baseline[row], trial.images[row])

    return make
