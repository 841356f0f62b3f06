"""`describe`: the layers of a network with their sizes, costs, times and receptive fields."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.current import check_images, one_call
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.loop import now
from explainers.call.profile import unchecked_profile
from explainers.display.display import Display, Displayed, paragraphs, table_html
from explainers.hooks.calls import Calls, inner_points
from explainers.hooks.locate import find_hook_point
from explainers.layers.center_fields import center_fields
from explainers.layers.layer import layout_of
from explainers.layers.profile import Profile
from explainers.nested import list_tensors
from explainers.options import check_flags, check_keywords

Times = dict[tuple[str, int], tuple[float, int]]
"""Seconds and bytes of the output, by the dotted name of a module and the number of its call."""


HEADS = ("layer", "kind", "output", "parameters", "multiply-adds", "output kB", "ms", "receptive field")


@dataclass(frozen=True)
class LayerDescription:
    """One call of a layer, including the layers inside it, for one image.

    `shape` is the output's shape for one image, `parameters` the number of parameters, `multiply_adds` those of
    convolutions, matrix products and attention, `output_bytes` the size of the output, `seconds` the time of one
    forward pass, and `receptive_field` the (height, width) in pixels on which the central cell depends, or None
    without a grid. `is_leaf` is True if no other layer runs inside it.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    multiply_adds: int
    output_bytes: int
    seconds: float
    receptive_field: tuple[int, ...] | None
    is_leaf: bool


@dataclass(frozen=True)
class Description(Displayed):
    """A network's layers in running order, and its totals for one image.

    `parameters` and `trainable` count every parameter once, `output_bytes` is the sum over the outputs of all leaves
    (what a backward pass has to keep, at most), and `seconds` the time of one forward pass of one image.
    """

    network: str
    input_shape: tuple[int, ...]
    layers: list[LayerDescription]
    parameters: int
    trainable: int
    multiply_adds: int
    output_bytes: int
    seconds: float

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one dictionary for each layer, for a DataFrame."""
        return [asdict(layer) for layer in self.layers]

    def to_csv(self) -> str:
        """Return the layers as CSV text, with shapes as 1x64x56x56."""
        text = io.StringIO()
        writer = csv.DictWriter(text, [each.name for each in fields(LayerDescription)], lineterminator="\n")
        writer.writeheader()
        for row in self.to_rows():
            row |= {name: _joined(row[name]) for name in ("shape", "receptive_field")}
            writer.writerow(row | {"seconds": f"{row['seconds']:.6f}"})
        return text.getvalue()

    def __str__(self) -> str:
        """Return a table of the layers, and the totals."""
        rows = self._cells()
        widths = [max(map(len, column)) for column in zip(HEADS, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (HEADS, *rows)]
        return "\n".join([*lines, repr(self)])

    def _cells(self) -> list[list[str]]:
        rows = []
        for each in self.layers:
            counts = [f"{each.parameters:,}", f"{each.multiply_adds:,}", f"{each.output_bytes / 1e3:,.0f}"]
            measured = [*counts, f"{each.seconds * 1e3:.2f}", _joined(each.receptive_field)]
            rows.append([each.name, each.kind, _joined(each.shape), *measured])
        return rows

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return the totals and the layers as a table."""
        layers = f'<div style="max-height: 480px; overflow: auto">{table_html(HEADS, self._cells())}</div>'
        return Display(paragraphs([repr(self)]) + layers, repr(self))

    def __repr__(self) -> str:
        return (
            f"Description({self.network}, {len(self.layers)} layers, {self.parameters:,} parameters, "
            f"{self.multiply_adds:,} multiply-adds, {self.output_bytes / 1e6:,.1f} MB of outputs, "
            f"{self.seconds * 1e3:.1f} ms)"
        )


def _joined(sizes: tuple[int, ...] | None) -> str:
    return "" if sizes is None else "x".join(map(str, sizes))


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
    check_flags(receptive_fields=receptive_fields)
    model = model if forward is None else wrap_forward(model, forward, images)
    image = images[:1]
    with torch.inference_mode(False), torch.no_grad(), one_call(model) as view:
        layers = unchecked_profile(view, image)
        times, seconds = _timed_pass(view.network, image)
        of_fields = _receptive_fields(view.network, image, layers) if receptive_fields else {}
        paths = [layer.path.split(".") for layer in layers]
        containers = {".".join(path[:depth]) for path in paths for depth in range(1, len(path))}
        found = []
        for layer in layers:
            time, size = times.get((layer.path, int(layer.name.partition("#")[2] or 0)), (0.0, 0))
            own = find_hook_point(view.network, layer.path).module.parameters()
            found.append(
                LayerDescription(
                    name=layer.name,
                    kind=layer.kind,
                    shape=layer.shape,
                    parameters=sum(each.numel() for each in own),
                    multiply_adds=layers.costs[layer.name][1].multiplications,
                    output_bytes=size,
                    seconds=time,
                    receptive_field=of_fields.get(layer.name),
                    is_leaf=layer.path not in containers,
                )
            )
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

        for point in inner_points(network):
            calls.before(stack, point, start)
            calls.after(stack, point, lambda k, output, path=point.name: stop(path, k, output))  # type: ignore[misc]
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
