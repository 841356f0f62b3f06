"""Dtypes with limits: quantized networks have no backward pass, and some devices, such as Apple's MPS, no float64."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn


@lru_cache(maxsize=256)
def quantized_class(classes: frozenset[type[nn.Module]]) -> str | None:
    """Return the name of a quantized torch module class among these, or None; fake quantization has a gradient."""
    found = [each for each in classes if ".quantized" in each.__module__ and each.__module__.startswith("torch.")]
    names = (f"{each.__module__.rpartition('.modules')[0] or each.__module__}.{each.__qualname__}" for each in found)
    return min(names, default=None)  # the same in each process


def no_gradient(name: str) -> str:
    """Return the message for a network with a quantized module of class `name`."""
    return (
        f"The network is quantized ({name}), and quantized operations have no backward pass. Use a gradient-free "
        "method such as occlusion, rise, score_cam or ablation_cam, or explain the floating-point network."
    )


@lru_cache(maxsize=64)
def float64_device(device: torch.device) -> torch.device:
    """Return the device if it computes in float64, else the CPU, which takes over such computations."""
    if device.type in ("cpu", "cuda"):
        return device
    try:
        (torch.ones(1, dtype=torch.float64, device=device) / 3).cpu()
    except (TypeError, RuntimeError):  # MPS refuses the dtype, and some Intel GPUs the first operation
        return torch.device("cpu")
    return device


def to_float64(tensor: Tensor) -> Tensor:
    """Convert to float64, on the CPU if the tensor's device has no float64. The graph is kept."""
    return tensor.to(float64_device(tensor.device)).double()


def to_cpu_float64(tensor: Tensor) -> Tensor:
    """Convert to float64 on the CPU, for small or sequential computations."""
    return tensor.to("cpu").double()  # a device without float64 cannot convert while it copies
