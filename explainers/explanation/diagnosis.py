"""What `explain` knows about the map of one image, its statistics, and the findings that follow from it.

Statistics and findings use raw values, before any scaling for display, because scaling makes blank and flat maps look
alike. `DETECTORS` lists one detector for each kind of problem, with a suggested change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from explainers.findings import Finding
from explainers.probabilities import probabilities_of
from explainers.verdict.facts import Facts

# The gradient of a probability this close to 0 or 1 is below a thousandth of that of its logit, and float32 may round
# it to zero.
SATURATED = 1e-3
# Relative range of a map below which only float32 rounding is left.
FLAT = 1e-5
# A class with a lower probability that is not among the top five is not what the network sees in the image.
UNLIKELY = 0.01
# Proportions of an image from which it is clearly not square.
OBLONG = 1.2


@dataclass(frozen=True, eq=False)
class Evidence:
    """One image's map and what is known about it; None if unknown.

    `map` is the map as drawn, `signed` the same before its ReLU, `raw` the result before any ReLU or reduction;
    `scores` [K] the model's output, which become probabilities by `score`, one of SCORES; `probability_target` says
    that the target is a probability or its logarithm, `target` is the class index if the target is one;
    `promised_sum` the sum of the raw values that the method guarantees (completeness, conservation); `relu` the
    method's option of that name, None if it has none; `reads_class` says whether the map depends on the target;
    `sides` are the rows and columns of the image, `trained_size` the shorter side of the
    images that the network was trained on; `correlation` the rank correlation with the map of the class
    `runner_up`; `find_earlier_layer` looks up the next earlier stage, for remedies; `broken_layer` the first layer
    whose output is not finite; `stability` the correlation of the maps of two halves of the samples.
    """

    map: Tensor
    signed: Tensor
    raw: Tensor
    method: str
    layer: str | None
    scores: Tensor | None = None
    score: str | None = None
    probability_target: bool = False
    target: int | None = None
    target_score: float | None = None
    gradient_norm: float | None = None
    promised_sum: float | None = None
    relu: bool | None = None
    reads_class: bool = True
    sides: tuple[int, int] | None = None
    trained_size: int | None = None
    correlation: float | None = None
    runner_up: int | None = None
    find_earlier_layer: Callable[[], str | None] | None = None
    broken_layer: str | None = None
    stability: float | None = None

    @cached_property
    def earlier_layer(self) -> str | None:
        """The next earlier stage, for remedies."""
        return None if self.find_earlier_layer is None else self.find_earlier_layer()

    @cached_property
    def probabilities(self) -> Tensor | None:
        """The probabilities [K] of the classes, if the scores have any."""
        return None if self.scores is None else probabilities_of(self.scores, self.score)

    @property
    def probability(self) -> float | None:
        """The probability of the target class, if the target is a class."""
        known = self.target is not None and self.probabilities is not None
        return float(self.probabilities[self.target]) if known else None  # type: ignore[index]

    @cached_property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest value of `signed`."""
        return float(self.signed.min()), float(self.signed.max())


def statistics(evidence: Evidence) -> dict[str, Any]:
    """Compute summary statistics of a map.

    Returns  `min`, `max`, `sum` of the raw values and `negative_share` (0 to 1), over the finite values (NaN if there
             are none); `entropy` of the shares of |map|, 0 for a single cell and 1 for an even map, blank maps
             included; `peak`, (row, column) or (frame, row, column) of the highest value, of the signed map if raw has
             the map's shape; `non_finite`, the number of raw values that are NaN or infinite; and, if known,
             `target_score`, `probability` of the target class, `gradient_norm`, `promised_sum`, and `stability`, the
             correlation of the maps of two halves of the samples. All are plain Python numbers.
    """
    map, raw = evidence.map, evidence.raw
    values = raw.detach().double().flatten()
    drawn = raw if raw.shape == map.shape else map
    # The position of the highest finite value.
    frame, cell = divmod(int(torch.where(drawn.isfinite(), drawn, -math.inf).argmax()), math.prod(drawn.shape[-2:]))
    row_and_column = divmod(cell, drawn.shape[-1])
    finite = values[values.isfinite()]
    found = {
        "min": float(finite.min()) if finite.numel() else math.nan,
        "max": float(finite.max()) if finite.numel() else math.nan,
        "sum": float(finite.sum()) if finite.numel() else math.nan,
        "negative_share": float((finite < 0).double().mean()) if finite.numel() else math.nan,
        "entropy": _entropy(map.detach().double()),
        "peak": row_and_column if map.ndim == 2 else (frame, *row_and_column),
        "non_finite": int(values.numel() - finite.numel()),
    }
    for name in ("target_score", "probability", "gradient_norm", "promised_sum", "stability"):
        if (value := getattr(evidence, name)) is not None:
            found[name] = value
    return found


def _entropy(map: Tensor) -> float:
    """Return the Shannon entropy of the shares of |map|, divided by that of an even map."""
    sizes = map.abs().flatten()
    if not sizes.isfinite().all():
        return math.nan
    if sizes.numel() < 2 or float(sizes.max()) == 0:
        return 1.0
    # Divide by the maximum first: the sum of very large values would overflow, and that of tiny ones underflow.
    shares = sizes / sizes.max()
    shares = shares / shares.sum()
    return min(1.0, max(0.0, float(torch.special.entr(shares).sum()) / math.log(sizes.numel())))


def diagnose(evidence: Evidence) -> list[Finding]:
    """List the problems of one image's map, most severe first. The list is empty if there are none.

    NaN or infinity is the only finding, because it makes all others meaningless.
    """
    if broken := non_finite(evidence):
        return [broken]
    found = []
    for detect in DETECTORS:
        if (finding := detect(evidence)) is not None:
            found.append(finding)
    return found


def non_finite(evidence: Evidence) -> Finding | None:
    """Report the first tensor that is not finite: layers come before scores, then gradients, then the map."""
    layer, scores, values = evidence.broken_layer, evidence.scores, evidence.signed
    if layer is not None:
        part, first = "layer", f"Layer {layer!r} is the first with NaN or infinite outputs"
    elif scores is not None and not scores.isfinite().all():
        wrong = int((~scores.isfinite()).sum())
        part, first = "scores", f"The model's scores are NaN or infinite ({wrong} of {scores.numel()})"
    elif evidence.gradient_norm is not None and not math.isfinite(evidence.gradient_norm):
        part, first = "gradient", "The gradient is NaN or infinite although the scores are finite"
    elif bad := int((~values.isfinite()).sum()):
        part, first = "map", f"{bad} of {values.numel()} values of the {evidence.method} map are NaN or infinite"
    else:
        return None
    results = {"gradient": "the map is not reliable", "map": "it is not reliable"}
    first = f"{first}, so {results.get(part, 'no map is reliable')}."
    sentence = f"{first} Check the image and the weights. In half precision, try float32."
    return Finding("non_finite", sentence, facts={"part": part, "layer": layer})


def nothing_spatial(evidence: Evidence) -> Finding | None:
    """Report a map with a single cell."""
    if evidence.map.numel() != 1:
        return None
    value = float(evidence.map)
    return Finding(
        "nothing_spatial",
        f"The map of {_place(evidence)} has only one cell ({value:.3g}) for the whole image, so it shows no positions."
        + _advice(evidence, " Choose an earlier layer or a larger image."),
        _earlier(evidence),
        {"value": value},
    )


def saturated(evidence: Evidence) -> Finding | None:
    """Report a probability with a vanishing gradient. The score is p or log p; in case of doubt, `scores` decides.

    The score of a network that returns probabilities is one too, whose gradient vanishes inside the network.
    """
    score, scores, all_shares = evidence.target_score, evidence.scores, evidence.probabilities
    inside = evidence.score in ("identity", "log")
    is_output = inside and evidence.target is not None and bool(evidence.gradient_norm)
    if not (evidence.probability_target or is_output) or score is None or not math.isfinite(score):
        return None
    logarithm = score < 0 or (score == 0 and all_shares is not None and float(all_shares.max()) == 1)
    p = math.exp(score) if logarithm else score
    # The derivative of p is p (1 - p), that of log p is 1 - p: both vanish near 1, and near 0 only that of p.
    if p < 1 - SATURATED and (logarithm or p > SATURATED):
        return None
    is_likely = p > 0.5 and not inside
    remedy = {"target": int(scores.argmax()) if scores is not None else None} if is_likely else {}
    what = "output of the network" if inside else "sigmoid" if evidence.score == "sigmoid" else "softmax"
    remedy_text = "Explain the logits instead, for example with forward=." if inside else "Use the logit as target."
    return Finding(
        "saturated",
        f"The {what} is saturated (probability {p:.6g}), so its gradient is nearly zero. {remedy_text}",
        remedy,
        {"probability": p},
    )


def no_gradient(evidence: Evidence) -> Finding | None:
    """Report a gradient that is zero everywhere."""
    if evidence.gradient_norm != 0:
        return None
    return Finding(
        "no_gradient",
        f"The gradient at {_place(evidence)} is exactly zero, so gradients show no influence on the score."
        + _advice(evidence, " Try another class or layer."),
        _earlier(evidence),
    )


def nothing_positive(evidence: Evidence) -> Finding | None:
    """Report a map without positive values, which is blank after the ReLU."""
    (low, high), relu = evidence.range, bool(evidence.relu)
    if evidence.signed.numel() < 2 or not low < 0 >= high:
        return None
    if not evidence.reads_class:
        meaning = ", so the map is blank after the ReLU. Show the signed map" if relu else ""
    elif relu:
        meaning = ": there is no evidence for this class, and the map is blank after the ReLU. Show the signed map to "
        meaning += "see the evidence against it"
    else:
        meaning = ": the map shows only evidence against this class"
    sentence = f"All values at {_place(evidence)} are ≤ 0 (minimum {low:.3g}){meaning}."
    return Finding("nothing_positive", sentence, {"relu": False} if relu else {}, {"lowest": low, "blank": relu})


def flat(evidence: Evidence) -> Finding | None:
    """Report an even map, which highlights no position. A blank map is not reported again if its cause already is."""
    low, high = evidence.range
    size = max(abs(low), abs(high))
    if evidence.signed.numel() < 2 or evidence.map.numel() == 1 or high - low > FLAT * size:
        return None
    if size == 0 and (saturated(evidence) or no_gradient(evidence)):
        return None
    fact = "zero everywhere" if size == 0 else f"{high:.3g} everywhere"
    otherwise = " Try another class or layer." if evidence.reads_class else " Try another layer."
    advice = _advice(evidence, otherwise if size == 0 else "")
    sentence = f"The map of {_place(evidence)} is {fact}, so it highlights no position.{advice}"
    return Finding("flat", sentence, _earlier(evidence), {"value": 0.0 if size == 0 else high})


def unlikely_target(evidence: Evidence) -> Finding | None:
    """Report a target class that the network does not see: its map mostly shows what the network sees instead."""
    target, scores = evidence.target, evidence.scores
    shares = evidence.probabilities
    if target is None or scores is None or shares is None:
        return None
    share, rank, top = float(shares[target]), int((scores > scores[target]).sum()) + 1, int(scores.argmax())
    if share >= UNLIKELY or rank <= 5:
        return None
    top_share, of = float(shares[top]), len(scores)
    return Finding(
        "unlikely_target",
        f"Class {target} ranks {rank} of {of} with a probability of {share:.2g}; the network predicts class {top} "
        f"({top_share:.2g}). The map shows evidence for class {target}, not that it is in the image.",
        {"target": top},
        {"target": target, "rank": rank, "of": of, "share": share, "top": top, "top_share": top_share},
    )


def unusual_size(evidence: Evidence) -> Finding | None:
    """Report an image whose size differs by more than a factor of two from the size used in training."""
    trained = evidence.trained_size
    if evidence.sides is None or trained is None or 0.5 <= (given := min(evidence.sides)) / trained <= 2:
        return None
    return Finding(
        "unusual_size",
        f"The shorter side has {given} pixels, but the network was trained on {trained}, so objects have an unfamiliar "
        f"size. Resize the image to about {trained}.",
        facts={"given": given, "trained": trained},
    )


def transposed(evidence: Evidence) -> Finding | None:
    """Report a map whose proportions are those of the image with its height and width exchanged."""
    if evidence.sides is None or evidence.map.ndim < 2:
        return None
    (height, width), (rows, columns) = evidence.sides, evidence.map.shape[-2:]
    tall, own = math.log(height / width), math.log(rows / columns)
    if abs(tall) < math.log(OBLONG) or abs(own + tall) > abs(tall) / 4:
        return None
    return Finding(
        "transposed",
        f"The map of {_place(evidence)} has {rows} rows and {columns} columns, but the image is {height} pixels high "
        f"and {width} wide, so the network may have exchanged height and width before this layer. Then the map is "
        "mirrored at its diagonal. Choose an earlier layer, or check the forward pass for a transpose or a reshape.",
        facts={"rows": rows, "columns": columns, "height": height, "width": width},
    )


def class_insensitive(evidence: Evidence) -> Finding | None:
    """Report a map that hardly differs from that of the runner-up class."""
    correlation = evidence.correlation
    if correlation is None or not correlation > Facts.ALIKE:
        return None
    return Finding(
        "class_insensitive",
        f"The map of the runner-up class is nearly identical (rank correlation {correlation:.3f}), so the map is not "
        "specific to this class. To see the difference, use Contrast(class, runner-up) as target.",
        facts={"correlation": correlation, "runner_up": evidence.runner_up},
    )


DETECTORS: tuple[Callable[[Evidence], Finding | None], ...] = (
    nothing_spatial,
    saturated,
    no_gradient,
    nothing_positive,
    flat,
    unlikely_target,
    unusual_size,
    transposed,
    class_insensitive,
)
"""The detectors for finite maps, most severe problem first."""


def _place(evidence: Evidence) -> str:
    return f"layer {evidence.layer!r}" if evidence.layer else "the image"


def _earlier(evidence: Evidence) -> dict[str, str]:
    """Return the remedy of choosing the earlier layer, if there is one."""
    return {"layer": evidence.earlier_layer} if evidence.earlier_layer else {}


def _advice(evidence: Evidence, otherwise: str) -> str:
    return f" Try the earlier layer {evidence.earlier_layer!r}." if evidence.earlier_layer else otherwise
