"""Parameters whose tensor hooks do not receive their final gradient: averaged over processes, or sharded.

DistributedDataParallel averages `.grad` over the processes after the tensor hooks and post-accumulate hooks have run.
Blocks may be given the module inside the wrapper, or its parameters, so wrappers are found among the live objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from explainers.errors import BadOption
from explainers.hooks.live import LiveInstances

Wrapper = nn.parallel.DistributedDataParallel
_wrappers = LiveInstances(Wrapper)
_parameters: WeakKeyDictionary[Wrapper, frozenset[int]] = WeakKeyDictionary()


def runs_distributed() -> bool:
    """Return whether this process belongs to a process group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def remember_wrappers(model: nn.Module) -> None:
    """Note the DistributedDataParallel wrappers in a model."""
    for module in model.modules():
        if isinstance(module, Wrapper):
            _wrappers.add(module)


def reducing_wrapper(tensor: Tensor) -> Wrapper | None:
    """Return the wrapper that averages the gradient of this tensor over the processes, or None."""
    if not runs_distributed() or not tensor.is_leaf:
        return None
    return next((wrapper for wrapper in _wrappers.get() if id(tensor) in _ids(wrapper)), None)


def _ids(wrapper: Wrapper) -> frozenset[int]:
    known = _parameters.get(wrapper)
    if known is None:
        known = _parameters[wrapper] = frozenset(map(id, wrapper._module_parameters))
    return known


def refuse_sharded(tensors: Iterable[Tensor], instead: str) -> None:
    """Raise an error if a tensor is sharded over processes; `instead` is the line to write after backward.

    Errors   BadOption for parameters of FullyShardedDataParallel or `fully_shard`, and for other DTensors
    """
    for tensor in tensors:
        kind = sharding(tensor)
        if kind is not None:
            raise BadOption(
                f"The parameters are sharded over processes by {kind}, and hooks on them do not receive their "
                f"gradients. Remove this block. {instead}"
            )


def sharding(tensor: Tensor) -> str | None:
    """Return what shards the tensor over processes, or None."""
    if getattr(tensor, "_fsdp_flattened", False):
        return "FullyShardedDataParallel"
    if hasattr(tensor, "full_tensor") and hasattr(tensor, "placements"):
        return "fully_shard or DTensor"
    return None
