"""Follow values back through operations that only move them: views, padding, concatenation, pooling by the maximum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from explainers.experiments.arithmetic.recording import Operation, Recorder, Ref

SAME = frozenset("clone detach alias _to_copy lift_fresh contiguous".split())
"""Operations whose output has the values of the input at the same positions."""
MOVES = frozenset(
    "view _unsafe_view _reshape_alias reshape permute transpose t slice select expand unsqueeze squeeze unbind split "
    "split_with_sizes unsafe_split cat stack constant_pad_nd reflection_pad2d replication_pad2d flip roll repeat "
    "pixel_shuffle pixel_unshuffle channel_shuffle unfold im2col as_strided upsample_nearest2d".split()
)
"""Operations whose output has values of their inputs at other positions, or a constant."""
MAXIMUM = "max_pool2d_with_indices"
OUTSIDE = -1
"""The position of a value that does not come from the input: padding."""


def unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of a flat position in a tensor of this shape."""
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(position), torch.Size(shape)))


def follow(recorder: Recorder, ref: Ref, positions: Tensor) -> tuple[Ref, Tensor, list[Operation]]:
    """Return the value from which those at flat `positions` of a value were moved, and their positions there.

    Positions `OUTSIDE` stay, and padding becomes `OUTSIDE`. Returns early at an operation that joins several inputs if
    the positions are from more than one of them.
    """
    passed: list[Operation] = []
    while (operation := recorder.made_by(ref)) is not None:
        if operation.name in SAME:
            ref = operation.inputs[0]
        elif operation.name == MAXIMUM and operation.output == 0:
            ref, positions = operation.inputs[0], _of_maximum(recorder, operation, ref, positions)
            passed.append(operation)
        elif operation.name in MOVES:
            moved = _moved(recorder, operation, positions)
            if moved is None:
                break
            ref, positions = moved
            passed.append(operation)
        else:
            break
    return ref, positions, passed


def _moved(recorder: Recorder, operation: Operation, positions: Tensor) -> tuple[Ref, Tensor] | None:
    """Run the operation on the numbers of its inputs' values, counted from 1, since padding is 0."""
    starts: dict[Ref, int] = {}
    end = 1
    for ref in operation.inputs:
        if ref not in starts:
            starts[ref] = end
            end += recorder.value(ref).numel()

    def numbers(ref: Ref) -> Tensor:
        shape = recorder.value(ref).shape
        return torch.arange(starts[ref], starts[ref] + math.prod(shape), dtype=torch.float64).reshape(shape)

    fixed = operation
    if operation.name == "constant_pad_nd":
        fixed = Operation(operation.function, operation.args[:2], {}, operation.output, operation.number)
    found = fixed.run(numbers).reshape(-1)[positions.clamp(min=0)].long()
    found = torch.where(positions == OUTSIDE, 0, found)
    for ref, start in reversed(starts.items()):
        own = found >= start
        if bool((own | (found == 0)).all()) and bool((found < start + recorder.value(ref).numel()).all()):
            return ref, torch.where(found == 0, OUTSIDE, found - start)
    return None


def _of_maximum(recorder: Recorder, operation: Operation, ref: Ref, positions: Tensor) -> Tensor:
    """Return the positions of the maxima that a pooling selected."""
    plane = math.prod(recorder.value(ref).shape[-2:])
    whole = math.prod(recorder.value(operation.inputs[0]).shape[-2:])
    args = [recorder.value(each) if isinstance(each, Ref) else each for each in operation.args]
    indices = operation.out_of_place(*args)[1].reshape(-1).cpu()
    found = indices[positions.clamp(min=0)] + positions.clamp(min=0) // plane * whole
    return torch.where(positions == OUTSIDE, OUTSIDE, found)
