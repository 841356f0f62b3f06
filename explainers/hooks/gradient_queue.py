"""Edits of gradients in the order in which their blocks were entered, also where one of them has to wait for all.

Most edits need one gradient: they are Tensor hooks, which PyTorch calls in the order of registration. A joint edit (the
norm over all parameters) needs every gradient of the pass, and a Tensor hook cannot know whether another will come:
parameters that the loss does not reach get none. So its hooks ask the engine to be called when the backward pass is
over (`queue_callback`, as DistributedDataParallel does), and the joint edit then rewrites `.grad`. Edits that were
entered after it wait for it and follow then, so the order holds for every parameter.

Two passes without a `zero_grad` between them accumulate: the joint edit is undone before the second gradient is added,
and done anew on the sum, so `.grad` always is what one joint edit makes of all that was accumulated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

JointEdit = Callable[[list[Tensor]], Sequence[Tensor]]


@dataclass(eq=False)
class GradientEdit:
    """One entered edit: of a single gradient (`edit`), or of several at once (`joint`); `observes`: reads only."""

    tensors: dict[int, Tensor]
    edit: Callable[[Tensor], Tensor | None] | None = None
    joint: JointEdit | None = None
    observes: bool = False
    number: int = 0


@dataclass
class _Accumulated:
    """A parameter's accumulated gradient before the joint edit, and the state in which the edit left `.grad`."""

    unedited: Tensor
    state: tuple[int, int]


@dataclass
class GradientQueue:
    """The edits that one thread has entered and not left, first entered first."""

    thread: int = field(default_factory=threading.get_ident)
    edits: list[GradientEdit] = field(default_factory=list)
    accumulated: dict[int, _Accumulated] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    entered: int = 0
    joints: list[GradientEdit] = field(default_factory=list)

    def mine(self) -> bool:
        """Whether this backward pass belongs to this queue's thread.

        On the CPU the engine works in the thread that called it. On an accelerator it works in threads of its own,
        which Python did not start; those are taken for ours.
        """
        now = threading.get_ident()
        if now == self.thread:
            return True
        started = (t for t in threading.enumerate() if not isinstance(t, threading._DummyThread))
        return now not in {t.ident for t in started}

    def enter(self, entry: GradientEdit, stack: ExitStack) -> None:
        """Queue the edit for as long as the stack is open."""

        def leave() -> None:
            self.edits.remove(entry)
            if entry.joint:
                self.joints.remove(entry)
            remaining = {key for joint in self.joints for key in joint.tensors}
            for key in self.accumulated.keys() - remaining:
                del self.accumulated[key]
            self.touched &= remaining

        self.entered += 1
        entry.number = self.entered
        self.edits.append(entry)
        if entry.joint:
            self.joints.append(entry)
        stack.callback(leave)

    def at_once(self, entry: GradientEdit, key: int, gradient: Tensor) -> Tensor | None:
        """The Tensor hook's return value: the edited gradient; None in other threads and behind a joint edit."""
        if not self.mine() or entry.edit is None:
            return None
        if any(joint.number < entry.number and key in joint.tensors for joint in self.joints):
            return None
        return entry.edit(gradient)

    def arrived(self, tensor: Tensor) -> None:
        """A gradient of a joint edit's parameter is about to be added to `.grad`: undo the edit, and come back."""
        if not self.mine():
            return
        accumulated = self.accumulated.get(id(tensor))
        if accumulated is not None and tensor.grad is not None and _state(tensor.grad) == accumulated.state:
            with torch.no_grad():
                tensor.grad.copy_(accumulated.unedited)
        self.touched.add(id(tensor))
        engine: Any = torch.autograd.Variable._execution_engine
        # Asked for by every parameter: one flag for all would stay set after a pass that failed.
        engine.queue_callback(self.settle)

    def settle(self) -> None:
        """Apply the joint edits, and those entered after them, to the accumulated gradients of this pass."""
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
                            # A clone, since the function may write into what it is given.
                            changed = entry.edit(values[key].clone())
                            values[key] = values[key] if changed is None else changed
            for key, value in values.items():
                gradient = tensors[key].grad
                if gradient is not None:
                    gradient.copy_(value)
                    self.accumulated[key].state = _state(gradient)

    def _accumulated(self, tensors: dict[int, Tensor], touched: Iterable[int]) -> dict[int, Tensor]:
        """Each `.grad` before joint edits; one that other code has changed since is taken as it is."""
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
    """The calling thread's queue; hooks hold on to it, whichever thread they are called in."""
    if _per_thread.queue is None:
        _per_thread.queue = GradientQueue()
    return _per_thread.queue


def _state(gradient: Tensor) -> tuple[int, int]:
    """Storage address and version counter: `zero_grad` and every write by other code change them."""
    return gradient.data_ptr(), gradient._version
