"""Metrics that compare what the map adds up to with what the score loses.

x        image                      (C, H, W)
a        the map, at the image's size, or attributions of the input values
S_k      what the k-th perturbation removes: a square, or some cells
f        score of the target, in logits unless the target says otherwise

A faithful map's sum over S_k grows with the score's loss, f(x) - f(x without S_k). Losses belong to the image: they are
measured once for all maps of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional

from explainers.maps.resize import rank_correlation
from explainers.metrics.candidates import Candidate
from explainers.metrics.metric import Measured, Trial, metric
from explainers.options import Choice, Range
from explainers.perturbation.baselines import extremes
from explainers.perturbation.coalitions import within_rounding
from explainers.perturbation.rng import PerImageGenerators
from explainers.perturbation.segments import PARTS, Parts, parts_of
from explainers.registry import METHODS

# The authors' squares on digits of 28 px: sides from 1 to 10.
_LARGEST_SIDE = 10 / 28
_FLAT, _EVEN = 1e-6, 1e-9
_UNMOVED = "the score does not change, whatever is replaced"
_ALIKE = "the map's sums, or the score's losses, are the same for all parts that are replaced"

Samples = Annotated[int, Range(2, 10000, 1, help="perturbed images; a forward pass each, for all maps together")]


def _forwards(options: Any) -> int:
    return int(options["samples"])


@metric(
    title="Infidelity",
    question="How far is the map from predicting the score's losses?",
    source="Yeh et al. 2019, section 2, arXiv:1901.09392",
    unit="squared logit",
    higher=False,
    score="target",
    factor_free=lambda options: options["normalise"],
    forwards=_forwards,
)
def infidelity(
    trial: Trial,
    *,
    perturbation: Annotated[str, Choice("square", "noise", help="what is removed from the image")] = "square",
    samples: Samples = 100,
    sigma: Annotated[float, Range(0.001, 1, 0.01, help="standard deviation of noise, as a share of the range")] = 0.2,
    normalise: Annotated[bool, "Scale the map by the factor that fits best, at least 0"] = True,
) -> Measured:
    """Infidelity: the mean squared error of the score's losses as predicted by the map.

        E_I (β Σ_i I_i a_i - (f(x) - f(x - I)))²,  β = max(0, E[Σ I a · loss] / E[(Σ I a)²]), or 1

    "square" replaces a random square (side up to 10/28 of the shorter side, as the authors') by the baseline: I is 1
    inside, so Σ I a is the map's sum over the square, for maps and attributions of any kind. "noise" subtracts Gaussian
    noise: I is the noise itself, for slopes of the score (gradients), one value a pixel and channel. β makes the scale
    of the map a convention; the authors' β may be negative, and then a map with all its signs turned scores as the map.

    Returns  (r), in squared units of the score, >= 0: 0 where the map predicts every loss, the mean squared loss where
             it predicts none. NaN where the score does not change and, for noise, where a map is no slope
    Errors   BadOption
    Source   Yeh et al. 2019, section 2 (squares, noise), arXiv:1901.09392; β: the authors' code

    Example
        >>> evaluate(model, images, "grad_cam", metrics=["infidelity"]).values["infidelity"].shape
        torch.Size([1])
    """
    measured = _squares(trial, samples) if perturbation == "square" else _noise(trial, samples, sigma)
    losses, sums, reasons = measured
    reached = losses.isfinite()
    count = reached.sum(1)
    losses, sums = losses.nan_to_num(), torch.where(reached, sums, 0)
    beta = 1.0 if not normalise else _ratio((sums * losses).sum(1), sums.square().sum(1)).clamp(min=0)[:, None]
    errors = (beta * sums - losses).square().sum(1)
    found = Measured(errors / torch.where(count > 0, count, torch.nan), reasons=reasons, is_sampled=True)
    return found.but(_unmoved(trial, measured[0]), _UNMOVED)


def _squares(trial: Trial, samples: int) -> tuple[Tensor, Tensor, dict[int, str]]:
    """Losses [R, samples] where a square becomes the baseline, the maps' sums over it, and no reason against any."""
    height, width = trial.images.shape[-2:]
    boxes = _boxes(height, width, samples, trial.seed)

    def make(picture: int, chosen: Sequence[int]) -> Tensor:
        batch = trial.images[picture].expand(len(chosen), -1, -1, -1).clone()
        for row, (top, left, bottom, right) in zip(batch, boxes[[*chosen]].tolist(), strict=True):
            row[:, top:bottom, left:right] = trial.baseline[picture, :, top:bottom, left:right]
        return batch

    # Sums over rectangles are differences of running sums.
    running = functional.pad(trial.maps.double().cumsum(1).cumsum(2), (1, 0, 1, 0))
    top, left, bottom, right = boxes.to(running.device).unbind(1)
    corners = running[:, bottom, right] - running[:, top, right] - running[:, bottom, left] + running[:, top, left]
    return _losses(trial, ("squares",), samples, make), corners, {}


def _boxes(height: int, width: int, samples: int, seed: int) -> Tensor:
    """Squares (top, left, bottom, right) inside the image, [samples, 4]: sides and places uniform."""
    largest = max(1, round(min(height, width) * _LARGEST_SIDE))
    draws = PerImageGenerators(1, seed).uniform(0, samples, 3).double()
    side = 1 + (draws[:, 0] * largest).long()
    top, left = ((draws[:, k] * (size - side + 1)).long() for k, size in ((1, height), (2, width)))
    return torch.stack([top, left, top + side, left + side], 1)


def _noise(trial: Trial, samples: int, sigma: float) -> tuple[Tensor, Tensor, dict[int, str]]:
    """Losses [R, samples] where noise is subtracted, its products with the slopes, and why some maps are none."""
    x = trial.images
    spans = extremes(x)[1]
    seeds = PerImageGenerators(1, trial.seed).integers(0, samples, 2**31 - 1).tolist()

    def noise(k: int) -> Tensor:
        # The same for all images, so that one beside another changes nothing.
        return sigma * PerImageGenerators(1, seeds[k]).normal(0, 1, *x.shape[1:])[0].to(x)

    def make(picture: int, chosen: Sequence[int]) -> Tensor:
        return x[picture] - spans[picture] * torch.stack([noise(k) for k in chosen])

    sums = torch.full((len(trial.maps), samples), torch.nan, dtype=torch.float64, device=x.device)
    reasons: dict[int, str] = {}
    for place, each in enumerate(trial.candidates):
        rows = trial.rows(place)
        if why := _no_slopes(each, x):
            reasons |= dict.fromkeys(rows, why)
        else:
            products = [(each.raw.double() * noise(k)).flatten(1).sum(1) for k in range(samples)]
            sums[[*rows]] = torch.stack(products, 1) * spans.double().flatten()[:, None]
    return _losses(trial, ("noise", sigma), samples, make), sums, reasons


def _no_slopes(candidate: Candidate, images: Tensor) -> str:
    """Why a candidate's values are no slopes of the score, one for each input value; "" where they are."""
    known = METHODS.get(candidate.explanation.method) if candidate.explanation is not None else None
    if candidate.raw.shape != images.shape:
        return "noise in single input values needs a slope for each: attributions [N, C, H, W]"
    if known is not None and known.unit != "logit per unit of input":
        return f"{known.name} gives contributions, not slopes: use perturbation='square'"
    return ""


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """above / below, 0 where below is 0."""
    return torch.where(below > 0, above / torch.where(below > 0, below, 1), torch.where(below == 0, 0.0, torch.nan))


@metric(
    title="µFidelity",
    question="Do the map's sums over random parts follow the score's losses?",
    source="Bhatt et al. 2020, definition 3, arXiv:2005.00631",
    unit="correlation",
    higher=True,
    score="target",
    forwards=_forwards,
)
def mu_fidelity(
    trial: Trial,
    *,
    parts: Annotated[str, Choice(*PARTS, help="what is replaced at once")] = "grid",
    cells: Annotated[int, Range(2, 64, 1, help="cells along each side of the grid")] = 9,
    share: Annotated[float, Range(0.01, 0.99, 0.01, help="share of the parts that is replaced")] = 0.35,
    samples: Samples = 100,
    correlation: Annotated[str, Choice("pearson", "spearman", help="of values, or of their ranks")] = "pearson",
) -> Measured:
    """µFidelity: the correlation of the map's sums over random parts of the image with the losses of the score.

        corr_S (Σ_{i in S} a_i, f(x) - f(x with the pixels of S from the baseline)),  |S| fixed

    S holds a `share` of the cells of a grid, or of the superpixels, always the same number of them: pixels one by one
    hardly change a network's score. Fel et al. replace a fifth, from which EfficientNet-Lite0 hardly loses anything;
    a third told maps from controls best. The map's scale plays no part.

    Returns  (r), in [-1, 1]: 1 where the losses are linear in the sums. NaN for a constant map, and where the score
             does not change
    Errors   BadOption
    Source   Bhatt et al. 2020, definition 3, arXiv:2005.00631; cells, and Spearman's correlation: Fel et al. 2021,
             arXiv:2111.04138

    Example
        >>> evaluate(model, images, "grad_cam", metrics=["mu_fidelity"]).values["mu_fidelity"].shape
        torch.Size([1])
    """
    height, width = trial.images.shape[-2:]
    size = min(cells, height), min(cells, width)
    segments = parts_of("superpixels" if parts == "superpixels" else size, trial.images)
    subsets = _subsets(segments, share, samples, trial.seed)

    def make(picture: int, chosen: Sequence[int]) -> Tensor:
        hidden = subsets[picture][[*chosen]].to(trial.images.device)[:, segments[picture].labels]
        return torch.where(hidden[:, None], trial.baseline[picture], trial.images[picture])

    losses = _losses(trial, (parts, size, share), samples, make)
    values, alike = losses.new_full((len(losses),), torch.nan), []
    for row, picture in enumerate(trial.pictures):
        reached = losses[row].isfinite()
        heat = trial.maps[row].double()
        heat = heat / heat.abs().max().clamp(min=torch.finfo(heat.dtype).tiny)  # squares neither over- nor underflow
        sums = _sums(heat, segments[picture]) @ subsets[picture].double().T.to(losses.device)
        sums, lost = sums[reached], losses[row][reached]
        even = len(sums) > 1 and float(sums.amax() - sums.amin()) <= _EVEN * float(sums.abs().amax())
        values[row] = math.nan if even else _correlation(sums, lost, correlation)
        alike.append(bool(len(sums) > 1 and values[row].isnan()))
    flat = trial.maps.flatten(1)
    constant = flat.amax(1) - flat.amin(1) <= _FLAT * flat.abs().amax(1)
    found = Measured(values, is_sampled=True).but(torch.tensor(alike, device=values.device), _ALIKE)
    return found.but(_unmoved(trial, losses), _UNMOVED).but(constant, "the map is constant")


def _subsets(segments: Sequence[Parts], share: float, samples: int, seed: int) -> list[Tensor]:
    """For each image, which of its parts are replaced: [samples, parts], as many in each row."""
    draws = PerImageGenerators(len(segments), seed)
    found = []
    for picture, part in enumerate(segments):
        size = min(max(1, round(share * part.count)), max(1, part.count - 1))
        found.append(draws.uniform(picture, samples, part.count).argsort(1).argsort(1) < size)
    return found


def _sums(heat: Tensor, part: Parts) -> Tensor:
    """The map's sum over each part, [parts]."""
    assert part.labels is not None
    return heat.new_zeros(part.count).index_add(0, part.labels.flatten(), heat.flatten())


def _correlation(a: Tensor, b: Tensor, kind: str) -> float:
    """Pearson's correlation of [S] with [S], or Spearman's; NaN for fewer than two."""
    if len(a) < 2:
        return math.nan
    if kind == "spearman":
        return float(rank_correlation(a[None], b[None]))
    a, b = a - a.mean(), b - b.mean()
    return float(((a * b).sum() / (a.norm() * b.norm())).clamp(-1, 1))


def _losses(trial: Trial, key: tuple[Any, ...], samples: int, make: Callable[[int, Sequence[int]], Tensor]) -> Tensor:
    """The score lost in each perturbed image, [R, samples] float64, measured once for all maps of an image.

    `key` names the perturbations among all of them.
    """
    if (key, samples) not in trial.images_kept:
        first = range(len(trial.images))
        scores = trial.scores(samples, lambda row, chosen: make(trial.pictures[row], chosen), first)
        losses = (trial.whole[: len(first), None].double() - scores[: len(first)]).double()
        if trial.loop.ended_early:
            return losses[trial.pictures]
        trial.images_kept[key, samples] = losses
    kept: Tensor = trial.images_kept[key, samples]
    return kept[trial.pictures]


def _unmoved(trial: Trial, losses: Tensor) -> Tensor:
    """Where the score has not changed beyond rounding, [R]: any map would predict that."""
    found = []
    for whole, lost in zip(trial.whole.double(), losses, strict=True):
        reached = lost[lost.isfinite()]
        found.append(len(reached) > 0 and within_rounding(torch.cat([whole[None], whole - reached]), trial.dtype))
    return torch.tensor(found, device=losses.device)


@metric(
    title="Completeness gap",
    question="Does the map sum to what its method promises?",
    source="Sundararajan et al. 2017, section 3 (completeness), arXiv:1703.01365",
    unit="share of the promised sum",
    higher=False,
    controls=False,
    factor_free=lambda options: False,
)
def completeness_gap(trial: Trial) -> Measured:
    """Completeness gap: how far the map's sum is from the sum that its method promises.

        |Σ a - p| / |p|,  p = f(x) - f(baseline) for path methods, DeepLIFT, Shapley values; f(x) for LRP, FullGrad

    The promise is the one that the method measured in its own call, with its own baselines and precision
    (`statistics["promised_sum"]` of the `Explanation`); raw values count, before any reduction. For LRP the gap is what
    biases and ε absorb, which its rules intend.

    Returns  (r), >= 0, as a share. NaN where no sum is promised: for bare maps, and for all other methods; input ×
             gradient sums to the score in networks without biases alone
    Source   Sundararajan et al. 2017, section 3, arXiv:1703.01365; conservation: Bach et al. 2015

    Example
        >>> gap = evaluate(model, images, "deep_lift", metrics=["completeness_gap"]).values["completeness_gap"]
        >>> float(gap) < 1e-3
        True
    """
    (own,) = trial.candidates
    values, reasons = own.raw.new_full((len(own.raw),), torch.nan, dtype=torch.float64), {}
    for row in range(len(values)):
        known = own.explanation.statistics[row] if own.explanation is not None else {}
        if own.explanation is None:
            reasons[row] = "the maps do not tell what they should sum to: give the Explanation, or the method's name"
        elif "promised_sum" not in known:
            reasons[row] = f"{own.explanation.method} does not promise a sum"
        elif not known["promised_sum"]:
            reasons[row] = "the promised sum is 0: the score does not change"
        else:
            values[row] = abs(float(own.explanation.raw[row].double().sum()) / known["promised_sum"] - 1)
    return Measured(values, reasons=reasons)
