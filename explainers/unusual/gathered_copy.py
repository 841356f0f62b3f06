"""An ordinary copy of a model whose parameters are sharded over processes by FSDP, for the duration of one call.

A pass of the model itself gathers its parameters in all processes at once. Methods stop passes early, which leaves the
state of FSDP undefined, and processes with different images may run different numbers of passes, which would make them
wait for each other forever. A call therefore gathers the parameters once, at its start, and all its passes run on a
copy that does not communicate. The weights of the copy have the precision in which they are stored, also if training
uses a lower one.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from explainers.hooks.distributed import refuse_sharded_model
from explainers.hooks.locate import FLAT_WRAPPED
from explainers.hooks.shallow_copy import shallow_copy

Table = Mapping[str, Tensor | None]


def gathered_copy(model: nn.Module) -> nn.Module:
    """Return a copy of the model with full parameters, in evaluation mode and without FSDP; for all processes at once.

    Errors   UnsupportedModel if the parameters are on another device than the processes' communication, or if inputs of
             layers are sharded too (tensor parallelism)
    """
    with torch.inference_mode(False), torch.no_grad():
        tables = _unflatten(model)
        for module in model.modules():
            for function in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
                if _module_of(function).startswith("torch.distributed.tensor"):
                    refuse_sharded_model("a device mesh (DTensor)")
            if _is_sharded_in_place(module):
                module.reshard()  # type: ignore[operator]
        full = _Memo(_full)
        copy = shallow_copy(model, lambda module: full.table(tables.get(id(module), module._parameters)))
    for module in copy.modules():
        _remove_fsdp(module)
    return copy


class _Memo:
    """Replace the tensors of tables by a function; a tensor that several modules share is replaced once."""

    def __init__(self, replace: Callable[[Tensor], Tensor]) -> None:
        self._replace = replace
        self._known: dict[int, tuple[Tensor, Tensor]] = {}
        """Tensor and replacement by id; the tensor is kept, so that no other one gets its id."""

    def table(self, tensors: Table) -> dict[str, Tensor | None]:
        return {name: None if tensor is None else self._of(tensor) for name, tensor in tensors.items()}

    def _of(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor, self._replace(tensor)
        return self._known[id(tensor)][1]


def _unflatten(model: nn.Module) -> dict[int, Table]:
    """Return the parameters of modules inside FullyShardedDataParallel by the module's id, one unit after the other."""
    tables: dict[int, Table] = {}
    for unit in [module for module in model.modules() if FLAT_WRAPPED in module._modules]:
        # The outermost unit comes first: the first one that is used becomes the root.
        with unit.summon_full_params(unit, recurse=False, writeback=False):  # type: ignore[operator]
            clones = _Memo(lambda tensor: nn.Parameter(tensor.detach().clone(), tensor.requires_grad))
            tables |= {id(module): clones.table(module._parameters) for module in _own_modules(unit)}
    return tables


def _own_modules(unit: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules in a unit of FullyShardedDataParallel that are not in a unit inside it."""
    queue = [unit._modules[FLAT_WRAPPED]]
    for module in queue:  # grows during iteration
        if module is not None and FLAT_WRAPPED not in module._modules:
            yield module
            queue.extend(module._modules.values())


def _full(tensor: Tensor) -> Tensor:
    """Return the full tensor of a DTensor, and any other tensor unchanged."""
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return tensor
    if tensor.device.type != mesh.device_type:
        refuse_sharded_model(f"fully_shard, which keeps them on the {tensor.device.type},")
    return nn.Parameter(tensor.full_tensor(), tensor.requires_grad)  # type: ignore[attr-defined]


def _is_sharded_in_place(module: nn.Module) -> bool:
    """Return whether `fully_shard` has replaced the class of the module."""
    return any(base.__name__ == "FSDPModule" and _is_fsdp(base.__module__) for base in type(module).__mro__)


def _remove_fsdp(module: nn.Module) -> None:
    """Restore the class, hooks and methods of a copied module to what they were before sharding."""
    own = module.__dict__
    if _is_sharded_in_place(module):
        module.__class__ = next(base for base in type(module).__mro__[1:] if issubclass(base, nn.Module))
    for name in ("_forward_hooks", "_forward_pre_hooks"):
        own[name] = type(own[name])((key, hook) for key, hook in own[name].items() if not _is_fsdp(_module_of(hook)))
    for name, value in [*own.items()]:
        # Methods that `register_fsdp_forward_method` replaced, and views of flat parameters.
        if name in module._parameters or (isinstance(value, types.MethodType) and _is_fsdp(_module_of(value))):
            del own[name]


def _module_of(function: Any) -> str:
    """Return the name of the Python module that defines a function, also if it looks like another (functools.wraps)."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, types.MethodType):
        if not isinstance(function.__self__, nn.Module):
            return type(function.__self__).__module__
        function = function.__func__
    if isinstance(function, types.FunctionType):
        return str(function.__globals__.get("__name__", ""))
    return type(function).__module__


def _is_fsdp(module: str) -> bool:
    return module.startswith(("torch.distributed.fsdp", "torch.distributed._composable"))
