"""Parameters whose tensor hooks do not receive their final gradient: averaged over processes, or sharded.

DistributedDataParallel averages `.grad` over the processes after the tensor hooks and post-accumulate hooks have run.
Blocks may be given the module inside the wrapper, or its parameters, so wrappers are found among the live objects.
"""

from __future__ import annotations

from typing import NoReturn
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from explainers.errors import BadOption, UnsupportedModel
from explainers.hooks.live import LiveInstances

Wrapper = nn.parallel.DistributedDataParallel
_wrappers = LiveInstances(Wrapper)
_SHARDING = {"FullyShardedDataParallel": "FullyShardedDataParallel", "FSDPModule": "fully_shard"}
ORDINARY_COPY = (
    "Explain an ordinary copy of the model: in all processes, call state = "
    "torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
    "options=StateDictOptions(full_state_dict=True)); then build the model again without sharding and call its "
    "load_state_dict(state)."
)
"""What to do about a sharded model that cannot be explained as it is."""
_parameters: WeakKeyDictionary[Wrapper, frozenset[int]] = WeakKeyDictionary()


def runs_distributed() -> bool:
    """Return whether this process belongs to a process group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def inspect_wrappers(model: nn.Module, instead: str) -> None:
    """Note the DistributedDataParallel wrappers in a model; `instead` is what to write if it is sharded.

    Errors   BadOption if the model is sharded over processes
    """
    if not runs_distributed():
        return
    for module in model.modules():
        if isinstance(module, Wrapper):
            _wrappers.add(module)
    kind = sharding_of(model)
    if kind is not None:
        raise BadOption(_no_hooks(kind, instead))


def reducing_wrapper(tensor: Tensor) -> Wrapper | None:
    """Return the wrapper that averages the gradient of this tensor over the processes, or None."""
    if not tensor.is_leaf or not runs_distributed():
        return None
    return next((wrapper for wrapper in _wrappers.get() if id(tensor) in _ids(wrapper)), None)


def _ids(wrapper: Wrapper) -> frozenset[int]:
    known = _parameters.get(wrapper)
    if known is None:
        known = _parameters[wrapper] = frozenset(map(id, wrapper._module_parameters))
    return known


def refuse_sharded(tensor: Tensor, instead: str) -> None:
    """Raise an error if a tensor is sharded over processes; `instead` is what to write.

    Errors   BadOption for parameters of FullyShardedDataParallel or `fully_shard`, and for other DTensors
    """
    kind = _sharding(tensor)
    if kind is not None:
        raise BadOption(_no_hooks(kind, instead))


def _no_hooks(kind: str, instead: str) -> str:
    return (
        f"The parameters are sharded over processes by {kind}, so their hooks do not receive whole gradients. Remove "
        f"this block. {instead}"
    )


def refuse_sharded_model(kind: str) -> NoReturn:
    """Raise an error for a model that `kind` shards over processes in a way that a method cannot gather.

    Errors   UnsupportedModel
    """
    raise UnsupportedModel(f"The parameters of the model are sharded over processes by {kind}. {ORDINARY_COPY}")


def refuse_sharded_call(model: nn.Module, needs: str) -> None:
    """Raise an error if a call that `needs` the model itself gets one whose parameters are sharded over processes.

    Errors   UnsupportedModel
    """
    if (kind := sharding_of(model)) is not None:
        raise UnsupportedModel(
            f"{needs} the model itself, whose parameters are sharded over processes by {kind}. {ORDINARY_COPY}"
        )


def is_gathered(model: nn.Module) -> bool:
    """Return whether a call must gather the parameters of the model from several processes.

    Errors   UnsupportedModel if they are sharded by anything but FSDP
    """
    kind = sharding_of(model)
    if kind is not None and kind not in _SHARDING.values():
        refuse_sharded_model(kind)
    return kind is not None


def sharding_of(model: nn.Module) -> str | None:
    """Return what shards parameters of the model over processes, or None.

    Between forward and backward pass, sharded parameters are ordinary tensors, so the modules are inspected too.
    """
    if not runs_distributed():
        return None
    for module in model.modules():
        for base in type(module).__mro__:
            if base.__module__.startswith("torch.distributed.") and base.__name__ in _SHARDING:
                return _SHARDING[base.__name__]
    return next((kind for tensor in model.parameters() if (kind := _sharding(tensor))), None)


def _sharding(tensor: Tensor) -> str | None:
    if getattr(tensor, "_fsdp_flattened", False):
        return "FullyShardedDataParallel"
    return "a device mesh (DTensor)" if hasattr(tensor, "device_mesh") else None
