"""The search for the default layer: the last one with a grid that every path to the score passes.

Left out are layers whose positions nothing reads (only the class token beside them), the head that turns features into
scores place by place, inner projections of an attention, and layers that only resize.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from explainers.layers.axis_rules import Reads
from explainers.layers.dataflow import Graph
from explainers.layers.layer import Layer, is_attention, is_placeholder, is_rearranging, is_spatial, stages_among

_SMALLEST = 4
"""Rows and columns of the smallest grid that shows a place."""
_FEATURES = frozenset(
    "relu gelu silu hardtanh hardswish leaky_relu elu mish prelu clamp_min native_batch_norm native_layer_norm "
    "native_group_norm native_batch_norm_legit_no_training".split()
)
"""Operations that leave features, no scores."""


@dataclass(frozen=True)
class Pass:
    """A forward pass: its graph up to the node `end` of the scores, and the node of each layer's output.

    `dense` says whether the scores are a picture themselves, as those of a segmentation network; `plain` which layers
    give a tensor and not a tuple or dict with one in it.
    """

    graph: Graph
    end: int
    dense: bool
    nodes: tuple[int | None, ...]
    plain: tuple[bool, ...]


@dataclass(frozen=True)
class Found:
    """The index of the default layer, None where no layer has a grid larger than 1 x 1, and the names of all stages, of
    which it is one. `is_bypassed` where some path to the score does not pass it.
    """

    default: int | None
    stages: frozenset[str]
    is_bypassed: bool = False


def find_default(layers: list[Layer], forward: Pass) -> Found:
    """Look for the default layer among the layers of a forward pass."""
    search = _Search(layers, forward)
    stages = {layers[i].name: layers[i].grid for i in search.candidates if layers[i].name in search.stages}
    chosen = _chosen(search)
    if chosen is None:
        return Found(None, frozenset(stages))
    default = search.outermost(search.before_class_token(chosen))
    is_bypassed = search.node(chosen) not in search.passed
    if is_bypassed and not search.forward.dense:
        stages = {layers[i].name: layers[i].grid for i in search.backbone_stages()}
    stages = {name: grid for name, grid in stages.items() if grid != layers[default].grid}
    return Found(default, frozenset({*stages, layers[default].name}), is_bypassed)


def _chosen(search: _Search) -> int | None:
    found = search.on_all_paths(search.candidates, search.weights_outside_head, sums=True)
    found = found or search.on_all_paths(search.before_head, search.weights)
    if not found:
        # Paths leave early, as where a detector reads several scales: the last stage of the backbone stands for all.
        found = search.backbone_stages()
    fair = [i for i in found if min(search.layers[i].grid or (0,)) >= _SMALLEST]
    return (fair or found)[-1] if found else None


@dataclass
class _Search:
    layers: list[Layer]
    forward: Pass

    @cached_property
    def passed(self) -> set[int]:
        """The nodes that every path from the image to the scores passes."""
        return self.forward.graph.passed_by_all_paths(self.forward.end)

    @cached_property
    def stages(self) -> set[str]:
        """The names of the last outermost calls at each resolution."""
        return {layer.name for layer in stages_among(self.layers)}

    @cached_property
    def reads(self) -> dict[int, Reads]:
        return self.forward.graph.reads(self.forward.end)

    def node(self, i: int) -> int:
        """The node of layer i's output; -1 where it is no tensor that depends on the image."""
        node = self.forward.nodes[i]
        return -1 if node is None else node

    @cached_property
    def candidates(self) -> list[int]:
        """Layers whose positions are read, outside head and attention, in the order of their outputs; those in the head
        too, where there are no others.
        """
        path = self._head
        outside = [i for i in self.before_head if not path or not f"{self.layers[i].path}.".startswith(path)]
        return outside or self.before_head or self._all

    @cached_property
    def before_head(self) -> list[int]:
        """Those before the last operations with weights."""
        return [i for i in self._all if self.node(i) not in self._tail]

    @cached_property
    def _all(self) -> list[int]:
        attentions = tuple(f"{layer.path}." for layer in self.layers if is_attention(layer))
        found = [
            i
            for i, layer in enumerate(self.layers)
            if is_spatial(layer)
            and not is_rearranging(layer)
            and self.reads.get(self.node(i)) == Reads.ALL
            and not layer.path.startswith(attentions)
        ]
        return sorted(found, key=self.node)

    def on_all_paths(self, candidates: list[int], weights: dict[int, int], *, sums: bool = False) -> list[int]:
        """Those of the candidates that every path to the scores passes; none, where less than half of the weights stand
        before the last of them. With `sums`, and the last one before a sum in which all paths meet.
        """

        def share(node: int) -> float:
            return sum(count for at, count in weights.items() if at <= node) / max(1, sum(weights.values()))

        found = [i for i in candidates if self.node(i) in self.passed]
        if sums and found and share(self.node(found[-1])) < 0.5:
            # The paths may meet again, but in a sum that is no layer's output.
            end = max((node for node in self.passed if self._is_meeting(node, max(weights, default=0))), default=0)
            found += [i for i in candidates if self.node(i) <= end][-1:]
        return found if found and share(self.node(found[-1])) >= 0.5 else []

    def _is_meeting(self, node: int, last: int) -> bool:
        """Whether the node has a grid, its positions are read, and no weights after the node `last` stand before it."""
        between = (at for at in self.weights if last < at <= node)
        return self.forward.graph.on_grid[node] and self.reads.get(node) == Reads.ALL and next(between, None) is None

    @cached_property
    def weights(self) -> dict[int, int]:
        """The parameter values of each operation whose output has a grid and affects the scores."""
        graph = self.forward.graph
        return {n: graph.weights[n] for n in sorted(self.reads) if graph.weights[n] and graph.on_grid[n]}

    @cached_property
    def weights_outside_head(self) -> dict[int, int]:
        path = self._head
        return {n: w for n, w in self.weights.items() if not path or not f"{self._module_of(n)}.".startswith(path)}

    @cached_property
    def _module_weights(self) -> Counter[str]:
        """The same by module: a path with its dot at the end holds all below it; "" holds all."""
        totals = Counter[str]()
        for node, weights in self.weights.items():
            parts = self._module_of(node).split(".")
            totals.update({".".join(parts[:n]) + "." * bool(n): weights for n in range(len(parts) + 1)})
        return totals

    def backbone_stages(self) -> list[int]:
        """The stages of the backbone: the innermost module around the first operation that holds half of the weights of
        the one around it, and gives no picture itself.
        """
        path, pictures = "", {layer.path for layer in self.layers if is_spatial(layer)}
        parts = self._module_of(min(self.weights, default=0)).split(".")
        for n in range(1, len(parts)):
            below = ".".join(parts[:n])
            if below in pictures or self._module_weights[f"{below}."] < 0.5 * self._module_weights[path]:
                break
            path = f"{below}."
        inside = [i for i in self.candidates if f"{self.layers[i].path}.".startswith(path)]
        stages = {layer.name for layer in stages_among([self.layers[i] for i in inside])}
        return [i for i in inside if self.layers[i].name in stages] or inside

    @cached_property
    def _tail(self) -> set[int]:
        """The nodes behind the last weights, where they turn features into scores place by place, or into one number.

        Empty where they are normalised or rectified there: then they are features themselves.
        """
        graph = self.forward.graph
        weighted = [node for node in self.reads if graph.weights[node]]
        if not self.forward.dense:
            last = max(weighted, default=0)
            return {node for node in self.reads if node >= last} if last and last in self.passed else set()
        tail = self.reads.keys() - graph.before_weights(self.forward.end)
        return set() if any(graph.names[node] in _FEATURES for node in tail) else tail

    @cached_property
    def _head(self) -> str:
        """The path, with a dot, of the module that gives a dense network's scores; "" without one.

        It is the largest module around the last operation with weights that does not hold the first one too.
        """
        weighted = [node for node in self.reads if self.forward.graph.weights[node]]
        if not self.forward.dense or not self._tail:
            return ""
        first, around = (self._module_of(edge(weighted, default=0)).split(".") for edge in (min, max))
        lengths = (n for n in range(1, len(around) + 1) if around[:n] != first[:n])
        return next((".".join(around[:n]) + "." for n in lengths), "")

    def _module_of(self, node: int) -> str:
        """The innermost module that ran the operation: the first whose output is not older."""
        return next((layer.path for i, layer in enumerate(self.layers) if self.node(i) >= node), "")

    def before_class_token(self, i: int) -> int:
        """Where a class token is read out: the normalisation through which alone the patches reach it."""
        layer = self.layers[i]
        is_class_token = layer.grid is not None and layer.layout == "tokens" and layer.shape[1] != math.prod(layer.grid)
        readers = self.forward.graph.readers(self.node(i), self.forward.end) if is_class_token else []
        if len(readers) != 1:
            return i
        same = (k for k in self.candidates if self.node(k) == readers[0] and self.layers[k].shape == layer.shape)
        return next(same, i)

    def outermost(self, i: int) -> int:
        """`features.7` is the last step of `features`: the same tensor under the name that people use."""
        same = [
            k
            for k in self.candidates
            if self.node(k) == self.node(i) and self.layers[k].layout == self.layers[i].layout
        ]

        def rank(k: int) -> tuple[bool, bool, bool, int, int]:
            layer = self.layers[k]
            return is_placeholder(layer), not self.forward.plain[k], "#" in layer.name, layer.depth, k

        return min(same, key=rank, default=i)
