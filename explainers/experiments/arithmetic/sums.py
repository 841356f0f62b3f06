"""The operations of a trace: sums of products, and the steps between a sum and a value.

Sums are convolutions, matrix products and means; steps are norms, activation functions, scaling, additions, softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from explainers.dtypes import to_cpu_float64
from explainers.errors import UnsupportedOperation
from explainers.experiments.arithmetic.recording import OUTSIDE, Operation, Recorder, Ref, follow, unravel


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """A value as a sum of products: `products` = `inputs` × `weights`, plus `bias`, all float64 on the CPU.

    `kind` is "convolution", "linear", "product" (of two values that depend on the image) or "mean". A convolution has a
    patch [C, kh, kw] and a kernel of this shape, all others [k]. `name` is the layer with these weights, or empty.
    `rows` and `columns` are those of the patch in the input, also where they are outside, and `inside` is False at
    padding, whose input is 0. `channels` are the input channels of the patch.
    """

    kind: str
    name: str
    inputs: Tensor
    weights: Tensor
    bias: float
    inside: Tensor
    channels: range | None = None
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    from_image: bool = False
    """Whether the inputs are values of the image."""
    _sources: tuple[tuple[Ref, Tensor], ...] = field(default=(), repr=False)
    """Where the inputs (and, for a product, the weights) are, and their flat positions there."""

    @property
    def products(self) -> Tensor:
        """Each input times its weight, in the shape of the patch."""
        return self.inputs * self.weights

    @property
    def total(self) -> float:
        """The sum of the products, and the bias."""
        return float(self.products.sum()) + self.bias

    def strongest(self, count: int = 10) -> list[tuple[int, ...]]:
        """Return the positions in the patch of the products with the largest magnitude, largest first."""
        order = self.products.flatten().abs().argsort(descending=True, stable=True)[:count]
        return [unravel(position, tuple(self.products.shape)) for position in order.tolist()]


def _convolution(recorder: Recorder, operation: Operation, at: tuple[int, ...]) -> WeightedSum:
    source, weight, bias, stride, padding, dilation, transposed, _, groups = _arguments(operation, 9)
    x, w = recorder.value(source), recorder.value(weight)
    name = recorder.names.get(w.data_ptr(), "")
    if transposed:
        raise UnsupportedOperation(
            f"Layer {name!r} is a transposed convolution, whose products cannot be listed. "
            "Choose a layer of another convolution."
        )
    image, out, cell = at[0], at[1], at[2:]
    count, sides = w.shape[1], w.shape[2:]
    first = out // (w.shape[0] // groups) * count
    lines = [[cell[d] * stride[d] - padding[d] + k * dilation[d] for k in range(sides[d])] for d in range(len(sides))]
    index = torch.meshgrid(*map(torch.tensor, lines), indexing="ij")
    inside = torch.stack([(along >= 0) & (along < size) for along, size in zip(index, x.shape[2:], strict=True)]).all(0)
    channels = torch.arange(first, first + count).view(-1, *[1] * len(sides))
    positions = torch.where(inside, _flat((image, channels, *index), x.shape), OUTSIDE)
    inputs, moved = _read(recorder, source, positions)
    offset = _offsets(recorder, source, moved[0])
    last = lines if len(sides) == 2 else ([], [])
    rows, columns = (tuple(line + shift for line in each) for each, shift in zip(last, offset, strict=True))
    added = 0.0 if bias is None else float(recorder.value(bias)[out])
    patch = range(first, first + count), rows, columns, recorder.made_by(moved[0]) is None
    weights = to_cpu_float64(w[out].detach())
    return WeightedSum("convolution", name, inputs, weights, added, moved[1] != OUTSIDE, *patch, (moved,))


def _offsets(recorder: Recorder, source: Ref, moved: Ref) -> tuple[int, int]:
    """Return the shift of rows and columns by a padding before the convolution: 0 unless it is a constant padding."""
    operation = recorder.made_by(source)
    if source == moved or operation is None or operation.name != "constant_pad_nd" or operation.inputs[0] != moved:
        return 0, 0
    pads = operation.args[1]
    return (-pads[2] if len(pads) > 2 else 0), -pads[0]


def _matrix(recorder: Recorder, operation: Operation, at: tuple[int, ...]) -> WeightedSum:
    """Return a row of the first factor times a column of the second one, or a row of a linear layer's weights."""
    if any(operation.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")):
        raise UnsupportedOperation("A matrix product with factors alpha, beta cannot be listed. Choose another layer.")
    is_linear = operation.name == "linear"
    if is_linear:
        left, right, *biases = _arguments(operation, 3)
    else:
        *biases, left, right = [each for each in operation.args if isinstance(each, Ref)]
    a, b = recorder.value(left), recorder.value(right)
    k = torch.arange(a.shape[-1])
    inputs, first = _read(recorder, left, _flat((*at[:-1], k), a.shape))
    weights, second = _read(recorder, right, _flat((at[-1], k) if is_linear else (*at[:-2], k, at[-1]), b.shape))
    bias = 0.0
    if biases and biases[0] is not None:
        added = recorder.value(biases[0])
        bias = float(added.reshape(-1)[at[-1] % added.numel()] if added.ndim < 2 else added[at])
    name = recorder.names.get(b.data_ptr(), "")
    kind, sources = ("linear", (first,)) if name or is_linear else ("product", (first, second))
    return WeightedSum(kind, name, inputs, weights, bias, first[1] != OUTSIDE, _sources=sources)


def _flat(index: Sequence[int | Tensor], shape: Sequence[int]) -> Tensor:
    """Return the flat positions of an index in a tensor of this shape."""
    flat = torch.zeros((), dtype=torch.long)
    for each, size in zip(index, shape, strict=True):
        flat = flat * size + each
    return flat


def _mean(recorder: Recorder, operation: Operation, at: tuple[int, ...]) -> WeightedSum:
    """Return the inputs of a linear operation without parameters that have a weight, from its derivative."""
    source = operation.inputs[0]
    with torch.enable_grad():
        x = to_cpu_float64(recorder.value(source)).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(operation.run(lambda ref: x)[at], x)
    positions = gradient.flatten().nonzero()[:, 0]
    inputs, moved = _read(recorder, source, positions)
    weights = gradient.flatten()[positions]
    return WeightedSum("mean", "", inputs, weights, 0.0, moved[1] != OUTSIDE, _sources=(moved,))


def _read(recorder: Recorder, ref: Ref, positions: Tensor) -> tuple[Tensor, tuple[Ref, Tensor]]:
    """Return the values at flat positions (0 outside), and the positions in the tensor from which they were moved."""
    values = to_cpu_float64(recorder.value(ref).detach().reshape(-1)[positions.clamp(min=0)])
    found, moved = follow(recorder, ref, positions.flatten())
    return torch.where(positions == OUTSIDE, 0.0, values), (found, moved.reshape(positions.shape))


def _arguments(operation: Operation, count: int) -> list[Any]:
    """Return the first arguments of an operation by position, missing ones as None."""
    names = [each.name for each in operation.function._schema.arguments][:count]
    given = dict(zip(names, operation.args, strict=False)) | operation.kwargs
    return [given.get(name) for name in names]


_SUMS: dict[str, Callable[..., WeightedSum]] = {"convolution": _convolution}
_SUMS |= dict.fromkeys(("linear", "mm", "addmm", "bmm", "baddbmm"), _matrix)
_SUMS |= dict.fromkeys(("mean", "avg_pool2d", "_adaptive_avg_pool2d", "upsample_bilinear2d", "sum"), _mean)
"""The operations that end a trace."""


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


Walk = tuple[float, WeightedSum | None, tuple[Step, ...]]
"""A value of the pass, the sum that it starts from (None: it comes from the image), and the steps after it."""


def walk(recorder: Recorder, ref: Ref, position: int) -> Walk:
    """Go back from a value, given by its flat position, to the next sum of products or to the image.

    Errors   UnsupportedOperation for an operation that is neither a sum nor a step, and a transposed convolution
    """
    value, total = _value(recorder, ref, position), None
    steps: list[Step] = []
    while True:
        ref, moved = follow(recorder, ref, torch.tensor([position]))
        position = int(moved)
        operation = recorder.made_by(ref)
        if operation is None or position < 0:
            break
        if operation.name in _SUMS:
            total = _SUMS[operation.name](recorder, operation, unravel(position, recorder.value(ref).shape))
            break
        after = _value(recorder, ref, position)
        found, ref, position = _before(recorder, operation, ref, position)
        if found is not None:
            kind, numbers, apply = found
            name = operation.name if kind == "activation" else ""
            steps.append(Step(kind, name, _value(recorder, ref, position), after, numbers, apply))
    return value, total, tuple(reversed(steps))


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


def _binary(recorder: Recorder, operation: Operation, shape: torch.Size, position: int) -> tuple[Found, Ref, int]:
    """Return a sum or a product of two values: one that was computed is followed, the other is a number."""
    given, index = operation.args[:2], unravel(position, shape)

    def order(k: int) -> tuple[int, int]:
        """Return the size and the number of the operation of a value that was computed: the largest is followed."""
        if not isinstance(given[k], Ref):
            return -1, 0
        made = recorder.made_by(given[k])
        return (0, 0) if made is None else (recorder.value(given[k]).numel(), made.number)

    def position_in(ref: Ref) -> int:
        sizes = recorder.value(ref).shape  # broadcast to the shape
        return int(_flat([i % size for i, size in zip(index[len(index) - len(sizes) :], sizes, strict=True)], sizes))

    followed = max(0, 1, key=order)
    own, other = given[followed], given[1 - followed]
    known = _value(recorder, other, position_in(other)) if isinstance(other, Ref) else float(other)

    def apply(x: float) -> float:
        return float(operation.run(lambda each: torch.tensor(x if each == own else known, dtype=torch.float64)))

    if operation.name in ("add", "sub"):
        sign = float(operation.kwargs.get("alpha", 1)) * (-1 if operation.name == "sub" else 1)
        numbers = {"added": known if followed else sign * known} | ({"factor": sign} if followed and sign != 1 else {})
        return ("add", numbers, apply), own, position_in(own)
    numbers = {"factor": known}
    if operation.name == "div":
        numbers = {"dividend": known} if followed else {"factor": 1 / known}
    return ("scale", numbers, apply), own, position_in(own)
