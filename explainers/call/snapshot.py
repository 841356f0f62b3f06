"""Notice in one quick pass that nothing about a network has changed since an earlier call.

Every call depends on the modes, hooks and classes of all modules, on their settings and on their tensors' shapes.
Reading them for each purpose takes longer than the rest of a call on a small network. A snapshot compares all of them
at once, mostly in C, and `memo` has what earlier calls have concluded from them.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from explainers.dtypes import to_cpu_float64
from explainers.hooks.calls import active_hooks

Settings = list[Any]
"""Values of attributes, shapes and ids, in a fixed order; no references to modules or tensors."""

INTERNAL = frozenset(vars(nn.Module()))
PLAIN = frozenset({bool, int, float, str, type(None), torch.dtype})
_MOST_NUMBERS = 2**16
"""Size of tensors whose values are read."""
_MOST_ITEMS, _MOST_LEVELS, _MOST_VALUES = 200, 3, 1000


def read_settings(modules: Iterable[nn.Module]) -> Settings:
    """Return the settings of the modules: plain attributes, configurations, shapes of parameters."""
    found: Settings = []
    known: dict[int, Any] = {}
    for module in modules:
        table = module.__dict__
        kind = type(module)
        found.append((id(kind), None if isinstance(module, torch.jit.ScriptModule) else id(kind.forward)))
        found += [
            value if type(value) in PLAIN else summary(value, known)
            for name, value in table.items()
            if name not in INTERNAL
        ]
        for name in ("_parameters", "_buffers"):
            if tensors := table.get(name):
                found += [None if tensor is None else tensor.shape for tensor in tensors.values()]
    return found


def read_values(modules: Iterable[nn.Module]) -> list[float]:
    """Return a number for each small parameter and buffer, which depends on all of its values."""
    found = []
    for module in modules:
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is None or tensor.is_meta or tensor.is_quantized or tensor.layout != torch.strided:
                continue
            if 0 < tensor.numel() <= _MOST_NUMBERS:
                values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
                values = to_cpu_float64(values.detach()).flatten()
                found.append(float(values @ torch.arange(1.0, len(values) + 1, dtype=torch.float64)))
    return found


def summary(value: Any, known: dict[int, Any], level: int = 0) -> Any:
    """Return a comparable value without references to modules or tensors; objects that are shared are read once."""
    if type(value) is tuple:
        try:
            return hash(value)
        except TypeError:  # a tuple of lists
            pass
    if type(value) in PLAIN:
        return value
    if isinstance(value, Tensor):
        return value.shape
    if isinstance(value, nn.Module) or level >= _MOST_LEVELS or len(known) >= _MOST_VALUES:
        return id(value)
    if id(value) not in known:
        known[id(value)] = id(value)  # a value that contains itself
        if isinstance(value, dict):
            parts: list[Any] = [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            parts = list(value)
        else:
            parts = list(getattr(value, "__dict__", {}).values())
        short = parts if len(parts) <= _MOST_ITEMS else [len(parts)]
        own = [] if isinstance(value, (dict, list, tuple)) else [id(value)]
        known[id(value)] = own + [summary(part, known, level + 1) for part in short]
    return known[id(value)]


_TENSORS = ("_parameters", "_buffers")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_READ = frozenset({"training", "_modules", *_TENSORS, *_HOOKS, "_backward_hooks", "_backward_pre_hooks"})
"""Torch's own attributes that matter to a call."""
_MOST_SNAPSHOTS = 8
"""A network that changes in every call, such as one that counts its passes, gets no more snapshots."""


@dataclass(frozen=True, eq=False)
class _Row:
    """A module as it was: its number of attributes, plain values, other values and children.

    `children` is empty if there are none, and `has_tensors` is False without parameters and buffers; the plain values
    then contain the empty tables.
    """

    here: weakref.ref[nn.Module]
    kind: type[nn.Module]
    size: int
    read: Callable[[dict[str, Any]], Any]
    plain: Any
    others: tuple[tuple[str, Any], ...]
    children: tuple[Any, ...]
    has_tensors: bool


@dataclass(eq=False)
class Snapshot:
    """A network that runs as it is: all modules in evaluation mode, without backward hooks and inference tensors.

    The other fields are what earlier calls have concluded about it: `classes`, `ids` and `quantized` as in
    `EvalView`, `writing` the indices of the modules that may write buffers, `unregistered` modules that it
    refers to without registering them, `checkpoints` whether it runs `torch.utils.checkpoint` (None: unknown),
    `is_hooked` whether the user has hooks on it, which may do anything to a graph; `ordinary` the kinds of batches
    whose rows need no guard, `layouts` those of layers by request and image size, `regular` the kinds of backward
    passes without a gradient of unusual strides, and `known` what others have found out.
    """

    rows: list[_Row]
    forwards: list[tuple[type[nn.Module], Any]]
    tensors: list[Any]
    classes: frozenset[type[nn.Module]]
    ids: tuple[Any, ...]
    quantized: str | None
    writing: list[int]
    unregistered: list[weakref.ref[nn.Module]]
    checkpoints: bool | None
    is_hooked: bool
    ordinary: set[Hashable] = field(default_factory=set)
    layouts: dict[Hashable, Any] = field(default_factory=dict)
    regular: set[Hashable] = field(default_factory=set)
    known: dict[Hashable, Any] = field(default_factory=dict)

    def modules(self) -> list[nn.Module] | None:
        """Return all modules if nothing has changed, else None."""
        found: list[nn.Module] = []
        tensors: list[Any] = []
        known: dict[int, Any] = {}
        try:
            for kind, forward in self.forwards:
                if kind.forward is not forward:
                    return None
            for row in self.rows:
                module = row.here()
                if type(module) is not row.kind:
                    return None
                table = module.__dict__
                if len(table) != row.size or row.read(table) != row.plain:
                    return None
                if row.children:
                    children = table["_modules"]
                    if (*children, *map(id, children.values())) != row.children:
                        return None
                if row.has_tensors:
                    for tensor in (*table["_parameters"].values(), *table["_buffers"].values()):
                        tensors += (None,) if tensor is None else (type(tensor), tensor.shape, tensor.is_inference())
                for name, value in row.others:
                    if summary(table[name], known) != value:
                        return None
                found.append(module)
            return found if tensors == self.tensors else None
        except Exception:  # values of other types, which cannot be compared or read
            return None


snapshots: weakref.WeakKeyDictionary[nn.Module, dict[bool, Snapshot]] = weakref.WeakKeyDictionary()
"""The last snapshots of each model, without and with hooks of the user. They may be out of date."""
_counts: weakref.WeakKeyDictionary[nn.Module, Counter[bool]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def take_snapshot(model: nn.Module, modules: Sequence[nn.Module], **facts: Any) -> Snapshot | None:
    """Take and keep a snapshot of a model that runs as it is; `modules` are all of its modules, `facts` the fields.

    Returns None for modules without torch's tables, such as scripted ones, and for models that change too often.
    """
    hooks = [table for module in modules for name in _HOOKS if (table := vars(module).get(name))]
    if any(len(active_hooks(table)) < len(table) for table in hooks):
        return None  # a call in another thread has hooks for the moment
    is_hooked = bool(hooks)
    with _lock:
        count = _counts.setdefault(model, Counter())[is_hooked]
    if count >= _MOST_SNAPSHOTS or not all(map(_has_tables, modules)):
        return None
    known: dict[int, Any] = {}
    rows = [_row(module, known) for module in modules]
    forwards = [(kind, kind.forward) for kind in {type(module) for module in modules}]
    tensors: list[Any] = []
    for tensor in (each for module in modules for name in _TENSORS for each in vars(module)[name].values()):
        tensors += (None,) if tensor is None else (type(tensor), tensor.shape, tensor.is_inference())
    if True in tensors:
        return None
    snapshot = Snapshot(rows, forwards, tensors, is_hooked=is_hooked, **facts)
    with _lock:
        snapshots.setdefault(model, {})[is_hooked] = snapshot
        _counts[model][is_hooked] += 1
    return snapshot


def _has_tables(module: nn.Module) -> bool:
    tables = [vars(module).get(name) for name in ("_modules", *_TENSORS, *_HOOKS)]
    return all(isinstance(table, dict) for table in tables)


def _row(module: nn.Module, known: dict[int, Any]) -> _Row:
    table = vars(module)
    plain: dict[str, Any] = {}
    others: list[tuple[str, Any]] = []
    for name, value in table.items():
        if name in INTERNAL and name not in _READ:
            continue
        if name in _READ and name != "training":
            if not value:
                plain[name] = {}
            elif name in _HOOKS:
                others.append((name, summary(value, known)))
        elif _is_plain(value):
            plain[name] = list(value) if type(value) is list else value
        else:
            others.append((name, summary(value, known)))
    read: Any = itemgetter(*plain)
    children = table["_modules"]
    return _Row(
        weakref.ref(module),
        type(module),
        len(table),
        read,
        read(plain),
        tuple(others),
        (*children, *map(id, children.values())),
        any(table[name] for name in _TENSORS),
    )


def _is_plain(value: Any) -> bool:
    """Return whether a value is compared as it is: numbers, texts, classes, and flat lists or tuples of numbers."""
    return (
        type(value) in PLAIN
        or isinstance(value, type)
        or (type(value) in (tuple, list) and all(type(each) in PLAIN for each in value))
    )
