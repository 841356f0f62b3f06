"""The vector-Jacobian product of one function.

`torch.func.vjp` would do, but its first call imports torch._dynamo, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from explainers.network.batch_norm import guard_batch_norms


def vjp(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """f(x), detached, and the map from a gradient at the output to the gradient at x; the map may be called again."""
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        y = function(leaf)
    guard_batch_norms(y)
    return y.detach(), lambda gradient: torch.autograd.grad(y, leaf, gradient, retain_graph=True)[0]
