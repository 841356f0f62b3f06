"""The receptive fields of the central cells of many layers, which share most of the work.

Every window operation of the dependency graph (receptive.py) resets gradients to 0 or 1. If every path from a layer to
the image passes through one such reset, the field only depends on which values of the reset the layer depends on. Most
layers depend on the same values as another one: an activation on those of its convolution, a convolution of 1 x 1 on
those of its input. The fields of equal sets of values are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from explainers.errors import LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel, WrongType, shorten
from explainers.layers.flow.dataflow import Edge, Graph
from explainers.layers.flow.operation import Reads
from explainers.layers.layer import Layer, open_layer
from explainers.layers.layout import LayerLayout
from explainers.layers.receptive import Box, box_around, cell_value, follow_layers, is_reset, layer_maps


def center_receptive_fields(layers: Sequence[Layer]) -> list[Box | None]:
    """Return the receptive fields of the central cells of layers of one model, which share most of the work.

    `layers` are entries of one call of `list_layers`.

    Returns  boxes (left, top, right, bottom) in input pixels, as of `Layer.receptive_field`; None for a layer without a
             grid, or whose field depends on the image
    Errors   WrongType; LayerNotFound for layers that were pickled, or whose model no longer exists; UnsupportedModel

    Example
        >>> stages = [layer for layer in list_layers(model, images) if layer.stage]
        >>> center_receptive_fields(stages[:1])
        [(110, 110, 112, 112)]
    """
    if not isinstance(layers, (list, tuple)) or not all(isinstance(layer, Layer) for layer in layers):
        raise WrongType(f"layers is {shorten(layers)}. Give a list of entries of list_layers(model, images).")
    spatial = [layer for layer in layers if layer.grid is not None]
    if not spatial:
        return [None] * len(layers)
    opened = [open_layer(layer) for layer in spatial]
    network, images, _ = opened[0]
    found = dict(zip(map(id, spatial), center_fields(network, images, [layout for *_, layout in opened]), strict=True))
    return [found.get(id(layer)) for layer in layers]


def center_fields(network: nn.Module, images: Tensor, layers: Sequence[LayerLayout]) -> list[Box | None]:
    """Return the receptive field of the central cell of each layer, from one forward pass.

    Returns  boxes as of `receptive_field`; None for a layer that did not run exactly once, has no grid, or whose field
             depends on the image
    Errors   UnsupportedModel
    """
    outputs, leaf = follow_layers(network, images, layers)
    values: list[Tensor | None] = []
    for at, found in zip(layers, outputs, strict=True):
        try:
            maps = layer_maps(at, found, images)
        except (LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel):
            values.append(None)
            continue
        with torch.inference_mode(False), torch.enable_grad():
            values.append(cell_value(maps, *((side - 1) // 2 for side in maps.shape[2:])))
    resets = _last_resets(get_gradient_edge(leaf).node, [value.grad_fn for value in values if value is not None])
    known: dict[tuple[Any, bytes], Box] = {}
    with torch.inference_mode(False), torch.no_grad():
        return [None if value is None else _field(value, leaf, resets, known) for value in values]


def _field(value: Tensor, leaf: Tensor, resets: dict[Any, Any], known: dict[tuple[Any, bytes], Box]) -> Box:
    """Return the pixels on which a number depends; `known` are the fields of sets of values of resets."""
    passed: list[tuple[Any, bytes]] = []
    box = None if value.grad_fn in resets else box_around(torch.zeros_like(leaf))
    node, values = value.grad_fn, torch.ones_like(value)
    while box is None:
        reset = resets[node]
        end = get_gradient_edge(leaf) if reset is None else GradientEdge(reset, 0)
        edge = GradientEdge(node, 0)  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad([edge], [end], [values], retain_graph=True, allow_unused=True)
        if gradient is None or reset is None:
            box = box_around(torch.zeros_like(leaf) if gradient is None else gradient)
        else:
            node, values = reset, (gradient != 0).to(gradient.dtype)
            passed.append((reset, _bytes(values)))
            box = known.get(passed[-1])
    known.update(dict.fromkeys(passed, box))
    return box


def _bytes(values: Tensor) -> bytes:
    """Return which values are not 0, without numpy, which is optional."""
    buffer = bytearray(values.numel())
    torch.frombuffer(buffer, dtype=torch.uint8).copy_(values.bool().flatten())
    return bytes(buffer)


def _last_resets(leaf: Any, ends: Sequence[Any]) -> dict[Any, Any]:
    """Return the last reset through which every path from a node to the leaf passes, or None, by node.

    Nodes that do not lead to the leaf are left out.
    """
    order, graph = _leaf_first(leaf, ends), Graph()
    number = {node: index for index, node in enumerate(order)}
    resets: dict[Any, Any] = {leaf: None}
    for node in order[1:]:
        paths = (number[parent] for parent, _ in node.next_functions if parent in number)
        nearest = order[graph.dominators[graph.add(Edge(each, Reads.SAME) for each in paths)]]
        resets[node] = nearest if is_reset(nearest) else resets[nearest]
    return resets


def _leaf_first(leaf: Any, ends: Sequence[Any]) -> list[Any]:
    """Return the nodes between the ends and the leaf, each after all nodes on which it depends; the leaf is first."""
    leads: dict[Any, bool] = {leaf: True, None: False}
    order = [leaf]
    stack = [(end, False) for end in ends]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            leads[node] = any(leads[parent] for parent, _ in node.next_functions)
            if leads[node]:
                order.append(node)
        elif node not in leads:
            leads[node] = False
            stack.append((node, True))
            stack += [(parent, False) for parent, _ in node.next_functions]
    return order
