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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from explainers.findings import has_finding, is_recording, note_finding

Versions = tuple[Any, ...]
_clean: weakref.WeakKeyDictionary[nn.Module, Versions] = weakref.WeakKeyDictionary()
"""The versions of the buffers of networks that did not write to them in their last call."""
_lock = threading.Lock()


def is_clean(owner: nn.Module, modules: Sequence[nn.Module]) -> bool:
    """Return whether these modules did not write in the last call of the network, and are as they were after it."""
    if any(type(module).__module__.startswith("torch.ao.quantization") for module in modules):
        return False
    with _lock:
        known = _clean.get(owner)
    return known is not None and known == _versions(modules)


def _versions(modules: Sequence[nn.Module]) -> Versions:
    buffers = (tensor for module in modules for tensor in module._buffers.values())
    return tuple(
        (id(tensor), None if tensor is None or tensor.is_inference() else tensor._version) for tensor in buffers
    )


@dataclass(eq=False)
class WatchedBuffers:
    """The buffers of a network that is not known to write to them; it runs itself, and is restored if it does."""

    owner: nn.Module
    modules: list[nn.Module]

    def __post_init__(self) -> None:
        self._versions = _versions(self.modules)
        self._saved = [(module._buffers, dict(module._buffers), _clones(module._buffers)) for module in self.modules]

    def finish(self) -> None:
        """Restore the buffers if they were written, and guard them in the next call."""
        if _versions(self.modules) == self._versions:
            return
        with _lock:
            _clean.pop(self.owner, None)
        for table, tensors, clones in self._saved:
            for name, tensor in tensors.items():
                if tensor is not None and not _equal(tensor, clones[name]):
                    with torch.no_grad():
                        tensor.set_(clones[name])  # type: ignore[call-overload]
            _fill(table, tensors)


@dataclass(eq=False)
class GuardedBuffers:
    """Private buffers of the modules that may write: of the private copy of a network, or of the network itself.

    In the network itself, which a user function or a graph runs, they replace the buffers until the call ends.
    """

    owner: nn.Module
    modules: list[nn.Module]
    originals: list[nn.Module]

    def __post_init__(self) -> None:
        self._tables = [module._buffers for module in self.modules]
        self._saved = [dict(module._buffers) for module in self.originals]
        self._own: list[dict[str, Tensor | None]] = [{} for _ in self._tables]
        self._is_written = self._has_run = False
        self._remove_forward: Callable[[], None] | None = None
        for index in range(len(self._tables)):
            self._renew(index)

    def _renew(self, index: int) -> None:
        """Give a module fresh copies of its buffers."""
        self._own[index] = _clones(self._saved[index])
        _fill(self._tables[index], self._own[index])

    def guard(self, network: nn.Module) -> None:
        """Let every pass of the network leave the buffers as it found them."""
        is_scripted, here = isinstance(network, torch.jit.ScriptModule), weakref.ref(network)
        own = network.forward if is_scripted else network.__dict__.get("forward")

        def guarded(*args: Any, **keywords: Any) -> Any:
            running = here()
            assert running is not None, "it is running"
            try:
                return type(running).forward(running, *args, **keywords) if own is None else own(*args, **keywords)
            finally:
                with _disable_current_modes():  # what watches the pass takes this comparison for a part of the network
                    self._restore()

        network.__dict__["forward"] = guarded
        if network is self.owner:
            self._remove_forward = partial(_remove_forward, network, own)

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

    def finish(self) -> None:
        """Put the buffers back where they were replaced; a network that did not write is not copied again."""
        if self.modules is self.originals:
            for table, tensors in zip(self._tables, self._saved, strict=True):
                _fill(table, tensors)
            if self._remove_forward is not None:
                self._remove_forward()
        elif self._has_run and not self._is_written:
            with _lock:
                _clean[self.owner] = _versions(self.originals)


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


def _remove_forward(network: nn.Module, own: Callable[..., Any] | None) -> None:
    network.__dict__.pop("forward", None)
    if own is not None:
        network.__dict__["forward"] = own


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
