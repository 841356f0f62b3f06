"""Quantized networks, whose operations use integer arithmetic and have no backward pass."""

from __future__ import annotations

from functools import lru_cache

from torch import nn

from explainers.hooks.locate import unwrap


@lru_cache(maxsize=256)
def quantized_class(classes: frozenset[type[nn.Module]]) -> str | None:
    """Return the name of a quantized torch module class among these, or None; fake quantization has a gradient."""
    for each in classes:
        if ".quantized" in each.__module__ and each.__module__.startswith("torch."):
            return f"{each.__module__.rpartition('.modules')[0] or each.__module__}.{each.__qualname__}"
    return None


def why_no_gradient(model: nn.Module) -> str | None:
    """Return why this model has no gradient, judged by its modules, or None."""
    name = quantized_class(frozenset(map(type, unwrap(model).modules())))
    return None if name is None else no_gradient(name)


def no_gradient(name: str) -> str:
    """Return the message for a network with a quantized module of class `name`."""
    return (
        f"The network is quantized ({name}), and quantized operations have no backward pass. Use a gradient-free "
        "method such as occlusion, rise, score_cam or ablation_cam, or explain the floating-point network."
    )
