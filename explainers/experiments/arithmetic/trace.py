"""`trace_value` and `trace_attention`: how one number of a network is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from explainers.call.attention.watch import watch_attention
from explainers.call.current import check_images
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.layers import layer_layout
from explainers.call.run import Run, open_run
from explainers.errors import BadImages, BadOption, NoSpatialOutput, UnsupportedModel, UnsupportedOperation, shorten
from explainers.experiments.arithmetic.recording import Recorder, unravel
from explainers.experiments.arithmetic.sums import Step, WeightedSum, walk
from explainers.experiments.interventions.changes import check_cell, position_numbers
from explainers.layers.layout import LayerLayout, nothing_spatial
from explainers.options import LayerName, check_keywords, check_whole, whole_number


@dataclass(frozen=True, eq=False)
class PathStep:
    """An input on the strongest path: the product with the largest magnitude of a sum.

    `name` is the layer whose weights are used, `index` the position of the product in its patch, `channel` and `cell`
    (row, column) those of the input, where they are known.
    """

    name: str
    kind: str
    index: tuple[int, ...]
    channel: int | None
    cell: tuple[int, int] | None
    input: float
    weight: float

    @property
    def product(self) -> float:
        """The input times the weight."""
        return self.input * self.weight


@dataclass(frozen=True, eq=False)
class ValueTrace:
    """How one value of a layer is computed: `sum`, a sum of products, and the `steps` after it.

    `value` is the value of the layer at `channel` and `cell` (None if the layer has no grid), `computed` the result of
    the same operations in float64. `path` is the strongest path back: the largest product, the largest product of its
    input, and so on.
    """

    layer: str
    value: float
    sum: WeightedSum
    steps: tuple[Step, ...]
    path: tuple[PathStep, ...] = field(repr=False, default=())
    channel: int | None = None
    cell: tuple[int, ...] | None = None

    @property
    def computed(self) -> float:
        """The sum and all steps, in float64."""
        found = self.sum.total
        for step in self.steps:
            found = step.apply(found)
        return found

    def __str__(self) -> str:
        """Return the arithmetic as lines of text."""
        total, name = self.sum, self.sum.name or self.sum.kind
        lines = [
            f"{name}: {total.products.numel()} products, sum {float(total.products.sum()):.6g}, bias {total.bias:.6g}"
        ]
        lines += [f"{step.name or step.kind}: {step.before:.6g} -> {step.after:.6g}" for step in self.steps]
        return "\n".join([*lines, f"{self.layer}: {self.value:.6g}"])


@check_keywords
@torch.inference_mode(False)
def trace_value(
    model: nn.Module,
    image: Tensor,
    layer: LayerName | None = None,
    channel: int = 0,
    cell: Sequence[int] | None = None,
    *,
    path: int = 3,
    forward: Forward | None = None,
) -> ValueTrace:
    """Return how one value of a layer is computed: patch, kernel, products, bias, batch norm, activation.

    `image` [1, C, H, W] is one image. `cell` (row, column) is a cell of the layer's grid; None is the cell with the
    largest value of the channel, or the only position of a layer with an output [1, K]. The last sum of products before
    the layer's output is listed: of a convolution, a linear layer, a matrix product or a mean. What comes after it are
    `steps`, such as the value that a skip connection adds. `path` is the number of sums on the strongest path back.
    `forward` is as in `explain`.

    Returns  a `ValueTrace`, from one forward pass up to the layer
    Errors   BadOption for a channel or cell that does not exist; UnsupportedOperation if the value is computed by
             another operation; BadImages, LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel

    Example
        >>> trace = trace_value(model, images, "conv1", channel=3, cell=(5, 7))
        >>> trace.sum.kind, bool(abs(trace.computed - trace.value) < 1e-4)
        ('convolution', True)
    """
    _check_one(model, image)
    check_whole(0, path=path)
    model = model if forward is None else wrap_forward(model, forward, image)
    with open_run(model, image) as run:
        layout = layer_layout(run.view, run.images, layer, spatial=False)
        # Fused attention runs in single operations, whose products can be listed.
        with watch_attention(run.view.network, 1, leaves=False), _recorder(run) as recorder:
            output = run.forward.outputs(layout, run.images)
        position, cell = _position(layout, output, channel, cell)
        value, total, steps = walk(recorder, recorder.ref(output), position)
        if total is None:
            raise UnsupportedModel(
                f"The values of layer {layout.name!r} are those of the image, so no products are computed. Choose a "
                "layer after the first convolution."
            )
        strongest = _path(recorder, total, path)
        return ValueTrace(layout.name, value, total, steps, strongest, channel, cell)


@check_keywords
@torch.inference_mode(False)
def trace_attention(
    model: nn.Module, image: Tensor, layer: str, *, head: int = 0, query: int = 0, key: int = 0
) -> ValueTrace:
    """Return how one attention weight is computed: query, key, products, scale, softmax.

    `layer` is a block or an attention; its first attention is used. `query` and `key` are the numbers of tokens, with
    class and register tokens first. `sum.inputs` are the query, `sum.weights` the key; the steps are the scale, which
    some networks apply to the query instead, a mask or position bias if there is one, and the softmax.

    Returns  a `ValueTrace` whose value is the attention weight
    Errors   BadOption for a head or token that does not exist; UnsupportedModel if the layer contains no attention

    Example
        >>> trace = trace_attention(vit, images, "encoder.layers.encoder_layer_0", head=2, query=0, key=5)
        >>> [step.kind for step in trace.steps]
        ['scale', 'softmax']
    """
    _check_one(model, image)
    with open_run(model, image) as run:
        with watch_attention(run.view.network, 1, leaves=False) as seen, _recorder(run) as recorder:
            run.forward(run.images.clone())
        inside = [each for each in seen.attentions if each.path == layer or each.path.startswith(f"{layer}.")]
        if not inside:
            known = ", ".join(dict.fromkeys(each.path for each in seen.attentions)) or "none"
            raise UnsupportedModel(f"Layer {layer!r} contains no attention. Attentions of this network: {known}.")
        weights = inside[0].weights
        rows = weights.reshape(-1, *weights.shape[-2:])
        for (name, number), count in zip({"head": head, "query": query, "key": key}.items(), rows.shape, strict=True):
            _check_number(name, number, count, layer)
        position = (head * rows.shape[1] + query) * rows.shape[2] + key
        value, total, steps = walk(recorder, recorder.ref(weights), position)
        if total is None:
            raise UnsupportedModel(f"The attention of {layer!r} is not computed from a product. Choose another layer.")
        return ValueTrace(inside[0].path, value, total, steps)


def _check_one(model: nn.Module, image: Tensor) -> None:
    check_images(model, image)
    if len(image) != 1:
        raise BadImages(f"Give one image [1, C, H, W], not {len(image)}. For example images[:1].")


def _recorder(run: Run) -> Recorder:
    """Return a recorder of the operations of a pass, which knows the layers by their weights."""
    named = run.view.network.named_parameters()
    return Recorder({each.data_ptr(): name.rpartition(".")[0] for name, each in named if each.ndim > 1})


def _position(
    layout: LayerLayout, output: Tensor, channel: int, cell: Sequence[int] | None
) -> tuple[int, tuple[int, ...] | None]:
    """Return the flat position of a channel and cell in a layer's output, and the cell, by default the strongest."""
    shape = tuple(output.shape)
    if len(shape) < 2 or (layout.grid is None and (len(shape) > 2 or cell is not None)):
        raise NoSpatialOutput(nothing_spatial(layout.name, shape))
    _check_number("channel", channel, shape[layout.channel_axis], layout.name)
    numbers = torch.arange(output.numel()).reshape(shape)
    if layout.grid is None:
        return int(numbers[0, channel]), None
    position_numbers(layout, shape)  # refuses single frames of a video
    if cell is None:
        values = layout.to_maps(output)[0, channel]
        cell = unravel(int(values.flatten().argmax()), tuple(values.shape))
    at = check_cell(cell, layout.grid, layout.name)
    return int(layout.to_maps(numbers)[(0, channel, *at)]), at


def _check_number(name: str, value: int, count: int, layer: str) -> None:
    number = whole_number(value)
    if number is None or not 0 <= number < count:
        raise BadOption(f"{name}={shorten(value)} does not exist: layer {layer!r} has {name}s 0 to {count - 1}.")


def _path(recorder: Recorder, total: WeightedSum | None, count: int) -> tuple[PathStep, ...]:
    """Return the largest product of the sum, of the sum of its input, and so on."""
    found: list[PathStep] = []
    while total is not None and len(found) < count:
        products = total.products.abs().masked_fill(~total.inside, -1)
        if not products.numel() or float(products.max()) <= 0:
            break
        flat = int(products.argmax())
        index = unravel(flat, products.shape)
        source, positions = total._sources[0]
        position = int(positions.reshape(-1)[flat])
        at = unravel(position, recorder.value(source).shape)
        is_grid = len(at) == 4 and len(recorder.value(source)) == 1  # [1, K, h, w]; tokens have only a channel
        channel = at[1] if is_grid else at[-1] if len(at) in (2, 3) else None
        cell = (at[2], at[3]) if is_grid else None
        factors = float(total.inputs[index]), float(total.weights[index])
        found.append(PathStep(total.name, total.kind, index, channel, cell, *factors))
        try:
            total = walk(recorder, source, position)[1]
        except UnsupportedOperation:  # the path ends at an operation without products, such as a sort
            break
    return tuple(found)
