"""A network's layers, call by call, with their layouts, and its default layer, from one forward pass of one image.

The pass is tracked operation by operation (flow/dataflow.py); only names and numbers are kept.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import is_out_of_memory
from explainers.hooks.calls import Calls, inner_points
from explainers.hooks.locate import HookPoint
from explainers.hooks.records import only_tensor
from explainers.layers.default_layer import ForwardPass, find_default
from explainers.layers.flow.axes import Axes, kinds_of, why_lost
from explainers.layers.flow.cost import Cost
from explainers.layers.flow.dataflow import Dataflow, Edge
from explainers.layers.flow.decisions import Decisions
from explainers.layers.flow.operation import Reads
from explainers.layers.layer import Layer
from explainers.layers.layout import layout_by_axes, placement_of
from explainers.nested import TRANSFORM, is_transformed, list_tensors


class Profile(list[Layer]):
    """All layer calls of a model in one forward pass, in the order in which they returned; `default` is a layer name.

    `reads_values` is True if positions depend on values of tensors: an index, a grid of a warp, a number of pixels.
    `reads_image` is the operation by which the network reads a value of the image, or empty.

    `is_bypassed` is True if some path to the scores does not pass through the default layer, because no layer is on all
    paths. `forward` is the graph of the pass. `cost` is that of the pass for one image, `costs` has for each layer the
    part until it returns, and the part between its start and its return.
    """

    default: str | None = None
    is_bypassed: bool = False
    reads_values: bool = False
    reads_image: str = ""
    forward: ForwardPass
    cost: Cost
    costs: dict[str, tuple[Cost, Cost]]


def check_frames(network: nn.Module, images: Tensor, network_of: Any, found: Profile) -> Profile:
    """Remove the grids of layers whose batch has the frames before the videos, which one video does not show."""
    try:
        two, _ = trace_layers(network, images[:1].expand(2, *images.shape[1:]), network_of)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return found  # the network only accepts one row, and runs on each video separately
    if [layer.name for layer in two] != [layer.name for layer in found]:
        return two
    layers = [layer if layer.frames == 1 else other for layer, other in zip(found, two, strict=True)]
    profile = _add_default(layers, found.forward)
    vars(profile).update({**vars(found), **vars(profile)})
    return profile


@torch.no_grad()
def trace_layers(network: nn.Module, images: Tensor, network_of: Any) -> tuple[Profile, Any]:
    """Return the profile of a forward pass, and its output."""
    layers: list[Layer] = []
    nodes: list[int | None] = []
    plain: list[bool] = []
    costs: list[tuple[Cost, Cost]] = []
    with torch.inference_mode(False), torch.no_grad(), ExitStack() as stack:
        hooks = Calls(network, stack)
        batch = images.clone()
        flow = Dataflow(batch)

        started: list[Cost] = []

        def start(k: int, inputs: tuple[Any, ...]) -> None:
            started.append(flow.cost)

        def record(at: HookPoint, output: Any) -> None:
            """Record a call of a module, with the single tensor that it returns or its output contains."""
            own = flow.cost.minus(started.pop()).per_image(len(images))
            costs.append((flow.cost.per_image(len(images)), own))
            plain.append(isinstance(output, Tensor))
            layer = Layer(
                at.name, type(at.module).__name__, (), None, "", _network=network_of, _input=tuple(images.shape[1:])
            )
            tensor, node = only_tensor(output), None
            with torch._C.DisableTorchFunction():  # `decisions` need not see this
                if tensor is not None and not tensor.is_complex():  # a pass to a complex layer raises an error
                    node, axes = flow.value(tensor) or (None, ())
                    lost = TRANSFORM if is_transformed(tensor) else why_lost(axes)
                    layer = _add_layout(layer, tuple(tensor.shape), axes, lost, images)
            layers.append(layer)
            nodes.append(node)

        for point in inner_points(network):
            hooks.before(stack, point, start)
            hooks.after(stack, point, lambda k, out, at=point: record(at, out))  # type: ignore[misc]
        decisions = Decisions()
        with decisions.watch(batch), flow:
            output = network(batch)
        values = [value for value in map(flow.value, _scores(output)) if value]
    end = flow.graph.add([Edge(value.node, Reads.ALL) for value in values] or [Edge(0, Reads.ALL)])
    dense = any(flow.graph.on_grid[value.node] for value in values)
    profile = _add_default(_numbered(layers), ForwardPass(flow.graph, end, dense, tuple(nodes), tuple(plain)))
    profile.reads_values, profile.reads_image = flow.reads_values, next(iter(decisions.reads), "")
    profile.cost = flow.cost.per_image(len(images))
    profile.costs = {layer.name: cost for layer, cost in zip(profile, costs, strict=True)}
    return profile, output


def _scores(output: Any) -> list[Tensor]:
    """Return the tensors of a model's output that contain its scores, without auxiliary heads."""
    for name in ("logits", "logits_per_image", "out"):
        scores = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if isinstance(scores, Tensor):
            return [scores]
    return list_tensors(output)


def _numbered(layers: list[Layer]) -> list[Layer]:
    """Return the layers with the number of the call in the names of modules that ran more than once."""
    counts, seen = Counter(layer.name for layer in layers), Counter[str]()
    named = []
    for layer in layers:
        several = counts[layer.name] > 1
        named.append(replace(layer, name=f"{layer.name}#{seen[layer.name]}") if several else layer)
        seen[layer.name] += 1
    return named


def _add_layout(layer: Layer, shape: tuple[int, ...], axes: Axes, lost: str, images: Tensor) -> Layer:
    """Add shape and layout of the output; `lost` is the reason why its cells have no position, if they have none."""
    one = (1, *shape[1:]) if shape[:1] == images.shape[:1] else shape
    sides = tuple(images.shape[2:])
    found = None if lost else layout_by_axes(axes, shape, kinds_of(len(sides)))
    if found is None or shape[0] != len(images) * found.frames:
        return replace(layer, shape=one, _lost=lost)
    layout, grid, extra, frames, order = found
    placement = placement_of(axes, grid, sides)
    even_stride = tuple(side / cells for side, cells in zip(sides, grid, strict=True))
    return replace(
        layer,
        shape=one if frames == 1 else (frames, *one[1:]),
        grid=grid,
        layout=layout,
        extra_tokens=extra,
        frames=frames,
        _order=order,
        stride=even_stride if placement is None else placement.stride,
        placement=placement,
    )


def _add_default(layers: list[Layer], forward: ForwardPass) -> Profile:
    """Create the profile with its default layer and its stages, one of which is the default layer."""
    reads = forward.graph.reads(forward.end)
    default, stages, is_bypassed = find_default(layers, forward)
    profile = Profile(
        replace(layer, stage=layer.name in stages, is_read=node is None or reads.get(node) == Reads.ALL)
        for layer, node in zip(layers, forward.nodes, strict=True)
    )
    profile.default = None if default is None else layers[default].name
    profile.is_bypassed, profile.forward = is_bypassed, forward
    return profile
