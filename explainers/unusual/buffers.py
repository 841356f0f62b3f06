"""Leave the buffers of a network as they were, if its forward pass writes to them in evaluation mode.

Observers and fake quantization (QAT, PTQ) do, and so may modules that count or average. Such a network runs as a
private copy with separate buffers, which every pass finds as they were at the start of the call. Whether a network
writes is found out in its first call, and again if the version counters of its buffers changed. Modules of torch.nn do
not write in evaluation mode, and are not watched; those of torch.ao are always guarded, since some of their operations
do not change the counters.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import InitVar, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from explainers.findings import has_finding, is_recording, note_finding

Versions = tuple[Any, ...]
_clean: weakref.WeakKeyDictionary[nn.Module, Versions] = weakref.WeakKeyDictionary()
"""The versions of the buffers of networks that did not write to them in their last call."""
_lock = threading.Lock()
_replacing = threading.RLock()
"""Held while a call has replaced buffers of the user's own modules."""


def is_clean(owner: nn.Module, modules: Sequence[nn.Module]) -> bool:
    """Return whether these modules did not write in the last call of the network, and are as they were after it."""
    if any(type(module).__module__.startswith("torch.ao.quantization") for module in modules):
        return False
    with _lock:
        known = _clean.get(owner)
    return known is not None and known == _versions(modules)


def _versions(modules: Sequence[nn.Module]) -> Versions:
    return _versions_of(tensor for module in modules for tensor in module._buffers.values())


def _versions_of(tensors: Iterable[Tensor | None]) -> Versions:
    return tuple(
        (id(tensor), None if tensor is None or tensor.is_inference() else tensor._version) for tensor in tensors
    )


@dataclass(eq=False)
class WatchedBuffers:
    """The buffers of a network that is not known to write to them; it runs itself, and is restored if it does.

    A context manager, which a call enters.
    """

    owner: nn.Module
    modules: list[nn.Module]

    def __enter__(self) -> None:
        self._versions, self._parameters = _versions(self.modules), _versions_of(self.owner.parameters())
        self._saved = [(module._buffers, dict(module._buffers), _clones(module._buffers)) for module in self.modules]

    def __exit__(self, *_: object) -> None:
        """Restore the buffers if they were written, and guard them in the next call.

        If parameters changed too, then something else loads or trains the network, whose buffers are kept.
        """
        if _versions(self.modules) == self._versions:
            return
        with _lock:
            _clean.pop(self.owner, None)
        if _versions_of(self.owner.parameters()) != self._parameters:
            return
        for table, tensors, clones in self._saved:
            for name, tensor in tensors.items():
                if tensor is not None and (clone := clones[name]) is not None and not _equal(tensor, clone):
                    tensor.resize_(clone.shape).copy_(clone)  # the storage remains, which other tensors may share
            _fill(table, tensors)


@dataclass(eq=False)
class GuardedBuffers:
    """Private buffers of the modules that may write: of the private copy of a network, or of the network itself.

    In the network itself, which a user function or a graph runs, they replace the buffers until the call ends. Only one
    such call runs at a time. A context manager, which a call enters; a private copy is guarded before.
    """

    owner: nn.Module
    modules: list[nn.Module]
    originals: list[nn.Module]
    network: InitVar[nn.Module]

    def __post_init__(self, network: nn.Module) -> None:
        self._network = weakref.ref(network)  # which refers to this object, and should be freed at once
        self._is_written = self._has_run = False
        self._replaced = ExitStack()
        if self.modules is not self.originals:
            self._replace()

    def __enter__(self) -> None:
        if self.modules is self.originals:
            self._replaced.enter_context(_replacing)
            self._replace()

    def __exit__(self, *_: object) -> None:
        """Put the buffers back where they were replaced; a network that did not write is not copied again."""
        self._replaced.close()
        if self.modules is not self.originals and self._has_run and not self._is_written:
            with _lock:
                _clean[self.owner] = _versions(self.originals)

    def _replace(self) -> None:
        """Give the modules private buffers, and let every pass of the network leave them as it found them."""
        self._tables = [module._buffers for module in self.modules]
        self._saved = [dict(module._buffers) for module in self.originals]
        self._own: list[dict[str, Tensor | None]] = [{} for _ in self._tables]
        network = self._running()
        own = network.forward if isinstance(network, torch.jit.ScriptModule) else network.__dict__.get("forward")

        def guarded(*args: Any, **keywords: Any) -> Any:
            running = self._running()
            try:
                return type(running).forward(running, *args, **keywords) if own is None else own(*args, **keywords)
            finally:
                with _disable_current_modes():  # what watches the pass takes this comparison for a part of the network
                    self._restore()

        if self.modules is self.originals:
            self._replaced.callback(self._put_back, own)
        for index in range(len(self._tables)):
            self._renew(index)
        self._running().__dict__["forward"] = guarded

    def _running(self) -> nn.Module:
        network = self._network()
        assert network is not None, "it is running"
        return network

    def _put_back(self, own: Callable[..., Any] | None) -> None:
        for table, tensors in zip(self._tables, self._saved, strict=True):
            _fill(table, tensors)
        network = self._running()
        network.__dict__.pop("forward", None)
        if own is not None:
            network.__dict__["forward"] = own

    def _renew(self, index: int) -> None:
        """Give a module fresh copies of its buffers."""
        self._own[index] = _clones(self._saved[index])
        _fill(self._tables[index], self._own[index])

    def _restore(self) -> None:
        self._has_run = True
        changed: list[tuple[nn.Module, str]] = []
        for index, (table, own) in enumerate(zip(self._tables, self._own, strict=True)):
            saved, left = self._saved[index], dict(table)
            names = [name for name, tensor in left.items() if not _equal(tensor, saved.get(name))]
            if names or left.keys() != own.keys() or any(left[name] is not own[name] for name in own):
                self._is_written = True
                changed += [(self.originals[index], name) for name in names]
                self._renew(index)
        if changed and is_recording() and not has_finding("buffers_written"):
            _note(self.owner, changed)


def _clones(table: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    with torch.inference_mode(False), torch.no_grad():
        return {name: None if tensor is None else tensor.detach().clone() for name, tensor in table.items()}


def _fill(table: Any, tensors: dict[str, Tensor | None]) -> None:
    if isinstance(table, dict):
        table.clear()
        table.update(tensors)
    else:  # the table of a scripted module, whose names are fixed
        for name, tensor in tensors.items():
            table[name] = tensor


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_floating_point() or a.is_complex():
        return bool(((a == b) | (a.isnan() & b.isnan())).all())
    return torch.equal(a, b)


def _note(owner: nn.Module, changed: Sequence[tuple[nn.Module, str]]) -> None:
    where = {id(module): name for name, module in owner.named_modules()}
    module, buffer = changed[0]
    name = f"{where[id(module)]}.{buffer}".removeprefix(".")
    note_finding(
        "buffers_written",
        f"The forward pass of this {type(owner).__name__} writes to buffers in evaluation mode, such as {name!r}. Each "
        "pass of this call started with the buffers as they were, and the model is unchanged. If its own passes should "
        "not write either, turn that off, for example with model.apply(torch.ao.quantization.disable_observer).",
        buffer=name,
    )
