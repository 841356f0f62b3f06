"""Find the layer that first produces NaN or infinity in a forward pass."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.current import eval_view
from explainers.hooks.calls import Calls, inner_points
from explainers.nested import list_tensors


class _Found(Exception):
    """Stops the forward pass at the first non-finite value, in the layer that it names."""


def first_broken_layer(model: nn.Module, images: Tensor) -> str | None:
    """Return the innermost layer whose output is the first to contain NaN or infinity, or None.

    Returns None for scripted, traced and exported networks, whose layers cannot be inspected.
    """
    view = eval_view(model)
    if view.kind is not None:
        return None
    network = view.network

    def inspect(name: str, output: Any) -> None:
        for tensor in list_tensors(output):
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise _Found(name)

    with torch.inference_mode(False), torch.no_grad(), ExitStack() as stack:
        calls = Calls(network, stack)
        for point in inner_points(network):
            if not any(True for _ in point.module.children()):
                calls.after(stack, point, lambda k, output, name=point.name: inspect(name, output))  # type: ignore[misc]
        try:
            network(images.detach().clone())
        except _Found as found:
            return str(found)
    return None
