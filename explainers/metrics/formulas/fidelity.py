"""Metrics that compare sums of the map with the decrease of the score.

x        image                      (C, H, W)
a        the map, at the image's size, or attributions of the input values
S_k      the region that the k-th perturbation removes: a square, or some cells
f        score of the target, in logits unless the target defines another unit

The sum of a faithful map over S_k increases with the loss of the score, f(x) - f(x without S_k). The losses do not
depend on the map, so they are computed once for all maps of an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional

from explainers.dtypes import float64_device, to_float64
from explainers.maps.resize import rank_correlation
from explainers.metrics.candidates import Candidate
from explainers.metrics.metric import Measurement, Trial, metric
from explainers.options import Choice, Range
from explainers.perturbation.baselines import extremes
from explainers.perturbation.coalitions import within_rounding
from explainers.perturbation.rng import PerImageGenerators
from explainers.perturbation.segments import PARTS, parts_of
from explainers.registry import METHODS

# The authors use squares with sides from 1 to 10 on digits of 28 px.
_LARGEST_SIDE = 10 / 28
_FLAT, _EVEN = 1e-6, 1e-9
_UNCHANGED = "the score does not change under any perturbation"
_CONSTANT = "the map's sums, or the score's losses, are the same for all replaced parts"

Samples = Annotated[int, Range(2, 10000, 1, help="perturbed images; one forward pass each, shared by all maps")]


@metric(
    title="Infidelity",
    videos=False,
    question="How accurately does the map predict the score's losses?",
    source="Yeh et al. 2019, section 2, arXiv:1901.09392",
    unit="squared logit",
    higher=False,
    score="target",
    factor_free=lambda options: options["normalize"],
    forwards=lambda options: options["samples"],
)
def infidelity(
    trial: Trial,
    *,
    perturbation: Annotated[str, Choice("square", "noise", help="how the image is perturbed")] = "square",
    samples: Samples = 100,
    sigma: Annotated[float, Range(0.001, 1, 0.01, help="standard deviation of noise, as a share of the range")] = 0.2,
    normalize: Annotated[bool, "Scale the map by the best-fitting nonnegative factor"] = True,
) -> Measurement:
    """Infidelity: the mean squared error of the map as a prediction of the score's losses.

        E_I (β Σ_i I_i a_i - (f(x) - f(x - I)))²,  β = max(0, E[Σ I a · loss] / E[(Σ I a)²]), or 1

    "square" replaces a random square (side up to 10/28 of the shorter side, as in the paper) by the baseline: I is 1
    inside, so Σ I a is the map's sum over the square, for maps and attributions of any kind. "noise" subtracts Gaussian
    noise: I is the noise, for derivatives of the score (gradients), with one value per pixel and channel. β makes the
    metric independent of the map's scale. With the authors' β, which may be negative, a map and its negative have the
    same value.

    Returns  (r), in squared units of the score, >= 0: 0 if the map predicts every loss, the mean squared loss if it
             predicts none. NaN if the score does not change and, for noise, if the map is not a derivative
    Errors   BadOption
    Source   Yeh et al. 2019, section 2 (squares, noise), arXiv:1901.09392; β: the authors' code

    Example
        >>> evaluate(model, images, "grad_cam", metrics=["infidelity"]).values["infidelity"].shape
        torch.Size([1])
    """
    results = _squares(trial, samples) if perturbation == "square" else _noise(trial, samples, sigma)
    losses, sums, reasons = results
    reached = losses.isfinite()
    count = reached.sum(1)
    losses, sums = losses.nan_to_num(), torch.where(reached, sums, 0)
    if normalize:
        squares = sums.square().sum(1)
        beta = (sums * losses).sum(1) / torch.where(squares == 0, 1, squares)  # 0 for a map of zeros
        sums = beta.clamp(min=0)[:, None] * sums
    errors = (sums - losses).square().sum(1)
    found = Measurement(errors / torch.where(count > 0, count, torch.nan), reasons=reasons, is_sampled=True)
    return found.exclude(_is_unchanged(trial, results[0]), _UNCHANGED)


def _squares(trial: Trial, samples: int) -> tuple[Tensor, Tensor, dict[int, str]]:
    """Return the losses [R, samples] when a square becomes the baseline, the maps' sums over it, and no reasons."""
    height, width = trial.images.shape[-2:]
    largest = max(1, round(min(height, width) * _LARGEST_SIDE))
    draws = PerImageGenerators(1, trial.settings.seed).uniform(0, samples, 3).double()
    side = 1 + (draws[:, 0] * largest).long()
    top, left = ((draws[:, k] * (size - side + 1)).long() for k, size in ((1, height), (2, width)))
    boxes = torch.stack([top, left, top + side, left + side], 1)  # uniform sides and positions inside the image

    def make(image: int, chosen: Sequence[int]) -> Tensor:
        batch = trial.images[image].expand(len(chosen), -1, -1, -1).clone()
        for row, (top, left, bottom, right) in zip(batch, boxes[[*chosen]].tolist(), strict=True):
            row[:, top:bottom, left:right] = trial.baseline[image, :, top:bottom, left:right]
        return batch

    # Sums over rectangles are differences of running sums.
    running = functional.pad(to_float64(trial.maps).cumsum(1).cumsum(2), (1, 0, 1, 0))
    top, left, bottom, right = boxes.to(running.device).unbind(1)
    corners = running[:, bottom, right] - running[:, top, right] - running[:, bottom, left] + running[:, top, left]
    return _losses(trial, ("squares",), samples, make), corners, {}


def _noise(trial: Trial, samples: int, sigma: float) -> tuple[Tensor, Tensor, dict[int, str]]:
    """Return the losses [R, samples] under noise, its products with the maps, and reasons for unsuitable maps."""
    x = trial.images
    spans = extremes(x)[1]
    seeds = PerImageGenerators(1, trial.settings.seed).integers(0, samples, 2**31 - 1).tolist()

    def noise(k: int) -> Tensor:
        # The same for all images, so that results do not depend on the batch.
        return sigma * PerImageGenerators(1, seeds[k], x.device).normal_noise(0, 1, *x.shape[1:])[0].to(x)

    def make(image: int, chosen: Sequence[int]) -> Tensor:
        return x[image] - spans[image] * torch.stack([noise(k) for k in chosen])

    sums = torch.full((len(trial.maps), samples), torch.nan, dtype=torch.float64, device=float64_device(x.device))
    reasons: dict[int, str] = {}
    for k, each in enumerate(trial.candidates):
        rows = trial.rows(k)
        if reason := _why_no_derivatives(each, x):
            reasons |= dict.fromkeys(rows, reason)
        else:
            raw = to_float64(each.raw)
            products = [(raw * noise(s).to(raw.device)).flatten(1).sum(1) for s in range(samples)]
            sums[[*rows]] = torch.stack(products, 1) * to_float64(spans).flatten()[:, None]
    return _losses(trial, ("noise", sigma), samples, make), sums, reasons


def _why_no_derivatives(candidate: Candidate, images: Tensor) -> str:
    """Return why a candidate's values are not derivatives of the score by the input values; "" if they are."""
    known = METHODS.get(candidate.explanation.method) if candidate.explanation is not None else None
    if candidate.raw.shape != images.shape:
        return "noise needs a derivative for each input value: attributions [N, C, H, W]"
    if known is not None and known.unit != "logit per unit of input":
        return f"{known.name} gives contributions, not derivatives: use perturbation='square'"
    return ""


@metric(
    title="µFidelity",
    question="Do the map's sums over random parts correlate with the score's losses?",
    source="Bhatt et al. 2020, definition 3, arXiv:2005.00631",
    unit="correlation",
    higher=True,
    score="target",
    forwards=lambda options: options["samples"],
)
def mu_fidelity(
    trial: Trial,
    *,
    parts: Annotated[str, Choice(*PARTS, help="parts of the image that are replaced")] = "grid",
    cells: Annotated[int, Range(2, 64, 1, help="cells along each side of the grid")] = 9,
    share: Annotated[float, Range(0.01, 0.99, 0.01, help="share of the parts that is replaced")] = 0.35,
    samples: Samples = 100,
    correlation: Annotated[str, Choice("pearson", "spearman", help="of values, or of their ranks")] = "pearson",
) -> Measurement:
    """µFidelity: the correlation of the map's sums over random parts of the image with the losses of the score.

        corr_S (Σ_{i in S} a_i, f(x) - f(x with the pixels of S from the baseline)),  |S| fixed

    S contains a `share` of the cells of a grid, or of the superpixels, always the same number of them, because single
    pixels hardly change a network's score. Fel et al. replace a fifth, which hardly affects EfficientNet-Lite0; a third
    separated maps from controls best. The metric does not depend on the map's scale.

    Returns  (r), in [-1, 1]: 1 if the losses are linear in the sums. NaN for a constant map, and if the score does not
             change
    Errors   BadOption
    Source   Bhatt et al. 2020, definition 3, arXiv:2005.00631; cells, and Spearman's correlation: Fel et al. 2021,
             arXiv:2111.04138

    Example
        >>> evaluate(model, images, "grad_cam", metrics=["mu_fidelity"]).values["mu_fidelity"].shape
        torch.Size([1])
    """
    size = tuple(min(cells, side) for side in trial.images.shape[2:])
    segments = parts_of("superpixels" if parts == "superpixels" else size, trial.images)
    draws = PerImageGenerators(len(segments), trial.settings.seed)
    subsets = []  # for each image, which parts are replaced: [samples, parts], with the same number in each row
    for image, part in enumerate(segments):
        most = min(max(1, round(share * part.count)), max(1, part.count - 1))
        subsets.append(draws.uniform(image, samples, part.count).argsort(1).argsort(1) < most)

    def make(image: int, chosen: Sequence[int]) -> Tensor:
        hidden = subsets[image][[*chosen]].to(trial.images.device)[:, segments[image].labels]
        return torch.where(hidden[:, None], trial.baseline[image], trial.images[image])

    losses = _losses(trial, (parts, size, share), samples, make)
    values, is_constant = losses.new_full((len(losses),), torch.nan), []
    for row, image in enumerate(trial.image_indices):
        reached = losses[row].isfinite()
        heat = to_float64(trial.maps[row])
        heat = heat / heat.abs().max().clamp(min=torch.finfo(heat.dtype).tiny)  # avoids over- and underflow of squares
        part = segments[image]
        assert part.labels is not None
        of_parts = heat.new_zeros(part.count).index_add(0, part.labels.flatten().to(heat.device), heat.flatten())
        sums = of_parts @ subsets[image].double().T.to(heat.device)
        sums, lost = sums[reached], losses[row][reached]
        even = len(sums) > 1 and float(sums.amax() - sums.amin()) <= _EVEN * float(sums.abs().amax())
        values[row] = math.nan if even else _correlation(sums, lost, correlation)
        is_constant.append(bool(len(sums) > 1 and values[row].isnan()))
    flat = trial.maps.flatten(1)
    is_flat = flat.amax(1) - flat.amin(1) <= _FLAT * flat.abs().amax(1)
    found = Measurement(values, is_sampled=True).exclude(torch.tensor(is_constant, device=values.device), _CONSTANT)
    return found.exclude(_is_unchanged(trial, losses), _UNCHANGED).exclude(is_flat, "the map is constant")


def _correlation(a: Tensor, b: Tensor, kind: str) -> float:
    """Return Pearson's or Spearman's correlation of [S] with [S]; NaN for fewer than two values."""
    if len(a) < 2:
        return math.nan
    if kind == "spearman":
        return float(rank_correlation(a[None], b[None]))
    a, b = a - a.mean(), b - b.mean()
    return float(((a * b).sum() / (a.norm() * b.norm())).clamp(-1, 1))


def _losses(trial: Trial, key: tuple[Any, ...], samples: int, make: Callable[[int, Sequence[int]], Tensor]) -> Tensor:
    """Return the loss of the score in each perturbed image, [R, samples] float64, computed once per image.

    `key` identifies the kind of perturbation in the cache.
    """
    if (key, samples) not in trial.image_cache:
        first = range(len(trial.images))
        scores = trial.scores(samples, lambda row, chosen: make(trial.image_indices[row], chosen), first)
        losses = to_float64(trial.image_scores[: len(first), None]) - to_float64(scores[: len(first)])
        if trial.loop.ended_early:
            return losses[trial.image_indices]
        trial.image_cache[key, samples] = losses
    cached: Tensor = trial.image_cache[key, samples]
    return cached[trial.image_indices]


def _is_unchanged(trial: Trial, losses: Tensor) -> Tensor:
    """Return a mask [R] of rows whose score does not change beyond rounding, so that every map predicts it."""
    found = []
    for score, lost in zip(to_float64(trial.image_scores), losses, strict=True):
        reached = lost[lost.isfinite()]
        found.append(len(reached) > 0 and within_rounding(torch.cat([score[None], score - reached]), trial.dtype))
    return torch.tensor(found, device=losses.device)


@metric(
    title="Completeness gap",
    question="Does the map have the sum that its method guarantees?",
    source="Sundararajan et al. 2017, section 3 (completeness), arXiv:1703.01365",
    unit="share of the expected sum",
    higher=False,
    controls=False,
    factor_free=lambda options: False,
)
def completeness_gap(trial: Trial) -> Measurement:
    """Completeness gap: the relative difference of the map's sum from the sum that its method guarantees.

        |Σ a - p| / |p|,  p = f(x) - f(baseline) for path methods, DeepLIFT, Shapley values; f(x) for LRP, FullGrad

    The method computes p in its own call, with its own baselines and precision (`statistics["promised_sum"]` of the
    `Explanation`). The sum is that of the raw values, before any reduction. For LRP, the gap is the relevance that
    biases and ε absorb, as its rules intend.

    Returns  (r), >= 0, as a share. NaN if no sum is guaranteed: for maps given as tensors, and for all other methods;
             input × gradient sums to the score only in networks without biases
    Source   Sundararajan et al. 2017, section 3, arXiv:1703.01365; conservation: Bach et al. 2015

    Example
        >>> gap = evaluate(model, images, "deep_lift", metrics=["completeness_gap"]).values["completeness_gap"]
        >>> float(gap) < 1e-3
        True
    """
    (own,) = trial.candidates
    values, reasons = torch.full((len(own.raw),), torch.nan, dtype=torch.float64), {}
    for row in range(len(values)):
        known = own.explanation.statistics[row] if own.explanation is not None else {}
        if own.explanation is None:
            reasons[row] = "the expected sum of these maps is unknown: give the Explanation, or the method's name"
        elif "promised_sum" not in known:
            reasons[row] = f"{own.explanation.method} does not guarantee a sum"
        elif not known["promised_sum"]:
            reasons[row] = "the expected sum is 0: the score does not change"
        else:
            values[row] = abs(float(to_float64(own.explanation.raw[row]).sum()) / known["promised_sum"] - 1)
    return Measurement(values, reasons=reasons)
