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
    """One entered edit: of a single gradient (`edit`), or of several at once (`joint`); `observes` only looks."""

    tensors: dict[int, Tensor]
    edit: Callable[[Tensor], Tensor | None] | None = None
    joint: JointEdit | None = None
    observes: bool = False
    number: int = 0


@dataclass
class _Kept:
    """A parameter's accumulated gradient before the joint edit, and where and in which state `.grad` was left."""

    raw: Tensor
    left: tuple[int, int]


@dataclass
class GradientQueue:
    """The edits that one thread has entered and not left, first entered first."""

    thread: int = field(default_factory=threading.get_ident)
    links: list[GradientEdit] = field(default_factory=list)
    kept: dict[int, _Kept] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    entered: int = 0
    joints: list[GradientEdit] = field(default_factory=list)

    def mine(self) -> bool:
        """Whether this backward pass belongs to the line's thread.

        On the CPU the engine works in the thread that called it. On an accelerator it works in threads of its own,
        which Python did not start; those are taken for ours.
        """
        now = threading.get_ident()
        if now == self.thread:
            return True
        started = (each for each in threading.enumerate() if not isinstance(each, threading._DummyThread))
        return now not in {each.ident for each in started}

    def enter(self, link: GradientEdit, stack: ExitStack) -> None:
        """Add the edit to the line for as long as the stack is open."""

        def leave() -> None:
            self.links.remove(link)
            if link.joint:
                self.joints.remove(link)
            still = {key for each in self.joints for key in each.tensors}
            for key in self.kept.keys() - still:
                del self.kept[key]
            self.touched &= still

        self.entered += 1
        link.number = self.entered
        self.links.append(link)
        if link.joint:
            self.joints.append(link)
        stack.callback(leave)

    def at_once(self, link: GradientEdit, key: int, gradient: Tensor) -> Tensor | None:
        """What a Tensor hook answers: the edited gradient, or None for other threads and behind a joint edit."""
        if not self.mine() or link.edit is None:
            return None
        if any(each.number < link.number and key in each.tensors for each in self.joints):
            return None
        return link.edit(gradient)

    def arrived(self, tensor: Tensor) -> None:
        """A gradient of a joint edit's parameter is about to be added to `.grad`: undo the edit, and come back."""
        if not self.mine():
            return
        kept = self.kept.get(id(tensor))
        if kept is not None and tensor.grad is not None and _state(tensor.grad) == kept.left:
            with torch.no_grad():
                tensor.grad.copy_(kept.raw)
        self.touched.add(id(tensor))
        engine: Any = torch.autograd.Variable._execution_engine
        # Asked for by every parameter: one flag for all would stay set after a pass that failed.
        engine.queue_callback(self.settle)

    def settle(self) -> None:
        """Run the joint edits, and what was entered after them, on the accumulated gradients of this pass."""
        touched, self.touched = self.touched, set()
        if not touched:
            return
        tensors = {key: tensor for link in self.joints for key, tensor in link.tensors.items()}
        with torch.no_grad():
            values = self._accumulated(tensors, touched)
            begun: set[int] = set()
            for link in self.links:
                if link.joint:
                    keys = [key for key in link.tensors if key in values]
                    values.update(zip(keys, link.joint([values[key] for key in keys]), strict=True))
                    begun.update(keys)
                elif link.edit:
                    for key in (key for key in link.tensors if key in begun):
                        if key in touched or not link.observes:
                            # A clone, since the function may write into what it is given.
                            changed = link.edit(values[key].clone())
                            values[key] = values[key] if changed is None else changed
            for key, value in values.items():
                gradient = tensors[key].grad
                if gradient is not None:
                    gradient.copy_(value)
                    self.kept[key].left = _state(gradient)

    def _accumulated(self, tensors: dict[int, Tensor], touched: Iterable[int]) -> dict[int, Tensor]:
        """Each `.grad` before joint edits; one that somebody else has changed since counts as it is."""
        values = {}
        for key, tensor in tensors.items():
            if tensor.grad is None:
                self.kept.pop(key, None)
                continue
            kept = self.kept.get(key)
            if kept is None or key in touched or _state(tensor.grad) != kept.left:
                kept = self.kept[key] = _Kept(tensor.grad.detach().clone(), _state(tensor.grad))
            values[key] = kept.raw
        return values


class _Own(threading.local):
    line: GradientQueue | None = None


_own = _Own()


def queue_of_this_thread() -> GradientQueue:
    """The calling thread's line; hooks keep it, whichever thread they are called in."""
    if _own.line is None:
        _own.line = GradientQueue()
    return _own.line


def _state(gradient: Tensor) -> tuple[int, int]:
    """Where a gradient lies and how often it was written to: `zero_grad` and every edit by others change it."""
    return gradient.data_ptr(), gradient._version
