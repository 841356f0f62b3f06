"""The operations between a sum of products and a value: norms, activation functions, scaling, sums, softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from explainers.dtypes import to_cpu_float64
from explainers.errors import UnsupportedOperation
from explainers.experiments.arithmetic.moves import follow, unravel
from explainers.experiments.arithmetic.recording import Operation, Recorder, Ref
from explainers.experiments.arithmetic.sums import WeightedSum, is_sum, weighted_sum

ACTIVATIONS = frozenset(
    "relu hardtanh silu gelu hardswish hardsigmoid sigmoid tanh leaky_relu elu celu selu mish clamp clamp_min "
    "clamp_max threshold softplus relu6 abs exp sqrt neg pow".split()
)
BATCH_NORMS = {"native_batch_norm": 7, "_native_batch_norm_legit_no_training": 6, "cudnn_batch_norm": 7}
"""Position of eps among the arguments."""


@dataclass(frozen=True)
class Step:
    """One operation on a value: `kind` is "batch_norm", "layer_norm", "activation", "add", "scale" or "softmax".

    `name` is the function of an activation, such as "relu". `numbers` are those that the operation uses: for norms
    "mean", "variance", "eps", "weight" and "bias", for a sum "added", for a scaling "factor", for a softmax "maximum"
    and "sum". `before` and `after` are the values of the network.
    """

    kind: str
    name: str
    before: float
    after: float
    numbers: dict[str, float]
    apply: Callable[[float], float] = field(repr=False, compare=False)
    """The operation in float64."""


@dataclass(frozen=True, eq=False)
class Walk:
    """A value of the pass: the sum that it starts from (None: it comes from the image), and the steps after it."""

    value: float
    sum: WeightedSum | None
    steps: tuple[Step, ...]
    ref: Ref
    position: int
    """Where the walk ended: the tensor, and the flat position there."""


def walk(recorder: Recorder, ref: Ref, position: int, names: dict[int, str]) -> Walk:
    """Go back from a value, given by its flat position, to the next sum of products or to the image.

    Errors   UnsupportedOperation for an operation that is neither a sum nor a step
    """
    value = float(recorder.value(ref).reshape(-1)[position])
    steps: list[Step] = []
    while True:
        ref, moved, _ = follow(recorder, ref, torch.tensor([position]))
        position = int(moved)
        operation = recorder.made_by(ref)
        if operation is None or position < 0:
            return Walk(value, None, tuple(reversed(steps)), ref, position)
        if is_sum(operation):
            total = weighted_sum(recorder, operation, recorder.value(ref).shape, position, names)
            return Walk(value, total, tuple(reversed(steps)), ref, position)
        step, ref, position = _step(recorder, operation, ref, position)
        if step is not None:
            steps.append(step)


def _step(recorder: Recorder, operation: Operation, ref: Ref, position: int) -> tuple[Step | None, Ref, int]:
    """Return a step back, and the value before it."""
    name, source = operation.name, operation.inputs[0] if operation.inputs else ref
    if operation.output == 0 and name in BATCH_NORMS:
        return _batch_norm(recorder, operation, ref, position)
    if operation.output == 0 and name in ("native_layer_norm", "native_group_norm"):
        return _layer_norm(recorder, operation, ref, position)
    if name in ACTIVATIONS:
        return _activation(recorder, operation, ref, position)
    if name in ("_softmax", "softmax"):
        return _softmax(recorder, operation, ref, position)
    if name in ("add", "sub", "mul", "div"):
        return _binary(recorder, operation, ref, position)
    if name in ("masked_fill", "where", "nan_to_num") and _value(recorder, source, position) == _value(
        recorder, ref, position
    ):
        return None, source, position
    raise UnsupportedOperation(
        f"The value is computed by the operation {name}, which is not a sum, a norm or an activation function. Choose "
        "another layer."
    )


def _value(recorder: Recorder, ref: Ref, position: int) -> float:
    return float(recorder.value(ref).reshape(-1)[position])


def _batch_norm(recorder: Recorder, operation: Operation, ref: Ref, position: int) -> tuple[Step, Ref, int]:
    source = operation.inputs[0]
    channel = unravel(position, recorder.value(ref).shape)[1]
    weight, bias, mean, variance = (
        None if each is None else float(recorder.value(each)[channel]) for each in operation.args[1:5]
    )
    eps = operation.args[BATCH_NORMS[operation.name]]
    if mean is None or variance is None:
        raise UnsupportedOperation("The batch norm has no running statistics. Choose a layer before it.")
    numbers = {"mean": mean, "variance": variance, "eps": eps, "weight": 1.0 if weight is None else weight}
    return _norm("batch_norm", numbers | {"bias": bias or 0.0}, recorder, ref, source, position), source, position


def _layer_norm(recorder: Recorder, operation: Operation, ref: Ref, position: int) -> tuple[Step, Ref, int]:
    source = operation.inputs[0]
    x = to_cpu_float64(recorder.value(source))
    if operation.name == "native_layer_norm":
        _, shape, weight, bias, eps = operation.args
        size = torch.Size(shape).numel()
        group, at = x.reshape(-1, size)[position // size], position % size
    else:
        _, weight, bias, _, _, _, groups, eps = operation.args
        size = x[0].numel() // groups
        group = x.reshape(-1, size)[position // size]
        at = unravel(position, x.shape)[1]
    parts = [None if each is None else float(recorder.value(each).reshape(-1)[at]) for each in (weight, bias)]
    numbers = {"mean": float(group.mean()), "variance": float(group.var(correction=0)), "eps": eps}
    numbers |= {"weight": 1.0 if parts[0] is None else parts[0], "bias": parts[1] or 0.0}
    return _norm("layer_norm", numbers, recorder, ref, source, position), source, position


def _norm(kind: str, numbers: dict[str, float], recorder: Recorder, ref: Ref, source: Ref, position: int) -> Step:
    def apply(x: float) -> float:
        scaled = (x - numbers["mean"]) / (numbers["variance"] + numbers["eps"]) ** 0.5
        return scaled * numbers["weight"] + numbers["bias"]

    return Step(kind, "", _value(recorder, source, position), _value(recorder, ref, position), numbers, apply)


def _activation(recorder: Recorder, operation: Operation, ref: Ref, position: int) -> tuple[Step, Ref, int]:
    source = operation.inputs[0]

    def apply(x: float) -> float:
        return float(operation.run(lambda each: torch.tensor(x, dtype=torch.float64)))

    before, after = _value(recorder, source, position), _value(recorder, ref, position)
    limits = [each for each in operation.args[1:] if isinstance(each, (int, float))]
    numbers = dict(zip(("low", "high"), limits, strict=False)) if operation.name in ("hardtanh", "clamp") else {}
    return Step("activation", operation.name, before, after, numbers, apply), source, position


def _softmax(recorder: Recorder, operation: Operation, ref: Ref, position: int) -> tuple[Step, Ref, int]:
    source = operation.inputs[0]
    x = to_cpu_float64(recorder.value(source))
    dim = operation.args[1] % x.ndim
    at = unravel(position, x.shape)
    row = x[tuple(slice(None) if d == dim else i for d, i in enumerate(at))]
    own, maximum = at[dim], float(row.max())
    exponents = (row - maximum).exp()
    others = float(exponents.sum() - exponents[own])

    def apply(score: float) -> float:
        exponent = float(torch.tensor(score - maximum, dtype=torch.float64).exp())
        return exponent / (others + exponent)

    before, after = _value(recorder, source, position), _value(recorder, ref, position)
    return (
        Step("softmax", "", before, after, {"maximum": maximum, "sum": float(exponents.sum())}, apply),
        source,
        position,
    )


def _binary(recorder: Recorder, operation: Operation, ref: Ref, position: int) -> tuple[Step, Ref, int]:
    """Return a sum or a product of two values: the one that was computed last is followed, the other is a number."""
    first, second = operation.args[:2]
    shape = recorder.value(ref).shape
    operands = [_operand(recorder, each, shape, position) for each in (first, second)]
    alpha = float(operation.kwargs.get("alpha", 1))
    followed = _followed(recorder, operands, operation.name)
    other = operands[1 - followed].value
    own = operands[followed]
    assert own.ref is not None, "one operand is a tensor of the pass"
    kind, numbers, apply = _arithmetic(operation.name, alpha, followed, other)
    return Step(kind, "", own.value, _value(recorder, ref, position), numbers, apply), own.ref, own.position


@dataclass(frozen=True)
class _Operand:
    value: float
    ref: Ref | None
    position: int
    size: int


def _operand(recorder: Recorder, given: Any, shape: torch.Size, position: int) -> _Operand:
    if not isinstance(given, Ref):
        return _Operand(float(given), None, 0, 0)
    tensor = recorder.value(given)
    numbers: Tensor = torch.arange(tensor.numel()).reshape(tensor.shape).expand(shape)
    at = int(numbers.reshape(-1)[position])
    return _Operand(float(tensor.reshape(-1)[at]), given, at, tensor.numel())


def _followed(recorder: Recorder, operands: list[_Operand], name: str) -> int:
    """Return which operand is followed: the one that was computed; of two, the larger one, or the last computed."""
    made = [recorder.made_by(each.ref) if each.ref is not None else None for each in operands]
    known = [k for k in (0, 1) if made[k] is not None]
    if len(known) != 2:
        return known[0] if known else int(operands[0].ref is None)
    if operands[0].size != operands[1].size:
        return int(operands[1].size > operands[0].size)
    first, second = made
    assert first is not None and second is not None
    return int(second.number > first.number)


def _arithmetic(
    name: str, alpha: float, followed: int, other: float
) -> tuple[str, dict[str, float], Callable[[float], float]]:
    if name in ("add", "sub"):
        sign = -alpha if name == "sub" else alpha
        if followed == 0:
            return "add", {"added": sign * other}, lambda x: x + sign * other
        if sign == 1:
            return "add", {"added": other}, lambda x: x + other
        return "add", {"added": other, "factor": sign}, lambda x: other + sign * x
    if name == "mul":
        return "scale", {"factor": other}, lambda x: x * other
    if followed == 0:
        return "scale", {"factor": 1 / other}, lambda x: x / other
    return "scale", {"dividend": other}, lambda x: other / x
