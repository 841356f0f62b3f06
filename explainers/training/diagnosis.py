"""Diagnosis of a training run from its gradients: non-finite, exploding, vanishing, dead, frozen.

Effects of gradient hooks are distinguished from effects of the network, since the log contains the gradient of each
parameter before and after its hooks.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol, runtime_checkable

from explainers.errors import check_type
from explainers.findings import Finding

# Minimum number of points for a trend.
FEWEST = 3
ROUNDING = 1e-6
"""Norms below this fraction of the largest before are rounding."""


@dataclass(frozen=True)
class Row:
    """One gradient of `name` (a "parameter", "activation" or "tensor" with `size` values) in `step`, counted from 0.

    `statistics` are the recorded ones among `norm` (Euclidean), `mean`, `std` (as `torch.std`, 0 for a single value),
    `max` (largest magnitude) and `zero_fraction` (fraction of exact zeros). `histogram` counts the finite values in the
    bins between `edges`, or is None. `unedited` are the statistics before any hook of the tensor, or None if no hook
    changed the gradient. For complex gradients, `mean` is the magnitude of the mean, and `histogram` counts real and
    imaginary parts.
    """

    step: int
    name: str
    kind: str
    size: int
    statistics: Mapping[str, float]
    histogram: tuple[int, ...] | None = None
    edges: tuple[float, ...] | None = None
    unedited: Mapping[str, float] | None = None

    @property
    def arrived(self) -> Mapping[str, float]:
        """The statistics of the gradient before any hook changed it."""
        return self.statistics if self.unedited is None else self.unedited


@runtime_checkable
class Rows(Protocol):
    """The parts of a `GradientLog` that a diagnosis reads."""

    @property
    def rows(self) -> Sequence[Row]: ...
    @property
    def names(self) -> tuple[str, ...]: ...


def diagnose_training(
    log: Rows, *, growth: float = 10.0, vanishing: float = 1e-3, dead: float = 0.5, window: int = 20
) -> list[Finding]:
    """Return findings about a whole run's gradients, at most one of each kind, with a remedy and the step in which it
    started.

        non_finite  NaN or infinity: the first step, and the first tensor in that step's backward pass
        exploding   the norm over all parameters grows more than `growth` times within `window` recorded steps, by a
                    linear fit to its logarithm, and is above a millionth of the largest before: at a loss of 0, the
                    gradient is rounding
        vanishing   the first layer's root mean square gradient fell below `vanishing` times the last layer's, and has
                    not grown above that since; medians over `window` recorded steps
        dead        at least the fraction `dead` of a parameter's gradient (and of its bias, for a weight) is exactly
                    zero in each of the last `window` steps, before any hook on the parameter
        frozen      at least that fraction is zero only after the hooks: `freeze`, a factor of 0, a mask

    Exploding and vanishing need the statistic `norm`, dead and frozen need `zero_fraction`; without it they are not
    checked. A remedy is a call with its changed keywords, such as `{"clip_gradients": {"norm": 1.0}}`. It is empty if a
    hook is the cause; the message then says which gradients are affected, and the remedy is to remove the hook.

    Returns  findings in the order above; empty if no problem was found
    Errors   WrongType for anything but a `GradientLog`

    Example
        >>> with record_gradients(model) as log:
        ...     (model(images)[0, 281] * float("nan")).backward()
        >>> diagnose_training(log)[0].code
        'non_finite'
    """
    check_type("log", log, Rows, "the GradientLog of record_gradients")
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
        why = "The gradients grew before that. Clip them, or lower the learning rate."
        return Finding("non_finite", message + why, explosion.remedy)
    why = "The cause is the loss or a layer after this one; torch.autograd.detect_anomaly names the operation. "
    why += "In half precision, try float32."
    return Finding("non_finite", message + why, {"torch.autograd.detect_anomaly": {"check_nan": True}})


def _finite(statistics: Mapping[str, float]) -> bool:
    return all(math.isfinite(value) for value in statistics.values())


def _exploding(rows: Iterable[Row], growth: float, window: int) -> Finding | None:
    squares: dict[int, float] = {}
    for row in rows:
        if "norm" in row.statistics:
            squares[row.step] = squares.get(row.step, 0.0) + row.statistics["norm"] ** 2
    points = [(step, math.sqrt(total)) for step, total in sorted(squares.items()) if 0 < total < math.inf]
    largest = [*accumulate((norm for _, norm in points), max)]
    for end in range(FEWEST, len(points) + 1):
        recent = points[max(0, end - window) : end]
        slope = statistics.linear_regression(range(len(recent)), [math.log(norm) for _, norm in recent]).slope
        factor = math.exp(min(slope * (len(recent) - 1), 700.0))
        (start, small), (step, large) = recent[0], recent[-1]
        if factor > growth and large > ROUNDING * largest[end - 1]:
            return Finding(
                "exploding",
                f"The gradient norm grew from {small:.3g} in step {start} to {large:.3g} in step {step}, more than "
                f"{growth:g} times within {window} steps. Clip the gradients, or lower the learning rate.",
                {"clip_gradients": {"norm": _rounded(min(small, large))}},
            )
    return None


class _Window(NamedTuple):
    """Some consecutive steps, with the root mean square gradients of the first and the last layer that have one."""

    steps: Sequence[int]
    first: str
    small: float
    last: str
    large: float

    @property
    def ratio(self) -> float:
        return self.small / self.large


def _vanishing(rows: Sequence[Row], names: Sequence[str], limit: float, window: int) -> Finding | None:
    """Return a finding if the first layer's gradient vanished and has not grown since.

    A network that cannot learn with its first layers often learns a constant with its last one. Then the last layer's
    gradient becomes small too, and their ratio looks healthy. The first layer is therefore compared with the largest
    gradient of the last layer since it vanished.
    """
    layers = list(dict.fromkeys(map(_layer, names)))
    seen = _gradients(rows, lambda row: row.statistics)
    begun, largest, latest = None, 0.0, None
    steps = sorted(seen)
    for end in range(min(FEWEST, len(steps)), len(steps) + 1):
        measured = _measure(seen, steps[max(0, end - window) : end], layers, layers)
        if not measured:
            continue
        latest, largest = measured, max(largest, measured.large)
        if begun and latest.small >= limit * largest:
            begun = None
        if not begun and latest.ratio < limit:
            begun, largest = latest, latest.large
    if not begun or not latest:
        return None
    small = (seen[step].get(begun.first, math.inf) < limit * seen[step].get(begun.last, 0.0) for step in begun.steps)
    since = next((step for step, is_small in zip(begun.steps, small, strict=True) if is_small), begun.steps[0])
    message = (
        f"Since step {since}, the gradient of the first layer {begun.first!r} is {begun.ratio:.2g} times that of the "
        f"last layer {begun.last!r} (root mean square)"
    )
    arrived = _measure(_gradients(rows, lambda row: row.arrived), begun.steps, [begun.first], [begun.last])
    if arrived and arrived.ratio >= limit:
        message += (
            f". This is caused by gradient hooks: before them the ratio is {arrived.ratio:.2g}. Remove the hooks, or "
            "use more similar factors."
        )
        return Finding("vanishing", message)
    pattern = f"{begun.first}.*" if any(name.startswith(f"{begun.first}.") for name in names) else begun.first
    if latest.ratio >= limit:
        message += f", and it has not grown since. That of the last layer has fallen to {latest.large:.2g}"
    return Finding(
        "vanishing",
        f"{message}, so the first layer hardly learns. Normalization, skip connections or ReLU prevent this; a larger "
        "learning rate for this layer compensates for it.",
        {"scale_gradients": {"factors": {pattern: _rounded(1 / begun.ratio)}}},
    )


def _gradients(rows: Iterable[Row], statistics_of: Callable[[Row], Mapping[str, float]]) -> dict[int, dict[str, float]]:
    """Return each step's root mean square gradient by layer."""
    sums: dict[int, dict[str, list[float]]] = {}
    for row in rows:
        norm = statistics_of(row).get("norm", math.nan)
        layers = sums.setdefault(row.step, {})
        if math.isfinite(norm) and row.size:
            of_layer = layers.setdefault(_layer(row.name), [0.0, 0])
            of_layer[0] += norm**2
            of_layer[1] += row.size
    return {step: {name: math.sqrt(a / b) for name, (a, b) in layers.items()} for step, layers in sums.items()}


def _measure(
    seen: Mapping[int, Mapping[str, float]], steps: Sequence[int], first: Sequence[str], last: Sequence[str]
) -> _Window | None:
    """Return the median gradients over these steps of the first layer of `first` and the last one of `last`.

    Layers without any gradient are left out: they are frozen or dead, which are separate findings.
    """

    def medians(layers: Iterable[str]) -> Iterator[tuple[str, float]]:
        for layer in layers:
            sizes = [seen[step][layer] for step in steps if layer in seen[step]]
            if sizes and (median := statistics.median(sizes)) > 0:
                yield layer, median

    low, high = next(medians(first), None), next(medians(reversed(last)), None)
    return _Window(steps, *low, *high) if low and high and low[0] != high[0] else None


def _layer(name: str) -> str:
    return name.rpartition(".")[0] or name


def _zeros(rows: Sequence[Row], names: Sequence[str], limit: float, window: int) -> list[Finding]:
    """Return the findings "dead" (gradients before hooks) and "frozen" (gradients after hooks)."""
    dead: dict[str, float] = {}
    frozen: dict[str, float] = {}
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_name[row.name].append(row)
    zeros = {}
    for name, own in by_name.items():
        last = own[-window:]
        both = [row.arrived for row in last], [row.statistics for row in last]
        zeros[name] = [min(each.get("zero_fraction", 0.0) for each in kind) for kind in both]
    for name, (arrived, left) in zeros.items():
        # A weight also has zeros for inputs that are zero, such as black borders; units without gradient have none in
        # their bias either.
        bias = name[: -len("weight")] + "bias" if name.endswith("weight") else name
        if min(arrived, zeros.get(bias, [1.0])[0]) >= limit:
            dead[name] = arrived
        elif left >= limit > arrived:
            frozen[name] = left
    found = []
    for shares, statistics_of, describe in (
        (dead, lambda row: row.arrived, _dead),
        (frozen, lambda row: row.statistics, _frozen),
    ):
        if shares:
            first = next((name for name in names if name in shares), next(iter(shares)))
            when = f"in every step since step {_since(by_name[first], statistics_of, limit)}"
            if len(shares) > 1:
                when += f" (also for {len(shares) - 1} other parameter{'s' * (len(shares) > 2)})"
            found.append(describe(first, when, shares, by_name))
    return found


def _dead(first: str, when: str, shares: Mapping[str, float], by_name: Mapping[str, Sequence[Row]]) -> Finding:
    # A dead unit also zeroes its column of the next layer's weight gradient, so the first layer is the cause.
    if shares[first] < 1:
        why = "units that are not activated by any input of the batch do not learn"
    elif len(shares) == len(by_name) and min(shares.values()) == 1:
        why = (
            "no parameter receives a gradient, because all units of a layer are dead, a later operation stops the "
            "gradient, or the loss has reached its minimum"
        )
    else:
        why = "it receives no gradient, because all its units are dead or a later operation stops the gradient"
    return Finding(
        "dead",
        f"At least {shares[first]:.0%} of the gradient of {first!r} is exactly zero {when}: {why}. Use a leaky ReLU "
        "instead of the ReLU, or a lower learning rate from the start.",
        {"torch.nn.LeakyReLU": {"negative_slope": 0.01}},
    )


def _frozen(first: str, when: str, shares: Mapping[str, float], by_name: Mapping[str, Sequence[Row]]) -> Finding:
    much = "the" if shares[first] == 1 else f"at least {shares[first]:.0%} of the"
    norm = by_name[first][-1].arrived.get("norm")
    known = "" if norm is None else f" (norm before hooks: {norm:.3g})"
    what = "it is frozen" if shares[first] == 1 else "that part is frozen"
    return Finding(
        "frozen",
        f"Gradient hooks set {much} gradient of {first!r}{known} to zero {when}: {what} and does not learn. If that is "
        "not intended, remove the hook (freeze, a factor of 0 or a mask).",
    )


def _since(rows: Sequence[Row], statistics_of: Callable[[Row], Mapping[str, float]], limit: float) -> int:
    """Return the first of the last steps with at least this fraction of zeros."""
    step = rows[-1].step
    for row in reversed(rows):
        if statistics_of(row).get("zero_fraction", 0.0) < limit:
            break
        step = row.step
    return step


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")
