"""Rules for operations that move entries within an axis: windows, resizing, padding, shifts, flips, sorting, warps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import torch

from explainers.dtypes import to_float64
from explainers.layers.flow.axes import (
    OTHER,
    SPATIAL,
    Axis,
    Factor,
    are_apart,
    full_axis,
    kinds_of,
    lost_axis,
    permute_axis,
    resize_axis,
    why_lost,
)
from explainers.layers.flow.operation import Operation, Reads, Result, Rule, alike, along, dims_of
from explainers.layers.flow.positions import Positions
from explainers.layers.flow.spectra import conjugate, transform


def _resize_axes(operation: Operation) -> Result:
    """Pooling, resizing, and other operations that keep the kinds of axes: an axis of a new size covers the same.

    Also resizing with `align_corners`, which is off by less than half a cell.
    """
    results = []
    for output in operation.outputs:
        axes = [
            axis if old == new else resize_axis(axis, new)
            for axis, old, new in zip(operation.first, operation.shape, output.shape, strict=False)
        ]
        results.append(tuple(axes))
    return results, [Reads.SAME] * len(operation.inputs)


def _shuffle_pixels(operation: Operation) -> Result:
    """`pixel_shuffle` and `pixel_unshuffle`: blocks of pixels move from the channels or into them."""
    axes = _resize_axes(operation)[0][0]
    return alike(operation, (*axes[:-3], OTHER, *axes[-2:]))


Move = Callable[[int, int, Positions], Positions]
"""Returns the positions after an operation from the number of the dimension, its new size, and the positions before."""


def _move_axes(operation: Operation, count: int, move: Move) -> Result:
    """Return the axes after an operation that moves the last `count` axes."""
    results = []
    for output in operation.outputs:
        axes = list(operation.first[: output.ndim])
        for i in range(count):
            k, size = i - count, output.shape[i - count]
            new = resize_axis(axes[k], size, partial(move, i, size)) if axes[k].kinds else axes[k]
            axes[k] = axes[k] if len(axes[k].kinds) != 1 and size == operation.shape[k] else new
        results.append(tuple(axes))
    return results, [Reads.SAME] * len(operation.inputs)


def _convolve(operation: Operation) -> Result:
    stride, padding, dilation = (
        operation.argument(k, name) for k, name in ((3, "stride"), (4, "padding"), (5, "dilation"))
    )
    if len(operation.inputs) < 2:  # a quantized convolution, whose packed weights have no shape
        return [(results[0], OTHER, *results[2:]) for results in _resize_axes(operation)[0]], [Reads.SAME]
    kernel, count = operation.inputs[1].shape[2:], len(operation.shape) - 2
    is_transposed = bool(operation.argument(6, "transposed", False))
    if operation.name == "mkldnn_convolution":  # the order of its arguments differs
        padding, stride, dilation, is_transposed = *(operation.argument(k, "") for k in (3, 4, 5)), False

    def move(i: int, count: int, positions: Positions) -> Positions:
        sizes = kernel[i], _at(stride, i, 1), _at(padding, i, 0), _at(dilation, i, 1)
        return positions.transposed(count, *sizes) if is_transposed else positions.windows(count, *sizes)

    results, reads = _move_axes(operation, count, move)
    axes, shape = list(results[0]), operation.outputs[0].shape
    axes[1] = OTHER
    if len(axes) == 4 and not any(axis.kinds for axis in axes):
        # The input axes are unknown, but the last axes of a 2-d convolution are spatial by definition.
        lost = why_lost(operation.first)
        axes[2:] = (full_axis(kind, size)._replace(lost=lost) for kind, size in zip("HW", shape[2:], strict=True))
    return [tuple(axes)], reads


def _deform(operation: Operation) -> Result:
    """`deform_conv2d`: a convolution whose windows are moved by offsets.

    Constant offsets move the windows of a row, or of a column, to other positions. Offsets that depend on the image are
    learned, and usually small: their mean must be less than a cell.
    """
    kernel, sizes, offsets = operation.inputs[1].shape[2:], operation.args[5:11], operation.inputs[2]
    taps = to_float64(offsets.detach()).unflatten(1, (-1, kernel[0] * kernel[1], 2))
    down, right = taps.mean((0, 1, 2))  # [rows, columns]
    if operation.axes[2] is not None:
        is_known = max(abs(float(down.mean())), abs(float(right.mean()))) < 1
        down, right = torch.zeros_like(down), torch.zeros_like(right)
    else:
        is_known = all(bool((each - each[:, :1]).abs().max() < 1e-3) for each in (down, right.T))
    shifts = down[:, 0].tolist(), right[0].tolist()

    def move(i: int, count: int, positions: Positions) -> Positions:
        stride, padding, dilation = sizes[i], sizes[2 + i], sizes[4 + i]
        if not any(shifts[i]):
            return positions.windows(count, kernel[i], stride, padding, dilation)
        center = dilation * (kernel[i] - 1) / 2 - padding
        at = tuple(positions.between(stride * k + center + shift) for k, shift in enumerate(shifts[i]))
        return positions._replace(at=at, cell=positions.cell * stride, pads=(0, 0), moved=True)

    (axes,), _ = _move_axes(operation, 2, move)
    if not is_known:
        axes = tuple(lost_axis(axis, "deform_conv2d") for axis in axes)
    return alike(operation, (axes[0], OTHER, *axes[2:]), Reads.ALL)


def _at(values: Any, index: int, default: int) -> int:
    """Return the number for one dimension of a list with one number for each dimension, or one for all of them."""
    if isinstance(values, (list, tuple)):
        return int(values[index if len(values) > index else 0]) if values else default
    return default if values is None else int(values)


def _pool(operation: Operation) -> Result:
    """Average and max pooling: (input, kernel, stride, padding), and a dilation for max pooling."""
    count = int(operation.name.partition("pool")[2][0])
    kernel, stride, padding = (operation.argument(k, name) for k, name in _POOL_ARGUMENTS)
    dilation = operation.argument(4, "dilation", 1) if operation.name.startswith("max") else 1

    def move(i: int, count: int, positions: Positions) -> Positions:
        size = _at(kernel, i, 1)
        return positions.windows(count, size, _at(stride, i, size), _at(padding, i, 0), _at(dilation, i, 1))

    return _move_axes(operation, count, move)


_POOL_ARGUMENTS = (1, "kernel_size"), (2, "stride"), (3, "padding")


def _flip(operation: Operation) -> Result:
    dims = dims_of(operation.argument(1, "dims"), len(operation.first))
    return _reordered(operation, {d: range(operation.shape[d] - 1, -1, -1) for d in dims})


def _turn(operation: Operation) -> Result:
    """`rot90`: the axes of a quarter turn are swapped, and one of them is mirrored."""
    turns, (i, j) = operation.argument(1, "k", 1) % 4, operation.argument(2, "dims", (0, 1))
    mirrored = {0: (), 1: (i,), 2: (i, j), 3: (j,)}[turns]
    axes = list(operation.first)
    if turns % 2:
        axes[i], axes[j] = axes[j], axes[i]
    for d in mirrored:
        axes[d] = permute_axis(axes[d], range(operation.outputs[0].shape[d] - 1, -1, -1))
    return alike(operation, tuple(axes))


def _roll(operation: Operation) -> Result:
    shifts, dims = operation.argument(1, "shifts"), operation.argument(2, "dims", ())
    if not dims:
        return _lose(operation, None)
    orders: dict[int, Sequence[int]] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        size = operation.shape[dim]
        orders[dim % len(operation.first)] = [(i - shift) % size for i in range(size)]
    return _reordered(operation, orders)


def _reordered(operation: Operation, orders: dict[int, Sequence[int]]) -> Result:
    """Return the axes with the entries of some of them in another fixed order."""
    axes = [permute_axis(axis, orders[d]) if d in orders else axis for d, axis in enumerate(operation.first)]
    return alike(operation, tuple(axes))


def _sort(operation: Operation) -> Result:
    dim = operation.argument(2 if operation.name == "topk" else 1, "dim", -1)
    if operation.argument(1, "stable") is True or isinstance(dim, bool):  # sort(x, *, stable, dim, descending)
        dim = operation.kwargs.get("dim", -1)
    return _lose(operation, {dim % len(operation.first)} if len(operation.first) else set())


def _lose(operation: Operation, dims: set[int] | None) -> Result:
    """Return the axes without fixed positions along `dims`; None is all of them."""
    results, reads = _resize_axes(operation)
    for i, axes in enumerate(results):
        chosen = range(len(axes)) if dims is None else dims
        results[i] = tuple(lost_axis(axis, operation.name) if d in chosen else axis for d, axis in enumerate(axes))
    return results, reads


def _warp(operation: Operation) -> Result:
    """`grid_sampler`: a fixed 2-d grid whose rows and columns are straight has positions, any other has none."""
    output, grid, known = operation.outputs[0], operation.inputs[1], operation.first
    kinds = kinds_of(output.ndim - 2)
    axes = [*known[:2], *(full_axis(kind, size) for kind, size in zip(kinds, output.shape[2:], strict=True))]
    in_plane = output.ndim == 4 and not any("T" in axis.kinds for axis in known[2:])
    if not in_plane or operation.axes[1] is not None or not all(axis.kinds for axis in known[2:]):
        return [tuple(lost_axis(axis, "grid_sample") for axis in axes[: output.ndim])], [Reads.SAME, Reads.SAME]
    corners = bool(operation.argument(4, "align_corners", False))
    for d, values in ((2, grid[0, :, :, 1]), (3, grid[0, :, :, 0].T)):
        lines, size = to_float64(values.detach()), operation.shape[d]
        index = (lines[:, 0] + 1) / 2 * (size - 1) if corners else ((lines[:, 0] + 1) * size - 1) / 2
        before = known[d].factors[0].whole if len(known[d].factors) == 1 else None
        straight = bool((lines - lines[:, :1]).abs().max() < 1e-3)
        if before is None or not straight:
            axes[d] = lost_axis(axes[d], "grid_sample")
            continue
        at = before._replace(at=tuple(map(before.between, index.tolist())), pads=(0, 0))
        axes[d] = full_axis(known[d].factors[0].kind, len(at.at), at.pick(range(len(at.at))))
    return [tuple(axes)], [Reads.SAME, Reads.SAME]


def _pad(operation: Operation) -> Result:
    """Zero padding: a few zeros belong to a convolution, more of them fill windows."""
    amounts = list(operation.argument(1, "pad" if operation.name.startswith("constant") else "padding"))
    count = len(amounts) // 2

    def move(i: int, count: int, positions: Positions) -> Positions:
        k = 2 * (len(amounts) // 2 - 1 - i)
        return positions.pad(amounts[k], amounts[k + 1])

    results, reads = _move_axes(operation, count, move)
    if not operation.name.startswith("constant"):
        return results, reads
    much = [new > 1.2 * old for new, old in zip(operation.outputs[0].shape, operation.shape, strict=True)]
    axes = tuple(
        axis._replace(padded=axis.kinds) if pads else axis for axis, pads in zip(results[0], much, strict=True)
    )
    return [axes], reads


def _unfold(operation: Operation) -> Result:
    """`im2col`: [N, C, H, W] to [N, C k, L], with L windows row by row."""
    factors: list[Factor] = []
    for i, (size, axis) in enumerate(zip(operation.shape[-2:], operation.first[-2:], strict=True)):
        kernel, dilation, padding, stride = (operation.args[k][i] for k in (1, 2, 3, 4))
        count = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        window = methodcaller("windows", count, kernel, stride, padding, dilation)
        factors += resize_axis(axis, count, window).factors
    sides = operation.first[-2:]
    windows = Axis(tuple(factors), lost=why_lost(sides)) if all(map(along, sides)) else OTHER
    return alike(operation, (*operation.first[:-3], OTHER, windows))


def _fold(operation: Operation) -> Result:
    """`col2im`: [N, C k, L] back to [N, C, H, W]."""
    sizes, grid = operation.outputs[0].shape[-2:], [Axis(lost=why_lost(operation.first[-1:]))] * 2
    if along(operation.first[-1]) and "T" not in operation.first[-1].kinds and not grid[0].lost:
        known = {factor.kind: factor.positions for factor in operation.first[-1].factors}
        for i, kind in enumerate("WH" if list(known) == ["W", "H"] else "HW"):  # in the order of the windows
            kernel, dilation, padding, stride = (operation.args[k][i] for k in (2, 3, 4, 5))
            windows = known.get(kind)
            moved = windows and windows.transposed(sizes[i], kernel, stride, padding, dilation)
            grid[i] = full_axis(kind, sizes[i], moved)
    return alike(operation, (*operation.first[:-2], OTHER, *grid))


def _windows(operation: Operation) -> Result:
    """`Tensor.unfold`: windows along an axis, and the entries of each in a new last axis."""
    axes, dim = list(operation.first), operation.argument(1, "dimension") % len(operation.first)
    size, step, count = operation.argument(2, "size"), operation.argument(3, "step"), operation.outputs[0].shape[dim]
    axes[dim] = resize_axis(axes[dim], count, methodcaller("windows", count, size, step, 0, 1))
    return alike(operation, (*axes, OTHER))


def _reorder(operation: Operation) -> Result:
    """`index`, `gather`, `masked_select`: the entries of an axis in another order, which is known if it is fixed."""
    output, known = operation.outputs[0], operation.first
    fixed = {id(tensor) for tensor, axes in zip(operation.inputs, operation.axes, strict=True) if axes is None}
    chosen: dict[int, Any] = {}
    if operation.name == "index":
        chosen = {d: each for d, each in enumerate(operation.argument(1, "indices")) if each is not None}
    elif operation.name == "index_select":
        chosen = {operation.argument(1, "dim") % len(known): operation.argument(2, "index")}
    if not chosen or output.ndim != len(known):
        return alike(operation, (Axis(lost=_lost_by(operation)),) * output.ndim, Reads.ALL)
    axes = list(known)
    for d, entries in chosen.items():
        is_fixed = len(chosen) == 1 and id(entries) in fixed and entries.ndim == 1 and not entries.is_floating_point()
        order = entries.nonzero().flatten() if is_fixed and entries.dtype == torch.bool else entries
        if is_fixed and known[d].kinds & SPATIAL:
            axes[d] = permute_axis(known[d], (order % operation.shape[d]).tolist())
        else:
            axes[d] = Axis(lost=operation.name) if known[d].kinds & SPATIAL else OTHER
    return alike(operation, tuple(axes), Reads.ALL)


def _scatter(operation: Operation) -> Result:
    """`index_put`, `scatter`, `index_copy`: values of the image are written to other positions; constants are not.

    Whole images that are written to rows of a batch keep their positions, as those of a mixture of experts.
    """
    output = operation.outputs[0]
    source = operation.axes[-1]
    if (d := _written_axis(operation)) is not None and source is not None and len(source) == output.ndim:
        own = operation.axes[0] or (*source[:d], OTHER, *source[d + 1 :])
        if not along(own[d]) and not along(source[d]):
            joined = (
                lost_axis(a, operation.name.strip("_")) if k != d and are_apart(a, b) else a
                for k, (a, b) in enumerate(zip(own, source, strict=True))
            )
            return alike(operation, tuple(joined))
    values = zip(operation.inputs[1:], operation.axes[1:], strict=True)
    if any(axes and tensor.is_floating_point() and any(map(along, axes)) for tensor, axes in values):
        return alike(operation, (Axis(lost=operation.name.strip("_")),) * output.ndim, Reads.ALL)
    return alike(operation, operation.first if output.ndim == len(operation.first) else (OTHER,) * output.ndim)


def _written_axis(operation: Operation) -> int | None:
    """Return the axis along which whole entries are written by a list of their indices, or None."""
    if operation.name.strip("_") in ("index_copy", "index_add", "index_reduce"):
        return int(operation.argument(1, "dim")) % len(operation.shape)
    if operation.name.strip("_") in ("index_put", "index_put_impl"):
        chosen = [(d, each) for d, each in enumerate(operation.argument(1, "indices")) if each is not None]
        if len(chosen) == 1 and chosen[0][1].ndim == 1:
            return chosen[0][0]
    return None


def _lost_by(operation: Operation) -> str:
    """Return the operation's name if it reads positions of the image, else what lost them before."""
    return why_lost(operation.first) or operation.name * any(axis.kinds & SPATIAL for axis in operation.first)


_WRITTEN = (
    "index_put index_put_impl index_copy index_add index_reduce scatter scatter_add scatter_reduce masked_scatter put "
    "slice_scatter select_scatter"
)

POSITION_FAMILIES: dict[str, Rule] = dict.fromkeys(
    ("upsample_", "adaptive_", "mkldnn_adaptive_", "fractional_max_pool"), _resize_axes
)
POSITION_FAMILIES |= dict.fromkeys(("max_pool", "avg_pool"), _pool)
POSITION_FAMILIES |= dict.fromkeys(("constant_pad", "reflection_pad", "replication_pad"), _pad)
POSITION_RULES: dict[str, Rule] = dict.fromkeys(("cumsum", "view_as_complex"), _resize_axes)
POSITION_RULES |= dict.fromkeys(("convolution", "mkldnn_convolution"), _convolve)
POSITION_RULES |= {"flip": _flip, "roll": _roll, "grid_sampler_2d": _warp, "grid_sampler_3d": _warp}
POSITION_RULES |= dict.fromkeys(("sort", "topk", "msort"), _sort)
POSITION_RULES |= dict.fromkeys(("fft_r2c", "fft_c2r", "fft_c2c"), transform)
POSITION_RULES |= dict.fromkeys(("conj", "conj_physical"), conjugate)
POSITION_RULES |= {"im2col": _unfold, "col2im": _fold, "unfold": _windows}
POSITION_RULES |= dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _shuffle_pixels)
POSITION_RULES |= dict.fromkeys("index gather index_select take take_along_dim masked_select".split(), _reorder)
POSITION_RULES |= dict.fromkeys(_WRITTEN.split(), _scatter) | {"rot90": _turn, "deform_conv2d": _deform}
