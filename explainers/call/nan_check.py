"""Find the layer that first produces NaN or infinity in a forward pass."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.current import eval_view
from explainers.hooks.calls import Calls, inner_points
from explainers.nested import map_tensors


class _Found(Exception):
    """Stops the forward pass at the first non-finite value."""


def first_broken_layer(model: nn.Module, images: Tensor) -> str | None:
    """Return the innermost layer whose output is the first to contain NaN or infinity, or None.

    Returns None for scripted, traced and exported networks, whose layers cannot be inspected.
    """
    view = eval_view(model)
    if view.kind is not None:
        return None
    network = view.network
    broken: list[str] = []

    def inspect(name: str, output: Any) -> None:
        def check(tensor: Tensor) -> Tensor:
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                broken.append(name)
                raise _Found
            return tensor

        map_tensors(output, check)

    with torch.inference_mode(False), torch.no_grad(), ExitStack() as stack:
        calls = Calls(network, stack)
        for point in inner_points(network):
            if not any(True for _ in point.module.children()):
                calls.after(stack, point, lambda k, output, name=point.name: inspect(name, output))  # type: ignore[misc]
        try:
            network(images.detach().clone())
        except _Found:
            return broken[0]
    return None
