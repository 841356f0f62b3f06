"""Truths of the input-gradient methods."""

from __future__ import annotations

import torch
from nets import Cubic, curved, pictures, settle
from torch import Tensor, nn

from .oracle import Oracle


def differences(net: nn.Module, x: Tensor, classes: list[int], step: float = 1e-5) -> Tensor:
    """d score / d pixel by central differences, one pixel at a time."""
    result = torch.zeros_like(x)
    with torch.no_grad():
        for n, c in enumerate(classes):
            moves = step * torch.eye(x[n].numel(), dtype=x.dtype).view(-1, *x[n].shape)
            up, down = net(x[n] + moves)[:, c], net(x[n] - moves)[:, c]
            result[n] = ((up - down) / (2 * step)).view(x[n].shape)
    return result


def _smooth(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """Mean of the gradients at noisy pictures, every picture with its own generator."""
    rows = []
    for picture, c in zip(x, classes, strict=True):
        generator = torch.Generator().manual_seed(3)
        total = torch.zeros_like(picture)
        for _ in range(4):
            noise = torch.randn(picture.shape, generator=generator, dtype=picture.dtype)
            noisy = (picture + 0.2 * (picture.max() - picture.min()) * noise)[None].requires_grad_()
            total += torch.autograd.grad(net(noisy)[0, c], noisy)[0][0]
        rows.append(total / 4)
    return torch.stack(rows)


def _cubic() -> nn.Module:
    return settle(Cubic((3, 12, 16), 6).double())


def _tiny() -> Tensor:
    return pictures(height=6, width=8)


ORACLES: dict[str, Oracle] = {
    "saliency": Oracle("central differences", curved, differences, images=_tiny, rtol=1e-6, atol=1e-9),
    "input_x_gradient": Oracle(
        "central differences x picture",
        curved,
        lambda net, x, c: x * differences(net, x, c),
        images=_tiny,
        rtol=1e-6,
        atol=1e-9,
    ),
    "integrated_gradients": Oracle(
        "closed form of a cubic polynomial", _cubic, lambda net, x, c: net.integrated(x, c), options={"steps": 4}
    ),
    "smooth_grad": Oracle(
        "the same noise drawn by hand", curved, _smooth, options={"samples": 4, "sigma": 0.2, "seed": 3}
    ),
}
