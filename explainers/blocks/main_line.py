"""The main line of a forward pass, and the arcs around parts of it.

The main line is the path from the image to the scores with the most operations with weights. An arc bypasses at least
one of them: a skip connection, which joins in a sum or a concatenation, or a gate, which multiplies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from explainers.layers.flow.dataflow import Graph

_SUMS = frozenset({"add", "add_relu", "sum"})
CONCATENATIONS = frozenset({"cat", "stack", "concat", "concatenate"})
_WHOLE = frozenset({"native_multi_head_attention", "transformer_encoder_layer_fwd"})
"""Fused operations with weights that implement a whole layer."""
_PROJECTION = 1
"""Maximum operations with weights on a skip connection: the 1 x 1 convolution that adapts size and channels."""


@dataclass(frozen=True)
class Arc:
    """A path from the node `fork` to the node `join` that bypasses operations start+1 to `end` of the main line.

    Only operations with weights are counted; `weights` is their number on the arc itself.
    """

    fork: int
    join: int
    start: int
    end: int
    weights: int = 0
    is_gate: bool = False

    def holds(self, other: Arc) -> bool:
        """Return whether the other arc bypasses a part of what this one bypasses."""
        return (
            self.start <= other.start and other.end <= self.end and (self.start, self.end) != (other.start, other.end)
        )


@dataclass(frozen=True)
class MainLine:
    """`at` maps each node of the line, in order, to the number of operations with weights up to and including it."""

    at: dict[int, int]
    arcs: tuple[Arc, ...]

    @property
    def length(self) -> int:
        """The number of operations with weights on the line."""
        return max(self.at.values(), default=0)

    def around(self, position: int) -> bool:
        """Return whether a shortest arc spans this position."""
        return any(arc.start < position < arc.end for arc in self.shortest)

    @property
    def shortest(self) -> list[Arc]:
        """Gates, and the skip connections that do not contain another one."""
        skips = [arc for arc in self.arcs if not arc.is_gate]
        ends: dict[int, int] = {}
        for arc in skips:  # of arcs with the same end, the last start
            ends[arc.end] = max(ends.get(arc.end, -1), arc.start)
        last = [arc for arc in skips if ends[arc.end] == arc.start]
        shortest = [arc for arc in last if not any(arc.holds(other) for other in last)]
        return [*shortest, *(arc for arc in self.arcs if arc.is_gate)]


def main_line(graph: Graph, end: int) -> MainLine:
    """Return the main line up to the node `end`, and its arcs in running order."""
    alive = graph.reads(end)
    nodes = _longest(graph, end, alive.keys())
    at: dict[int, int] = {}
    count = 0
    for node in nodes:
        count += _has_weights(graph, node)
        at[node] = count
    return MainLine(at, tuple(_arcs(graph, at, alive.keys())))


def _has_weights(graph: Graph, node: int) -> bool:
    return bool(graph.weights[node]) or graph.names[node].strip("_") in _WHOLE


def _longest(graph: Graph, end: int, alive: Collection[int]) -> list[int]:
    """Return the nodes of the path with the most operations with weights; ties prefer the latest nodes."""
    best = {0: 0}
    before: dict[int, int] = {}
    for node in range(1, end + 1):
        edges = [edge.node for edge in graph.edges[node] if edge.node in best]
        if edges and node in alive:
            before[node] = max(edges, key=lambda each: (best[each], each))
            best[node] = best[before[node]] + _has_weights(graph, node)
    nodes = [end]
    while nodes[-1] in before:
        nodes.append(before[nodes[-1]])
    return nodes[::-1]


def _arcs(graph: Graph, at: dict[int, int], alive: Collection[int]) -> Iterator[Arc]:
    """Yield one arc per pair of ends, along the path with the fewest operations with weights."""
    branches = _branches(graph, at, alive)
    found: dict[tuple[int, int, bool], Arc] = {}
    for former, join in pairwise(at):
        name = graph.names[join].strip("_")
        gate = name == "mul"
        if not gate and name not in _SUMS | CONCATENATIONS:
            continue
        for edge in graph.edges[join]:
            forks = {edge.node: 0} if edge.node in at else branches.get(edge.node, {})
            for fork, weights in forks.items():
                start, stop = at[fork], at[former]
                if edge.node != former and stop - start > weights and (not weights or name in _SUMS):
                    arc = Arc(fork, join, start, stop, weights, gate)
                    known = found.get((start, stop, gate), arc)
                    found[start, stop, gate] = min(known, arc, key=lambda each: each.weights)
    yield from sorted(found.values(), key=lambda arc: (arc.start, arc.end))


def _branches(graph: Graph, at: dict[int, int], alive: Collection[int]) -> dict[int, dict[int, int]]:
    """Return for nodes off the main line the nodes of the line from which they come, and the weights in between.

    Only paths with few enough operations with weights for a skip connection are included.
    """
    found: dict[int, dict[int, int]] = {}
    for node in range(1, max(at) + 1):
        if node in at or node not in alive:
            continue
        own, forks = _has_weights(graph, node), dict[int, int]()
        for edge in graph.edges[node]:
            for fork, weights in ({edge.node: 0} if edge.node in at else found.get(edge.node, {})).items():
                if weights + own <= _PROJECTION:
                    forks[fork] = min(forks.get(fork, _PROJECTION), weights + own)
        found[node] = forks
    return found
