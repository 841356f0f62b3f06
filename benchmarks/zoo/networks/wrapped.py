"""Networks inside wrappers: distributed in one process, sharded, parametrized."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator

import torch
from torch import distributed, nn

from benchmarks.zoo.networks.custom import Small
from benchmarks.zoo.networks.unusual import PLACED
from benchmarks.zoo.subject import Network


def _group() -> None:
    """Open a process group with this process only. It ends with the process of the network."""
    if not distributed.is_initialized():
        store = f"file://{tempfile.mkdtemp()}/store"
        distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)


def _distributed(network: nn.Module) -> nn.Module:
    _group()
    return nn.parallel.DistributedDataParallel(network.requires_grad_())


def _sharded(network: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    _group()
    return FullyShardedDataParallel(network.requires_grad_(), device_id=torch.device("cpu")).eval()


def _fully_sharded(network: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    _group()
    return fully_shard(network.requires_grad_())


def _parametrized(network: nn.Module) -> nn.Module:
    for module in list(network.modules()):
        if isinstance(module, nn.Conv2d):
            nn.utils.parametrizations.weight_norm(module)
    return network.eval()


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DataParallel": nn.DataParallel,
    "DistributedDataParallel": _distributed,
    "FullyShardedDataParallel": _sharded,
    "fully_shard": _fully_sharded,
    "weight_norm": _parametrized,
}


def wrapped() -> Iterator[Network]:
    """Return the wrapped networks. The checks of layers are for names inside the wrapper, which the library removes."""
    for name, wrap in WRAPPERS.items():
        # The oracle of LRP needs a copy, which sharded networks do not allow.
        checks = tuple(each for each in PLACED if each != "lrp" or wrap not in (_sharded, _fully_sharded))
        yield Network(f"wrapped {name}", lambda size: Small(), finish=wrap, checks=checks)
