"""Random weights that make every part of a network matter, so that an error in any of them is visible.

New networks hide errors: biases are 0, batch norm is the identity, layer scales of 1e-6 disable blocks, and position
embeddings are 0. Here all of them are random, and batch norms have slightly changed statistics of a random batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def randomize(model: nn.Module, call: Callable[[Tensor], Any], size: tuple[int, int], seed: int = 0) -> nn.Module:
    """Randomize biases, norms, layer scales and embeddings in place, and set batch norm statistics with `call`."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.is_floating_point():
                    _randomize(module, name, parameter, draws)
    _measure_batch_norms(model, call, size, draws)
    return model.eval().requires_grad_(False)


def _randomize(module: nn.Module, name: str, parameter: Tensor, draws: torch.Generator) -> None:
    noise = torch.randn(parameter.shape, generator=draws)
    is_norm = "norm" in type(module).__name__.lower() or isinstance(module, _BatchNorm)
    if "bias" in name and parameter.ndim == 1:
        # Small linear layers mix attention weights; a constant would dominate them.
        parameter.copy_(0.2 * noise if len(parameter) > 16 or not isinstance(module, nn.Linear) else 0.003 * noise)
    elif is_norm and name == "weight":
        # Zero weights end a residual branch, which should not dominate the rest.
        parameter.copy_((1 if float(parameter.abs().max()) > 0 else 0.4) * (1 + 0.2 * noise))
    elif parameter.ndim >= 2 and name.endswith("weight"):
        fan = parameter[0].numel()
        if isinstance(module, (nn.Linear, nn.Conv2d)) and float(parameter.std()) < 0.6 / math.sqrt(fan):
            parameter.copy_(noise / math.sqrt(fan))
    elif float(parameter.std(correction=0)) < 0.1 * max(1.0, float(parameter.abs().mean())):
        # Layer scales, embeddings and tokens are initialized with one value, or nearly.
        middle = float(parameter.mean())
        parameter.copy_((middle if abs(middle) > 0.3 else 0.3 * (parameter.ndim < 3)) + 0.2 * noise)


def _measure_batch_norms(
    model: nn.Module, call: Callable[[Tensor], Any], size: tuple[int, int], draws: torch.Generator
) -> None:
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.running_var is not None]
    if not norms:
        return
    handles = [norm.register_forward_pre_hook(_take_statistics) for norm in norms]
    try:
        with torch.no_grad():
            call(random_images((2, *size), 3))
    finally:
        for handle in handles:
            handle.remove()
    for norm in norms:
        spread = norm.running_var.sqrt()
        norm.running_mean += 0.2 * spread * torch.randn(len(spread), generator=draws)
        norm.running_var *= 0.7 + 0.8 * torch.rand(len(spread), generator=draws)


def _take_statistics(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    values = inputs[0].transpose(0, 1).flatten(1)
    # With few rows, as after pooling, use the variance over all channels.
    many = values.shape[1] >= 16
    norm.running_mean.copy_(values.mean(1) if many else values.mean())
    norm.running_var.copy_((values.var(1) if many else 0) + (0.1 if many else 1.0) * float(values.var()) + 1e-3)


def random_images(size: tuple[int, int, int], channels: int = 3, seed: int = 1) -> Tensor:
    """Return [N, C, H, W]: coarse color patches with noise, in the range of normalized photos."""
    draws = torch.Generator().manual_seed(seed)
    count, height, width = size
    coarse = torch.randn(count, channels, 6, 6, generator=draws)
    smooth = nn.functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=False)
    return smooth + 0.5 * torch.randn(count, channels, height, width, generator=draws)
