"""Quantized networks, whose operations compute in whole numbers and have no backward pass."""

from __future__ import annotations

from functools import lru_cache

from torch import nn

from explainers.hooks.locate import unwrap


@lru_cache(maxsize=256)
def quantized_class(classes: frozenset[type[nn.Module]]) -> str | None:
    """The name of a class of torch's quantized modules among these, else None; fake quantization has a gradient."""
    for each in classes:
        if ".quantized" in each.__module__ and each.__module__.startswith("torch."):
            return f"{each.__module__.rpartition('.modules')[0] or each.__module__}.{each.__qualname__}"
    return None


def why_no_gradient(model: nn.Module) -> str | None:
    """Why no gradient can be taken through this model, as far as its modules tell; else None."""
    name = quantized_class(frozenset(map(type, unwrap(model).modules())))
    return None if name is None else no_gradient(name)


def no_gradient(name: str) -> str:
    """The sentence for a network that holds a quantized module of the class `name`."""
    return (
        f"The network is quantized ({name}), and quantized operations have no backward pass, so no gradient can be "
        "taken. Use a method without gradients, such as occlusion, rise, score_cam or ablation_cam, or explain the "
        "network in floating point."
    )
