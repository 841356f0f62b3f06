"""What is right, found without the library: layouts by lighting stripes, cuts by freezing, gradients by hand.

A layer is named as `list_layers` names it, `path` or `path#k` for the k-th call of a module that runs repeatedly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

Score = Callable[[Tensor], Tensor]
"""Images -> scores [N]."""


@dataclass(frozen=True)
class Layout:
    """Where a tensor of one image has its rows and columns: the axes of a picture, or the axis of tokens."""

    axes: tuple[int, ...]
    grid: tuple[int, int]
    extra: int = 0

    def maps(self, tensor: Tensor) -> Tensor:
        """The tensor [N, ...] as [N, K, h, w]."""
        if len(self.axes) == 2:
            channels = ({1, 2, 3} - set(self.axes)).pop()
            return tensor.permute(0, channels, *self.axes)
        tokens = tensor.movedim(self.axes[0], 2).narrow(2, self.extra, self.grid[0] * self.grid[1])
        return tokens.unflatten(2, self.grid)


def first_tensor(output: Any) -> Tensor | None:
    """The tensor in what a module gives: itself, or the first of a tuple, list or dict."""
    if isinstance(output, Tensor):
        return output
    values = list(output.values()) if isinstance(output, dict) else output
    if isinstance(values, (tuple, list)):
        return next((each for each in values if isinstance(each, Tensor)), None)
    return None


def put_back(output: Any, tensor: Tensor) -> Any:
    """`output` with its first tensor replaced."""
    if isinstance(output, Tensor):
        return tensor
    if isinstance(output, dict):
        key = next(key for key, value in output.items() if isinstance(value, Tensor))
        changed = type(output)(output)
        changed[key] = tensor
        return changed
    place = next(i for i, value in enumerate(output) if isinstance(value, Tensor))
    return type(output)([*output[:place], tensor, *output[place + 1 :]])


@contextmanager
def on_calls(model: nn.Module, see: Callable[[str, int, Any], Any], only: set[str] | None = None) -> Iterator[None]:
    """`see(path, k, output)` after every call; what it returns, if anything, goes on in the output's place."""
    counts: dict[str, int] = {}
    handles = []

    def hook(path: str) -> Any:
        def after(module: nn.Module, inputs: Any, output: Any) -> Any:
            counts[path] = counts.get(path, -1) + 1
            return see(path, counts[path], output)

        return after

    try:
        for path, module in model.named_modules():
            if path and (only is None or path in only):
                handles.append(module.register_forward_hook(hook(path)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def split(name: str) -> tuple[str, int]:
    """The path and the number of the call."""
    path, _, k = name.partition("#")
    return path, int(k or 0)


def outputs(model: nn.Module, score: Score, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """The outputs of these calls."""
    wanted, found = {split(name): name for name in names}, {}

    def see(path: str, k: int, output: Any) -> None:
        tensor = first_tensor(output)
        if (path, k) in wanted and tensor is not None:
            found[wanted[path, k]] = tensor.detach().clone()

    with torch.no_grad(), on_calls(model, see, {path for path, _ in wanted}):
        score(images)
    return found


@dataclass
class Step:
    """One call: its name, the shape of its output, and the operations counted when it ended."""

    name: str
    shape: tuple[int, ...]
    flops: int


def steps(model: nn.Module, score: Score, images: Tensor) -> tuple[list[Step], int]:
    """All calls in the order in which they end, and the operations of the whole forward pass."""
    with FlopCounterMode(display=False) as counter:
        found = _calls(model, score, images, counter.get_total_flops)
    return found, counter.get_total_flops()


def shapes(model: nn.Module, score: Score, images: Tensor) -> dict[str, tuple[int, ...]]:
    """The shape of each call's output."""
    return {step.name: step.shape for step in _calls(model, score, images, lambda: 0)}


def _calls(model: nn.Module, score: Score, images: Tensor, count: Callable[[], int]) -> list[Step]:
    found: list[tuple[str, int, tuple[int, ...], int]] = []
    # A module may give a tensor that one inside it gave long before: kept alive, their addresses tell.
    known: dict[tuple[int, tuple[int, ...]], tuple[Tensor, int]] = {}

    def see(path: str, k: int, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            shape = tuple(tensor.shape)
            _, flops = known.setdefault((tensor.data_ptr(), shape), (tensor, count()))
            found.append((path, k, shape, flops))

    with torch.no_grad(), on_calls(model, see):
        score(images)
    repeated = {path for path, k, _, _ in found if k}
    return [Step(f"{path}#{k}" if path in repeated else path, shape, flops) for path, k, shape, flops in found]


Lit = tuple[Tensor, tuple[float, float]]
"""A tensor, and the place of the patch that was lit for it, as shares of the height and the width."""
PLACES = (1 / 8, 3 / 8, 5 / 8, 7 / 8)


def patches(images: Tensor) -> list[Lit]:
    """The picture with another small patch, at sixteen places."""
    found = []
    side = min(images.shape[2:]) // 12
    for row in PLACES:
        for column in PLACES:
            changed = images.clone()
            top, left = (
                int(share * length) - side // 2 for share, length in zip((row, column), images.shape[2:], strict=True)
            )
            part = changed[:, :, top : top + side, left : left + side]
            part.copy_(part.flip(1) * -1.0 + 0.7)
            found.append((changed, (row, column)))
    return found


def candidates(shape: tuple[int, ...], size: tuple[int, int]) -> list[Layout]:
    """All ways in which a tensor of one image could lie that fit the picture's proportions."""
    if shape[0] != 1 or len(shape) not in (3, 4):
        return []
    if len(shape) == 4:
        pairs = ((1, 2), (2, 3))
        return [Layout(axes, (shape[axes[0]], shape[axes[1]])) for axes in pairs if _fits(shape, axes, size)]
    found = []
    for axis in (1, 2):
        for extra in range(17):
            count = shape[axis] - extra
            grids = [(h, count // h) for h in range(2, count // 2 + 1) if count % h == 0]
            found += [Layout((axis,), grid, extra) for grid in grids if proportional(grid, size)]
    return found


def _fits(shape: tuple[int, ...], axes: tuple[int, int], size: tuple[int, int]) -> bool:
    grid = shape[axes[0]], shape[axes[1]]
    return min(grid) > 1 and proportional(grid, size)


def proportional(grid: tuple[int, int], size: tuple[int, int]) -> bool:
    """Whether one stride, with padding or without, cuts a picture of this size into this grid."""
    lows = [max(1, length / (cells + 1.5)) for cells, length in zip(grid, size, strict=True)]
    highs = [length / max(0.5, cells - 1) for cells, length in zip(grid, size, strict=True)]
    if grid[0] > size[0] or grid[1] > size[1] or max(lows) >= min(highs):
        return False
    if size[0] == size[1] and grid[0] != grid[1]:
        return False
    ratio = math.log(grid[0] / grid[1] * size[1] / size[0])
    return abs(ratio) < 0.05 + 1.2 / min(grid)


def lit(layout: Layout, before: Tensor, after: Sequence[Lit]) -> float:
    """How well the layout explains what each patch changed, at most 1: the cells it changes most lie where it is.

    What a patch changes everywhere, by attention or by a norm over the picture, is divided out.
    """
    changes = torch.stack([layout.maps((tensor - before).double()).norm(dim=1)[0] for tensor, _ in after])
    relative = changes / changes.mean((1, 2), keepdim=True).clamp(min=1e-300)
    relative = relative / relative.mean(0).clamp(min=1e-300)
    weights = (relative / relative.amax((1, 2), keepdim=True).clamp(min=1e-300)) ** 16
    weights = weights / weights.sum((1, 2), keepdim=True).clamp(min=1e-300)
    rows, columns = (torch.linspace(0, 1, cells, dtype=torch.float64) for cells in layout.grid)
    places = torch.tensor([place for _, place in after], dtype=torch.float64)
    found = (weights.sum(2) * rows).sum(1), (weights.sum(1) * columns).sum(1)
    return min(_correlation(places[:, axis], found[axis]) for axis in (0, 1))


def _correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].nan_to_num())


def residual_gradient(model: nn.Module, score: Score, name: str, kept: Tensor, images: Tensor) -> Tensor | None:
    """The gradient at the tensor that the call reads, where the call itself gives `kept`; None where it is no output.

    What is not zero passes the layer by.
    """
    path, number = split(name)
    last: dict[int, tuple[str, int]] = {}
    source: list[tuple[str, int]] = []

    def read(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].data_ptr() in last:
            source.append(last[inputs[0].data_ptr()])

    def note(at: str, k: int, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None and tensor.shape == kept.shape:
            last[tensor.data_ptr()] = (at, k)

    handle = model.get_submodule(path).register_forward_pre_hook(read)
    try:
        with torch.no_grad(), on_calls(model, note):
            score(images)
    finally:
        handle.remove()
    if len(source) <= number:
        return None
    start, leaf = source[number], []

    def cut(at: str, k: int, output: Any) -> Any:
        if (at, k) == (path, number):
            return put_back(output, kept.clone())
        if (at, k) != start:
            return None
        leaf.append(first_tensor(output).detach().requires_grad_())
        return put_back(output, leaf[-1] * 1)

    with torch.enable_grad(), on_calls(model, cut, {path, start[0]}):
        total = score(images.clone().requires_grad_()).sum()
    return torch.autograd.grad(total, leaf[0], allow_unused=True)[0]


def frozen_at(model: nn.Module, score: Score, name: str, kept: Tensor, images: Tensor) -> Tensor:
    """The scores where the call `name` gives `kept`, whatever the images are."""
    path, number = split(name)

    def see(_: str, k: int, output: Any) -> Any:
        return put_back(output, kept.clone()) if k == number else None

    with on_calls(model, see, {path}):
        return score(images)


def gradient(model: nn.Module, score: Score, name: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """The call's output and the gradient of the summed scores there: a forward hook, a clone, one backward pass."""
    path, number = split(name)
    found: list[Tensor] = []

    def see(_: str, k: int, output: Any) -> Any:
        if k != number:
            return None
        tensor = first_tensor(output)
        assert tensor is not None
        leaf = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        found.append(leaf)
        return put_back(output, leaf.clone())

    with torch.enable_grad(), on_calls(model, see, {path}):
        total = score(images.clone().requires_grad_()).sum()
    (slope,) = torch.autograd.grad(total, found[0], allow_unused=True)
    return found[0].detach(), torch.zeros_like(found[0]) if slope is None else slope


def slope_along(model: nn.Module, score: Score, name: str, images: Tensor, way: Tensor, step: float) -> float:
    """The score's derivative along `way`, added to the call's output, by a central difference."""
    path, number = split(name)

    def shifted(sign: int) -> Tensor:
        def see(_: str, k: int, output: Any) -> Any:
            tensor = first_tensor(output)
            return put_back(output, tensor + sign * step * way) if k == number and tensor is not None else None

        with torch.no_grad(), on_calls(model, see, {path}):
            return score(images)

    return float(shifted(1) - shifted(-1)) / (2 * step)
