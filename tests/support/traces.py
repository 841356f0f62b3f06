"""Side effects of a call, as `check_explainer` compares them, and graphs and tensors that are still alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from explainers.checks.fixtures import changes, snapshot


@contextmanager
def nothing_left(model: nn.Module, *tensors: Tensor) -> Iterator[None]:
    """Fail when the block changed anything that a call must not change, also when the block itself raised."""
    before = snapshot(model, *tensors)
    try:
        yield
    finally:
        left = changes(before, snapshot(model, *tensors))
        assert not left, f"left behind: {', '.join(sorted(left))}"


class _Token:
    pass


LIVE: weakref.WeakSet[_Token] = weakref.WeakSet()


class _Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.token = _Token()
        LIVE.add(ctx.token)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Marker(nn.Module):
    """Identity whose graph nodes are counted: `graphs_alive()` is 0 once no graph through it is alive."""

    def forward(self, x: Tensor) -> Tensor:
        return _Marked.apply(x)


def graphs_alive() -> int:
    gc.collect()
    return len(LIVE)


def tensors_alive() -> int:
    """Tensors that Python objects keep alive."""
    gc.collect()
    return sum(1 for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter))
