"""`describe`: the layers of a network with their sizes, costs, times and receptive fields."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from explainers.experiments.description.table import Description, LayerDescription
from explainers.hooks.calls import Calls
from explainers.hooks.locate import HookPoint, find_hook_point
from explainers.layers.center_fields import center_fields
from explainers.layers.layer import Layer, layout_of
from explainers.layers.profile import Profile, unchecked_profile
from explainers.nested import list_tensors
from explainers.network.eval_view import check_images, one_call
from explainers.network.forward_wrapper import Forward, wrap_forward
from explainers.options import check_keywords
from explainers.passes.loop import now

Times = dict[tuple[str, int], tuple[float, int]]
"""Seconds and bytes of the output, by the dotted name of a module and the number of its call."""


@check_keywords
@torch.inference_mode(False)
def describe(
    model: nn.Module, images: Tensor, *, receptive_fields: bool = True, forward: Forward | None = None
) -> Description:
    """Describe all layers of a model, for the first image: shapes, parameters, multiply-adds, memory, time.

    Multiply-adds count one for each multiplication of a convolution, a matrix product or attention, as `fvcore` and
    `torch.utils.flop_counter` (which counts two) do; `torchinfo` differs for linear layers of transformers, of which it
    counts one position. Layers that contain others include them. `receptive_fields` also computes those of the central
    cells, which takes a few backward passes for each block of layers. `forward` is as in `explain`.

    Returns  a `Description`, from at most three forward passes: one tracked, one timed, one for receptive fields
    Errors   UnsupportedModel for scripted, traced and exported models

    Example
        >>> found = describe(model, images)
        >>> found.layers[0].name, found.layers[0].shape
        ('conv1', (1, 64, 112, 112))
    """
    check_images(model, images)
    model = model if forward is None else wrap_forward(model, forward, images)
    image = images[:1]
    with torch.inference_mode(False), torch.no_grad(), one_call(model) as view:
        layers = unchecked_profile(view, image)
        times, seconds = _timed_pass(view.network, image)
        fields = _receptive_fields(view.network, image, layers) if receptive_fields else {}
        paths = [layer.path.split(".") for layer in layers]
        containers = {".".join(path[:depth]) for path in paths for depth in range(1, len(path))}
        found = [
            _describe(view.network, layer, layers, times, fields.get(layer.name), layer.path not in containers)
            for layer in layers
        ]
        parameters = list(view.network.parameters())
        return Description(
            network=type(view.network).__name__,
            input_shape=tuple(image.shape),
            layers=found,
            parameters=sum(each.numel() for each in parameters),
            trainable=sum(each.numel() for each in view.given.parameters() if each.requires_grad),
            multiply_adds=layers.cost.multiplications,
            output_bytes=sum(layer.output_bytes for layer in found if layer.is_leaf),
            seconds=seconds,
        )


def _timed_pass(network: nn.Module, image: Tensor) -> tuple[Times, float]:
    """Run the network once, and return the time and the size of the output of every call, and the whole time."""
    device = image.device
    times: Times = {}
    started: list[float] = []
    with ExitStack() as stack:
        calls = Calls(network, stack)

        def start(k: int, inputs: tuple[Any, ...]) -> None:
            started.append(now(device))

        def stop(path: str, k: int, output: Any) -> None:
            sizes = [tensor.numel() * tensor.element_size() for tensor in list_tensors(output)]
            times[path, k] = now(device) - started.pop(), sum(sizes)

        for path, module in network.named_modules():
            if path and not isinstance(module, torch.jit.ScriptModule):
                calls.before(stack, HookPoint(path, module), start)
                calls.after(stack, HookPoint(path, module), lambda k, output, path=path: stop(path, k, output))  # type: ignore[misc]
        begin = now(device)
        network(image.clone())
        return times, now(device) - begin


def _receptive_fields(network: nn.Module, image: Tensor, layers: Profile) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the receptive fields of the central cells, by layer, in the order of the image's axes."""
    spatial = [layer for layer in layers if layer.grid is not None and layer.frames == 1]
    layouts = [layout_of(layer, find_hook_point(network, layer.name)) for layer in spatial]
    boxes = center_fields(network, image, layouts)
    axes = image.ndim - 2
    return {
        layer.name: tuple(end - first for first, end in zip(box[:axes], box[axes:], strict=True))[::-1]
        for layer, box in zip(spatial, boxes, strict=True)
        if box is not None
    }


def _describe(
    network: nn.Module,
    layer: Layer,
    layers: Profile,
    times: Times,
    field: tuple[int, ...] | None,
    is_leaf: bool,
) -> LayerDescription:
    number = int(layer.name.partition("#")[2] or 0)
    seconds, size = times.get((layer.path, number), (0.0, 0))
    module = find_hook_point(network, layer.path).module
    return LayerDescription(
        name=layer.name,
        kind=layer.kind,
        shape=layer.shape,
        parameters=sum(each.numel() for each in module.parameters()),
        multiply_adds=layers.own_costs[layer.name].multiplications,
        output_bytes=size,
        seconds=seconds,
        receptive_field=field,
        is_leaf=is_leaf,
    )
