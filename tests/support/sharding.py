"""Shard networks over the processes of a group, in all ways of FSDP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

KINDS = ("FullyShardedDataParallel", "FullyShardedDataParallel, original", "fully_shard")

each_kind = pytest.mark.parametrize("kind", KINDS)
quick_kind = pytest.mark.parametrize(
    "kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
)
"""One kind, and the others with --slow, for tests that start processes."""


def shard(net: nn.Module, kind: str, children: Sequence[str] = (), **options: Any) -> nn.Module:
    """Shard a network; its named children become separate units."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    if kind == "fully_shard":
        for name in children:
            fully_shard(net.get_submodule(name), **options)
        return fully_shard(net, **options)
    options |= {"use_orig_params": "original" in kind, "device_id": torch.device("cpu")}
    for name in children:
        net.set_submodule(name, FullyShardedDataParallel(net.get_submodule(name), **options))
    return FullyShardedDataParallel(net, **options)
