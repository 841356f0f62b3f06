"""Receptive field: the box of input pixels that one cell of a layer can depend on, whatever the weights are.

One forward and one backward pass in which every value is 1 and every rule says only who reads whom: a convolution with
any weights becomes one with ones, max-pooling an average over the same window, an activation the identity; gradients
are brought back to 0 or 1 at each window, so that they neither vanish nor cancel. What the cell's gradient reaches is
its receptive field: with padding, dilation, branches, windows and odd sizes as the network itself treats them.

Operations over the whole picture make the whole picture the field: squeeze-and-excitation, attention among all tokens,
group and instance normalisation (their mean and deviation read every pixel), a linear layer over flattened pixels.
Swin's windows stay windows, and what an attention mask hides is not counted. Operations without a rule here run as they
are, on values of 1: they never add a pixel that is not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from explainers.errors import BadOption, LayerNotFound, LayerRanRepeatedly, NothingSpatial
from explainers.hooks.edit import edit_outputs
from explainers.hooks.records import ran_repeatedly
from explainers.layers.layout import Grid, LayerLayout, nothing_spatial

Box = tuple[int, int, int, int]


def receptive_field(network: nn.Module, images: Tensor, at: LayerLayout, cell: Grid) -> Box:
    """Find the input pixels that `cell` (row, column) of a layer's grid can depend on.

    Returns  (left, top, right, bottom) in input pixels, right and bottom exclusive as in Pillow, cut at the picture's
             borders; (0, 0, 0, 0) where no pixel reaches the cell. Only the size of `images` counts, not their values.
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel; BadOption for a cell outside the grid.
    """
    maps, leaf = _follow(network, images, at)
    height, width = maps.shape[-2:]
    row, column = cell
    if not (0 <= row < height and 0 <= column < width):
        raise BadOption(
            f"cell={tuple(cell)!r} is outside the layer's grid. "
            f"Give (row, column) from (0, 0) to ({height - 1}, {width - 1})."
        )
    return _box(maps, leaf, row, column)


def stride(network: nn.Module, images: Tensor, at: LayerLayout) -> tuple[float, float]:
    """Measure how many input pixels lie between neighbouring cells, down and across.

    Returns  (rows, columns): the distance of the fields of two cells in the middle where the borders cut neither, else
             the picture's size over the grid's (exact wherever the one divides the other).
    Errors   as `receptive_field`
    """
    maps, leaf = _follow(network, images, at)
    (height, width), (high, wide) = leaf.shape[-2:], maps.shape[-2:]
    row, column = (high - 1) // 2, (wide - 1) // 2
    here, there = (_box(maps, leaf, min(row + step, high - 1), min(column + step, wide - 1)) for step in (0, 1))
    whole = height, width

    def along(axis: int, cells: int) -> float:
        first, last = here[1 - axis], there[3 - axis]
        inside = first > 0 and last < whole[axis] and cells > 1
        return float(there[1 - axis] - first) if inside else whole[axis] / cells

    return along(0, high), along(1, wide)


def _follow(network: nn.Module, images: Tensor, at: LayerLayout) -> tuple[Tensor, Tensor]:
    """The layer's output `[1, K, h, w]` on the dependency graph, and the leaf it is a function of."""
    found: list[Any] = []

    def record(output: Any) -> None:
        # A clone: what later modifies the output in place would otherwise become the layer's own history.
        found.append(output.clone() if isinstance(output, Tensor) else output)

    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(images[:1].shape, dtype=images.dtype, device=images.device, requires_grad=True)
        with edit_outputs(network, {at.name: record}), _DependencyGraph():
            network(leaf * 1)
    if not found:
        raise LayerNotFound(
            f"Layer {at.name!r} did not run in this forward pass. Choose one from list_layers(model, images)."
        )
    if len(found) > 1:
        raise LayerRanRepeatedly(ran_repeatedly(at.name, len(found)))
    maps = at.to_maps(found[0]) if isinstance(found[0], Tensor) else found[0]
    if not isinstance(maps, Tensor) or maps.ndim != 4:
        raise NothingSpatial(nothing_spatial(at.name, tuple(getattr(maps, "shape", ()))))
    return maps, leaf


def _box(maps: Tensor, leaf: Tensor, row: int, column: int) -> Box:
    if not maps.requires_grad:
        return 0, 0, 0, 0
    with torch.inference_mode(False), torch.enable_grad():
        value = maps[:1, :, row, column].sum()
        reached: Tensor | None = torch.autograd.grad(value, leaf, retain_graph=True, allow_unused=True)[0]
    if reached is None:
        return 0, 0, 0, 0
    seen = (reached != 0)[0].any(dim=0)
    rows, columns = seen.any(dim=1).nonzero().flatten().tolist(), seen.any(dim=0).nonzero().flatten().tolist()
    return (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1) if rows else (0, 0, 0, 0)


class _Mark(torch.autograd.Function):
    """Every value becomes 1 on the way forward, every gradient 0 or 1 on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.ones_like(x, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return (gradient != 0).to(gradient.dtype)


def _mark(x: Tensor) -> Tensor:
    marked: Tensor = _Mark.apply(x)
    return marked


class _DependencyGraph(TorchFunctionMode):
    """Gives the calling thread's torch functions the rules below; all others run as they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        first = args[0] if args else kwargs.get("input", kwargs.get("query"))
        if isinstance(first, Tensor) and first.is_floating_point():
            if name.rstrip("_") in _EACH_ALONE:
                return first.clone()
            if name in _RULES:
                return _RULES[name](*args, **kwargs)
        return func(*args, **kwargs)


# Read one value and give one: what they do to it does not matter. In-place spellings end in an underscore.
_EACH_ALONE = frozenset(
    "relu relu6 hardtanh hardswish hardsigmoid sigmoid logsigmoid silu mish gelu elu selu celu leaky_relu prelu rrelu "
    "softplus softsign tanh tanhshrink softshrink hardshrink threshold dropout dropout1d dropout2d dropout3d "
    "alpha_dropout feature_alpha_dropout feature_dropout".split()
)


def _spread(x: Tensor, kernel: Sequence[int], step: Sequence[int], dilation: Sequence[int], pads: list[int]) -> Tensor:
    """Sum over windows, each channel alone: in float64 torch has no algorithm whose rounding reaches further."""
    planes = functional.pad(x.double().flatten(0, 1)[:, None], pads)
    ones = planes.new_ones(1, 1, *kernel)
    convolution: Callable[..., Tensor] = (torch.conv1d, torch.conv2d, torch.conv3d)[len(kernel) - 1]
    summed = convolution(planes, ones, None, tuple(step), 0, tuple(dilation))
    return summed.to(x.dtype).view(*x.shape[:2], *summed.shape[2:])


def _each(value: Any, count: int) -> list[int]:
    """One number for each dimension, however they were given; none at all where the list is empty."""
    values = [int(v) for v in value] if isinstance(value, Sequence) else [int(value)]
    return values * count if len(values) == 1 else values


def _conv(
    input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    kernel = list(weight.shape[2:])
    count = len(kernel)
    dilations = _each(dilation, count)
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilations, kernel, strict=True)]
        ends = [(t // 2, t - t // 2) for t in total]
    else:
        ends = [(p, p) for p in _each(padding, count)]
    batch = input if input.ndim == count + 2 else input[None]
    grouped = batch.unflatten(1, (groups, -1)).sum(dim=2)
    found = _spread(grouped, kernel, _each(stride, count), dilations, [p for pair in reversed(ends) for p in pair])
    found = _repeat(found, weight.shape[0] // groups)
    return found if input.ndim == count + 2 else found[0]


def _repeat(x: Tensor, times: int) -> Tensor:
    """Give each channel `times` times. Marking before costs one channel, after it all of them.

    A copy for certain: an expanded view would refuse the network's in-place additions.
    """
    return _mark(x)[:, :, None].expand(-1, -1, times, *x.shape[2:]).flatten(1, 2).contiguous()


def _conv_transpose(
    input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    count = weight.ndim - 2
    batch = input if input.ndim == count + 2 else input[None]
    planes = batch.unflatten(1, (groups, -1)).sum(dim=2).double().flatten(0, 1)[:, None]
    transpose = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)[count - 1]
    ones = planes.new_ones(1, 1, *weight.shape[2:])
    found = transpose(planes, ones, None, stride, padding, output_padding, 1, dilation).to(input.dtype)
    found = _repeat(found.view(len(batch), groups, *found.shape[2:]), weight.shape[1])
    return found if input.ndim == count + 2 else found[0]


def _max_pool(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    count = len(kernel_size) if isinstance(kernel_size, Sequence) and len(kernel_size) > 1 else input.ndim - 2
    kernel, pad, wide = (_each(each, count) for each in (kernel_size, padding, dilation))
    step = _each(stride, count) if stride not in (None, [], ()) else kernel
    if set(wide) == {1} and not return_indices:
        average = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[count - 1]
        return average(input, tuple(kernel), tuple(step), tuple(pad), ceil_mode)
    pool: Callable[..., Any] = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[count - 1]
    real = pool(input.detach(), kernel, step, pad, wide, ceil_mode=ceil_mode, return_indices=return_indices)
    sizes = (real[0] if return_indices else real).shape[-count:]
    batch = input if input.ndim == count + 2 else input[None]
    pads: list[int] = []
    for i in reversed(range(count)):
        # `ceil_mode` lets the last window hang over the border by more than the padding.
        reach = (sizes[i] - 1) * step[i] + wide[i] * (kernel[i] - 1) + 1
        pads += [pad[i], max(pad[i], reach - batch.shape[2 + i] - pad[i])]
    found = _spread(batch, kernel, step, wide, pads)
    for i in range(count):
        found = found.narrow(2 + i, 0, sizes[i])
    marked = _mark(found if input.ndim == count + 2 else found[0])
    return (marked, real[1]) if return_indices else marked


def _linear(input: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    return _mark(input.sum(dim=-1, keepdim=True)).repeat_interleave(weight.shape[0], dim=-1)


def _batch_norm(
    input: Tensor, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    training: bool = False, *_: Any, **__: Any,
) -> Tensor:  # fmt: skip
    return input + _mean(input, [0, *range(2, input.ndim)]) if training else input.clone()


def _instance_norm(
    input: Tensor, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, *_: Any, **__: Any,
) -> Tensor:  # fmt: skip
    return input + _mean(input, list(range(2, input.ndim))) if use_input_stats else input.clone()


def _layer_norm(input: Tensor, normalized_shape: Sequence[int], *_: Any, **__: Any) -> Tensor:
    return input + _mean(input, list(range(-len(normalized_shape), 0)))


def _group_norm(input: Tensor, num_groups: int, *_: Any, **__: Any) -> Tensor:
    grouped = input.unflatten(1, (num_groups, -1))
    return (grouped + _mean(grouped, list(range(2, grouped.ndim)))).flatten(1, 2)


def _mean(x: Tensor, dims: list[int]) -> Tensor:
    return x.mean(dim=dims, keepdim=True)


def _softmax(input: Tensor, dim: int = -1, *_: Any, **__: Any) -> Tensor:
    """What a mask has pushed below 1e-20 is hidden; all others read one another."""
    shown = (torch.softmax(input.detach(), dim) > 1e-20).to(input.dtype)
    return _mark(input + _mean(input * shown, [dim])) * shown


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`scaled_dot_product_attention`: the mask decides whose values are read."""
    mask = args[0] if args else kwargs.get("attn_mask")
    causal = args[2] if len(args) > 2 else kwargs.get("is_causal", False)
    scores = query.mean(dim=-1, keepdim=True) + key.mean(dim=-1, keepdim=True).transpose(-1, -2)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return _mark(_softmax(scores) @ _mark(value))


def _multi_head(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """`nn.MultiheadAttention`: tokens come first here, and each reads all that a plain mask leaves it."""
    mask = kwargs.get("attn_mask")
    shown = query.new_ones(len(query), len(key))
    if isinstance(mask, Tensor) and mask.ndim == 2:
        shown = (~mask if mask.dtype == torch.bool else mask > -1e4).to(query.dtype)
    tokens = torch.einsum("ls,s...->l...", shown, (value.mean(dim=-1, keepdim=True) + key.mean(dim=-1, keepdim=True)))
    return _mark(query.mean(dim=-1, keepdim=True) + tokens).expand_as(query), None


def _adaptive_max_pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    count = len(output_size) if isinstance(output_size, Sequence) else input.ndim - 2
    pools = (functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d)
    found = _mark(pools[count - 1](input, output_size))
    return (found, torch.zeros_like(found, dtype=torch.long)) if return_indices else found


_RULES: dict[str, Callable[..., Any]] = {
    **{f"conv{n}d": _conv for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _conv_transpose for n in (1, 2, 3)},
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
