"""Figures of a map and findings in words, each with what to change.

Everything is read from raw values, before any scaling for a picture, where a blank map and a flat one still differ.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from explainers.findings import Finding

# A probability this near to 0 or 1 has a gradient below a thousandth of its logit's, which float32 soon rounds to zero.
SATURATED = 1e-3
# Relative spread of a map below which float32 rounding is all that is left.
FLAT = 1e-5
# A class with less than this share, and not among the first five, is not what the network sees in the picture.
UNLIKELY = 0.01
# Rank correlation with the runner-up's map above which the class hardly matters.
ALIKE = 0.99


def statistics(
    map: Tensor,
    raw: Tensor,
    *,
    target_scores: Tensor | None = None,
    gradient_norms: Tensor | None = None,
    promised_sums: Tensor | None = None,
) -> list[dict[str, Any]]:
    """Sum up each picture's map in figures.

    Returns  one dict a picture: `min`, `max`, `sum` of the raw values and `negative_share` (0 to 1), over what is
             finite (NaN where nothing is); `entropy` of the shares of |map|, 0 for a single cell and 1 for an even
             map, blank ones included; `peak`, (row, column) of the highest value, of the signed map where raw is one;
             `non_finite`, the number of raw values that are NaN or infinite; and, where known, `target_score`,
             `gradient_norm` and `promised_sum`, what the raw values sum to by the method's own promise
             (completeness, conservation). All are plain Python numbers.
    Errors   ValueError when map and raw do not hold the same number of pictures.
    """
    if len(map) != len(raw):
        raise ValueError(f"The map holds {len(map)} pictures and raw {len(raw)}; give both from the same call.")
    found = []
    for n in range(len(map)):
        values = raw[n].detach().double().flatten()
        drawn = raw[n] if raw.shape == map.shape else map[n]
        finite = values[values.isfinite()]
        entry: dict[str, Any] = {
            "min": float(finite.min()) if finite.numel() else math.nan,
            "max": float(finite.max()) if finite.numel() else math.nan,
            "sum": float(finite.sum()) if finite.numel() else math.nan,
            "negative_share": float((finite < 0).double().mean()) if finite.numel() else math.nan,
            "entropy": _entropy(map[n].detach().double()),
            "peak": divmod(int(torch.where(drawn.isfinite(), drawn, -math.inf).argmax()), drawn.shape[-1]),
            "non_finite": int(values.numel() - finite.numel()),
        }
        if target_scores is not None:
            entry["target_score"] = float(target_scores[n])
        if gradient_norms is not None:
            entry["gradient_norm"] = float(gradient_norms[n])
        if promised_sums is not None:
            entry["promised_sum"] = float(promised_sums[n])
        found.append(entry)
    return found


def diagnose(
    map: Tensor,
    raw: Tensor,
    *,
    method: str,
    layer: str | None,
    target_scores: Tensor | None = None,
    gradient_norms: Tensor | None = None,
    scores: Tensor | None = None,
    probability_target: bool = False,
    earlier_layer: str | None = None,
    relu: bool | None = None,
    target: list[int] | None = None,
    sizes: tuple[int, int] | None = None,
    broken_layer: str | None = None,
    correlation: Tensor | None = None,
    runner_up: Tensor | None = None,
    reads_class: bool = True,
) -> list[list[Finding]]:
    """Say what is wrong with each picture's map, worst first; nothing where nothing is.

    `map` is the map as drawn, `raw` the same before its ReLU or reduction; `probability_target` tells that the target
    is a softmax probability or its logarithm; `earlier_layer` is the next earlier stage, for remedies; `relu` is the
    method's option of that name, None where it has none; `target` the class indices, where they are; `sizes` the
    shorter side of the pictures and of those that the network was trained on; `broken_layer` the first layer whose
    output is not finite; `correlation` the rank correlation [N] with the map of the class `runner_up` [N];
    `reads_class` tells whether the target plays a part in the map.

    Returns  one list of `Finding` a picture
    Errors   ValueError when map and raw do not hold the same number of pictures.
    """
    if len(map) != len(raw):
        raise ValueError(f"The map holds {len(map)} pictures and raw {len(raw)}; give both from the same call.")
    earlier = {"layer": earlier_layer} if earlier_layer else {}
    where = f"layer {layer!r}" if layer else "the picture"
    findings: list[list[Finding]] = []
    for n in range(len(map)):
        own = scores[n].detach().double() if scores is not None and scores.ndim == 2 else None
        norm = None if gradient_norms is None else float(gradient_norms[n])
        if broken := _non_finite(method, raw[n], own, norm, broken_layer):
            findings.append([broken])
            continue
        low, high = float(raw[n].min()), float(raw[n].max())
        size = max(abs(low), abs(high))
        single = map[n].ndim == 2 and map[n].numel() == 1
        row = []
        if single:
            row.append(_nothing_spatial(map[n], where, earlier))
        if probability_target and (saturated := _saturated(None if target_scores is None else target_scores[n], own)):
            row.append(saturated)
        if norm == 0:
            row.append(_no_gradient(where, earlier))
        explained = bool(row)
        if raw[n].numel() > 1 and low < 0 >= high:
            row.append(_nothing_positive(low, where, relu, reads_class))
        # An even map shows no position. A blank one whose cause is already told is not told twice.
        even = raw[n].numel() > 1 and not single and high - low <= FLAT * size
        if even and not (size == 0 and explained):
            row.append(_flat(high, size, where, earlier, reads_class))
        if target is not None and own is not None and (unlikely := _unlikely(target[n], own)):
            row.append(unlikely)
        if sizes is not None and not 0.5 <= sizes[0] / sizes[1] <= 2:
            row.append(_unusual_size(*sizes))
        if correlation is not None and float(correlation[n]) > ALIKE:
            row.append(_class_insensitive(float(correlation[n]), None if runner_up is None else int(runner_up[n])))
        findings.append(row)
    return findings


def _non_finite(
    method: str, raw: Tensor, scores: Tensor | None, gradient_norm: float | None, layer: str | None
) -> Finding | None:
    """Name the first tensor at fault: layers come before scores, scores before gradients, gradients before the map."""
    bad, part = int((~raw.isfinite()).sum()), "map"
    first = None
    if layer is not None:
        part = "layer"
        first = f"Layer {layer!r} is the first whose output is NaN or infinite, so no map can be trusted."
    elif scores is not None and not scores.isfinite().all():
        part, wrong = "scores", int((~scores.isfinite()).sum())
        first = f"The model's own scores are NaN or infinite ({wrong} of {scores.numel()}), so no map can be trusted."
    elif gradient_norm is not None and not math.isfinite(gradient_norm):
        part = "gradient"
        first = "The gradient is NaN or infinite while the scores are finite, so the map cannot be trusted."
    elif bad:
        first = f"{bad} of {raw.numel()} values of the {method} map are NaN or infinite, so it cannot be trusted."
    if first is None:
        return None
    sentence = f"{first} Check picture and weights; in half precision, try float32."
    return Finding("non_finite", sentence, facts={"part": part, "layer": layer})


def _nothing_spatial(map: Tensor, where: str, earlier: dict[str, Any]) -> Finding:
    return Finding(
        "nothing_spatial",
        f"The map of {where} is one cell of {_figure(map)} for the whole picture: nothing spatial is left to show."
        + _advice(earlier, " Choose an earlier layer or a larger picture."),
        earlier,
        {"value": float(map)},
    )


def _saturated(target_score: Tensor | None, scores: Tensor | None) -> Finding | None:
    """A probability near 0 or 1 has no slope. The score is p or log p; where it could be either, `scores` decides."""
    score = math.nan if target_score is None else float(target_score)
    if not math.isfinite(score):
        return None
    logarithm = score < 0 or (score == 0 and scores is not None and float(scores.softmax(0).max()) == 1)
    p = math.exp(score) if logarithm else score
    # The slope of p is p (1 - p), that of log p is 1 - p: both vanish near 1, near 0 that of p alone.
    if p < 1 - SATURATED and (logarithm or p > SATURATED):
        return None
    remedy = {"target": int(scores.argmax()) if scores is not None else None} if p > 0.5 else {}
    return Finding(
        "saturated",
        f"The softmax is saturated (probability {p:.6g}), so its gradient is nearly zero. Use the logit as target.",
        remedy,
        {"probability": p},
    )


def _no_gradient(where: str, earlier: dict[str, Any]) -> Finding:
    return Finding(
        "no_gradient",
        f"The gradient at {where} is exactly zero: by gradients, the score does not depend on it."
        + _advice(earlier, " Try another class or layer."),
        earlier,
    )


def _nothing_positive(low: float, where: str, relu: bool | None, reads_class: bool) -> Finding:
    fact = f"All values at {where} are ≤ 0 (lowest {low:.3g})"
    facts = {"lowest": low, "blank": bool(relu)}
    if not reads_class:
        blank = ", and the ReLU leaves a blank map. Show the signed map" if relu else ""
        return Finding("nothing_positive", f"{fact}{blank}.", {"relu": False} if relu else {}, facts)
    fact += ": no evidence there for this class"
    if relu:
        sentence = f"{fact}, and the ReLU leaves a blank map. Show the signed map to see the evidence against it."
        return Finding("nothing_positive", sentence, {"relu": False}, facts)
    return Finding("nothing_positive", f"{fact}; the map shows evidence against it only.", {}, facts)


def _flat(value: float, size: float, where: str, earlier: dict[str, Any], reads_class: bool) -> Finding:
    fact = "zero everywhere" if size == 0 else f"flat, {value:.3g} everywhere"
    otherwise = " Try another class or layer." if reads_class else " Try another layer."
    advice = _advice(earlier, otherwise if size == 0 else "")
    sentence = f"The map of {where} is {fact}: no position stands out.{advice}"
    return Finding("flat", sentence, earlier, {"value": 0.0 if size == 0 else value})


def _unlikely(target: int, scores: Tensor) -> Finding | None:
    """The map of a class that the network does not see shows little but what it sees instead."""
    shares = scores.softmax(0)
    share, rank, top = float(shares[target]), int((scores > scores[target]).sum()) + 1, int(scores.argmax())
    if share >= UNLIKELY or rank <= 5:
        return None
    return Finding(
        "unlikely_target",
        f"Class {target} is number {rank} of {len(scores)} with a probability of {share:.2g}; the network sees class "
        f"{top} ({float(shares[top]):.2g}). The map shows evidence for {target}, not that it is there.",
        {"target": top},
        {
            "target": target,
            "rank": rank,
            "of": len(scores),
            "share": share,
            "top": top,
            "top_share": float(shares[top]),
        },
    )


def _unusual_size(given: int, trained: int) -> Finding:
    return Finding(
        "unusual_size",
        f"The shorter side has {given} pixels, and the network was trained on {trained}: things have another size than "
        f"it knows. Resize the picture to about {trained}.",
        facts={"given": given, "trained": trained},
    )


def _class_insensitive(correlation: float, runner_up: int | None) -> Finding:
    return Finding(
        "class_insensitive",
        f"The map of the runner-up class is nearly the same (rank correlation {correlation:.3f}): it shows what is "
        "there, not the evidence for this class. For the difference, take Contrast(class, runner-up) as target.",
        facts={"correlation": correlation, "runner_up": runner_up},
    )


def _advice(earlier: dict[str, Any], otherwise: str) -> str:
    return f" Try the earlier layer {earlier['layer']!r}." if earlier else otherwise


def _entropy(map: Tensor) -> float:
    """Shannon entropy of the shares of |map|, over that of an even map."""
    sizes = map.abs().flatten()
    if not sizes.isfinite().all():
        return math.nan
    if sizes.numel() < 2 or float(sizes.max()) == 0:
        return 1.0
    # Divided by the largest first: the sum of very large values would overflow, that of tiny ones vanish.
    shares = sizes / sizes.max()
    shares = shares / shares.sum()
    return min(1.0, max(0.0, float(torch.special.entr(shares).sum()) / math.log(sizes.numel())))


def _figure(value: Tensor) -> str:
    return f"{float(value):.3g}"
