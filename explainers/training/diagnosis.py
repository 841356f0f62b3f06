"""Diagnosis of a training run from its gradients: non-finite, exploding, vanishing, dead."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from explainers.findings import Finding
from explainers.training.log import GradientLog, Row

# Points that a trend needs.
FEWEST = 3


def diagnose_training(
    log: GradientLog, *, growth: float = 10.0, vanishing: float = 1e-3, dead: float = 0.5, window: int = 20
) -> list[Finding]:
    """Findings about a run's gradients, at most one of each kind, with a remedy.

        non_finite  NaN or infinity: the first step, and the first tensor in that step's backward pass
        exploding   the norm over all parameters grows more than `growth` times within `window` recorded steps, by a
                    linear fit to its logarithm
        vanishing   the first layer's root mean square gradient is below `vanishing` times the last layer's
        dead        at least the fraction `dead` of a parameter's gradient is exactly zero in each of the last `window`
                    steps

    Exploding and vanishing need the statistic `norm`, dead needs `zero_fraction`; without it they are not checked. A
    remedy is a call with its changed keywords, such as `{"clip_gradients": {"norm": 1.0}}`.

    Returns  findings in the order above; empty where nothing is wrong
    Errors   none

    Example
        >>> with record_gradients(model) as log:
        ...     (model(images)[0, 281] * float("nan")).backward()
        >>> diagnose_training(log)[0].code
        'non_finite'
    """
    rows = log.rows
    parameters = [row for row in rows if row.kind == "parameter"] or rows
    explosion = _exploding(parameters, growth, window)
    findings = [
        _non_finite(rows, explosion),
        explosion,
        _vanishing(parameters, log.names, vanishing, window),
        _dead(parameters, log.names, dead, window),
    ]
    return [finding for finding in findings if finding]


def _non_finite(rows: Iterable[Row], explosion: Finding | None) -> Finding | None:
    first = next((row for row in rows if not all(math.isfinite(value) for value in row.statistics.values())), None)
    if first is None:
        return None
    sentence = f"The gradient of {first.name!r} is the first to be NaN or infinite, in step {first.step}. "
    if explosion:
        sentence += "Gradients grew before that: clip them, or lower the learning rate."
        return Finding("non_finite", sentence, explosion.remedy)
    sentence += (
        "It comes from the loss or from a layer behind this one: detect_anomaly names the operation. In half "
        "precision, try float32."
    )
    return Finding("non_finite", sentence, {"torch.autograd.detect_anomaly": {"check_nan": True}})


def _exploding(rows: Iterable[Row], growth: float, window: int) -> Finding | None:
    squares: dict[int, float] = {}
    for row in rows:
        if "norm" in row.statistics:
            squares[row.step] = squares.get(row.step, 0.0) + row.statistics["norm"] ** 2
    points = [(step, math.sqrt(total)) for step, total in sorted(squares.items()) if 0 < total < math.inf]
    for end in range(FEWEST, len(points) + 1):
        recent = points[max(0, end - window) : end]
        factor = math.exp(min(_slope([math.log(norm) for _, norm in recent]) * (len(recent) - 1), 700.0))
        if factor > growth:
            (begin, small), (step, large) = recent[0], recent[-1]
            return Finding(
                "exploding",
                f"The gradient norm grew from {small:.3g} in step {begin} to {large:.3g} in step {step}, more than "
                f"{growth:g} times within {window} steps. Clip it, or lower the learning rate.",
                {"clip_gradients": {"norm": _rounded(min(small, large))}},
            )
    return None


def _vanishing(rows: Sequence[Row], names: Sequence[str], limit: float, window: int) -> Finding | None:
    by_name = _by_name(rows)
    sizes = {name: own[-1].size for name, own in by_name.items()}
    per_layer: dict[str, dict[str, float]] = {}
    for name in (name for name in names if sizes.get(name)):
        recent = [row.statistics.get("norm", math.nan) for row in by_name[name][-window:]]
        finite = [norm for norm in recent if math.isfinite(norm)]
        if finite:
            per_layer.setdefault(name.rpartition(".")[0] or name, {})[name] = statistics.median(finite)
    means = {
        layer: math.sqrt(sum(norm**2 for norm in norms.values()) / sum(sizes[name] for name in norms))
        for layer, norms in per_layer.items()
    }
    # Layers without any gradient are frozen or dead, which is another finding.
    learning = [(layer, mean) for layer, mean in means.items() if mean > 0]
    if len(learning) < 2:
        return None
    (first, small), (last, large) = learning[0], learning[-1]
    if small >= limit * large:
        return None
    pattern = f"{first}.*" if any(name.startswith(f"{first}.") for name in sizes) else first
    return Finding(
        "vanishing",
        f"The gradient of the first layer {first!r} is {small / large:.2g} times that of the last layer {last!r} (root "
        "mean square): it hardly learns. Normalisation, skip connections or ReLU prevent this; a larger learning rate "
        "for this layer compensates for it.",
        {"scale_gradients": {"factors": {pattern: _rounded(large / small)}}},
    )


def _dead(rows: Sequence[Row], names: Sequence[str], limit: float, window: int) -> Finding | None:
    shares: dict[str, float] = {}
    for name, own in _by_name(rows).items():
        least = min(row.statistics.get("zero_fraction", 0.0) for row in own[-window:])
        if least >= limit:
            shares[name] = least
    if not shares:
        return None
    # A dead unit also zeroes its column of the next layer's weight gradient, so the first layer is the cause.
    first = next((name for name in names if name in shares), next(iter(shares)))
    others = f", and {len(shares) - 1} more like it" if len(shares) > 1 else ""
    why = (
        "it receives no gradient: it is frozen, or all its units are dead"
        if shares[first] == 1
        else "units that no input in the batch activates do not learn"
    )
    remedy: dict[str, Any] = {"torch.nn.LeakyReLU": {"negative_slope": 0.01}}
    return Finding(
        "dead",
        f"At least {shares[first]:.0%} of the gradient of {first!r} is exactly zero in every recent step{others}: "
        f"{why}. A leaky ReLU in place of the ReLU, or a lower learning rate from the start, keeps units alive.",
        remedy,
    )


def _by_name(rows: Iterable[Row]) -> dict[str, list[Row]]:
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    return by_name


def _slope(values: Sequence[float]) -> float:
    """The slope of the least-squares line through values one step apart."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    variance = sum((k - middle) ** 2 for k in range(len(values)))
    return sum((k - middle) * (value - mean) for k, value in enumerate(values)) / variance


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")
