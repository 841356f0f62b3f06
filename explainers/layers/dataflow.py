"""One forward pass as a graph: what every tensor's axes mean, and which tensors every path to the output passes.

The layout of a layer is decided by what the network does to the picture, operation by operation (axis_rules.py), never
by shapes alone: a square picture has the same shape in several layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from explainers.layers.axes import OTHER, Axes, resized, whole
from explainers.layers.axis_rules import PARTS, Operation, Reads, followed


class Value(NamedTuple):
    """A tensor that depends on the picture: the node that made it, and its axes."""

    node: int
    axes: Axes


class Edge(NamedTuple):
    """A tensor that a node reads, and how."""

    node: int
    reads: Reads


@dataclass
class Graph:
    """The operations that depend on the picture, in running order; node 0 is the picture itself.

    `names` are those of the operations, `weights` how many parameter values each multiplies the picture with, `on_grid`
    whether its output runs along the picture's height and width.
    """

    edges: list[tuple[Edge, ...]] = field(default_factory=lambda: [()])
    names: list[str] = field(default_factory=lambda: [""])
    weights: list[int] = field(default_factory=lambda: [0])
    on_grid: list[bool] = field(default_factory=lambda: [True])
    _dominators: list[int] = field(default_factory=lambda: [0])

    def add(self, edges: Iterable[Edge], name: str = "", weights: int = 0, on_grid: bool = False) -> int:
        """A new node; its immediate dominator is where all its paths from the picture last meet."""
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
                    meeting = self._dominators[meeting]
                else:
                    other = self._dominators[other]
        self._dominators.append(meeting)
        return node

    def passed_by_all_paths(self, node: int) -> set[int]:
        """The nodes that every path from the picture to `node` passes, itself included."""
        passed = {node}
        while node:
            node = self._dominators[node]
            passed.add(node)
        return passed

    def reads(self, output: int) -> dict[int, Reads]:
        """For each node before `output`: whether its positions are read (ALL), or only its class token (EXTRA)."""
        found = {output: Reads.ALL}
        for node in range(output, 0, -1):
            if node in found:
                for edge in self.edges[node]:
                    read = min(found[node], edge.reads) if edge.reads != Reads.ALL else Reads.ALL
                    read = Reads.ALL if read == Reads.SAME else read
                    found[edge.node] = max(found.get(edge.node, read), read)
        return found

    def before_weights(self, output: int) -> set[int]:
        """The nodes whose values still meet weights on a way to `output`."""
        found: set[int] = set()
        for node in range(output, 0, -1):
            if self.weights[node] or node in found:
                found.update(edge.node for edge in self.edges[node])
        return found

    def readers(self, node: int, output: int) -> list[int]:
        """The nodes that read the positions of `node` on a way to `output`."""
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


class Dataflow(TorchDispatchMode):
    """Follows the calling thread's operations from the picture on.

    Tensors are told apart by their place in memory, shape and strides, since views are new objects every time.
    """

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.graph = Graph()
        count, _, height, width = images.shape
        axes = whole("N", count), OTHER, whole("H", height), whole("W", width)
        self._values: dict[Key, Value] = {}
        self._writes: dict[int, tuple[Value, Key]] = {}
        self._weights: dict[int, int] = {}
        self._put(images, Value(0, axes))

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would wrap the method below in one that imports torch._dynamo, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = [tensor for tensor in _tensors((*args, *kwargs.values())) if _is_plain(tensor)]
        values = [self.value(tensor) for tensor in inputs]
        places = {_storage(tensor) for tensor in inputs}
        result = func(*args, **kwargs)
        outputs = [tensor for tensor in _tensors((result,)) if _is_plain(tensor)]
        name = _name(func)
        is_written = name.endswith("_") and bool(inputs)
        for output in outputs:
            if _storage(output) not in places:
                self._writes.pop(_storage(output), None)  # memory used anew
        if any(values):
            self._follow(
                Operation(name, args, kwargs, inputs, [v and v.axes for v in values], outputs), values, is_written
            )
        else:
            for output in outputs:
                if not is_written:
                    self._values.pop(_key(output), None)
        return result

    def value(self, tensor: Tensor) -> Value | None:
        """What is known of a tensor; None where it does not depend on the picture."""
        if not _is_plain(tensor):
            return None
        key = _key(tensor)
        value, write = self._values.get(key), self._writes.get(_storage(tensor))
        if write is None or write[1] == key or (value is not None and value.node > write[0].node):
            return value
        # A part of this tensor was written in place, through another view of it.
        written, (_, _, _, strides) = write
        axes = value.axes if value else _by_stride(tensor, written.axes, strides)
        nodes = [written.node] if value is None else [value.node, written.node]
        value = Value(self.graph.add([Edge(node, Reads.SAME) for node in nodes], on_grid=_on_grid(axes)), axes)
        self._values[key] = value
        return value

    def _follow(self, operation: Operation, values: Sequence[Value | None], is_written: bool) -> None:
        axes, reads = followed(operation)
        name, weights = operation.name.strip("_"), self._weights_of(operation)
        if name in PARTS and values[0] is not None:
            nodes = [
                self.graph.add([Edge(values[0].node, read)], name, 0, _on_grid(part))
                for part, read in zip(axes, reads, strict=True)
            ]
        else:
            edges = [Edge(value.node, read) for value, read in zip(values, reads, strict=True) if value]
            nodes = [self.graph.add(edges, name, weights, any(map(_on_grid, axes)))] * len(axes)
        for output, meaning, node in zip(operation.outputs, axes, nodes, strict=True):
            self._put(output, Value(node, meaning))
            if is_written:
                self._writes[_storage(output)] = Value(node, meaning), _key(output)

    def _weights_of(self, operation: Operation) -> int:
        """The values of parameters that meet the picture here for the first time."""
        if any(isinstance(argument, torch.ScriptObject) for argument in operation.args):
            return 1  # packed weights of a quantized operation, which do not tell their number
        if operation.name not in _WEIGHTED:
            return 0
        constants = [t for t, axes in zip(operation.inputs, operation.axes, strict=True) if axes is None and t.ndim > 1]
        new = {_storage(t): t.numel() for t in constants if _storage(t) not in self._weights}
        self._weights |= new
        return max(sum(new.values()), bool(constants))

    def _put(self, tensor: Tensor, value: Value) -> None:
        self._values[_key(tensor)] = value


_WEIGHTED = frozenset({"convolution", "mkldnn_convolution", "addmm", "mm", "bmm", "baddbmm", "linear"})


def _name(func: Any) -> str:
    """The operation's name; that of a quantized one is the name of what it computes."""
    name: str = getattr(func, "overloadpacket", func).__name__
    if getattr(func, "namespace", "") == "quantized":
        name = name.removesuffix("_dynamic").removesuffix("_relu")
        return {"conv1d": "convolution", "conv2d": "convolution", "conv3d": "convolution"}.get(name, name)
    return name


def _on_grid(axes: Axes) -> bool:
    return any(axis.kinds & {"H", "W"} for axis in axes)


def _by_stride(tensor: Tensor, axes: Axes, strides: Sequence[int]) -> Axes:
    """The axes of a tensor of which a view with `axes` and `strides` was written: those of the same strides."""
    known = dict(zip(strides, axes, strict=True))
    found = (known.get(stride, OTHER) for stride in tensor.stride())
    return tuple(resized(axis, size) for axis, size in zip(found, tensor.shape, strict=True))


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _key(tensor: Tensor) -> Key:
    return _storage(tensor), int(tensor.storage_offset()), tensor.shape, tensor.stride()
