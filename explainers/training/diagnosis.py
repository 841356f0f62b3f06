"""Diagnosis of a training run from its gradients: non-finite, exploding, vanishing, dead, frozen.

Effects of gradient hooks are distinguished from effects of the network, since the log contains the gradient of each
parameter before and after its hooks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from explainers.findings import Finding
from explainers.training.rows import Row, Rows

# Minimum number of points for a trend.
FEWEST = 3


def diagnose_training(
    log: Rows, *, growth: float = 10.0, vanishing: float = 1e-3, dead: float = 0.5, window: int = 20
) -> list[Finding]:
    """Return findings about a run's gradients, at most one of each kind, with a remedy.

        non_finite  NaN or infinity: the first step, and the first tensor in that step's backward pass
        exploding   the norm over all parameters grows more than `growth` times within `window` recorded steps, by a
                    linear fit to its logarithm
        vanishing   the first layer's root mean square gradient is below `vanishing` times the last layer's
        dead        at least the fraction `dead` of a parameter's gradient is exactly zero in each of the last `window`
                    steps, before any hook on the parameter
        frozen      at least that fraction is zero only after the hooks: `freeze`, a factor of 0, a mask

    Exploding and vanishing need the statistic `norm`, dead and frozen need `zero_fraction`; without it they are not
    checked. A remedy is a call with its changed keywords, such as `{"clip_gradients": {"norm": 1.0}}`. It is empty if a
    hook is the cause; the message then says which gradients are affected, and the remedy is to remove the hook.

    Returns  findings in the order above; empty if no problem was found
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
        *_zeros(parameters, log.names, dead, window),
    ]
    return [finding for finding in findings if finding]


def _non_finite(rows: Sequence[Row], explosion: Finding | None) -> Finding | None:
    step = next((row.step for row in rows if not _finite(row.statistics)), None)
    if step is None:
        return None
    broken = [row for row in rows if row.step == step and not _finite(row.statistics)]
    # A joint edit, such as clipping by norm, spreads one NaN over all parameters.
    first = next((row for row in broken if not _finite(row.arrived)), None)
    if first is None:
        message = (
            f"A gradient hook makes the gradient of {broken[0].name!r} NaN or infinite in step {step}; the gradient "
            "before the hook is finite. Fix the hook, or remove it."
        )
        return Finding("non_finite", message)
    message = f"The gradient of {first.name!r} is the first to be NaN or infinite, in step {step}. "
    if explosion:
        message += "The gradients grew before that. Clip them, or lower the learning rate."
        return Finding("non_finite", message, explosion.remedy)
    message += (
        "The cause is the loss or a layer after this one; torch.autograd.detect_anomaly names the operation. In half "
        "precision, try float32."
    )
    return Finding("non_finite", message, {"torch.autograd.detect_anomaly": {"check_nan": True}})


def _finite(statistics: Mapping[str, float]) -> bool:
    return all(math.isfinite(value) for value in statistics.values())


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
            (start, small), (step, large) = recent[0], recent[-1]
            return Finding(
                "exploding",
                f"The gradient norm grew from {small:.3g} in step {start} to {large:.3g} in step {step}, more than "
                f"{growth:g} times within {window} steps. Clip the gradients, or lower the learning rate.",
                {"clip_gradients": {"norm": _rounded(min(small, large))}},
            )
    return None


def _vanishing(rows: Sequence[Row], names: Sequence[str], limit: float, window: int) -> Finding | None:
    by_name = _by_name(rows)
    means = _means(by_name, names, window, lambda row: row.statistics)
    # Layers without any gradient are frozen or dead, which are separate findings.
    learning = [(layer, mean) for layer, mean in means.items() if mean > 0]
    if len(learning) < 2:
        return None
    (first, small), (last, large) = learning[0], learning[-1]
    if small >= limit * large:
        return None
    message = (
        f"The gradient of the first layer {first!r} is {small / large:.2g} times that of the last layer {last!r} (root "
        "mean square)"
    )
    arrived = _means(by_name, names, window, lambda row: row.arrived)
    if arrived.get(first, 0.0) >= limit * arrived.get(last, math.inf):
        before = arrived[first] / arrived[last]
        message += (
            f". This is caused by gradient hooks: before them the ratio is {before:.2g}. Remove the hooks, or use more "
            "similar factors."
        )
        return Finding("vanishing", message)
    pattern = f"{first}.*" if any(name.startswith(f"{first}.") for name in by_name) else first
    return Finding(
        "vanishing",
        f"{message}, so it hardly learns. Normalization, skip connections or ReLU prevent this; a larger learning rate "
        "for this layer compensates for it.",
        {"scale_gradients": {"factors": {pattern: _rounded(large / small)}}},
    )


def _means(
    by_name: Mapping[str, Sequence[Row]],
    names: Sequence[str],
    window: int,
    statistics_of: Callable[[Row], Mapping[str, float]],
) -> dict[str, float]:
    """Return each layer's root mean square gradient, from the median norms of its parameters' last `window` steps."""
    sizes = {name: own[-1].size for name, own in by_name.items()}
    per_layer: dict[str, dict[str, float]] = {}
    for name in (name for name in names if sizes.get(name)):
        recent = [statistics_of(row).get("norm", math.nan) for row in by_name[name][-window:]]
        finite = [norm for norm in recent if math.isfinite(norm)]
        if finite:
            per_layer.setdefault(name.rpartition(".")[0] or name, {})[name] = statistics.median(finite)
    return {
        layer: math.sqrt(sum(norm**2 for norm in norms.values()) / sum(sizes[name] for name in norms))
        for layer, norms in per_layer.items()
    }


def _zeros(rows: Sequence[Row], names: Sequence[str], limit: float, window: int) -> list[Finding | None]:
    """Return the findings "dead" (gradients before hooks) and "frozen" (gradients after hooks)."""
    dead: dict[str, float] = {}
    frozen: dict[str, float] = {}
    by_name = _by_name(rows)
    for name, own in by_name.items():
        arrived = min(row.arrived.get("zero_fraction", 0.0) for row in own[-window:])
        left = min(row.statistics.get("zero_fraction", 0.0) for row in own[-window:])
        if arrived >= limit:
            dead[name] = arrived
        elif left >= limit:
            frozen[name] = left
    return [_dead(dead, names), _frozen(frozen, names, by_name)]


def _dead(shares: Mapping[str, float], names: Sequence[str]) -> Finding | None:
    if not shares:
        return None
    # A dead unit also zeroes its column of the next layer's weight gradient, so the first layer is the cause.
    first, others = _first(shares, names)
    why = (
        "it receives no gradient, because all its units are dead or a later operation stops the gradient"
        if shares[first] == 1
        else "units that are not activated by any input of the batch do not learn"
    )
    remedy: dict[str, Any] = {"torch.nn.LeakyReLU": {"negative_slope": 0.01}}
    return Finding(
        "dead",
        f"At least {shares[first]:.0%} of the gradient of {first!r} is exactly zero in every recent step{others}: "
        f"{why}. Use a leaky ReLU instead of the ReLU, or a lower learning rate from the start.",
        remedy,
    )


def _frozen(shares: Mapping[str, float], names: Sequence[str], by_name: Mapping[str, Sequence[Row]]) -> Finding | None:
    if not shares:
        return None
    first, others = _first(shares, names)
    much = "the" if shares[first] == 1 else f"at least {shares[first]:.0%} of the"
    norm = by_name[first][-1].arrived.get("norm")
    known = "" if norm is None else f" (norm before hooks: {norm:.3g})"
    what = "it is frozen" if shares[first] == 1 else "that part is frozen"
    return Finding(
        "frozen",
        f"Gradient hooks set {much} gradient of {first!r}{known} to zero in every recent step{others}: {what} and does "
        "not learn. If that is not intended, remove the hook (freeze, a factor of 0 or a mask).",
    )


def _first(shares: Mapping[str, float], names: Sequence[str]) -> tuple[str, str]:
    """Return the first parameter, and a text with the number of other ones."""
    first = next((name for name in names if name in shares), next(iter(shares)))
    return first, f" (also for {len(shares) - 1} other parameter{'s' * (len(shares) > 2)})" if len(shares) > 1 else ""


def _by_name(rows: Iterable[Row]) -> dict[str, list[Row]]:
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    return by_name


def _slope(values: Sequence[float]) -> float:
    """Return the slope of the least-squares line through equally spaced values."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    variance = sum((k - middle) ** 2 for k in range(len(values)))
    return sum((k - middle) * (value - mean) for k, value in enumerate(values)) / variance


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")
