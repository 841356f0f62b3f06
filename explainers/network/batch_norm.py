"""Batch norms in an autograd graph, whose backward pass torch gets wrong for one picture.

On the CPU a batch norm over one picture returns a wrong gradient, by more than its own size, where gradient and input
are in different memory formats and the strides of one are channels-last in all but the batch. Gradients that come back
through `flatten(2).transpose(1, 2)` are; docs/torch_batch_norm.md has the smallest case.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_GUARDED = "explainers.network.batch_norm"


def guard_batch_norms(*roots: Tensor) -> None:
    """Give every batch norm behind `roots` its gradient in its input's memory format; nothing is copied where it is."""
    stack: list[Any] = [root.grad_fn for root in roots]
    seen = {None}
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(parent for parent, _ in node.next_functions)
        if node.name() == "NativeBatchNormBackward0" and _GUARDED not in node.metadata:
            x = node._saved_input
            if len(x) == 1 and x.ndim in _CHANNELS_LAST:
                last = _CHANNELS_LAST[x.ndim]
                is_last = not x.is_contiguous() and x.is_contiguous(memory_format=last)
                node.register_prehook(partial(_in_format, last if is_last else torch.contiguous_format))
                node.metadata[_GUARDED] = True


def mixes_rows(network: nn.Module) -> bool:
    """Whether a batch norm without running statistics takes those of the batch, so that each row changes the others."""
    return any(isinstance(m, _BatchNorm) and m.running_mean is None for m in network.modules())


def _in_format(memory_format: torch.memory_format, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if g is None else g.contiguous(memory_format=memory_format) for g in gradients)
