"""Vector-Jacobian products.

This replaces `torch.func.vjp`, whose first call imports torch._dynamo, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from explainers.call.batch_norm import guard_batch_norms


def vjp(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return f(x), detached, and a function from the gradient at the output to that at x, which may be called again."""
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        y = function(leaf)
    guard_batch_norms(y)
    return y.detach(), lambda gradient: torch.autograd.grad(y, leaf, gradient, retain_graph=True)[0]
