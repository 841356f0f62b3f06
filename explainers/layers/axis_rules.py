"""Rules for tensor operations: the axes of their outputs (axes.py), and how the outputs read the inputs.

Only operations that move, merge, split or contract axes have a rule. Any other operation, such as an activation or
normalization, keeps the axes of an input with the output's shape; without such an input, its axes are OTHER.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from torch import Tensor

from explainers.layers.axes import (
    OTHER,
    Axes,
    Axis,
    Factor,
    concatenate_axes,
    full_axis,
    reshape_axes,
    resize_axis,
    slice_axis,
)


class Reads(IntEnum):
    """How an output depends on the positions of an input."""

    EXTRA = 1
    """Only on extra entries: the class token is selected."""
    SAME = 2
    """Each output position on the same input position, or its neighborhood."""
    ALL = 3
    """Each part of the output on all input positions: pooling, keys and values of an attention."""


@dataclass(frozen=True)
class Operation:
    """One call of an operation; `axes` are those of `inputs`, None if an input does not depend on the image."""

    name: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    inputs: list[Tensor]
    axes: list[Axes | None]
    outputs: list[Tensor]

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """Return an argument by its position or name."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)

    @property
    def first(self) -> Axes:
        """The axes of the first input."""
        return self.axes[0] or (OTHER,) * self.inputs[0].ndim

    @property
    def shape(self) -> Sequence[int]:
        """The shape of the first input."""
        return self.inputs[0].shape


Result = tuple[list[Axes], list[Reads]]
Rule = Callable[[Operation], Result]


def propagate_axes(operation: Operation) -> Result:
    """Return the axes of each output, and how the outputs read each input."""
    name = operation.name.rstrip("_") if operation.name != "_" else operation.name
    rule = RULES.get(name, RULES.get(name.lstrip("_")))
    axes, reads = (rule or _keep_axes)(operation)
    axes = [a if len(a) == o.ndim else (OTHER,) * o.ndim for a, o in zip(axes, operation.outputs, strict=True)]
    return axes, reads


def _alike(operation: Operation, axes: Axes, reads: Reads = Reads.SAME) -> Result:
    """Return the same axes for every output, and the same dependence on every input."""
    return [axes] * len(operation.outputs), [reads] * len(operation.inputs)


def _keep_axes(operation: Operation) -> Result:
    """Keep the axes of an input of the output's shape: activations, normalizations, and operations without a rule."""
    result = []
    for output in operation.outputs:
        same = (
            axes
            for axes, tensor in zip(operation.axes, operation.inputs, strict=True)
            if axes and tensor.shape == output.shape
        )
        result.append(next(same, (OTHER,) * output.ndim))
    reads = Reads.SAME if operation.name.rstrip("_").lstrip("_") in _ROW_WISE else Reads.ALL
    return result, [reads] * len(operation.inputs)


_ROW_WISE = frozenset(
    "native_layer_norm native_batch_norm native_batch_norm_legit_no_training cudnn_batch_norm batch_norm_with_update "
    "native_group_norm rms_norm "
    "fused_rms_norm softmax safe_softmax log_softmax clone contiguous to_copy alias detach lift_fresh relu gelu silu "
    "sigmoid tanh hardtanh hardswish hardsigmoid leaky_relu elu mish softplus prelu threshold native_dropout "
    "masked_fill flip quantize_per_tensor quantize_per_channel dequantize".split()
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
            if k <= output.ndim and axes[-k] == OTHER and tensor.shape[-k] == shape[-k]:
                axes[-k] = known[-k]
    return _alike(operation, tuple(axes))


def _view(operation: Operation) -> Result:
    return _alike(operation, reshape_axes(operation.first, operation.shape, operation.outputs[0].shape))


def _permute(operation: Operation) -> Result:
    order = operation.argument(1, "dims")
    return _alike(operation, tuple(operation.first[d] for d in order))


def _transpose(operation: Operation) -> Result:
    axes = list(operation.first)
    if len(axes) > 1:
        i, j = operation.argument(1, "dim0", 0), operation.argument(2, "dim1", 1)
        axes[i], axes[j] = axes[j], axes[i]
    return _alike(operation, tuple(axes))


def _unsqueeze(operation: Operation) -> Result:
    axes, dim = list(operation.first), operation.argument(1, "dim")
    axes.insert(dim % (len(axes) + 1), OTHER)
    return _alike(operation, tuple(axes))


def _squeeze(operation: Operation) -> Result:
    dims = _dims(operation.argument(1, "dim"), len(operation.first))
    return _alike(
        operation,
        tuple(axis for i, axis in enumerate(operation.first) if not (i in dims and operation.shape[i] == 1)),
    )


def _dims(given: Any, count: int) -> set[int]:
    """Return dimensions as a set of nonnegative indices; None or an empty list means all."""
    if given is None or (isinstance(given, (list, tuple)) and not given):
        return set(range(count))
    return {d % count for d in (given if isinstance(given, (list, tuple)) else (given,))} if count else set()


def _select(operation: Operation) -> Result:
    """Select one entry of an axis (`select`), or each entry separately (`unbind`)."""
    unbind = operation.name == "unbind"
    dim = operation.argument(1, "dim", 0) % len(operation.first)
    axis, size = operation.first[dim], operation.shape[dim]
    axes = (*operation.first[:dim], *operation.first[dim + 1 :])
    index = 0 if unbind else operation.argument(2, "index", 0) % size
    is_extra = not unbind and bool(axis.kinds) and not axis.before <= index < size - axis.after
    return _alike(operation, axes, Reads.EXTRA if is_extra else _contracted([axis]))


def _contracted(axes: Sequence[Axis]) -> Reads:
    """Return how an output without these axes reads them."""
    return Reads.ALL if any(axis.kinds & {"H", "W"} for axis in axes) else Reads.SAME


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
        axes.append((*operation.first[:dim], slice_axis(axis, size, start, count, step), *operation.first[dim + 1 :]))
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
    axes[dim] = concatenate_axes([(part[dim], size) for part, size in parts])
    return _alike(operation, tuple(axes))


def _stack(operation: Operation) -> Result:
    axes, dim = list(operation.first), operation.argument(1, "dim", 0)
    axes.insert(dim % (len(axes) + 1), OTHER)
    return _alike(operation, tuple(axes))


def _expand(operation: Operation) -> Result:
    """Handle `expand` and `repeat`: an axis of a new size contains copies of one entry, or of all."""
    output, known = operation.outputs[0], operation.first
    axes = [OTHER] * output.ndim
    for k in range(1, len(known) + 1):
        if operation.shape[-k] == output.shape[-k]:
            axes[-k] = known[-k]
    return _alike(operation, tuple(axes))


def _reduce(operation: Operation) -> Result:
    if len(operation.inputs) > 1:
        return _elementwise(operation)  # elementwise maximum or minimum of two tensors
    dims = _dims(operation.argument(_DIM_AT.get(operation.name, 1), "dim"), len(operation.first))
    axes = operation.first
    kept = tuple(axis for i, axis in enumerate(axes) if i not in dims)
    inside = tuple(OTHER if i in dims else axis for i, axis in enumerate(axes))
    reads = _contracted([axes[i] for i in dims])
    return [inside if o.ndim == len(axes) else kept for o in operation.outputs], [reads] * len(operation.inputs)


_DIM_AT = {"linalg_vector_norm": 2, "norm": 2}


def _resize_axes(operation: Operation) -> Result:
    """Convolutions, pooling, resizing, padding: an axis of a new size keeps its kind."""
    results = []
    for output in operation.outputs:
        axes = [
            axis if old == new else resize_axis(axis, new)
            for axis, old, new in zip(operation.first, operation.shape, output.shape, strict=False)
        ]
        if operation.name in ("convolution", "mkldnn_convolution") and output.ndim > 1:
            axes[1] = OTHER
            if output.ndim == 4 and not any(axis.kinds for axis in axes):
                # The input axes are unknown, but the last axes of a 2-d convolution are spatial by definition.
                axes[2:] = full_axis("H", output.shape[2]), full_axis("W", output.shape[3])
        results.append(tuple(axes))
    return results, [Reads.SAME] * len(operation.inputs)


def _project(operation: Operation) -> Result:
    """Linear layers as one operation, such as quantized ones: the last axis contains new channels."""
    return _alike(operation, (*operation.first[:-1], OTHER))


def _pad(operation: Operation) -> Result:
    """Zero padding: a few zeros belong to a convolution, more of them fill windows."""
    results, reads = _resize_axes(operation)
    much = [new > 1.2 * old for new, old in zip(operation.outputs[0].shape, operation.shape, strict=True)]
    axes = tuple(
        axis._replace(padded=axis.kinds) if pads else axis for axis, pads in zip(results[0], much, strict=True)
    )
    return [axes], reads


def _matmul(operation: Operation) -> Result:
    """`mm`, `bmm`, `addmm`, `baddbmm`: rows from the first factor, columns from the second."""
    a, b = len(operation.inputs) - 2, len(operation.inputs) - 1
    first, second = (operation.axes[i] or (OTHER,) * operation.inputs[i].ndim for i in (a, b))
    if operation.outputs[0].ndim == 3:
        batch = first[0] if first[0].kinds else second[0]
        axes: Axes = (batch, first[1], second[2])
    else:
        axes = (first[0], second[-1])
    reads = [Reads.SAME] * len(operation.inputs)
    reads[a] = _contracted(first[-1:])
    # The rows of attention scores are queries; every row reads all keys, the columns.
    reads[b] = max(_contracted(second[-2:-1]), _contracted(second[-1:]) if _along(first[-2]) else Reads.SAME)
    return [axes], reads


def _along(axis: Axis) -> bool:
    return bool(axis.kinds & {"H", "W"})


def _attention(operation: Operation) -> Result:
    """softmax(q kᵀ) v has the positions of the queries and the channels of the values."""
    query = operation.first
    value = operation.axes[2] or (OTHER,) * operation.inputs[2].ndim
    axes = (*query[:-1], value[-1])
    reads = [Reads.SAME, *[Reads.ALL] * (len(operation.inputs) - 1)]
    return [axes if o.ndim == len(axes) else (OTHER,) * o.ndim for o in operation.outputs], reads


def _unfold(operation: Operation) -> Result:
    """`im2col`: [N, C, H, W] to [N, C k, L], with L windows row by row."""
    sizes = []
    for i, size in enumerate(operation.shape[-2:]):
        kernel, dilation, padding, stride = (operation.args[k][i] for k in (1, 2, 3, 4))
        sizes.append((size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1)
    windows = Axis(tuple(Factor(*kind) for kind in zip("HW", sizes, strict=True)))
    along = all(_along(axis) for axis in operation.first[-2:])
    return _alike(operation, (*operation.first[:-3], OTHER, windows if along else OTHER))


def _fold(operation: Operation) -> Result:
    """`col2im`: [N, C k, L] back to [N, C, H, W]."""
    height, width = operation.outputs[0].shape[-2:]
    grid = (full_axis("H", height), full_axis("W", width)) if _along(operation.first[-1]) else (OTHER, OTHER)
    return _alike(operation, (*operation.first[:-2], OTHER, *grid))


def _windows(operation: Operation) -> Result:
    """`Tensor.unfold`: windows along an axis, and the entries of each in a new last axis."""
    axes, dim = list(operation.first), operation.argument(1, "dimension") % len(operation.first)
    axes[dim] = resize_axis(axes[dim], operation.outputs[0].shape[dim])
    return _alike(operation, (*axes, OTHER))


def _recurrent(operation: Operation) -> Result:
    """Recurrent layers keep the sequence and batch axes, and replace the last axis."""
    results = []
    for output in operation.outputs:
        same = output.ndim == len(operation.first) and output.shape[:2] == operation.shape[:2]
        results.append((*operation.first[:2], OTHER) if same else (OTHER,) * output.ndim)
    return results, [Reads.ALL] * len(operation.inputs)


def _reorder(operation: Operation) -> Result:
    """`index`, `gather`, `index_select`: the entries of an axis in an unknown order."""
    output, known = operation.outputs[0], operation.first
    axes = [OTHER] * output.ndim
    if operation.name == "index" and output.ndim == len(known):
        indices = operation.argument(1, "indices")
        axes = [OTHER if i < len(indices) and indices[i] is not None else axis for i, axis in enumerate(known)]
    elif operation.name == "index_select":
        dim = operation.argument(1, "dim") % len(known)
        axes = [OTHER if i == dim else axis for i, axis in enumerate(known)]
    return _alike(operation, tuple(axes), Reads.ALL)


def _as_strided(operation: Operation) -> Result:
    same = operation.outputs[0].shape == operation.shape
    return _alike(operation, operation.first if same else (OTHER,) * operation.outputs[0].ndim)


_ELEMENTWISE = (
    "add sub rsub mul div pow addcmul addcdiv lerp where maximum minimum fmax fmin copy eq ne lt le gt ge logical_and "
    "logical_or logical_not bitwise_and atan2 remainder fmod clamp clamp_min clamp_max exp expm1 log log1p sqrt rsqrt "
    "reciprocal sin cos neg abs sign erf square round floor ceil isnan hypot fill zero"
)
_RESIZED = (
    "convolution mkldnn_convolution max_pool2d max_pool2d_with_indices avg_pool2d adaptive_avg_pool2d "
    "mkldnn_adaptive_avg_pool2d adaptive_max_pool2d max_pool3d_with_indices avg_pool3d adaptive_avg_pool3d "
    "fractional_max_pool2d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d upsample_linear1d "
    "upsample_trilinear3d upsample_nearest_exact2d upsample_bilinear2d_aa upsample_bicubic2d_aa "
    "reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d roll flip cumsum fft_r2c fft_c2r fft_c2c "
    "view_as_real view_as_complex topk sort"
)
_REDUCED = (
    "mean sum amax amin max min var std var_mean std_mean logsumexp linalg_vector_norm norm prod argmax argmin any"
)
_FUSED = (
    "scaled_dot_product_flash_attention_for_cpu scaled_dot_product_flash_attention "
    "scaled_dot_product_efficient_attention scaled_dot_product_attention_math scaled_dot_product_cudnn_attention "
    "scaled_dot_product_fused_attention_overrideable"
)

PARTS = frozenset({"split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "split_copy"})
"""Operations whose outputs are different parts of one input, and may read it differently."""

RULES: dict[str, Rule] = dict.fromkeys(_ELEMENTWISE.split(), _elementwise)
RULES |= dict.fromkeys(_RESIZED.split(), _resize_axes) | dict.fromkeys(_REDUCED.split(), _reduce)
RULES |= dict.fromkeys(("view", "unsafe_view", "reshape", "reshape_alias", "flatten"), _view)
RULES |= {"permute": _permute, "transpose": _transpose, "t": _transpose, "unsqueeze": _unsqueeze, "squeeze": _squeeze}
RULES |= dict.fromkeys(("select", "unbind"), _select) | {"slice": _slice, "narrow": _slice}
RULES |= dict.fromkeys(PARTS, _split)
RULES |= {"cat": _cat, "stack": _stack, "expand": _expand, "repeat": _expand, "as_strided": _as_strided}
RULES |= dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _matmul) | dict.fromkeys(_FUSED.split(), _attention)
RULES |= {"constant_pad_nd": _pad, "linear": _project}
RULES |= {"im2col": _unfold, "col2im": _fold, "unfold": _windows}
RULES |= dict.fromkeys(("mkldnn_rnn_layer", "lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent)
RULES |= dict.fromkeys(("index", "gather", "index_select", "take_along_dim", "index_put", "scatter"), _reorder)
