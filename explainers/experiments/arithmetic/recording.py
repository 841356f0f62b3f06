"""Record every operation of one forward pass, and follow values back through operations that only move them.

Inputs that are changed in place later are recorded too. Views, padding, concatenation and max pooling only move values.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Ref:
    """A value of the pass: a tensor, and how often it had been changed in place."""

    tensor: int
    version: int


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation: its function, and its arguments, in which tensors of the pass are a `Ref`.

    `output` is the number of the output that it refers to, for an operation with several outputs. `number` counts the
    operations of the pass.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: int
    number: int

    @property
    def name(self) -> str:
        """The name in ATen without the underscore of an in-place operation: "convolution", "relu"."""
        name = str(self.function).removeprefix("aten.").partition(".")[0]
        return name if name.startswith("_") else name.rstrip("_")

    @property
    def inputs(self) -> list[Ref]:
        """The tensors among the arguments, in order."""
        return [leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Ref)]

    def run(self, value_of: Callable[[Ref], Any]) -> Any:
        """Run the out-of-place version of the operation on other tensors, and return the output that was recorded."""
        args, kwargs = pytree.tree_map_only(Ref, value_of, (self.args, self.kwargs))
        function = self.function
        if function._schema.is_mutable:
            function = getattr(getattr(torch.ops.aten, self.name), function._overloadname)
        result = function(*args, **kwargs)
        return result[self.output] if isinstance(result, (tuple, list)) else result


class Recorder(TorchDispatchMode):
    """Keep all tensors of the calling thread's pass, and the operation that computed each.

    `names` are the names of layers by the address of their weights.
    """

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names = names
        self._versions: dict[int, list[Tensor]] = {}
        self._made: dict[Ref, Operation | None] = {}
        self._storages: dict[int, set[int]] = defaultdict(set)
        self._count = 0

    def ref(self, tensor: Tensor) -> Ref:
        """Return the current value of a tensor."""
        key = id(tensor)
        if key not in self._versions:
            self._versions[key] = [tensor]
            self._storages[_storage(tensor)].add(key)
        return Ref(key, len(self._versions[key]) - 1)

    def value(self, ref: Ref) -> Tensor:
        """Return the values at that time."""
        return self._versions[ref.tensor][ref.version]

    def made_by(self, ref: Ref) -> Operation | None:
        """Return the operation that computed a value; None for an image, a parameter, or a changed view."""
        return self._made.get(ref)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        read: Any = pytree.tree_map_only(Tensor, self.ref, (args, kwargs))
        for tensor in self._changed(func, args, kwargs):
            self._keep_former(tensor)
        result = func(*args, **kwargs)
        self._count += 1
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        for k, output in enumerate(outputs):
            if isinstance(output, Tensor):
                self._made[self.ref(output)] = Operation(func, read[0], read[1], k, self._count)
        return result

    def _changed(self, func: Any, args: Any, kwargs: Any) -> list[Tensor]:
        """Return the arguments that an operation changes in place."""
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
        written = [each.name for each in func._schema.arguments if each.alias_info and each.alias_info.is_write]
        return [given[name] for name in written if isinstance(given.get(name), Tensor)]

    def _keep_former(self, tensor: Tensor) -> None:
        """Copy the values of a tensor, and of all others that share its memory, before they change."""
        self.ref(tensor)
        for key in self._storages[_storage(tensor)]:
            *_, live = versions = self._versions[key]
            versions[-1:] = [live.clone(), live]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


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


def follow(recorder: Recorder, ref: Ref, positions: Tensor) -> tuple[Ref, Tensor]:
    """Return the value from which those at flat `positions` of a value were moved, and their positions there.

    Positions `OUTSIDE` stay, and padding becomes `OUTSIDE`. Returns early at an operation that joins several inputs if
    the positions are from more than one of them.
    """
    while (operation := recorder.made_by(ref)) is not None:
        if operation.name in SAME:
            ref = operation.inputs[0]
        elif operation.name == MAXIMUM and operation.output == 0:
            ref, positions = operation.inputs[0], _of_maximum(recorder, operation, ref, positions)
        elif operation.name in MOVES:
            moved = _moved(recorder, operation, positions)
            if moved is None:
                break
            ref, positions = moved
        else:
            break
    return ref, positions


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
        fixed = replace(operation, args=operation.args[:2], kwargs={})
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
    indices = replace(operation, output=1).run(recorder.value).reshape(-1).cpu()
    found = indices[positions.clamp(min=0)] + positions.clamp(min=0) // plane * whole
    return torch.where(positions == OUTSIDE, OUTSIDE, found)
