"""Gradients that DistributedDataParallel averages over the processes: the part of `.grad` that a pass has added.

PyTorch calls the tensor hooks of a parameter, adds its gradient to `.grad`, calls the post-accumulate hooks, and only
then does the wrapper average `.grad`, in callbacks at the end of the pass. Edits of such a gradient therefore run in a
callback that is queued by another callback, after those of the wrapper. If `.grad` is unchanged since it was
accumulated, the pass was in a `no_sync` block; its gradient is edited with that of the pass that averages both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from explainers.errors import BadOption
from explainers.hooks.distributed import reducing_wrapper

STEPPED = (
    "A parameter changed during the backward pass: an optimizer in a hook used its gradient before the gradients of "
    "all parameters were known. Call optimizer.step() after backward, or use clip_gradients(value=...) on one process."
)
NOT_ACCUMULATED = (
    "The gradient of a parameter of DistributedDataParallel was used before it was averaged over the processes: "
    "torch.autograd.grad does not average gradients, and hooks may have set .grad to None. Call loss.backward(), and "
    "enter the block after torch.distributed.init_process_group."
)
UNKNOWN = (
    "The gradients contain values from before the block or from other code, which may not be averaged over the "
    "processes. Enter the block before the first backward pass that is accumulated, or call zero_grad() before."
)
NESTED = (
    "A reentrant checkpoint ends its backward pass before DistributedDataParallel averages the gradients. Use "
    "torch.utils.checkpoint.checkpoint(..., use_reentrant=False). After a backward pass that failed, call zero_grad()."
)


def grad_state(gradient: Tensor) -> tuple[int, int]:
    """Return storage address and version counter, which `zero_grad` and any write by other code change."""
    values = gradient._values() if gradient.layout is torch.sparse_coo else gradient
    return values.data_ptr(), gradient._version


@dataclass
class _Edited:
    """The state of `.grad` after a pass, and whether all of it is edited already, or a part or nothing of it.

    `copy` is a copy of `.grad` if the wrapper will still move it to other memory, which it does once.
    """

    state: tuple[int, int]
    all: bool
    part: Tensor | None
    copy: Tensor | None

    def is_still_in(self, tensor: Tensor) -> bool:
        """Return whether no other code has changed `.grad` of the tensor since."""
        gradient = tensor.grad
        if gradient is None or self.state == grad_state(gradient):
            return gradient is not None
        return self.copy is not None and torch.equal(gradient, self.copy)


@dataclass
class _Start:
    """A parameter at the start of a pass: its version, the state of `.grad`, and the part that is edited already."""

    tensor: Tensor
    version: int
    state: tuple[int, int] | None
    edited: Tensor | None


@dataclass
class Arrival:
    """The averaged gradient that a pass has added to `.grad` of a parameter, and the part edited by earlier passes."""

    tensor: Tensor
    gradient: Tensor
    edited: Tensor | None


@dataclass
class ReducedGradients:
    """The averaged parameters of the current pass, and the part of each `.grad` that is edited already.

    `waiting` are the parameters whose gradient is not averaged yet, since their last pass was in a `no_sync` block.
    """

    task: int = -1
    touched: dict[int, Tensor] = field(default_factory=dict)
    starts: dict[int, _Start] = field(default_factory=dict)
    accumulated: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    edited: dict[int, _Edited] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)

    def start(self, tensors: Callable[[], Iterable[Tensor]], single: Callable[[], Collection[int]]) -> None:
        """Note the state of all `tensors` when a pass reaches the first parameter of the wrapper.

        Errors   BadOption if `.grad` of a tensor in `single`, with edits of one gradient, has values of unknown origin
        """
        task = torch._C._current_graph_task_id()
        if task == self.task:
            return
        interrupted, self.task = self.task != -1, task
        self.touched.clear()
        self.accumulated.clear()
        self.starts, unknown = {}, []
        for tensor in tensors():
            left = self.edited.get(id(tensor))
            known = tensor.grad is None or (left is not None and left.is_still_in(tensor))
            self.starts[id(tensor)] = self._start(tensor, left if known else None)
            if tensor.grad is not None and not known and id(tensor) in single():
                unknown.append(tensor.grad)
        if any_nonzero(unknown):
            self.task = -1
            raise BadOption(NESTED if interrupted else UNKNOWN)

    def runs(self) -> bool:
        """Return whether the current pass has averaged parameters that are not edited yet."""
        return self.task != -1 and self.task == torch._C._current_graph_task_id()

    def _start(self, tensor: Tensor, left: _Edited | None) -> _Start:
        gradient = tensor.grad
        if gradient is None:
            return _Start(tensor, tensor._version, None, None)
        part = None if left is None else gradient.detach().clone() if left.all else left.part
        return _Start(tensor, tensor._version, grad_state(gradient), part)

    def note_accumulated(self, tensor: Tensor) -> None:
        """Note the state of `.grad` after the pass added the gradient of this process."""
        self.accumulated[id(tensor)] = None if tensor.grad is None else grad_state(tensor.grad)

    def arrivals(self, single: Collection[int]) -> dict[int, Arrival]:
        """Return the gradients that were averaged in this pass, and end the pass.

        `single` are parameters with edits of one gradient, which `torch.autograd.grad` needs too.

        Errors   BadOption if a gradient was used before it was averaged: optimizers in hooks, torch.autograd.grad
        """
        found = {}
        touched, self.touched, self.task = self.touched, {}, -1
        for key in dict.fromkeys((*touched, *self.starts)):
            start = self.starts[key]
            gradient = start.tensor.grad
            if key in touched:
                refuse_stepped(start.tensor, start.version)
                state = self.accumulated.get(key)
                if gradient is None or state is None:
                    now = None if gradient is None else grad_state(gradient)
                    if key in single or key in self.accumulated or now != start.state:
                        raise BadOption(NOT_ACCUMULATED)
                    continue
                wrapper = reducing_wrapper(start.tensor)
                if grad_state(gradient) == state and not (wrapper and wrapper.require_forward_param_sync):
                    self._wait(start, state)
                    continue
            elif gradient is None or grad_state(gradient) == start.state:
                continue
            self.waiting.discard(key)
            added = gradient.detach() if start.edited is None else gradient.detach() - start.edited
            found[key] = Arrival(start.tensor, added, start.edited)
        return found

    def _wait(self, start: _Start, state: tuple[int, int]) -> None:
        self.waiting.add(id(start.tensor))
        self.edited[id(start.tensor)] = _Edited(state, False, start.edited, _copy_if_moved(start.tensor))

    def note_edited(self, tensor: Tensor) -> None:
        """Note that all of `.grad` is averaged and edited."""
        if tensor.grad is not None:
            self.edited[id(tensor)] = _Edited(grad_state(tensor.grad), True, None, _copy_if_moved(tensor))

    def keep(self, keys: Collection[int]) -> None:
        """Forget all parameters except `keys`."""
        for key in self.edited.keys() - keys:
            del self.edited[key]
        self.waiting.intersection_update(keys)
        for table in (self.starts, self.touched):
            for key in [key for key in table if key not in keys]:
                del table[key]


def any_nonzero(gradients: Collection[Tensor]) -> bool:
    """Return whether a value is not zero, with one transfer from the device."""
    values = [each._values() if each.layout is torch.sparse_coo else each for each in gradients]
    flags = [each.any() for each in values if each.numel()]
    return bool(flags) and bool(torch.stack([flag.to(flags[0].device) for flag in flags]).any())


def _copy_if_moved(tensor: Tensor) -> Tensor | None:
    """Return a copy of `.grad` if it is in a buffer of the wrapper, which it allocates again in its second pass."""
    wrapper = reducing_wrapper(tensor)
    moves = wrapper is not None and wrapper.gradient_as_bucket_view and not wrapper._has_rebuilt_buckets
    return tensor.grad.detach().clone() if moves and tensor.grad is not None else None


def refuse_stepped(tensor: Tensor, version: int) -> None:
    """Raise an error if the parameter has changed since `version`, at the start of the pass."""
    if tensor._version != version:
        raise BadOption(STEPPED)


def refuse_nested_pass() -> None:
    """Raise an error in a callback of a backward pass that runs inside another one."""
    if torch._C._current_autograd_node() is not None:
        raise BadOption(NESTED)
