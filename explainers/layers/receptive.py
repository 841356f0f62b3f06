"""Receptive field: the box of input pixels on which one cell of a layer can depend, for any weights.

It is computed by one forward and one backward pass on a dependency graph: every value is 1, convolution weights are 1,
max pooling becomes average pooling, and activations become the identity. After each window operation, gradients are
reset to 0 or 1, so that they neither vanish nor cancel. The receptive field consists of the pixels whose gradient is
not 0. It accounts for padding, dilation, branches, windows and odd sizes exactly as the network does.

With global operations the receptive field is the whole image: squeeze-and-excitation, global attention, group and
instance normalization (mean and deviation depend on every pixel), linear layers over flattened pixels. Swin's attention
windows are respected, masked positions are not counted, and operations without a rule never add a pixel.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from explainers.dtypes import to_float64
from explainers.errors import BadOption, LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
from explainers.hooks.calls import replaced_outputs
from explainers.hooks.locate import find_hook_point
from explainers.hooks.records import did_not_run, ran_repeatedly
from explainers.layers.flow.decisions import Decisions
from explainers.layers.layout import Grid, LayerLayout, nothing_spatial

Box = tuple[int, ...]
Span = tuple[int, int]


def receptive_field(network: nn.Module, images: Tensor, at: LayerLayout, cell: Grid) -> Box:
    """Return the input pixels on which `cell` (row, column) of a layer's grid can depend.

    Returns  (left, top, right, bottom) in input pixels, right and bottom exclusive as in Pillow, clipped at the image
             borders; (0, 0, 0, 0) if the cell does not depend on any pixel. Only the size of `images` matters. For
             a cell (frame, row, column) of a video, (left, top, start, right, bottom, end).
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel; BadOption for a cell outside the
             grid
    """
    maps, leaf = _follow(network, images, at)
    sides = tuple(maps.shape[2:])
    if len(cell) != len(sides) or not all(0 <= index < side for index, side in zip(cell, sides, strict=True)):
        names = "(row, column)" if len(sides) == 2 else "(frame, row, column)"
        raise BadOption(
            f"cell={tuple(cell)!r} is outside the layer's grid. "
            f"Pass {names} from {(0,) * len(sides)} to {tuple(side - 1 for side in sides)}."
        )
    return _box(maps, leaf, *cell)


def receptive_fields(
    network: nn.Module, images: Tensor, at: LayerLayout, seconds: float = math.inf
) -> tuple[list[Span], list[Span]] | None:
    """Return the receptive fields of all cells of a layer: (top, bottom) of each row and (left, right) of each column.

    Most cells are interpolated, since the ends of the fields move linearly, or not at all, between cells.

    Returns  None if the columns of a field depend on its row, or if it takes more than `seconds` of processor time in
             this thread (other work on the machine does not count)
    Errors   as `receptive_field`
    """
    deadline = time.thread_time() + seconds
    maps, leaf = _follow(network, images, at)
    height, width = maps.shape[-2:]

    @cache
    def field(row: int, column: int) -> Box:
        if time.thread_time() > deadline:
            raise TimeoutError
        return _box(maps, leaf, row, column)

    def shown(cell: int, other: tuple[int, int]) -> Box:
        """Return the field of a cell on the diagonal, which shows a row and a column; of `other` if it is empty."""
        box = field(min(cell, height - 1), min(cell, width - 1))
        return box if any(box) else field(*other)

    try:
        rows = _along(lambda row: shown(row, (row, width // 2))[1::2], height)
        columns = _along(lambda column: shown(column, (height // 2, column))[::2], width)
        is_separable = all(
            field(row, column) == _crossed(rows[row], columns[column])
            for row, column in ((0, width - 1), (height - 1, 0), (0, width // 2), (height // 2, width - 1))
        )
    except TimeoutError:
        return None
    return (rows, columns) if is_separable else None


def _crossed(row: Span, column: Span) -> Box:
    """Return the box of a row span and a column span; a border cell that depends on no pixel has an empty box."""
    empty = row[0] == row[1] or column[0] == column[1]
    return (0, 0, 0, 0) if empty else (column[0], row[0], column[1], row[1])


def _along(span: Callable[[int], tuple[int, ...]], count: int) -> list[Span]:
    """Return `span` of each cell along one axis; both ends are monotonic."""
    known: dict[int, Span] = {}

    def at(cell: int) -> Span:
        if cell not in known:
            start, end = span(cell)
            known[cell] = start, end
        return known[cell]

    def fill(first: int, last: int) -> None:
        steps = [after - before for before, after in zip(at(first), at(min(first + 1, last)), strict=True)]
        line = {
            cell: (at(first)[0] + (cell - first) * steps[0], at(first)[1] + (cell - first) * steps[1])
            for cell in range(first, last + 1)
        }
        middle = (first + last) // 2
        if at(last) == line[last] and at(middle) == line[middle]:
            known.update(line)
        else:
            fill(first, middle)
            fill(middle, last)

    fill(0, count - 1)
    return [known[cell] for cell in range(count)]


def _follow(network: nn.Module, images: Tensor, at: LayerLayout) -> tuple[Tensor, Tensor]:
    """Return the layer's output `[1, K, h, w]` on the dependency graph, and the leaf of that graph."""
    (outputs,), leaf = follow_layers(network, images, [at])
    return layer_maps(at, outputs, images), leaf


def follow_layers(network: nn.Module, images: Tensor, layers: Sequence[LayerLayout]) -> tuple[list[list[Any]], Tensor]:
    """Return the outputs of each layer on the dependency graph, one for each of its calls, and the leaf.

    After the network has read a value, by which it may decide, an output is the name of the operation that read it.
    """
    outputs: list[list[Any]] = [[] for _ in layers]
    decisions = Decisions()

    def recorder(found: list[Any]) -> Callable[[Any], None]:
        def record(output: Any) -> None:
            # A clone, so that later in-place operations do not become part of the layer's graph.
            value = output.clone() if isinstance(output, Tensor) else output
            found.append(next(iter(decisions.reads), value))

        return record

    points = [(find_hook_point(network, at.name), recorder(found)) for at, found in zip(layers, outputs, strict=True)]
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(images[:1].shape, dtype=images.dtype, device=images.device, requires_grad=True)
        batch = leaf * 1
        with replaced_outputs(network, points), decisions.watch(batch), _DependencyGraph():
            network(batch)
    return outputs, leaf


def layer_maps(at: LayerLayout, outputs: list[Any], images: Tensor) -> Tensor:
    """Return the output of the only call of a layer as `[1, K, h, w]`."""
    if not outputs:
        raise LayerNotFound(did_not_run(at.name))
    if len(outputs) > 1:
        raise LayerRanRepeatedly(ran_repeatedly(at.name, len(outputs)))
    if isinstance(outputs[0], str):
        raise UnsupportedModel(
            f"The receptive field of layer {at.name!r} depends on the image, because the network reads values of the "
            f"image before it ({outputs[0]}) and may decide by them. Choose an earlier layer."
        )
    with torch.inference_mode(False), torch.enable_grad():  # permuting the axes is part of the graph
        maps = at.to_maps(outputs[0]) if isinstance(outputs[0], Tensor) else outputs[0]
    if not isinstance(maps, Tensor) or maps.ndim != images.ndim:
        raise NoSpatialOutput(nothing_spatial(at.name, tuple(getattr(maps, "shape", ()))))
    return maps


def _box(maps: Tensor, leaf: Tensor, *cell: int) -> Box:
    """Return the first pixels along each axis, the last axis first, and then the ends."""
    nothing = (0,) * (2 * len(cell))
    if not maps.requires_grad:
        return nothing
    with torch.inference_mode(False), torch.enable_grad():
        gradient: Tensor | None = torch.autograd.grad(
            cell_value(maps, *cell), leaf, retain_graph=True, allow_unused=True
        )[0]
    return nothing if gradient is None else box_around(gradient)


def cell_value(maps: Tensor, *cell: int) -> Tensor:
    """Return the sum of a cell over all channels of the first image."""
    index: tuple[slice | int, ...] = (slice(1), slice(None), *cell)
    return maps[index].sum()


def box_around(gradient: Tensor) -> Box:
    """Return the box around the pixels whose gradient [1, C, ...] is not 0, as of `receptive_field`."""
    pixels = (gradient != 0)[0].any(dim=0).nonzero()
    if not len(pixels):
        return (0,) * (2 * (gradient.ndim - 2))
    first, last = pixels.amin(0).flip(0).tolist(), pixels.amax(0).flip(0).tolist()
    return (*first, *(end + 1 for end in last))


class Reset(torch.autograd.Function):
    """Set every value to 1 in the forward pass, and every nonzero gradient to 1 in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        # A copy of x, so that it is known to depend on the image (decisions.py).
        return x.clone(memory_format=torch.contiguous_format).fill_(1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return (gradient != 0).to(gradient.dtype)


def is_reset(node: Any) -> bool:
    """Return whether a node of the graph resets gradients."""
    return getattr(node, "_forward_cls", None) is Reset


def _reset(x: Tensor) -> Tensor:
    ones: Tensor = Reset.apply(x)
    return ones


class _DependencyGraph(TorchFunctionMode):
    """Apply the rules below to the calling thread's torch functions; other functions run unchanged."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").removesuffix("_with_indices")
        first = args[0] if args else kwargs.get("input", kwargs.get("query"))
        if isinstance(first, Tensor) and first.is_floating_point():
            if name.rstrip("_") in _ELEMENTWISE:
                return first.clone()
            if name in _RULES:
                return _RULES[name](func, *args, **kwargs)
        return func(*args, **kwargs)


# Elementwise functions are the identity on the dependency graph. In-place variants end in an underscore.
_ELEMENTWISE = frozenset(
    "relu relu6 hardtanh hardswish hardsigmoid sigmoid logsigmoid silu mish gelu elu selu celu leaky_relu prelu rrelu "
    "softplus softsign tanh tanhshrink softshrink hardshrink threshold dropout dropout1d dropout2d dropout3d "
    "alpha_dropout feature_alpha_dropout feature_dropout".split()
)

# Windows. Sums are in float64, since rounding of some algorithms leaks out of the window.


def _conv(func: Any, input: Tensor, weight: Tensor, bias: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    """Sum over the windows and the channels of a group."""
    is_transposed = "transpose" in func.__name__
    names = ["stride", "padding", "dilation", "groups"]
    names = [*names[:2], "output_padding", "groups", "dilation"] if is_transposed else names
    options = dict(zip(names, args, strict=False)) | kwargs
    groups = options.pop("groups", 1)
    batch = input if input.ndim == weight.ndim else input[None]
    planes = to_float64(batch.unflatten(1, (groups, -1)).sum(dim=2)).flatten(0, 1)[:, None]
    sums = func(planes, planes.new_ones(1, 1, *weight.shape[2:]), **options).to(input.dtype).to(input.device)
    sums = _reset(sums.view(len(batch), groups, *sums.shape[2:]))
    # The reset is cheaper before the repetition. A copy, since an expanded view does not support in-place additions.
    times = weight.shape[1] if is_transposed else len(weight) // groups
    output = sums[:, :, None].expand(-1, -1, times, *sums.shape[2:]).flatten(1, 2).contiguous()
    return output if batch is input else output[0]


def _max_pool(func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    options = dict(zip(("kernel_size", "stride", "padding", "dilation"), args, strict=False)) | kwargs
    count = int(func.__name__.partition("pool")[2][0])

    def sizes(name: str, default: Any) -> list[int]:
        value = options.get(name)
        value = default if value in (None, [], ()) else value
        return [int(each) for each in value] * (count // len(value)) if isinstance(value, Sequence) else [value] * count

    kernel, pads, dilations = sizes("kernel_size", 1), sizes("padding", 0), sizes("dilation", 1)
    strides = sizes("stride", kernel)
    pooled = func(input.detach(), *args, **kwargs)
    ends: list[int] = []
    for i, side in enumerate((pooled[0] if isinstance(pooled, tuple) else pooled).shape[-count:]):
        extent = (side - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1
        ends = [pads[i], extent - input.shape[i - count] - pads[i], *ends]  # the windows may not reach the border
    planes = to_float64(input).reshape(-1, 1, *input.shape[-count:])
    convolution: Any = (torch.conv1d, torch.conv2d, torch.conv3d)[count - 1]
    ones = planes.new_ones(1, 1, *kernel)
    sums = convolution(functional.pad(planes, ends), ones, None, strides, 0, dilations)
    return _with_indices(sums.view(*input.shape[:-count], *sums.shape[2:]).to(input.dtype).to(input.device), pooled)


def _adaptive_max_pool(func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    pooled = func(input.detach(), *args, **kwargs)
    shape = (pooled[0] if isinstance(pooled, tuple) else pooled).shape
    pools: Any = (functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d)
    count = int(func.__name__.partition("pool")[2][0])
    return _with_indices(pools[count - 1](input, shape[-count:]), pooled)


def _with_indices(sums: Tensor, pooled: Any) -> Any:
    """Return the dependency of max pooling, with the indices that it returned, if any."""
    return (_reset(sums), *pooled[1:]) if isinstance(pooled, tuple) else _reset(sums)


def _linear(_: Any, input: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    return _reset(input.sum(dim=-1, keepdim=True)).repeat_interleave(weight.shape[0], dim=-1)


# Statistics: every value depends on all values of its mean and deviation.


def _norm(x: Tensor, dims: Sequence[int]) -> Tensor:
    return x + x.mean(dim=list(dims), keepdim=True)


def _batch_norm(
    _: Any, input: Tensor, mean: Any = None, var: Any = None, weight: Any = None, bias: Any = None,
    training: bool = False, *__: Any, **___: Any,
) -> Tensor:  # fmt: skip
    return _norm(input, [0, *range(2, input.ndim)]) if training else input.clone()


def _instance_norm(_: Any, input: Tensor, *__: Any, use_input_stats: bool = True, **___: Any) -> Tensor:
    return _norm(input, range(2, input.ndim)) if use_input_stats else input.clone()


def _layer_norm(_: Any, input: Tensor, normalized_shape: Sequence[int], *__: Any, **___: Any) -> Tensor:
    return _norm(input, range(-len(normalized_shape), 0))


def _group_norm(_: Any, input: Tensor, num_groups: int, *__: Any, **___: Any) -> Tensor:
    return _norm(input.unflatten(1, (num_groups, -1)), range(2, input.ndim + 1)).flatten(1, 2)


# Attention


def _softmax(_: Any, input: Tensor, dim: int = -1, *__: Any, **___: Any) -> Tensor:
    """Let all scores depend on each other, except for those that a mask reduces to less than 1e-20."""
    shown = (torch.softmax(input.detach(), dim) > 1e-20).to(input.dtype)
    return _reset(_norm(input * shown, [dim])) * shown


def _attention(func: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`scaled_dot_product_attention`: a query depends on the values that the mask allows."""
    mask = args[0] if args else kwargs.get("attn_mask")
    causal = args[2] if len(args) > 2 else kwargs.get("is_causal", False)
    scores = query.mean(dim=-1, keepdim=True) + key.mean(dim=-1, keepdim=True).transpose(-1, -2)
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril() if causal else mask
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return _reset(_softmax(func, scores) @ _reset(value))


def _multi_head(_: Any, query: Tensor, key: Tensor, value: Tensor, *__: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """`multi_head_attention_forward`, tokens first: a token depends on those that a mask [L, S] allows."""
    mask = kwargs.get("attn_mask")
    shown = query.new_ones(len(query), len(key))
    if isinstance(mask, Tensor) and mask.ndim == 2:
        shown = (~mask if mask.dtype == torch.bool else mask > -1e4).to(query.dtype)
    tokens = torch.einsum("ls,s...->l...", shown, (value.mean(dim=-1, keepdim=True) + key.mean(dim=-1, keepdim=True)))
    return _reset(query.mean(dim=-1, keepdim=True) + tokens).expand_as(query), None


_RULES: dict[str, Callable[..., Any]] = {
    **{f"{kind}{n}d": _conv for kind in ("conv", "conv_transpose") for n in (1, 2, 3)},
    **{f"max_pool{n}d": _max_pool for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": _adaptive_max_pool for n in (1, 2, 3)},
    "linear": _linear,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "softmax": _softmax,
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _multi_head,
}
