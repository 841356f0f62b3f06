"""Locate hook points: the network inside its wrappers, and a layer by name or as a module."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import nn
from typing_extensions import Self

from explainers.errors import BadOption, LayerNotFound, UnsupportedModel, WrongType, nearest, no_module, shorten
from explainers.options import LayerName

W = TypeVar("W", bound="Wrapper")

FLAT_WRAPPED = "_fsdp_wrapped_module"
"""The name of the network inside FullyShardedDataParallel."""


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside `torch.compile` or a wrapper for several devices, or the model itself.

    Errors   WrongType if `model` is not a module
    """
    if not isinstance(model, nn.Module):
        raise no_module(model)
    while True:
        if "_orig_mod" in model._modules:
            model = model._orig_mod  # type: ignore[assignment]
        elif FLAT_WRAPPED in model._modules:
            model = model._modules[FLAT_WRAPPED]  # type: ignore[assignment]
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        else:
            return model


class _Eager:
    """Run compiled models eagerly while any block needs it, since compiled code never calls hooks registered later."""

    def __init__(self) -> None:
        self._lock, self._blocks = threading.RLock(), 0
        self._stance: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._blocks == 0:
                self._stance = torch.compiler.set_stance("force_eager")
                self._stance.__enter__()
            self._blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                self._stance.__exit__(None, None, None)


_eager = _Eager()


def unwrap_for_hooks(model: nn.Module, stack: ExitStack) -> nn.Module:
    """Return the network inside its wrappers; if it is compiled, it runs eagerly until the stack is closed."""
    inner = unwrap(model)
    compiled = [getattr(module, "_compiled_call_impl", None) is not None for module in inner.modules()]
    if "_orig_mod" in model._modules or any(compiled):
        stack.enter_context(_eager)
    return inner


class Wrapper(nn.Module):
    """The modules, parameters and buffers of a network that runs in another way; to all passes an ordinary module."""

    inner: nn.Module

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        own = self.__dict__
        if frozen_graph(inner) is None:
            own.update(_modules=inner._modules, _parameters=inner._parameters, _buffers=inner._buffers)
        else:
            self._modules["model"] = inner  # compiled code stores its tables elsewhere; no hooks are set in it
        own.update(inner=inner, training=getattr(inner, "training", False))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["inner"], name)

    @classmethod
    def of(cls, inner: nn.Module, *arguments: Any) -> Self:
        """Create a wrapper whose class has the name of the network's class, for use in messages."""
        return _named(cls, type(inner).__name__)(inner, *arguments)  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _named(kind: type[W], name: str) -> type[W]:
    return type(name, (kind,), {})


def frozen_graph(model: nn.Module) -> str | None:
    """Return "scripted", "traced" or "exported" if inner hooks cannot be set or never fire, else None."""
    while isinstance(model, Wrapper):
        model = model.inner  # a model run through a user function, or row by row
    if isinstance(model, torch.jit.ScriptModule):
        return "traced" if type(model).__name__ == "TopLevelTracedModule" else "scripted"
    if isinstance(model, torch.fx.GraphModule):
        # An exported program keeps modules only for their parameters; the only module it calls is its guards.
        calls = any(node.op == "call_module" and node.target != "_guards_fn" for node in model.graph.nodes)
        return None if calls or not list(model.children()) else "exported"
    return None


@dataclass(frozen=True)
class HookPoint:
    """A requested layer: its dotted name, the module, and the number of the call (None: all calls)."""

    name: str
    module: nn.Module
    call: int | None = None

    @property
    def path(self) -> str:
        """The name without the call's number."""
        return self.name.partition("#")[0]


def find_hook_point(model: nn.Module, layer: LayerName) -> HookPoint:
    """Find a layer of the model by name or by module.

    Errors   LayerNotFound with the nearest names; UnsupportedModel if hooks on inner layers never fire; WrongType
    """
    if not isinstance(layer, str):
        layer = one_layer(layer)
    name = layer if isinstance(layer, str) else _name_of(layer, model)
    if FLAT_WRAPPED in name:
        name = _without_wrappers(name)
    path, _, number = name.partition("#")
    module, kind = model, frozen_graph(model)
    for part in path.split(".") if path else []:
        children = module._modules
        child = children[part] if part in children else None  # noqa: SIM401 the table of compiled code has no `get`
        if child is None:
            raise _not_found(model, name, path)
        kind = kind or frozen_graph(child)
        module = unwrap(child) if FLAT_WRAPPED in child._modules else child
    if number and not number.isdigit():
        raise _not_found(model, name, path)
    if kind is not None:
        raise UnsupportedModel(no_inner_hooks(kind))
    return HookPoint(name, module, int(number) if number else None)


def one_layer(layer: Any) -> Any:
    """Return the only layer of a list of one; a layer by name or as a module, or None, is returned as it is.

    Errors   BadOption for several layers, WrongType for anything else
    """
    if layer is None or isinstance(layer, (str, nn.Module)):
        return layer
    if not isinstance(layer, (list, tuple)):
        raise WrongType(
            f"Invalid layer={shorten(layer)}. Pass a name from list_layers(model, images), or the module itself."
        )
    if len(layer) != 1:
        raise BadOption(
            f"layer={shorten(layer)} has {len(layer)} layers. Give one, or call sweep(method, model, images, "
            "layers=[...]) for the map of each, and fuse(maps) for their mean or product."
        )
    return layer[0]


def _without_wrappers(name: str) -> str:
    """Return the name that a layer has if no part of the model is inside FullyShardedDataParallel."""
    return ".".join(part for part in name.split(".") if part != FLAT_WRAPPED)


def _not_found(model: nn.Module, name: str, path: str) -> LayerNotFound:
    hint = nearest(
        path, [short for known, _ in model.named_modules(remove_duplicate=False) if (short := _without_wrappers(known))]
    )
    return LayerNotFound(
        f"{type(model).__name__} has no layer {name!r}. {hint}Call list_layers(model, images) to list all names."
    )


def _name_of(layer: Any, model: nn.Module) -> str:
    if not isinstance(layer, nn.Module):
        raise WrongType(f"Invalid layer={shorten(layer)}. Pass a name from list_layers(model, images), or the module.")
    inner = unwrap(layer)
    for name, module in model.named_modules(remove_duplicate=False):
        if module is inner:
            return name
    raise LayerNotFound(
        f"The {type(layer).__name__} passed as layer is not part of this {type(model).__name__}. "
        "Pass a module of the same model, or a name from list_layers(model, images)."
    )


def why_no_hooks(model: nn.Module) -> str | None:
    """Return why the layers of this model cannot be read, or None if hooks on them fire."""
    kind = frozen_graph(unwrap(model))
    return no_inner_hooks(kind) if kind else None


def no_inner_hooks(kind: str) -> str:
    """Return the message for a model of `kind` whose inner modules do not support hooks."""
    return (
        f"The model is {kind}, and hooks on its inner layers never fire, so its layers cannot be read. Pass the "
        "original nn.Module, or use a method that only needs the output: an input-gradient method (saliency, "
        "input_x_gradient, integrated_gradients, smooth_grad) or occlusion."
    )
