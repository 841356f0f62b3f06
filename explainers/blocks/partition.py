"""A network's blocks: parts of the main line that end in a layer's output, with the parallel branches.

A block ends at a position that no shortest skip connection or gate spans, so a residual block is one block. In a
network without skip connections, each operation with weights starts a block, which includes the following operations at
the same resolution. A module with few operations with weights and no skip connection inside is also one block.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from torch import Tensor, nn

from explainers.blocks.main_line import CONCATENATIONS, Arc, MainLine, main_line
from explainers.call.images import validate_images
from explainers.call.profile import profile
from explainers.errors import no_module
from explainers.layers.default_layer import ForwardPass
from explainers.layers.flow.operation import Reads
from explainers.layers.layer import Layer, is_attention, is_placeholder, is_spatial
from explainers.layers.layout import Grid
from explainers.layers.profile import Profile

Why = Literal["", "no grid", "one cell", "coarse", "unused", "class token", "attention", "bypassed"]
_COARSE = 4
_MOST = 5
"""Maximum operations with weights in a module that is one block without a skip connection: an inverted bottleneck with
a gate has three, plus two in the gate.
"""


@dataclass(frozen=True)
class BlockStep:
    """An output tensor: the best-known `layer` that returns it, and the `names` of all layers that return it.

    `why` says why a map of the layer is of little use: "no grid" (its output has no height and width), "one cell",
    "coarse" (fewer than 4 x 4 cells), "unused" (the score does not depend on it), "class token" (only on that token),
    "attention" (it is inside an attention), "bypassed" (other paths bypass it); or it is an empty string.
    """

    layer: Layer
    names: tuple[str, ...]
    why: Why


@dataclass(frozen=True)
class SkipConnection:
    """A skip connection from `start` to `end`, in numbers of preceding blocks (or steps), fractional inside a block.

    `projected` is True if the skip connection contains an operation with weights.
    """

    start: float
    end: float
    projected: bool = False


@dataclass(frozen=True)
class Block:
    """Consecutive steps; `out` is the index of the step that represents the block, its last on the main line."""

    steps: tuple[BlockStep, ...]
    out: int
    skips: tuple[SkipConnection, ...]

    @property
    def layer(self) -> Layer:
        """The layer that represents the block."""
        return self.steps[self.out].layer


@dataclass(frozen=True)
class Blocks:
    """A network's blocks in running order, and the skip connections around them."""

    blocks: tuple[Block, ...]
    skips: tuple[SkipConnection, ...]


def network_blocks(model: nn.Module, images: Tensor) -> Blocks:
    """Divide a network into blocks, from one forward pass of the first image, cached as in `list_layers`.

    Returns  `Blocks`; every layer whose output depends on the image is in exactly one step
    Errors   WrongType, BadImages; UnsupportedModel for scripted, traced and exported models

    Example
        >>> found = network_blocks(model, images)
        >>> [block.layer.name for block in found.blocks][-3:]
        ['layer4', 'avgpool', 'fc']
    """
    if not isinstance(model, nn.Module):
        raise no_module(model)
    validate_images(model, images)
    layers = profile(model, images)
    return _Partition(layers, layers.forward).blocks()


class _Partition:
    def __init__(self, layers: Profile, forward: ForwardPass) -> None:
        self.layers, self.forward = layers, forward
        self.line: MainLine = main_line(forward.graph, forward.end)
        self.reads = forward.graph.reads(forward.end)
        self.passed = forward.graph.nodes_on_all_paths(forward.end)
        self.parents = {layer.path.rpartition(".")[0] for layer in layers}
        self.attentions = tuple(f"{layer.path}." for layer in layers if is_attention(layer))
        self.at_node: dict[int, list[int]] = {}
        for i, node in enumerate(forward.nodes):
            if node:
                self.at_node.setdefault(node, []).append(i)
        self.inner: MainLine = self._without_bridges()

    def blocks(self) -> Blocks:
        """Return all blocks and the skip connections around them."""
        ends = self._merged(self._ends())
        if not ends:
            ends = sorted(self.at_node)[-1:]
        rows: list[list[int]] = [[] for _ in ends]
        for node in sorted(self.at_node):
            rows[min(bisect_left(ends, node), len(ends) - 1)].append(node)
        skips = [arc for arc in self.line.arcs if not arc.is_gate]
        parts = zip(rows, [0, *ends], ends, strict=False)
        blocks = tuple(self._block(nodes, since, end, skips) for nodes, since, end in parts)
        starts = [0, *(self.line.at.get(end, 0) for end in ends)]
        placed = (self._placed(arc, ends, starts) for arc in skips)
        return Blocks(blocks, tuple(dict.fromkeys(skip for skip in placed if skip.end > skip.start)))

    # Ends of blocks

    def _ends(self) -> list[int]:
        """Return the nodes of the main line at which a block ends, before merging blocks inside modules."""
        rows: dict[int, list[int]] = {}
        named = [node for node in self.line.at if node in self.at_node]
        last = max((node for node in named if self._grid(node) != (0, 0)), default=0)
        for node in named:
            if node > last or self._grid(node) != (0, 0):  # image windows have no grid, and do not end a block
                rows.setdefault(self.line.at[node], []).append(node)
        joins, forks = _limits(self.inner)
        ends = []
        for position, nodes in rows.items():
            if self.inner.around(position) or (position == 0 and self.line.length):
                continue
            until = forks.get(position, max(nodes))
            since = min(joins.get(position, 0), until)
            inside = (node for node in nodes if since <= node <= until)
            runs = [list(run) for _, run in groupby(inside, self._grid)]
            ends += [self._end(run, is_last=run is runs[-1]) for run in runs]
        return ends

    def _without_bridges(self) -> MainLine:
        """Return the main line without the concatenations around lower resolutions, as between encoder and decoder.

        They are long connections between blocks, not the skip connection of one block.
        """
        nodes = [node for node in self.line.at if node in self.at_node and self._grid(node) != (0, 0)]
        sizes = [math.prod(self._grid(node)) for node in nodes]

        def is_bridge(arc: Arc) -> bool:
            if self.forward.graph.names[arc.join].strip("_") not in CONCATENATIONS:
                return False
            first, last = bisect_right(nodes, arc.fork), bisect_left(nodes, arc.join)
            inside = sizes[first:last]
            return 0 < first < last < len(nodes) and min(inside) < min(sizes[first - 1], sizes[last])

        return replace(self.line, arcs=tuple(arc for arc in self.line.arcs if not is_bridge(arc)))

    def _end(self, run: list[int], is_last: bool) -> int:
        """Return the node at which a block ends, among consecutive nodes of one resolution.

        It is the last stage, else, in the last run, the last output of a module with submodules, else the last node.
        """
        stages = [node for node in run if any(self.layers[i].stage for i in self.at_node[node])]
        several = [node for node in run if any(self.layers[i].path in self.parents for i in self.at_node[node])]
        return (stages or (several if is_last else []) or run)[-1]

    def _grid(self, node: int) -> Grid:
        layer = self.layers[self.at_node[node][0]]
        return layer.grid if layer.grid and is_spatial(layer) else (0, 0)

    def _merged(self, ends: list[int]) -> list[int]:
        """Remove the ends inside a module that is one block."""
        for layer, node in zip(self.layers, self.forward.nodes, strict=True):  # inner calls return first
            if node in ends and layer.path in self.parents:
                inside = self._inside(layer, ends, ends.index(node))
                ends = [end for end in ends if end not in inside]
        return ends

    def _inside(self, module: Layer, ends: list[int], last: int) -> list[int]:
        """Return the ends before number `last` that are inside the module if that is one block, else none."""
        prefix, first = f"{module.path}.", last
        while first and self._is_inside(ends[first - 1], prefix):
            first -= 1
        start, end = self.line.at[ends[first - 1]] if first else 0, self.line.at[ends[last]]
        inside = ends[first:last]
        grids = {self._grid(node) for node in ends[first : last + 1]}
        stages = any(self.layers[i].stage for node in inside for i in self.at_node[node])
        skips = any(
            start <= arc.start and arc.end <= end and arc.end - arc.start < end - start
            for arc in self.line.arcs
            if not arc.is_gate
        )
        small = end - start <= _MOST and 2 * (end - start) <= self.line.length and len(grids) <= 2
        return inside if small and not skips and not stages else []

    def _is_inside(self, node: int, prefix: str) -> bool:
        return all(self.layers[i].name.startswith(prefix) for i in self.at_node[node])

    # Contents of a block

    def _block(self, nodes: list[int], since: int, end: int, skips: list[Arc]) -> Block:
        steps = tuple(self._step(node) for node in nodes)
        out = nodes.index(end)
        if steps[out].why == "class token":  # the default layer is an earlier step
            out = next((k for k, step in enumerate(steps) if self.layers.default in step.names), out)
        inner = [
            SkipConnection(bisect_left(nodes, arc.fork + 1), bisect_left(nodes, arc.join), arc.weights > 0)
            for arc in skips
            if since <= arc.fork and arc.join <= nodes[-1]
        ]
        return Block(steps, out, tuple(dict.fromkeys(skip for skip in inner if skip.end > skip.start)))

    def _step(self, node: int) -> BlockStep:
        def rank(i: int) -> tuple[bool, bool, bool, bool, bool, int, int]:
            layer = self.layers[i]
            known = layer.name != self.layers.default, not layer.stage
            return *known, is_placeholder(layer), not self.forward.plain[i], "#" in layer.name, layer.depth, i

        same = sorted(self.at_node[node], key=rank)
        layer = self.layers[same[0]]
        return BlockStep(layer, tuple(self.layers[i].name for i in same), self._why(layer, node))

    def _why(self, layer: Layer, node: int) -> Why:
        if layer.grid == (1, 1) or (len(layer.shape) == 4 and layer.shape[2:] == (1, 1)):
            return "one cell"
        if layer.grid is None:
            return "no grid"
        if node not in self.reads:
            return "unused"
        if self.reads[node] != Reads.ALL:
            return "class token"
        if layer.path.startswith(self.attentions):
            return "attention"
        if min(layer.grid) < _COARSE:
            return "coarse"
        is_default = layer.name == self.layers.default and not self.layers.is_bypassed
        return "" if node in self.passed or is_default else "bypassed"

    # Skip connections in numbers of blocks

    def _placed(self, arc: Arc, ends: list[int], starts: list[int]) -> SkipConnection:
        def place(node: int) -> float:
            k = min(bisect_left(ends, node), len(ends) - 1)
            length = starts[k + 1] - starts[k]
            return k + ((self.line.at[node] - starts[k]) / length if length > 0 else float(node >= ends[k]))

        return SkipConnection(place(arc.fork), min(place(arc.join), float(len(ends))), arc.weights > 0)


def _limits(line: MainLine) -> tuple[dict[int, int], dict[int, int]]:
    """Return by position the last node at which a shortest arc ends, and the first node at which one starts."""
    joins: dict[int, int] = {}
    forks: dict[int, int] = {}
    for arc in line.shortest:
        joins[arc.end] = max(joins.get(arc.end, 0), arc.join)
        forks[arc.start] = min(forks.get(arc.start, arc.fork), arc.fork)
    return joins, forks
