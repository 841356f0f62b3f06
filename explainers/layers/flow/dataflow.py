"""One forward pass as a graph: the meaning of every tensor's axes, and the tensors on all paths to the output.

The layout of a layer is derived from the operations applied to the image (axis_rules.py), not only from shapes, since a
square image has the same shape in several layouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from explainers.layers.flow.axes import (
    OTHER,
    SPATIAL,
    Axes,
    Axis,
    full_axis,
    kinds_of,
    lost_axis,
    resize_axis,
    why_lost,
)
from explainers.layers.flow.axis_rules import PARTS, has_rule, lose_time, propagate_axes
from explainers.layers.flow.cost import Cost
from explainers.layers.flow.decisions import NEW, DispatchMode, is_plain, plain_tensors, storage_of
from explainers.layers.flow.operation import Operation, Reads, along
from explainers.layers.flow.positions import Positions, even


class Value(NamedTuple):
    """A tensor that depends on the image: the node that computed it, and its axes."""

    node: int
    axes: Axes


class Edge(NamedTuple):
    """An input of a node, and how the node reads it."""

    node: int
    reads: Reads


@dataclass
class Graph:
    """The operations that depend on the image, in running order; node 0 is the image.

    For each operation, `names` has its name, `weights` the number of parameter values that it uses, and `on_grid`
    whether its output runs along the image's height, width or time.
    """

    edges: list[tuple[Edge, ...]] = field(default_factory=lambda: [()])
    names: list[str] = field(default_factory=lambda: [""])
    weights: list[int] = field(default_factory=lambda: [0])
    on_grid: list[bool] = field(default_factory=lambda: [True])
    dominators: list[int] = field(default_factory=lambda: [0])

    def add(self, edges: Iterable[Edge], name: str = "", weights: int = 0, on_grid: bool = False) -> int:
        """Add a node; its immediate dominator is the last node on all of its paths from the image."""
        node, edges = len(self.edges), tuple(dict.fromkeys(edges))
        self.edges.append(edges)
        self.names.append(name)
        self.weights.append(weights)
        self.on_grid.append(on_grid)
        meeting = edges[0].node
        for edge in edges[1:]:
            other = edge.node
            while meeting != other:
                if meeting > other:
                    meeting = self.dominators[meeting]
                else:
                    other = self.dominators[other]
        self.dominators.append(meeting)
        return node

    def nodes_on_all_paths(self, node: int) -> set[int]:
        """Return the nodes on every path from the image to `node`, including `node`."""
        passed = {node}
        while node:
            node = self.dominators[node]
            passed.add(node)
        return passed

    def reads(self, output: int) -> dict[int, Reads]:
        """Return for each node before `output` whether its positions are read (ALL) or only its class token (EXTRA)."""
        found = {output: Reads.ALL}
        for node in range(output, 0, -1):
            if node in found:
                for edge in self.edges[node]:
                    read = min(found[node], edge.reads) if edge.reads != Reads.ALL else Reads.ALL
                    read = Reads.ALL if read == Reads.SAME else read
                    found[edge.node] = max(found.get(edge.node, read), read)
        return found

    def before_weights(self, output: int) -> set[int]:
        """Return the nodes from which a path to `output` contains operations with weights."""
        found: set[int] = set()
        for node in range(output, 0, -1):
            if self.weights[node] or node in found:
                found.update(edge.node for edge in self.edges[node])
        return found

    def readers(self, node: int, output: int) -> list[int]:
        """Return the nodes on paths to `output` that read the positions of `node`."""
        found = self.reads(output)
        return [
            child
            for child in range(node + 1, output + 1)
            if child in found
            for edge in self.edges[child]
            if edge.node == node
            and (edge.reads == Reads.ALL or (found[child] == Reads.ALL and edge.reads != Reads.EXTRA))
        ]


Key = tuple[int, int, tuple[int, ...], tuple[int, ...]]


class Dataflow(DispatchMode):
    """Track the calling thread's operations that depend on the image, and the `cost` of all operations so far.

    Tensors are identified by memory location, shape and strides, since every view is a new object.
    """

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.graph = Graph()
        self.reads_values = False  # positions depend on values of tensors that do not depend on the image
        self.cost = Cost(largest=images.numel() * images.element_size())
        count, _, *sides = images.shape
        spatial = (full_axis(kind, side, even(side)) for kind, side in zip(kinds_of(len(sides)), sides, strict=True))
        axes = full_axis("N", count), OTHER, *spatial
        self._frames = sides[0] if len(sides) == 3 else 0
        self._values: dict[Key, Value] = {}
        self._writes: dict[int, tuple[Value, Key]] = {}
        self._parts: dict[int, dict[Key, Axes]] = {}
        self._joined: set[Key] = set()  # tensors whose axes were assembled from parts
        self._filled: set[Key] = set()  # these and their views
        self._weights: dict[int, int] = {}
        self._put(images, Value(0, axes))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = list(plain_tensors((*args, *kwargs.values())))
        values = [self.value(tensor) for tensor in inputs]
        storages = {storage_of(tensor) for tensor in inputs}
        result = func(*args, **kwargs)
        outputs = list(plain_tensors((result,)))
        name = _name(func)
        is_written = name.endswith("_") and bool(inputs)
        new = [output for output in outputs if storage_of(output) not in storages]
        self.cost = self.cost.plus(name, inputs, new)
        for output in new:
            self._writes.pop(storage_of(output), None)  # reused memory
            self._parts.pop(storage_of(output), None)
        if name == "_local_scalar_dense" or (name in _BY_VALUES and None in values):
            self.reads_values = True
        if any(values) and name not in NEW:
            axes = [v and v.axes for v in values]
            if name == "copy_" and _key(inputs[0]) in self._filled:
                axes[0] = None  # its entries were not read from the image, but continue parts that were
            operation = Operation(name, args, kwargs, inputs, axes, outputs)
            self._follow(func, operation, values, is_written)
        else:
            for output in outputs:
                if not is_written:
                    self._values.pop(_key(output), None)
        return result

    def value(self, tensor: Tensor) -> Value | None:
        """Return node and axes of a tensor, or None if it does not depend on the image."""
        if not is_plain(tensor):
            return None
        key = _key(tensor)
        value, write = self._values.get(key), self._writes.get(storage_of(tensor))
        if write is None or write[1] == key or (value is not None and value.node > write[0].node):
            return value
        # A part of this tensor was written in place through another view.
        written = write[0]
        is_known = value is not None and _on_grid(value.axes) and key not in self._joined
        parts = self._parts[storage_of(tensor)]
        axes = value.axes if value and is_known else _assembled(tensor, parts)
        if lost := next(filter(None, map(why_lost, parts.values())), ""):
            axes = tuple(lost_axis(axis, lost) for axis in axes)
        nodes = [written.node] if value is None else [value.node, written.node]
        value = Value(self.graph.add([Edge(node, Reads.SAME) for node in nodes], on_grid=_on_grid(axes)), axes)
        self._put(tensor, value)
        if not is_known:
            self._joined.add(key)
            self._filled.add(key)
        return value

    def _follow(self, func: Any, operation: Operation, values: Sequence[Value | None], is_written: bool) -> None:
        axes, reads = propagate_axes(operation)
        if not is_written and not has_rule(operation.name):
            axes = _check_positions(func, operation, axes)
        if self._frames:
            axes = [lose_time(output, operation.axes, self._frames) for output in axes]
        name, weights = operation.name.strip("_"), self._weights_of(operation)
        if name in PARTS and values[0] is not None:
            nodes = [
                self.graph.add([Edge(values[0].node, read)], name, 0, _on_grid(part))
                for part, read in zip(axes, reads, strict=True)
            ]
        else:
            edges = [Edge(value.node, read) for value, read in zip(values, reads, strict=True) if value]
            nodes = [self.graph.add(edges, name, weights, any(map(_on_grid, axes)))] * len(axes)
        filled = {storage_of(tensor) for tensor in operation.inputs if _key(tensor) in self._filled}
        for output, meaning, node in zip(operation.outputs, axes, nodes, strict=True):
            self._put(output, Value(node, meaning))
            if storage_of(output) in filled and not is_written:
                self._filled.add(_key(output))
            if is_written:
                self._writes[storage_of(output)] = Value(node, meaning), _key(output)
                self._parts.setdefault(storage_of(output), {})[_key(output)] = meaning

    def _weights_of(self, operation: Operation) -> int:
        """Return the number of parameter values that are used here for the first time."""
        if any(isinstance(argument, torch.ScriptObject) for argument in operation.args):
            return 1  # packed weights of a quantized operation, whose number is not available
        if operation.name not in _WEIGHTED:
            return 0
        constants = [t for t, axes in zip(operation.inputs, operation.axes, strict=True) if axes is None and t.ndim > 1]
        new = {storage_of(t): t.numel() for t in constants if storage_of(t) not in self._weights}
        self._weights |= new
        return max(sum(new.values()), bool(constants))

    def _put(self, tensor: Tensor, value: Value) -> None:
        self._values[_key(tensor)] = value
        self._joined.discard(_key(tensor))
        self._filled.discard(_key(tensor))


_BY_VALUES = frozenset({"index", "index_select", "grid_sampler_2d"})
"""Operations whose positions depend on the values of tensors."""
_WEIGHTED = frozenset({"convolution", "mkldnn_convolution", "addmm", "mm", "bmm", "baddbmm", "linear"})


def _name(func: Any) -> str:
    """Return the operation's name; for a quantized operation, that of its floating-point counterpart."""
    name: str = getattr(func, "overloadpacket", func).__name__
    if getattr(func, "namespace", "") == "quantized":
        name = name.removesuffix("_dynamic").removesuffix("_relu")
        return {"conv1d": "convolution", "conv2d": "convolution", "conv3d": "convolution"}.get(name, name)
    return name


def _on_grid(axes: Axes) -> bool:
    return any(axis.kinds & SPATIAL for axis in axes)


def _assembled(tensor: Tensor, parts: dict[Key, Axes]) -> Axes:
    """Return the axes of a tensor whose parts were written through views, which are matched by their strides.

    Each entry has the position of the largest part that covers it; entries that no part covers continue the largest.
    """
    largest_first = sorted(parts.items(), key=lambda part: -math.prod(part[0][2]))
    (_, _, _, strides), first = largest_first[0]
    kinds = dict(zip(strides, first, strict=True))
    axes = []
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        axis = kinds.get(stride, OTHER)
        spans = [span for key, own in largest_first if (span := _span(tensor, stride, key, own))]
        axes.append(resize_axis(axis, size, partial(_fill, spans, size)) if spans else resize_axis(axis, size))
    return tuple(axes)


def _span(tensor: Tensor, stride: int, key: Key, axes: Axes) -> tuple[int, Positions] | None:
    """Return the first entry along the axis of this stride that a part covers, and the positions of its entries."""
    _, start, _, strides = key
    distance = start - int(tensor.storage_offset())
    for step in sorted((s for s in tensor.stride() if s > stride), reverse=True):
        distance %= step
    factors = next((axis.factors for axis, own in zip(axes, strides, strict=True) if own == stride), ())
    known = factors[0].whole if len(factors) == 1 else None
    return None if known is None or distance < 0 else (distance // stride, known)


def _fill(spans: Sequence[tuple[int, Positions]], size: int, _: Positions) -> Positions:
    """Return the positions of `size` entries, given (first entry, positions) of parts, the largest first."""
    first, known = spans[0]
    at = [known.between(i - first) for i in range(size)]
    for start, part in reversed(spans):
        at[start : start + len(part.at)] = part.at
    return known._replace(at=tuple(at), pads=(first, size - first - len(known.at)), moved=True)


def _key(tensor: Tensor) -> Key:
    return storage_of(tensor), int(tensor.storage_offset()), tensor.shape, tensor.stride()


# Operations without a rule: whether they keep the positions of their input is found out by a changed input.


def _check_positions(func: Any, operation: Operation, axes: list[Axes]) -> list[Axes]:
    """Return the axes of each output, without positions if the operation moves a changed entry of its input.

    Operations from outside of torch that return another grid, such as pooling of regions, have no positions either.
    """
    if not isinstance(func, torch._ops.OpOverload):
        return axes
    for known, tensor in zip(operation.axes, operation.inputs, strict=True):
        if known is None or not any(map(along, known)) or why_lost(known):
            continue
        result = []
        for output, own in zip(operation.outputs, axes, strict=True):
            same = output.shape == tensor.shape
            is_foreign = func.namespace != "aten" and output.ndim == tensor.ndim
            moved = _moves(func, operation, tensor, known, output) if same else is_foreign
            result.append((Axis(lost=operation.name.strip("_")),) * output.ndim if moved else own)
        return result
    return axes


def _moves(func: Any, operation: Operation, tensor: Tensor, axes: Axes, output: Tensor) -> bool:
    """Return whether a change of one cell of `tensor` changes the output, but not at this cell."""
    if torch.Tag.nondeterministic_seeded in func.tags or not tensor.is_floating_point():
        return False
    cell = tuple(size // 3 if along(axis) else slice(None) for axis, size in zip(axes, tensor.shape, strict=True))
    changed = tensor.clone()
    changed[cell] += 1 + tensor.abs().amax()
    args, kwargs = pytree.tree_map(lambda each: changed if each is tensor else each, (operation.args, operation.kwargs))
    result = func(*args, **kwargs)
    outputs = [each for each in pytree.tree_leaves(result) if isinstance(each, Tensor)]
    same = [each for each in outputs if each.shape == output.shape]
    if not same:
        return False
    differs = same[0] != output
    return bool(differs.any()) and not bool(differs[cell].any())
