"""Operations that compute a value as a sum of products: convolutions, matrix products, means."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from explainers.errors import UnsupportedOperation
from explainers.experiments.arithmetic.recording import OUTSIDE, Operation, Recorder, Ref, follow, unravel
from explainers.network.dtypes import to_cpu_float64

MEANS = frozenset("mean avg_pool2d _adaptive_avg_pool2d upsample_bilinear2d sum".split())
"""Linear operations without parameters."""


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


def is_sum(operation: Operation) -> bool:
    """Return whether an operation ends a trace."""
    return operation.name in _SUMS or operation.name in MEANS


def weighted_sum(
    recorder: Recorder, operation: Operation, shape: torch.Size, position: int, names: dict[int, str]
) -> WeightedSum:
    """Return the sum of a value at a flat position of the operation's output of this shape.

    `names` are the names of layers by the address of their weights.

    Errors   UnsupportedOperation for a transposed convolution
    """
    return _SUMS.get(operation.name, _mean)(recorder, operation, unravel(position, shape), names)


def _convolution(recorder: Recorder, operation: Operation, at: tuple[int, ...], names: dict[int, str]) -> WeightedSum:
    source, weight, bias, stride, padding, dilation, transposed, _, groups = _arguments(operation, 9)
    x, w = recorder.value(source), recorder.value(weight)
    if transposed:
        raise UnsupportedOperation(
            f"Layer {names.get(w.data_ptr(), '')!r} is a transposed convolution, whose products cannot be listed. "
            "Choose a layer of another convolution."
        )
    image, out, cell = at[0], at[1], at[2:]
    count, sides = w.shape[1], w.shape[2:]
    first = out // (w.shape[0] // groups) * count
    sizes = x.shape[2:]
    lines = [[cell[d] * stride[d] - padding[d] + k * dilation[d] for k in range(sides[d])] for d in range(len(sides))]
    flat, inside = torch.zeros((), dtype=torch.long), torch.ones((), dtype=torch.bool)
    for along, size in zip(map(torch.tensor, lines), sizes, strict=True):
        flat = flat[..., None] * size + along
        inside = inside[..., None] & (along >= 0) & (along < size)
    channels = (image * x.shape[1] + first + torch.arange(count)).view(-1, *[1] * len(sides))
    positions = torch.where(inside, channels * math.prod(sizes) + flat, OUTSIDE)
    inputs, moved = _read(recorder, source, positions)
    offset = _offsets(recorder, source, moved[0], sizes)
    last = lines if len(sides) == 2 else ([], [])
    rows, columns = (tuple(line + shift for line in each) for each, shift in zip(last, offset, strict=True))
    name, added = names.get(w.data_ptr(), ""), 0.0 if bias is None else float(recorder.value(bias)[out])
    patch = range(first, first + count), rows, columns, recorder.made_by(moved[0]) is None
    weights = to_cpu_float64(w[out])
    return WeightedSum("convolution", name, inputs, weights, added, moved[1] != OUTSIDE, *patch, (moved,))


def _offsets(recorder: Recorder, source: Ref, moved: Ref, sizes: Any) -> tuple[int, int]:
    """Return the shift of rows and columns by a padding before the convolution: 0 unless it is a constant padding."""
    operation = recorder.made_by(source)
    if source == moved or operation is None or operation.name != "constant_pad_nd" or operation.inputs[0] != moved:
        return 0, 0
    pads = operation.args[1]
    return (-pads[2] if len(pads) > 2 else 0), -pads[0]


def _matrix(recorder: Recorder, operation: Operation, at: tuple[int, ...], names: dict[int, str]) -> WeightedSum:
    """Return a row of the first factor times a column of the second one."""
    given = [each for each in operation.args if isinstance(each, Ref)]
    bias_ref = None
    if operation.name in ("addmm", "baddbmm"):
        bias_ref, given = given[0], given[1:]
    left, right = given[:2]
    a, b = recorder.value(left), recorder.value(right)
    row, column = at[:-1], at[-1]
    k = torch.arange(a.shape[-1])
    if operation.name in ("bmm", "baddbmm"):
        left_at = (row[0] * a.shape[1] + row[1]) * a.shape[2] + k
        right_at = (row[0] * b.shape[1] + k) * b.shape[2] + column
    else:
        left_at, right_at = row[0] * a.shape[1] + k, k * b.shape[1] + column
    if any(operation.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")):
        raise UnsupportedOperation("A matrix product with factors alpha, beta cannot be listed. Choose another layer.")
    inputs, first = _read(recorder, left, left_at)
    weights, second = _read(recorder, right, right_at)
    added = torch.zeros(()) if bias_ref is None else recorder.value(bias_ref)
    bias = float(added.expand(b.shape[-1])[column] if added.ndim < 2 else added[at])
    name = names.get(b.data_ptr(), "")
    kind, sources = ("linear", (first,)) if name else ("product", (first, second))
    return WeightedSum(kind, name, inputs, weights, bias, first[1] != OUTSIDE, _sources=sources)


def _linear(recorder: Recorder, operation: Operation, at: tuple[int, ...], names: dict[int, str]) -> WeightedSum:
    source, weight, bias = _arguments(operation, 3)
    x, w = recorder.value(source), recorder.value(weight)
    row = 0
    for i, size in zip(at[:-1], x.shape[:-1], strict=True):
        row = row * size + i
    inputs, moved = _read(recorder, source, row * x.shape[-1] + torch.arange(x.shape[-1]))
    added = 0.0 if bias is None else float(recorder.value(bias)[at[-1]])
    name = names.get(w.data_ptr(), "")
    return WeightedSum("linear", name, inputs, to_cpu_float64(w[at[-1]]), added, moved[1] != OUTSIDE, _sources=(moved,))


def _mean(recorder: Recorder, operation: Operation, at: tuple[int, ...], names: dict[int, str]) -> WeightedSum:
    """Return the inputs of a linear operation with a weight, from its derivative."""
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
    values = to_cpu_float64(recorder.value(ref)).reshape(-1)[positions.clamp(min=0).flatten()].reshape(positions.shape)
    found, moved, _ = follow(recorder, ref, positions.flatten())
    return torch.where(positions == OUTSIDE, 0.0, values), (found, moved.reshape(positions.shape))


def _arguments(operation: Operation, count: int) -> list[Any]:
    """Return the first arguments of an operation by position, missing ones as None."""
    names = [each.name for each in operation.function._schema.arguments][:count]
    given = dict(zip(names, operation.args, strict=False)) | operation.kwargs
    return [given.get(name) for name in names]


_SUMS: dict[str, Callable[..., WeightedSum]] = {"convolution": _convolution, "linear": _linear}
_SUMS |= dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), _matrix)
