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

from explainers.errors import LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
from explainers.layers.layout import LayerLayout
from explainers.layers.receptive import Box, box_around, cell_value, follow_layers, is_reset, layer_maps


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
    fields = _Fields(leaf, [value.grad_fn for value in values if value is not None and value.requires_grad])
    with torch.inference_mode(False), torch.no_grad():
        return [None if value is None else fields.of_value(value) for value in values]


class _Fields:
    """The receptive fields of values on one dependency graph."""

    def __init__(self, leaf: Tensor, ends: Sequence[Any]) -> None:
        self.leaf = leaf
        self._resets = _last_resets(get_gradient_edge(leaf).node, ends)
        self._known: dict[tuple[Any, bytes], Box] = {}

    def of_value(self, value: Tensor) -> Box:
        """Return the pixels on which a number depends."""
        node = value.grad_fn
        if node is None or node not in self._resets:
            return box_around(torch.zeros_like(self.leaf))
        return self._of(GradientEdge(node, 0), torch.ones_like(value))

    def _of(self, edge: GradientEdge, values: Tensor) -> Box:
        """Return the pixels on which those values of an edge depend that are not 0 in `values`."""
        passed: list[tuple[Any, bytes]] = []
        box: Box | None = None
        while box is None:
            reset = self._resets[edge.node]
            start = get_gradient_edge(self.leaf) if reset is None else GradientEdge(reset, 0)
            (gradient,) = torch.autograd.grad([edge], [start], [values], retain_graph=True, allow_unused=True)
            if gradient is None or reset is None:
                box = box_around(torch.zeros_like(self.leaf) if gradient is None else gradient)
            else:
                edge, values = start, (gradient != 0).to(gradient.dtype)
                key = reset, _bytes(values)
                box = self._known.get(key)
                passed.append(key)
        self._known.update(dict.fromkeys(passed, box))
        return box


def _bytes(values: Tensor) -> bytes:
    """Return which values are not 0, without numpy, which is optional."""
    buffer = bytearray(values.numel())
    torch.frombuffer(buffer, dtype=torch.uint8).copy_(values.bool().flatten())
    return bytes(buffer)


def _last_resets(leaf: Any, ends: Sequence[Any]) -> dict[Any, Any]:
    """Return the last reset through which every path from a node to the leaf passes, or None, by node.

    Nodes that do not lead to the leaf are left out. These are the dominators of a graph, by the algorithm of Cooper,
    Harvey and Kennedy (2001), which needs one round because the graph has no cycles.
    """
    order = _leaf_first(leaf, ends)
    number = {node: index for index, node in enumerate(order)}
    above = [0] * len(order)
    for node in order[1:]:
        paths = [number[parent] for parent, _ in node.next_functions if parent in number]
        common = paths[0]
        for other in paths[1:]:
            while common != other:
                if common > other:
                    common = above[common]
                else:
                    other = above[other]
        above[number[node]] = common
    resets: dict[Any, Any] = {leaf: None}
    for index, node in enumerate(order[1:], start=1):
        nearest = order[above[index]]
        resets[node] = nearest if is_reset(nearest) else resets[nearest]
    return resets


def _leaf_first(leaf: Any, ends: Sequence[Any]) -> list[Any]:
    """Return the nodes between the ends and the leaf, each after all nodes on which it depends; the leaf is first."""
    leads: dict[Any, bool] = {leaf: True}
    order = [leaf]
    for end in ends:
        stack = [(end, False)]
        while stack:
            node, is_done = stack.pop()
            if is_done:
                leads[node] = any(leads[parent] for parent, _ in node.next_functions if parent is not None)
                if leads[node]:
                    order.append(node)
            elif node not in leads:
                leads[node] = False
                stack.append((node, True))
                stack += [(parent, False) for parent, _ in node.next_functions if parent is not None]
    return order
