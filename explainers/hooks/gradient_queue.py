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
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadOption
from explainers.hooks.distributed import reducing_wrapper
from explainers.hooks.reduced_gradients import (
    STEPPED,
    Arrival,
    ReducedGradients,
    grad_state,
    refuse_nested_pass,
    refuse_stepped,
)

JointEdit = Callable[[list[Tensor]], Sequence[Tensor]]


@dataclass(eq=False)
class GradientEdit:
    """One active edit, of a single gradient (`edit`) or of several together (`joint`); `observes` edits only read.

    `arrived` receives an averaged gradient before all edits.
    """

    tensors: dict[int, Tensor]
    edit: Callable[[Tensor], Tensor | None] | None = None
    joint: JointEdit | None = None
    observes: bool = False
    arrived: Callable[[Tensor], None] | None = None
    number: int = 0


@dataclass
class Watch:
    """Hooks that several blocks share."""

    handles: list[Any] = field(default_factory=list)
    blocks: list[object] = field(default_factory=list)


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
    touched: dict[int, int] = field(default_factory=dict)
    """The versions of the parameters that the pass has reached."""
    emptied: set[int] = field(default_factory=set)
    """Parameters whose `.grad` was None right after the pass had written it."""
    reduced: ReducedGradients = field(default_factory=ReducedGradients)
    watched: dict[int, Watch] = field(default_factory=dict)
    """The hooks on all parameters of a wrapper, by its identity."""
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
            self.touched = {key: version for key, version in self.touched.items() if key in remaining}
            self.reduced.keep({key for each in self.edits for key in each.tensors})

        stack.callback(leave)
        self.entered += 1
        entry.number = self.entered
        self.edits.append(entry)
        if entry.joint:
            self.joints.append(entry)

    def edit_gradient(self, entry: GradientEdit, key: int, gradient: Tensor) -> Tensor | None:
        """Return the edited gradient for a tensor hook; None in other threads and after a joint edit."""
        if not self.belongs_to_this_thread() or entry.edit is None:
            return None
        if reducing_wrapper(entry.tensors[key]) is not None:
            self._wait_for_average(entry.tensors[key])
            return None
        if any(joint.number < entry.number and key in joint.tensors for joint in self.joints):
            return None
        return entry.edit(gradient)

    def undo_joint_edit(self, tensor: Tensor) -> None:
        """Undo the joint edit of `.grad` before a gradient is added, and queue the edit for the end of the pass."""
        if not self.belongs_to_this_thread():
            return
        if reducing_wrapper(tensor) is not None:
            self._wait_for_average(tensor)
            return
        accumulated = self.accumulated.get(id(tensor))
        if accumulated is not None and tensor.grad is not None and grad_state(tensor.grad) == accumulated.state:
            with torch.no_grad():
                tensor.grad.copy_(accumulated.unedited)
        self.touched[id(tensor)] = tensor._version
        self.emptied.discard(id(tensor))
        # Queued for every parameter, since a single flag would remain set after a failed pass.
        _queue_callback(self.apply_joint_edits)

    def note_accumulated(self, tensor: Tensor) -> None:
        """Note, in a post-accumulate hook, that the pass has written `.grad`."""
        if self.belongs_to_this_thread():
            if self.reduced.runs():
                self.reduced.note_accumulated(tensor)
            elif tensor.grad is None:
                self.emptied.add(id(tensor))

    def _wait_for_average(self, tensor: Tensor) -> None:
        self.notice_pass()
        self.reduced.touched[id(tensor)] = tensor

    def notice_pass(self) -> None:
        """Note that the pass reaches a parameter of the wrapper, and edit its gradients at the end of the pass.

        Other processes may reach parameters that this one does not; all processes receive their gradients.
        """
        if self.belongs_to_this_thread():
            self.reduced.start(self._averaged_tensors, self._single)
            _queue_callback(self._edit_averages)

    def _averaged_tensors(self) -> list[Tensor]:
        tensors = {key: tensor for entry in self.edits for key, tensor in entry.tensors.items()}
        return [tensor for tensor in tensors.values() if reducing_wrapper(tensor) is not None]

    def _single(self) -> set[int]:
        """Return the parameters that have edits of one gradient."""
        return {key for entry in self.edits if entry.edit for key in entry.tensors}

    def _edit_averages(self, last: bool = False) -> None:
        """Edit the averaged gradients of this pass, in a callback (`last`) after all callbacks of the wrappers."""
        if not self.reduced.runs():
            return
        if not last:
            refuse_nested_pass()
            _queue_callback(partial(self._edit_averages, last=True))
            return
        arrivals = self.reduced.arrivals(self._single())
        with torch.no_grad():
            for key, arrival in arrivals.items():
                self._edit_average(key, arrival)
        rewritten = self.apply_joint_edits(arrivals.keys())
        for tensor in [*(arrival.tensor for arrival in arrivals.values()), *rewritten]:
            self.reduced.note_edited(tensor)

    def _edit_average(self, key: int, arrival: Arrival) -> None:
        """Apply the edits entered before the first joint edit of this parameter."""
        entries = [entry for entry in self.edits if key in entry.tensors]
        joint = next((k for k, entry in enumerate(entries) if entry.joint), None)
        for entry in entries:
            if entry.arrived:
                entry.arrived(arrival.gradient)
        value = arrival.gradient
        for entry in entries[:joint]:
            value = _edited(entry, value)
        earlier = arrival.edited
        if joint is not None and earlier is not None and key in self.accumulated:
            earlier = self.accumulated[key].unedited
        total = value if earlier is None else earlier + value
        gradient = arrival.tensor.grad
        assert gradient is not None
        if joint is not None:
            self.accumulated[key] = _Accumulated(total.clone(), grad_state(gradient))
        elif value is not arrival.gradient:
            gradient.copy_(total)

    def apply_joint_edits(self, averaged: Collection[int] = ()) -> list[Tensor]:
        """Apply the joint edits, and the edits entered after them, to the accumulated gradients of this pass.

        `averaged` are parameters whose averaged gradient arrived in this pass. Returns the rewritten parameters.
        """
        if (not self.touched and not averaged) or self.reduced.runs():
            return []  # averaged gradients are edited later
        touched, self.touched = self.touched, {}
        tensors = {key: tensor for entry in self.joints for key, tensor in entry.tensors.items()}
        if self.reduced.waiting & tensors.keys():
            return []
        for key, version in touched.items():
            refuse_stepped(tensors[key], version)
            if key in self.emptied:
                raise BadOption(STEPPED)
        new = {*touched, *averaged}
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
                        if key in new or not entry.observes:
                            values[key] = _edited(entry, values[key])
            for key, value in values.items():
                gradient = tensors[key].grad
                if gradient is not None:
                    gradient.copy_(value)
                    self.accumulated[key].state = grad_state(gradient)
        return [tensors[key] for key in values]

    def _accumulated(self, tensors: dict[int, Tensor], touched: Iterable[int]) -> dict[int, Tensor]:
        """Return each `.grad` before joint edits; a `.grad` changed by other code since then is used unchanged."""
        values = {}
        for key, tensor in tensors.items():
            if tensor.grad is None:
                self.accumulated.pop(key, None)
                continue
            accumulated = self.accumulated.get(key)
            if accumulated is None or key in touched or grad_state(tensor.grad) != accumulated.state:
                accumulated = self.accumulated[key] = _Accumulated(
                    tensor.grad.detach().clone(), grad_state(tensor.grad)
                )
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


def _edited(entry: GradientEdit, gradient: Tensor) -> Tensor:
    """Return the gradient after an edit, which may modify its argument in place."""
    if entry.edit is None:
        return gradient
    changed = entry.edit(gradient if entry.observes else gradient.clone())
    return gradient if changed is None else changed


def _queue_callback(callback: Callable[[], Any]) -> None:
    """Call a function at the end of the running backward pass."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(callback)
