"""Search for the default layer: the last layer with a grid through which every path to the score passes.

Not considered are layers whose positions do not affect the score (only their class token does), a head that computes
scores per position, inner projections of an attention, and layers that only resize.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from explainers.layers.flow.dataflow import Graph
from explainers.layers.flow.operation import Reads
from explainers.layers.layer import Layer, is_attention, is_placeholder, is_rearranging, is_spatial, stages_among

_SMALLEST = 4
"""Rows and columns of the smallest grid that can localize."""
_FARTHEST = 4
"""A layer whose grid is finer by more than this factor is too early to replace a coarse one."""
_FEATURES = frozenset(
    "relu gelu silu hardtanh hardswish leaky_relu elu mish prelu clamp_min native_batch_norm native_layer_norm "
    "native_group_norm native_batch_norm_legit_no_training".split()
)
"""Operations whose outputs are features, not scores."""


@dataclass(frozen=True)
class ForwardPass:
    """A forward pass: its graph up to the node `end` of the scores, and the node of each layer's output.

    `dense` is True if the scores have a grid, as in segmentation networks; `plain` tells which layers return a tensor
    and not a tuple or dict that contains one.
    """

    graph: Graph
    end: int
    dense: bool
    nodes: tuple[int | None, ...]
    plain: tuple[bool, ...]


def find_default(layers: list[Layer], forward: ForwardPass) -> tuple[int | None, frozenset[str], bool]:
    """Find the default layer among the layers of a forward pass.

    Returns  its index (None if no layer has a grid larger than 1 x 1), the names of all stages, of which it is one, and
             whether some path to the score does not pass through it
    """
    search = _Search(layers, forward)
    stages = {layers[i].name: layers[i].grid for i in search.candidates if layers[i].name in search.stages}
    chosen = _chosen(search)
    if chosen is None:
        return None, frozenset(stages), False
    default = search.outermost(search.before_class_token(chosen))
    is_bypassed = search.node(chosen) not in search.passed
    if is_bypassed and not search.forward.dense:
        stages = {layers[i].name: layers[i].grid for i in search.backbone_stages()}
    stages = {name: grid for name, grid in stages.items() if grid != layers[default].grid}
    return default, frozenset({*stages, layers[default].name}), is_bypassed


def _chosen(search: _Search) -> int | None:
    found = search.on_all_paths(search.candidates, search.weights_outside_head, sums=True)
    found = found or search.on_all_paths(search.before_head, search.weights)
    if not found:
        # Some paths leave early, as in a detector that reads several scales: use the last stage of the backbone.
        found = search.backbone_stages()
    fair = [i for i in found if _cells(search, i) >= _SMALLEST]
    if fair and found and _cells(search, fair[-1]) > _FARTHEST * _cells(search, found[-1]):
        return found[-1]  # the layers in between have paths around them, as in NASNet
    return (fair or found)[-1] if found else None


def _cells(search: _Search, i: int) -> int:
    """Return the number of rows or columns of a layer, whichever is smaller."""
    return min((search.layers[i].grid or (0,))[-2:])


@dataclass
class _Search:
    layers: list[Layer]
    forward: ForwardPass

    @cached_property
    def passed(self) -> set[int]:
        """The nodes through which every path from the image to the scores passes."""
        return self.forward.graph.nodes_on_all_paths(self.forward.end)

    @cached_property
    def stages(self) -> set[str]:
        """The names of the last outermost calls at each resolution."""
        return {layer.name for layer in stages_among(self.layers)}

    @cached_property
    def reads(self) -> dict[int, Reads]:
        return self.forward.graph.reads(self.forward.end)

    def node(self, i: int) -> int:
        """Return the node of layer i's output; -1 if it is not a tensor that depends on the image."""
        node = self.forward.nodes[i]
        return -1 if node is None else node

    @cached_property
    def candidates(self) -> list[int]:
        """Layers whose positions affect the score, outside head and attention, in output order.

        Layers inside the head are only used if no other layer qualifies.
        """
        path = self._head
        outside = [i for i in self.before_head if not path or not f"{self.layers[i].path}.".startswith(path)]
        return outside or self.before_head or self._all

    @cached_property
    def before_head(self) -> list[int]:
        """Candidates before the last operations with weights."""
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
        """Return the candidates through which every path to the scores passes.

        The list is empty if less than half of the weights come before the last of them. With `sums`, the last candidate
        before a sum in which all paths meet is included.
        """

        def share(node: int) -> float:
            return sum(count for at, count in weights.items() if at <= node) / max(1, sum(weights.values()))

        found = [i for i in candidates if self.node(i) in self.passed]
        if sums and found and share(self.node(found[-1])) < 0.5:
            # The paths may meet in a sum that is not the output of a layer.
            end = max((node for node in self.passed if self._is_meeting(node, max(weights, default=0))), default=0)
            found += [i for i in candidates if self.node(i) <= end][-1:]
        return found if found and share(self.node(found[-1])) >= 0.5 else []

    def _is_meeting(self, node: int, last: int) -> bool:
        """Return whether all paths can meet in this node.

        It needs a grid, its positions must affect the score, and no weights may come between the node `last` and it.
        """
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
        """Parameter values by module; a path with a final dot includes all modules below it, and "" all modules."""
        totals = Counter[str]()
        for node, weights in self.weights.items():
            parts = self._module_of(node).split(".")
            totals.update({".".join(parts[:n]) + "." * bool(n): weights for n in range(len(parts) + 1)})
        return totals

    def backbone_stages(self) -> list[int]:
        """Return the stages of the backbone.

        The backbone is the innermost module around the first operation with weights that contains half of the weights
        of its parent and does not itself return a spatial output.
        """
        path, spatial = "", {layer.path for layer in self.layers if is_spatial(layer)}
        parts = self._module_of(min(self.weights, default=0)).split(".")
        for n in range(1, len(parts)):
            below = ".".join(parts[:n])
            if below in spatial or self._module_weights[f"{below}."] < 0.5 * self._module_weights[path]:
                break
            path = f"{below}."
        inside = [i for i in self.candidates if f"{self.layers[i].path}.".startswith(path)]
        stages = {layer.name for layer in stages_among([self.layers[i] for i in inside])}
        return [i for i in inside if self.layers[i].name in stages] or inside

    @cached_property
    def _tail(self) -> set[int]:
        """The nodes after the last weights if these compute scores, per position or for the whole image.

        Empty if a normalization or activation follows, since its outputs are features.
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
        """The path, with a dot, of the module that computes a dense network's scores, or "".

        It is the largest module around the last operation with weights that does not contain the first one.
        """
        weighted = [node for node in self.reads if self.forward.graph.weights[node]]
        if not self.forward.dense or not self._tail:
            return ""
        first, around = (self._module_of(edge(weighted, default=0)).split(".") for edge in (min, max))
        lengths = (n for n in range(1, len(around) + 1) if around[:n] != first[:n])
        return next((".".join(around[:n]) + "." for n in lengths), "")

    def _module_of(self, node: int) -> str:
        """Return the innermost module that ran the operation: the first one whose output is not older."""
        return next((layer.path for i, layer in enumerate(self.layers) if self.node(i) >= node), "")

    def before_class_token(self, i: int) -> int:
        """Return the normalization before the last attention if only a class token is read after it, else i.

        The patches reach the class token only through that layer.
        """
        layer = self.layers[i]
        is_class_token = layer.grid is not None and layer.layout == "tokens" and layer.shape[1] != math.prod(layer.grid)
        readers = self.forward.graph.readers(self.node(i), self.forward.end) if is_class_token else []
        if len(readers) != 1:
            return i
        same = (k for k in self.candidates if self.node(k) == readers[0] and self.layers[k].shape == layer.shape)
        return next(same, i)

    def outermost(self, i: int) -> int:
        """Return the outermost layer with the same output, such as `features` for `features.7`."""
        same = [
            k
            for k in self.candidates
            if self.node(k) == self.node(i) and self.layers[k].layout == self.layers[i].layout
        ]

        def rank(k: int) -> tuple[bool, bool, bool, int, int]:
            layer = self.layers[k]
            return is_placeholder(layer), not self.forward.plain[k], "#" in layer.name, layer.depth, k

        return min(same, key=rank, default=i)
