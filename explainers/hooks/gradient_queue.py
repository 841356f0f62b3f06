"""Apply gradient edits in the order in which their blocks were entered, including joint edits of several gradients.

Most edits need a single gradient and are tensor hooks, which PyTorch calls in the order of registration. A joint edit
(the norm over all parameters) needs every gradient of the pass, but a tensor hook cannot know whether another will
follow, since parameters that the loss does not depend on get none. Its hooks therefore queue a callback for the end of
the backward pass (`queue_callback`, as DistributedDataParallel does), in which the joint edit rewrites `.grad`. Edits
entered after it are applied after it in the same callback, so the order is the same for every parameter.

Gradients of two passes without a `zero_grad` between them accumulate. The joint edit is undone before the second
gradient is added and applied again to the sum, so `.grad` is always the joint edit of the accumulated gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from explainers.hooks.cleanup import Undo

JointEdit = Callable[[list[Tensor]], Sequence[Tensor]]


@dataclass(eq=False)
class GradientEdit:
    """One active edit, of a single gradient (`edit`) or of several together (`joint`); `observes` edits only read."""

    tensors: dict[int, Tensor]
    edit: Callable[[Tensor], Tensor | None] | None = None
    joint: JointEdit | None = None
    observes: bool = False
    number: int = 0


@dataclass
class _Accumulated:
    """A parameter's accumulated gradient before the joint edit, and the state of `.grad` after it."""

    unedited: Tensor
    state: tuple[int, int]


@dataclass
class GradientQueue:
    """The active edits of one thread, in the order of entry."""

    thread: int = field(default_factory=threading.get_ident)
    edits: list[GradientEdit] = field(default_factory=list)
    accumulated: dict[int, _Accumulated] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    entered: int = 0
    joints: list[GradientEdit] = field(default_factory=list)

    def belongs_to_this_thread(self) -> bool:
        """Return whether this backward pass belongs to this queue's thread.

        On the CPU the engine runs in the thread that called it. On an accelerator it uses threads that Python did not
        start; those are assumed to belong to this queue.
        """
        current = threading.get_ident()
        if current == self.thread:
            return True
        started = (t for t in threading.enumerate() if not isinstance(t, threading._DummyThread))
        return current not in {t.ident for t in started}

    def enter(self, entry: GradientEdit, stack: ExitStack) -> None:
        """Keep the edit in the queue until the stack is closed."""

        def leave() -> None:
            self.edits[:] = [each for each in self.edits if each is not entry]
            self.joints[:] = [each for each in self.joints if each is not entry]
            remaining = {key for joint in self.joints for key in joint.tensors}
            for key in self.accumulated.keys() - remaining:
                del self.accumulated[key]
            self.touched &= remaining

        stack.callback(Undo(leave))
        self.entered += 1
        entry.number = self.entered
        self.edits.append(entry)
        if entry.joint:
            self.joints.append(entry)

    def edit_gradient(self, entry: GradientEdit, key: int, gradient: Tensor) -> Tensor | None:
        """Return the edited gradient for a tensor hook; None in other threads and after a joint edit."""
        if not self.belongs_to_this_thread() or entry.edit is None:
            return None
        if any(joint.number < entry.number and key in joint.tensors for joint in self.joints):
            return None
        return entry.edit(gradient)

    def undo_joint_edit(self, tensor: Tensor) -> None:
        """Undo the joint edit of `.grad` before a gradient is added, and queue the edit for the end of the pass."""
        if not self.belongs_to_this_thread():
            return
        accumulated = self.accumulated.get(id(tensor))
        if accumulated is not None and tensor.grad is not None and _state(tensor.grad) == accumulated.state:
            with torch.no_grad():
                tensor.grad.copy_(accumulated.unedited)
        self.touched.add(id(tensor))
        engine: Any = torch.autograd.Variable._execution_engine
        # Queued for every parameter, since a single flag would remain set after a failed pass.
        engine.queue_callback(self.apply_joint_edits)

    def apply_joint_edits(self) -> None:
        """Apply the joint edits, and the edits entered after them, to the accumulated gradients of this pass."""
        touched, self.touched = self.touched, set()
        if not touched:
            return
        tensors = {key: tensor for entry in self.joints for key, tensor in entry.tensors.items()}
        with torch.no_grad():
            values = self._accumulated(tensors, touched)
            rewritten: set[int] = set()
            for entry in self.edits:
                if entry.joint:
                    keys = [key for key in entry.tensors if key in values]
                    values.update(zip(keys, entry.joint([values[key] for key in keys]), strict=True))
                    rewritten.update(keys)
                elif entry.edit:
                    for key in (key for key in entry.tensors if key in rewritten):
                        if key in touched or not entry.observes:
                            # A clone, since the function may modify its argument in place.
                            changed = entry.edit(values[key].clone())
                            values[key] = values[key] if changed is None else changed
            for key, value in values.items():
                gradient = tensors[key].grad
                if gradient is not None:
                    gradient.copy_(value)
                    self.accumulated[key].state = _state(gradient)

    def _accumulated(self, tensors: dict[int, Tensor], touched: Iterable[int]) -> dict[int, Tensor]:
        """Return each `.grad` before joint edits; a `.grad` changed by other code since then is used unchanged."""
        values = {}
        for key, tensor in tensors.items():
            if tensor.grad is None:
                self.accumulated.pop(key, None)
                continue
            accumulated = self.accumulated.get(key)
            if accumulated is None or key in touched or _state(tensor.grad) != accumulated.state:
                accumulated = self.accumulated[key] = _Accumulated(tensor.grad.detach().clone(), _state(tensor.grad))
            values[key] = accumulated.unedited
        return values


class _PerThread(threading.local):
    queue: GradientQueue | None = None


_per_thread = _PerThread()


def queue_of_this_thread() -> GradientQueue:
    """Return the calling thread's queue; hooks keep a reference to it, since other threads may call them."""
    if _per_thread.queue is None:
        _per_thread.queue = GradientQueue()
    return _per_thread.queue


def _state(gradient: Tensor) -> tuple[int, int]:
    """Return storage address and version counter, which `zero_grad` and any write by other code change."""
    return gradient.data_ptr(), gradient._version
