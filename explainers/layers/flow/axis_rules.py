"""Rules for tensor operations: the axes of their outputs (axes.py), and how the outputs read the inputs.

Only operations that move, merge, split or contract axes have a rule. Any other operation, such as an activation or
normalization, keeps the axes of an input with the output's shape; without such an input, its axes are OTHER.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from explainers.layers.flow.axes import (
    OTHER,
    Axes,
    Axis,
    are_apart,
    concatenate_axes,
    lost_axis,
    reshape_axes,
    slice_axis,
    why_lost,
)
from explainers.layers.flow.operation import Operation, Reads, Result, Rule, alike, along, contracted, dims_of
from explainers.layers.flow.position_rules import POSITION_FAMILIES, POSITION_RULES
from explainers.layers.flow.spectra import filtered


def propagate_axes(operation: Operation) -> Result:
    """Return the axes of each output, and how the outputs read each input."""
    axes, reads = (_rule(operation.name) or _keep_axes)(operation)
    axes = [a if len(a) == o.ndim else _unknown(operation, o) for a, o in zip(axes, operation.outputs, strict=True)]
    return axes, reads


def has_rule(name: str) -> bool:
    """Return whether it is known how the operation moves entries."""
    return _rule(name) is not None or name.strip("_") in _ROW_WISE


def _rule(name: str) -> Rule | None:
    name = name.strip("_")
    view = name.removesuffix("_copy")  # such as `transpose_copy`, which returns a copy instead of a view
    family = (rule for start, rule in FAMILIES.items() if name.startswith(start) and not name.endswith("_backward"))
    return RULES.get(name) or RULES.get(view) or next(family, None)


def _keep_axes(operation: Operation) -> Result:
    """Keep the axes of an input of the output's shape: activations, normalizations, and operations without a rule."""
    result = []
    for output in operation.outputs:
        same = (
            axes
            for axes, tensor in zip(operation.axes, operation.inputs, strict=True)
            if axes and tensor.shape == output.shape
        )
        result.append(next(same, ()) or _unknown(operation, output))
    reads = Reads.SAME if operation.name.strip("_") in _ROW_WISE else Reads.ALL
    return result, [reads] * len(operation.inputs)


def _unknown(operation: Operation, output: Tensor) -> Axes:
    """Return axes of unknown meaning: without fixed positions if those of an input do not cover the image evenly.

    An output that combines all positions does not need any.
    """
    lost = ""
    for known, tensor in zip(operation.axes, operation.inputs, strict=True):
        sizes = zip(known or (), tensor.shape, strict=False)
        if output.numel() * math.prod(size for axis, size in sizes if along(axis) or axis.lost) > tensor.numel():
            uneven = any(f.positions and not f.positions.is_even for axis in known or () for f in axis.factors)
            lost = lost or why_lost(known or ()) or operation.name.strip("_") * uneven
    return (Axis(lost=lost),) * output.ndim


_ROW_WISE = frozenset(
    "native_layer_norm native_batch_norm native_batch_norm_legit_no_training cudnn_batch_norm batch_norm_with_update "
    "native_group_norm rms_norm "
    "fused_rms_norm softmax safe_softmax log_softmax clone contiguous to_copy alias detach lift_fresh relu gelu silu "
    "sigmoid tanh hardtanh hardswish hardsigmoid leaky_relu elu mish softplus prelu threshold native_dropout "
    "masked_fill quantize_per_tensor quantize_per_channel dequantize".split()
)


def _elementwise(operation: Operation) -> Result:
    """Broadcast operands: each output axis is taken from an operand that has its full size."""
    (output, *_), shape = operation.outputs, operation.outputs[0].shape
    axes = [OTHER] * output.ndim
    ranked = sorted(
        (sum(bool(axis.kinds) for axis in known), -i) for i, known in enumerate(operation.axes) if known is not None
    )
    for _, i in reversed(ranked):
        known, tensor = operation.axes[-i] or (), operation.inputs[-i]
        for k in range(1, tensor.ndim + 1):
            if k <= output.ndim and tensor.shape[-k] == shape[-k]:
                axes[-k] = known[-k] if axes[-k] == OTHER else _joined(axes[-k], known[-k])
    return alike(operation, tuple(axes))


def _multiply(operation: Operation) -> Result:
    (axes, *_), reads = _elementwise(operation)
    return alike(operation, filtered(operation, axes), reads[0])


def _copy(operation: Operation) -> Result:
    """`x.copy_(y)`: the values of y, whatever was at their place."""
    if operation.axes[1] is None:
        return _elementwise(operation)
    (axes, *_), _ = _elementwise(replace(operation, inputs=operation.inputs[1:2], axes=operation.axes[1:2]))
    if operation.axes[0] is not None:  # entries of the image move to positions of others
        axes = tuple(map(_joined, axes, operation.first))
    return alike(operation, axes)


def _joined(axis: Axis, other: Axis) -> Axis:
    """Return the axis of a result of two operands, without fixed positions if theirs differ."""
    return lost_axis(axis, "a sum of different positions") if are_apart(axis, other) else axis


def _view(operation: Operation) -> Result:
    return alike(operation, reshape_axes(operation.first, operation.shape, operation.outputs[0].shape))


def _permute(operation: Operation) -> Result:
    order = operation.argument(1, "dims")
    return alike(operation, tuple(operation.first[d] for d in order))


def _transpose(operation: Operation) -> Result:
    axes = list(operation.first)
    if len(axes) > 1:
        i, j = operation.argument(1, "dim0", 0), operation.argument(2, "dim1", 1)
        axes[i], axes[j] = axes[j], axes[i]
    return alike(operation, tuple(axes))


def _insert(operation: Operation) -> Result:
    """`unsqueeze` and `stack`: a new axis."""
    axes, dim = list(operation.first), operation.argument(1, "dim", 0)
    axes.insert(dim % (len(axes) + 1), OTHER)
    return alike(operation, tuple(axes))


def _squeeze(operation: Operation) -> Result:
    dims = dims_of(operation.argument(1, "dim"), len(operation.first))
    if len(operation.shape) < len(operation.first):  # in place, so the input has the new shape already
        return alike(operation, tuple(axis for i, axis in enumerate(operation.first) if i not in dims))
    sizes = enumerate(zip(operation.first, operation.shape, strict=True))
    return alike(operation, tuple(axis for i, (axis, size) in sizes if size != 1 or i not in dims))


def _select(operation: Operation) -> Result:
    """Select one entry of an axis (`select`), or each entry separately (`unbind`)."""
    unbind = operation.name == "unbind"
    dim = operation.argument(1, "dim", 0) % len(operation.first)
    axis, size = operation.first[dim], operation.shape[dim]
    axes = (*operation.first[:dim], *operation.first[dim + 1 :])
    if "T" in axis.kinds and size > 1:
        # Without its axis, the position of a single frame in time is unknown.
        axes = tuple(lost_axis(other, _ONE_FRAME) for other in axes)
    index = 0 if unbind else operation.argument(2, "index", 0) % size
    is_extra = not unbind and bool(axis.kinds) and not axis.before <= index < size - axis.after
    if is_extra:  # a class token has no position in time, whichever frame it is from
        axes = tuple(OTHER if other.lost == _ONE_FRAME else other for other in axes)
    return alike(operation, axes, Reads.EXTRA if is_extra else contracted([axis]))


def _slice(operation: Operation) -> Result:
    dim = operation.argument(1, "dim", 0) % len(operation.first)
    size, step = operation.shape[dim], operation.argument(4, "step", 1)
    start = operation.argument(2, "start") or 0
    start = min(max(start + size if start < 0 else start, 0), size)
    return _cut(operation, dim, [(start, operation.outputs[0].shape[dim], step)])


def _split(operation: Operation) -> Result:
    dim = operation.argument(2, "dim", 0) % len(operation.first)
    starts, counts = 0, []
    for output in operation.outputs:
        counts.append((starts, output.shape[dim], 1))
        starts += output.shape[dim]
    return _cut(operation, dim, counts)


def _cut(operation: Operation, dim: int, ranges: Sequence[tuple[int, int, int]]) -> Result:
    """Cut ranges (start, count, step) from an axis, one per output; `reads` has one entry per output."""
    axis, size = operation.first[dim], operation.shape[dim]
    axes, reads = [], []
    for start, count, step in ranges:
        part = slice_axis(axis, size, start, count, step)
        if "T" in axis.kinds and count == step == 1 < size:
            part = lost_axis(part, _ONE_FRAME)
        axes.append((*operation.first[:dim], part, *operation.first[dim + 1 :]))
        is_extra = bool(axis.kinds) and (start + count <= axis.before or start >= size - axis.after)
        reads.append(Reads.EXTRA if is_extra else Reads.SAME)
    return axes, reads


def _cat(operation: Operation) -> Result:
    dim = operation.argument(1, "dim", 0) % operation.outputs[0].ndim
    parts = [
        (axes or (OTHER,) * tensor.ndim, tensor.shape[dim])
        for axes, tensor in zip(operation.axes, operation.inputs, strict=True)
        if tensor.ndim == operation.outputs[0].ndim
    ]
    axes = list(max((part for part, _ in parts), key=lambda part: sum(bool(axis.kinds) for axis in part)))
    for part, _ in parts:
        axes = [axis if d == dim else _joined(axis, own) for d, (axis, own) in enumerate(zip(axes, part, strict=True))]
    axes[dim] = concatenate_axes([(part[dim], size) for part, size in parts])
    return alike(operation, tuple(axes))


def _expand(operation: Operation) -> Result:
    """Handle `expand` and `repeat`: an axis of a new size contains copies of one entry, or of all."""
    output, known = operation.outputs[0], operation.first
    axes = [OTHER] * output.ndim
    for k in range(1, len(known) + 1):
        if operation.shape[-k] == output.shape[-k]:
            axes[-k] = known[-k]
    return alike(operation, tuple(axes))


def _reduce(operation: Operation) -> Result:
    if len(operation.inputs) > 1:
        return _elementwise(operation)  # elementwise maximum or minimum of two tensors
    dims = dims_of(operation.argument(_DIM_AT.get(operation.name, 1), "dim"), len(operation.first))
    axes = operation.first
    kept = tuple(axis for i, axis in enumerate(axes) if i not in dims)
    inside = tuple(OTHER if i in dims else axis for i, axis in enumerate(axes))
    reads = contracted([axes[i] for i in dims])
    return [inside if o.ndim == len(axes) else kept for o in operation.outputs], [reads] * len(operation.inputs)


_DIM_AT = {"linalg_vector_norm": 2, "norm": 2}


def _matmul(operation: Operation) -> Result:
    """`mm`, `bmm`, `addmm`, `baddbmm`: rows from the first factor, columns from the second."""
    a, b = len(operation.inputs) - 2, len(operation.inputs) - 1
    first, second = (operation.axes[i] or (OTHER,) * operation.inputs[i].ndim for i in (a, b))
    if operation.outputs[0].ndim == 3:
        batch = first[0] if first[0].kinds else second[0]
        axes: Axes = (batch, first[1], second[2])
    else:
        axes = (first[0], second[-1])
    # A matrix along rows or columns, such as a cosine transform, gives them a new order; a linear layer after a
    # flattening, whose rows are only the images, does not have any.
    if axes[-1] == OTHER and _is_side(first[-1]) and (len(axes) == 3 or len(first[0].factors) > 1):
        axes = (*axes[:-1], Axis(lost=_MATRIX))
    elif axes[-2] == OTHER and _is_side(second[-2]) and along(second[-1]):
        axes = (*axes[:-2], Axis(lost=_MATRIX), axes[-1])
    reads = [Reads.SAME] * len(operation.inputs)
    reads[a] = contracted(first[-1:])
    # The rows of attention scores are queries; every row reads all keys, the columns.
    reads[b] = max(contracted(second[-2:-1]), contracted(second[-1:]) if along(first[-2]) else Reads.SAME)
    return [axes], reads


_MATRIX = "a matrix product along height or width"


def _is_side(axis: Axis) -> bool:
    """Return whether the axis is only the image's height or width."""
    return len(axis.factors) == 1 and along(axis)


def _attention(operation: Operation) -> Result:
    """softmax(q kᵀ) v has the positions of the queries and the channels of the values."""
    query = operation.first
    value = operation.axes[2] or (OTHER,) * operation.inputs[2].ndim
    axes = (*query[:-1], value[-1])
    reads = [Reads.SAME, *[Reads.ALL] * (len(operation.inputs) - 1)]
    return [axes if o.ndim == len(axes) else (OTHER,) * o.ndim for o in operation.outputs], reads


def _recurrent(operation: Operation) -> Result:
    """Recurrent layers keep the sequence and batch axes, and replace the last axis."""
    results = []
    for output in operation.outputs:
        same = output.ndim == len(operation.first) and output.shape[:2] == operation.shape[:2]
        results.append((*operation.first[:2], OTHER) if same else (OTHER,) * output.ndim)
    return results, [Reads.ALL] * len(operation.inputs)


def _last(operation: Operation) -> Result:
    """Linear layers as one operation, such as quantized ones, and `view_as_real`: the last axis has new entries."""
    return alike(operation, (*operation.first[: operation.outputs[0].ndim - 1], OTHER))


def _as_strided(operation: Operation) -> Result:
    source, output = operation.inputs[0], operation.outputs[0]
    strides = (source.stride(), source.storage_offset()) == (output.stride(), output.storage_offset())
    same = source.shape == output.shape and strides
    return alike(operation, operation.first if same else _unknown(operation, output))


def _diagonal(operation: Operation) -> Result:
    dims = {operation.argument(k, f"dim{k - 1}", k - 2) % len(operation.first) for k in (2, 3)}
    kept = (axis for d, axis in enumerate(operation.first) if d not in dims)
    is_lost = any(along(operation.first[d]) for d in dims)
    return alike(operation, (*kept, Axis(lost=operation.name * is_lost)))


_ELEMENTWISE = (
    "add sub rsub mul div pow addcmul addcdiv lerp where maximum minimum fmax fmin eq ne lt le gt ge logical_and "
    "logical_or logical_not bitwise_and atan2 remainder fmod clamp clamp_min clamp_max exp expm1 log log1p sqrt rsqrt "
    "reciprocal sin cos neg abs sign erf square round floor ceil isnan hypot fill zero"
)
_REDUCED = (
    "mean sum amax amin max min var std var_mean std_mean logsumexp linalg_vector_norm norm prod argmax argmin any"
)


def lose_time(output: Axes, inputs: Sequence[Axes | None], frames: int) -> Axes:
    """Return an output's axes, without fixed positions if it combines a part of the video's frames to one cell.

    With more than one cell, their positions say which frames they cover.
    """
    is_one = max((factor.steps for axis in output for factor in axis.factors if factor.kind == "T"), default=1) == 1
    if not is_one or not any(_covers_part(axis, frames) for axes in inputs if axes is not None for axis in axes):
        return output
    return tuple(lost_axis(axis, _SOME_FRAMES) for axis in output)


def _covers_part(axis: Axis, frames: int) -> bool:
    """Return whether the axis runs over less than three quarters of the frames, after a crop in time."""
    known = [factor.positions for factor in axis.factors if factor.kind == "T" and factor.positions is not None]
    return any(each.moved and abs(each.cell) * len(each.at) < 0.75 * frames for each in known)


_SOME_FRAMES = "a selection of some frames"
_ONE_FRAME = "a selection of single frames"

PARTS = frozenset({"split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "split_copy"})
"""Operations whose outputs are different parts of one input, and may read it differently."""

RULES: dict[str, Rule] = dict.fromkeys(_ELEMENTWISE.split(), _elementwise) | POSITION_RULES
RULES |= dict.fromkeys(_REDUCED.split(), _reduce) | {"copy": _copy, "mul": _multiply}
RULES |= dict.fromkeys(("view", "unsafe_view", "reshape", "reshape_alias", "flatten"), _view)
RULES |= {"permute": _permute, "transpose": _transpose, "t": _transpose, "squeeze": _squeeze}
RULES |= dict.fromkeys(("unsqueeze", "stack"), _insert) | dict.fromkeys(("expand", "repeat"), _expand)
RULES |= dict.fromkeys(("select", "unbind"), _select) | {"slice": _slice, "narrow": _slice, "cat": _cat}
RULES |= dict.fromkeys(PARTS, _split) | dict.fromkeys(("linear", "view_as_real"), _last)
RULES |= {"as_strided": _as_strided, "diagonal": _diagonal}
RULES |= dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _matmul)
RULES |= dict.fromkeys(("mkldnn_rnn_layer", "lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent)
FAMILIES: dict[str, Rule] = POSITION_FAMILIES | {"scaled_dot_product": _attention}
"""Rules of all operations whose names start alike."""
