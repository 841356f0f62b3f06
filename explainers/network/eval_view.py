"""The network that a call runs: unwrapped, in evaluation mode and uncompiled, without touching the user's modules.

A model that is ready (all modules in eval mode, none compiled) is used as it is. Otherwise its module tree is copied
shallowly: new module objects that share every parameter and buffer, with `training` off; only what was made in
inference mode, which autograd refuses, is copied too. Flipping the flags of the
user's own modules, even for a moment, would disturb a training step that runs in another thread.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import UnsupportedModel
from explainers.hooks.locate import frozen_graph, modules_of, unwrap


def ready(model: nn.Module) -> nn.Module:
    """The model to run: itself, or a view of it in evaluation mode that shares all its tensors."""
    model = unwrap(model)
    kind = frozen_graph(model)
    if kind is not None:
        if kind != "exported" and model.training:
            raise UnsupportedModel(
                f"The {kind} model is in training mode, which cannot be changed from outside. Call model.eval() first."
            )
        return model
    return model if all(map(_is_ready, modules_of(model))) else view(model)


def _is_ready(module: nn.Module) -> bool:
    """In evaluation mode, not compiled, its own tensors made outside inference mode; read straight from its tables."""
    if module.training or _compiled(module):
        return False
    for table in (module._parameters, module._buffers):
        for tensor in table.values():
            if tensor is not None and tensor.is_inference():
                return False
    return True


def _ordinary(tensor: Tensor | None) -> Tensor | None:
    """The tensor itself, or a copy that autograd accepts where it was made in inference mode."""
    if tensor is None or not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        return tensor.detach().clone()


def _compiled(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None


def view(model: nn.Module) -> nn.Module:
    copies: dict[int, nn.Module] = {}

    def copy(module: nn.Module) -> nn.Module:
        module = unwrap(module)
        if isinstance(module, torch.jit.ScriptModule):
            return module  # compiled code has no attributes that could be copied
        if id(module) in copies:
            return copies[id(module)]
        twin = copies[id(module)] = object.__new__(type(module))
        twin.__dict__.update(module.__dict__)
        twin.__dict__.update(training=False, _compiled_call_impl=None)
        for name, value in module.__dict__.items():
            if name in ("_parameters", "_buffers"):
                twin.__dict__[name] = {key: _ordinary(tensor) for key, tensor in value.items()}
            elif name.endswith("_hooks"):
                twin.__dict__[name] = value.copy()
        twin._modules = {name: child if child is None else copy(child) for name, child in module._modules.items()}
        return twin

    def follow(value: Any) -> Any:
        """The same value with every module of this tree replaced by its twin: lists of stages, bound methods."""
        if isinstance(value, nn.Module):
            return copies.get(id(unwrap(value)), value)
        if isinstance(value, types.MethodType) and id(value.__self__) in copies:
            return types.MethodType(value.__func__, copies[id(value.__self__)])
        if type(value) in (list, tuple) and any(map(_may_hold, value)):
            return type(value)(map(follow, value))
        if type(value) is dict and any(map(_may_hold, value.values())):
            return {key: follow(each) for key, each in value.items()}
        return value

    whole = copy(model)
    for twin in copies.values():
        for name, value in twin.__dict__.items():
            if name not in ("_modules", "_parameters", "_buffers"):
                twin.__dict__[name] = follow(value)
    return whole


def _may_hold(value: Any) -> bool:
    return isinstance(value, (nn.Module, types.MethodType, list, tuple, dict))
