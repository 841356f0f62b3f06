"""A network of two layers, a batch and a backward pass, for tests of hooks in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def two_layers(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def batch(seed: int = 1, size: float = 3.0) -> Tensor:
    return size * torch.randn(6, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss(scores: Tensor) -> Tensor:
    return scores.pow(2).sum()


def one_pass(net: nn.Module) -> None:
    """Run a backward pass over a batch."""
    loss(net(batch().to(next(net.parameters()).dtype))).backward()


def gradients(net: nn.Module) -> list[Tensor]:
    """Return copies of `.grad`, in order of the parameters; zeros if it is None."""
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in net.parameters()]


def gradients_of(net: nn.Module, run: Callable[[nn.Module], object] = one_pass) -> list[Tensor]:
    """Return what `run` adds to `.grad`."""
    net.zero_grad()
    run(net)
    return gradients(net)


def total_norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.nn.utils.get_total_norm(tensors))


def assert_all_close(found: Sequence[Tensor], wanted: Sequence[Tensor], message: str = "", rtol: float = 1e-5) -> None:
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two.to(one.dtype), rtol=rtol, atol=rtol / 100, msg=message or None)
