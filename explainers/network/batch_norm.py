"""Workaround for a wrong batch-norm gradient of torch for a single image.

On the CPU, the gradient of a batch norm over one image is wrong, by more than its norm, if gradient and input have
different memory formats and the strides of one are channels-last except for the batch dimension. Gradients that come
back through `flatten(2).transpose(1, 2)` have such strides; see docs/torch_batch_norm.md for a minimal example.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_GUARDED = "explainers.network.batch_norm"


def guard_batch_norms(*roots: Tensor) -> None:
    """Convert the gradient of every batch norm behind `roots` to its input's memory format, without needless copies."""
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


def _in_format(memory_format: torch.memory_format, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if g is None else g.contiguous(memory_format=memory_format) for g in gradients)
