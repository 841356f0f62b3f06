"""Computations of the channel engine; each runs on the device or in the process that `network_calls.run` selects."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch

import explainers
from saliscope.compute import network_calls
from saliscope.compute.answers import LoadedModel

Span = tuple[float, float]
Spans = tuple[list[Span], list[Span]]
"""(top, bottom) of each row's receptive field and (left, right) of each column's, as fractions of the image."""
SECONDS = 3.0
"""Limit of the processor time for the receptive fields of a layer."""


def contributions(name: str, images: torch.Tensor, target: int | explainers.Target, layer: str) -> torch.Tensor:
    """Return gradient times activation of each channel, summed over the output of the layer, float32 [K].

    The class token is included: the sum is a first-order estimate of the drop when the channel is set to zero.
    """
    return network_calls.run(name, explainers.channel_contributions, images, target=target, layer=layer)[0].float()


def cell_gradient(
    name: str, images: torch.Tensor, layer: str, channel: int, cell: tuple[int, int]
) -> tuple[torch.Tensor, float | None]:
    """Return the magnitude of the input gradient of one cell of a channel, [H, W].

    If it is zero because an activation function cuts off the value (a ReLU6 at 6), return the gradient of the value
    before that function, and this value (NaN if it is not known); otherwise the second result is None.
    """
    row, column = (line[i] for line, i in zip(sources(name, layer, images), cell, strict=True))
    if row is None or column is None:  # a part of the image that the layer does not cover
        return images.new_zeros(images.shape[-2:]).float(), None

    def gradient(unit: Any) -> torch.Tensor:
        return network_calls.explain(name, "saliency", images, target=unit, compare=False).map[0].float().abs()

    found = gradient(explainers.unit(layer, channel, (row, column)))
    if bool(found.any()):
        return found, None
    unit = explainers.BeforeActivation(layer, channel, (row, column))
    value = network_calls.run(name, unit.value, images)
    return (found, None) if value is None else (gradient(unit), float(value))


@functools.lru_cache(128)
def receptive_fields(name: str, layer: str, size: tuple[int, ...]) -> Spans | None:
    """Return the receptive fields of all cells of a layer for images [C, H, W], or None if they are unknown."""
    try:
        fields = network_calls.run(name, _receptive_fields, torch.zeros(1, *size), layer=layer)
    except (ValueError, RuntimeError):
        return None
    if fields is None:
        return None
    lines, (height, width) = sources(name, layer, torch.zeros(1, *size)), size[1:]
    rows, columns = (
        [_part(spans, i, side) for i in line] for spans, line, side in zip(fields, lines, (height, width), strict=True)
    )
    return rows, columns


def measure_stages(loaded: LoadedModel) -> None:
    """Fill `loaded.fields` with the receptive fields of the central cells of all stages and the default layer."""
    layers = [layer.name for layer in loaded.layers if layer.stage or layer.name == loaded.default]
    images = torch.zeros(1, loaded.model.channels, *loaded.model.size)
    boxes: list[Any] = [None] * len(layers)
    with contextlib.suppress(ValueError, RuntimeError):  # unknown, such as for an operation without a rule
        boxes = network_calls.run(loaded.name, _center_fields, images, layers=layers) if layers else []
    for layer, box in zip(layers, boxes, strict=True):
        loaded.fields[layer] = (box[3] - box[1], box[2] - box[0]) if box and len(box) == 4 and box[2] > box[0] else None


def _center_fields(network: Any, images: torch.Tensor, layers: list[str]) -> list[Any]:
    known = {layer.name: layer for layer in explainers.list_layers(network, images)}
    return explainers.center_receptive_fields([known[name] for name in layers])


def _layer(network: Any, images: torch.Tensor, name: str) -> explainers.Layer:
    return next(layer for layer in explainers.list_layers(network, images) if layer.name == name)


def _part(spans: list[Any], index: int | None, side: int) -> Span:
    start, end = (0, 0) if index is None else spans[index]
    return start / side, end / side


Sources = tuple[Sequence[int | None], ...]


def sources(name: str, layer: str, images: torch.Tensor) -> Sources:
    """Return the layer's row (column) that each row (column) of its maps shows; None if it shows none."""
    return network_calls.run(name, _sources_of, images, layer=layer)


def _sources_of(network: Any, images: torch.Tensor, layer: str) -> Sources:
    found = _layer(network, images, layer)
    height, width = found.grid or (0, 0)
    return (range(height), range(width)) if found.placement is None else found.placement.sources()


def _receptive_fields(network: Any, images: torch.Tensor, layer: str) -> tuple[list[Any], list[Any]] | None:
    return _layer(network, images, layer).receptive_fields(SECONDS)
