"""Workaround for a wrong batch-norm gradient of torch for a single image.

On the CPU, the gradient of a batch norm over one image is wrong, by more than its norm, if gradient and input have
different memory formats and the strides of one are channels-last except for the batch dimension. Gradients that come
back through `flatten(2).transpose(1, 2)` have such strides; see docs/torch_batch_norm.md for a minimal example.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_GUARDED = "explainers.call.batch_norm"
_LEAF = "AccumulateGrad"
# Operations whose gradient has the usual strides (stride of the image at least its size) if theirs has. Views that
# permute axes are not among them.
_REGULAR = frozenset(
    f"{name}Backward{number}"
    for name in (
        "Convolution ThnnConv2D Relu Hardtanh Silu Hardswish Hardsigmoid Sigmoid Gelu Add Sum Select Mean View "
        "UnsafeView Addmm Mm AdaptiveAvgPool2D AvgPool2D MaxPool2DWithIndices Clone ConstantPadNd Cat Softmax"
    ).split()
    for number in (0, 1)
)


class BackwardGraph(NamedTuple):
    """All nodes behind some tensors except for leaves, the batch norms, and whether all gradients have usual strides.

    The strides of gradients are the usual ones if all operations keep them.
    """

    nodes: list[Any]
    norms: list[Any]
    is_regular: bool


def guard_batch_norms(*roots: Tensor, leaves: Sequence[Tensor] = (), graph: BackwardGraph | None = None) -> bool:
    """Convert the gradient of every batch norm behind `roots` to its input's memory format, without needless copies.

    Returns whether this is never needed for such a graph.

    If the graph's `leaves` are given and the root is a number, nothing is done for networks whose gradients always have
    the usual strides, which saves a call of Python for each batch norm. `graph` is that of the roots, if known.
    """
    _, norms, is_regular = graph or backward_graph(*roots)
    if leaves and is_regular and roots[0].ndim == 0 and all(map(_has_usual_strides, leaves)):
        return True
    for node in norms:
        if _GUARDED in node.metadata:
            continue
        x = node._saved_input
        if len(x) == 1 and x.ndim in _CHANNELS_LAST:
            last = _CHANNELS_LAST[x.ndim]
            is_last = not x.is_contiguous() and x.is_contiguous(memory_format=last)
            node.register_prehook(partial(_in_format, last if is_last else torch.contiguous_format))
            node.metadata[_GUARDED] = True
    return not norms


def backward_graph(*roots: Tensor) -> BackwardGraph:
    """Return the autograd graph behind `roots`."""
    nodes: list[Any] = list(dict.fromkeys(filter(None, map(attrgetter("grad_fn"), roots))))
    seen, norms, is_regular = set(nodes), [], True
    for node in nodes:  # grows during iteration
        kind, inputs = type(node).__name__, node.next_functions
        if kind == "NativeBatchNormBackward0":
            norms.append(node)
        elif is_regular and kind not in _REGULAR:
            # The transposed weight of a linear layer has two dimensions and no batch norm behind it.
            is_regular = kind == "TBackward0" and type(inputs[0][0]).__name__ == _LEAF
        for parent, _ in inputs:
            if parent is None:
                is_regular = is_regular and kind != "AddBackward0"  # an added constant may have other strides
            elif type(parent).__name__ != _LEAF and parent not in seen:
                seen.add(parent)
                nodes.append(parent)
    return BackwardGraph(nodes, norms, is_regular)


def _has_usual_strides(tensor: Tensor) -> bool:
    """Return whether the stride of a single image is not smaller than the image."""
    return tensor.ndim < 4 or len(tensor) > 1 or tensor.stride(0) >= tensor.numel()


def _in_format(memory_format: torch.memory_format, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if g is None else g.contiguous(memory_format=memory_format) for g in gradients)
