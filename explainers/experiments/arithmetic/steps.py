"""The operations between a sum of products and a value: norms, activation functions, scaling, sums, softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from explainers.errors import UnsupportedOperation
from explainers.experiments.arithmetic.recording import Operation, Recorder, Ref, follow, unravel
from explainers.experiments.arithmetic.sums import WeightedSum, is_sum, weighted_sum
from explainers.network.dtypes import to_cpu_float64

ACTIVATIONS = frozenset(
    "relu hardtanh silu gelu hardswish hardsigmoid sigmoid tanh leaky_relu elu celu selu mish clamp clamp_min "
    "clamp_max threshold softplus relu6 abs exp sqrt neg pow".split()
)
BATCH_NORMS = {"native_batch_norm": 7, "_native_batch_norm_legit_no_training": 6, "cudnn_batch_norm": 7}
"""Position of eps among the arguments."""
Apply = Callable[[float], float]
Found = tuple[str, dict[str, float], Apply]
"""The kind, the numbers and the function of a `Step`."""


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
    apply: Apply = field(repr=False, compare=False)
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
    value, total = _value(recorder, ref, position), None
    steps: list[Step] = []
    while True:
        ref, moved, _ = follow(recorder, ref, torch.tensor([position]))
        position = int(moved)
        operation = recorder.made_by(ref)
        if operation is None or position < 0:
            break
        if is_sum(operation):
            total = weighted_sum(recorder, operation, recorder.value(ref).shape, position, names)
            break
        after = _value(recorder, ref, position)
        found, ref, position = _before(recorder, operation, ref, position)
        if found is not None:
            kind, numbers, apply = found
            name = operation.name if kind == "activation" else ""
            steps.append(Step(kind, name, _value(recorder, ref, position), after, numbers, apply))
    return Walk(value, total, tuple(reversed(steps)), ref, position)


def _before(recorder: Recorder, operation: Operation, ref: Ref, position: int) -> tuple[Found | None, Ref, int]:
    """Return a step back (None if the value did not change), and the value before it."""
    name, source = operation.name, operation.inputs[0] if operation.inputs else ref
    if name in ("add", "sub", "mul", "div"):
        return _binary(recorder, operation, recorder.value(ref).shape, position)
    if name in _STEPS and operation.output == 0:
        return _STEPS[name](recorder, operation, position), source, position
    chooses = name in ("masked_fill", "where", "nan_to_num")
    if chooses and _value(recorder, source, position) == _value(recorder, ref, position):
        return None, source, position
    raise UnsupportedOperation(
        f"The value is computed by the operation {name}, which is not a sum, a norm or an activation function. Choose "
        "another layer."
    )


def _value(recorder: Recorder, ref: Ref, position: int) -> float:
    return float(recorder.value(ref).reshape(-1)[position])


def _batch_norm(recorder: Recorder, operation: Operation, position: int) -> Found:
    channel = unravel(position, recorder.value(operation.inputs[0]).shape)[1]
    parameters = [None if each is None else float(recorder.value(each)[channel]) for each in operation.args[1:5]]
    weight, bias, mean, variance = parameters
    if mean is None or variance is None:
        raise UnsupportedOperation("The batch norm has no running statistics. Choose a layer before it.")
    return _norm("batch_norm", mean, variance, operation.args[BATCH_NORMS[operation.name]], weight, bias)


def _layer_norm(recorder: Recorder, operation: Operation, position: int) -> Found:
    x = to_cpu_float64(recorder.value(operation.inputs[0]))
    if operation.name == "native_layer_norm":
        _, shape, *parameters, eps = operation.args
        size = torch.Size(shape).numel()
        at = position % size
    else:
        _, *parameters, _, _, _, groups, eps = operation.args
        size, at = x[0].numel() // groups, unravel(position, x.shape)[1]
    group = x.reshape(-1, size)[position // size]
    weight, bias = (None if each is None else _value(recorder, each, at) for each in parameters)
    return _norm("layer_norm", float(group.mean()), float(group.var(correction=0)), eps, weight, bias)


def _norm(kind: str, mean: float, variance: float, eps: float, weight: float | None, bias: float | None) -> Found:
    factor, shift = 1.0 if weight is None else weight, bias or 0.0
    numbers = {"mean": mean, "variance": variance, "eps": eps, "weight": factor, "bias": shift}
    return kind, numbers, lambda x: (x - mean) / (variance + eps) ** 0.5 * factor + shift


def _activation(recorder: Recorder, operation: Operation, position: int) -> Found:
    def apply(x: float) -> float:
        return float(operation.run(lambda each: torch.tensor(x, dtype=torch.float64)))

    limits = [each for each in operation.args[1:] if isinstance(each, (int, float))]
    numbers = dict(zip(("low", "high"), limits, strict=False)) if operation.name in ("hardtanh", "clamp") else {}
    return "activation", numbers, apply


def _softmax(recorder: Recorder, operation: Operation, position: int) -> Found:
    x = to_cpu_float64(recorder.value(operation.inputs[0]))
    dim = operation.args[1] % x.ndim
    at = unravel(position, x.shape)
    row = x[tuple(slice(None) if d == dim else i for d, i in enumerate(at))]
    maximum = float(row.max())
    exponents = (row - maximum).exp()
    others = float(exponents.sum() - exponents[at[dim]])

    def apply(score: float) -> float:
        exponent = float(torch.tensor(score - maximum, dtype=torch.float64).exp())
        return exponent / (others + exponent)

    return "softmax", {"maximum": maximum, "sum": float(exponents.sum())}, apply


_STEPS: dict[str, Callable[[Recorder, Operation, int], Found]] = {
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
    **dict.fromkeys(("native_layer_norm", "native_group_norm"), _layer_norm),
    **dict.fromkeys(ACTIVATIONS, _activation),
    **dict.fromkeys(("_softmax", "softmax"), _softmax),
}


class _Operand(NamedTuple):
    value: float
    ref: Ref | None = None
    position: int = 0
    order: tuple[bool, int, int] = (False, -1, 0)
    """Whether it was computed in the pass, then its size and the number of its operation: the largest is followed."""


def _binary(recorder: Recorder, operation: Operation, shape: torch.Size, position: int) -> tuple[Found, Ref, int]:
    """Return a sum or a product of two values: one that was computed is followed, the other is a number."""
    operands = [_operand(recorder, each, shape, position) for each in operation.args[:2]]
    followed = int(operands[1].order > operands[0].order)
    own, other = operands[followed], operands[1 - followed].value
    assert own.ref is not None, "one operand is a tensor of the pass"
    sign = float(operation.kwargs.get("alpha", 1)) * (-1 if operation.name == "sub" else 1)
    return _arithmetic(operation.name, sign, followed, other), own.ref, own.position


def _operand(recorder: Recorder, given: Any, shape: torch.Size, position: int) -> _Operand:
    if not isinstance(given, Ref):
        return _Operand(float(given))
    tensor, made = recorder.value(given), recorder.made_by(given)
    numbers: Tensor = torch.arange(tensor.numel()).reshape(tensor.shape).expand(shape)
    at = int(numbers.reshape(-1)[position])
    order = (False, 0, 0) if made is None else (True, tensor.numel(), made.number)
    return _Operand(_value(recorder, given, at), given, at, order)


def _arithmetic(name: str, sign: float, followed: int, other: float) -> Found:
    if name in ("add", "sub"):
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
