"""What this room asks of a network; each function runs where `network_calls.run` takes it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ui.engine import network_calls

if TYPE_CHECKING:
    import torch

    from explainers.targets import Target

Span = tuple[float, float]
Spans = tuple[list[Span], list[Span]]
"""(top, bottom) of each row's receptive field and (left, right) of each column's, in parts of the picture."""
SECONDS = 3.0
"""Longest time for the receptive fields of a layer."""


def contributions(name: str, images: torch.Tensor, target: int | Target, layer: str) -> torch.Tensor:
    """Gradient times activation of each channel, summed over all that the layer gives, float32 [K].

    The class token counts too: it is what a channel loses where it is set to zero, to first order.
    """
    return network_calls.run(name, _contributions, images, target=target, layer=layer).float()


def _contributions(network: Any, images: torch.Tensor, target: int | Target, layer: str) -> torch.Tensor:
    from explainers.passes.run import open_run  # torch takes seconds to start

    with open_run(network, images, target) as run:
        at = run.layer_layout(layer)
        activation, gradient = run.at([at], run.images)[at.name]
        product = (activation.detach().double() * gradient.double()).movedim(at.channel_axis, 0)
        return product.flatten(1).sum(1)


def fired_by(name: str, images: torch.Tensor, layer: str, channel: int, cell: tuple[int, int] | None) -> torch.Tensor:
    """The gradient of one cell of a channel (None for its mean) at the input's pixels, by magnitude, [H, W]."""
    import explainers  # torch takes seconds to start

    unit = explainers.unit(layer, channel, cell)
    return network_calls.explain(name, "saliency", images, target=unit, compare=False).map[0].float().abs()


@functools.lru_cache(128)
def receptive_fields(name: str, layer: str, size: tuple[int, ...]) -> Spans | None:
    """The receptive fields of all cells of a layer for pictures [C, H, W]; None where they are not known."""
    import torch  # torch takes seconds to start

    try:
        found = network_calls.run(name, _receptive_fields, torch.zeros(1, *size), layer=layer)
    except (ValueError, RuntimeError):
        return None
    if found is None:
        return None
    rows, columns = found
    height, width = size[1:]
    return [(a / height, b / height) for a, b in rows], [(a / width, b / width) for a, b in columns]


def _receptive_fields(network: Any, images: torch.Tensor, layer: str) -> tuple[list[Any], list[Any]] | None:
    from explainers.layers.receptive import receptive_fields as of_all_cells  # torch takes seconds to start
    from explainers.passes.run import open_run  # torch takes seconds to start

    with open_run(network, images) as run:
        return of_all_cells(run.network, run.images, run.layer_layout(layer, counted=True), SECONDS)
