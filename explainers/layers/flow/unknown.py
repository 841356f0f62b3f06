"""Operations without a rule: whether they keep the positions of their input is found out by a changed input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from explainers.layers.flow.axes import Axes, Axis, why_lost
from explainers.layers.flow.operation import Operation, along


def check_positions(func: Any, operation: Operation, axes: list[Axes]) -> list[Axes]:
    """Return the axes of each output, without positions if the operation moves a changed entry of its input.

    Operations from outside of torch that return another grid, such as pooling of regions, have no positions either.
    """
    if not isinstance(func, torch._ops.OpOverload):
        return axes
    for known, tensor in zip(operation.axes, operation.inputs, strict=True):
        if known is None or not any(map(along, known)) or why_lost(known):
            continue
        result = []
        for output, own in zip(operation.outputs, axes, strict=True):
            same = output.shape == tensor.shape
            is_foreign = func.namespace != "aten" and output.ndim == tensor.ndim
            moved = _moves(func, operation, tensor, known, output) if same else is_foreign
            result.append((Axis(lost=operation.name.strip("_")),) * output.ndim if moved else own)
        return result
    return axes


def _moves(func: Any, operation: Operation, tensor: Tensor, axes: Axes, output: Tensor) -> bool:
    """Return whether a change of one cell of `tensor` changes the output, but not at this cell."""
    if torch.Tag.nondeterministic_seeded in func.tags or not tensor.is_floating_point():
        return False
    cell = tuple(size // 3 if along(axis) else slice(None) for axis, size in zip(axes, tensor.shape, strict=True))
    changed = tensor.clone()
    changed[cell] += 1 + tensor.abs().amax()
    args, kwargs = pytree.tree_map(lambda each: changed if each is tensor else each, (operation.args, operation.kwargs))
    result = func(*args, **kwargs)
    outputs = [each for each in pytree.tree_leaves(result) if isinstance(each, Tensor)]
    same = [each for each in outputs if each.shape == output.shape]
    if not same:
        return False
    differs = same[0] != output
    return bool(differs.any()) and not bool(differs[cell].any())
