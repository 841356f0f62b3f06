"""Expected results without the library: layouts from changed patches, cuts from frozen layers, gradients from hooks.

Layers have the names of `list_layers`, `path` or `path#k` for the k-th call of a module that runs repeatedly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.flop_counter import FlopCounterMode

Score = Callable[[Tensor], Tensor]
"""Images -> scores [N]."""
Lit = tuple[Tensor, tuple[float, float]]
"""A tensor, and the position of the patch that was changed for it, as shares of the height and the width."""
POSITIONS = (1 / 8, 3 / 8, 5 / 8, 7 / 8)


class Layout(NamedTuple):
    """The axes of rows and columns in a tensor of one image, or the axis of tokens."""

    axes: tuple[int, ...]
    grid: tuple[int, int]
    extra: int = 0

    @property
    def channels(self) -> int:
        """The axis of channels."""
        return ({1, 2, 3} - set(self.axes)).pop() if len(self.axes) == 2 else 3 - self.axes[0]

    def maps(self, tensor: Tensor) -> Tensor:
        """Return a tensor [N, ...] as [N, K, h, w]."""
        if len(self.axes) == 2:
            return tensor.permute(0, self.channels, *self.axes)
        tokens = tensor.movedim(self.axes[0], 2).narrow(2, self.extra, self.grid[0] * self.grid[1])
        return tokens.unflatten(2, self.grid)


def _parts(output: Any) -> tuple[list[Any], Any]:
    """Return the parts of a module's output, the output itself if it is a tensor, and their structure."""
    return tree_flatten(output, is_leaf=lambda part: part is not output)


def first_tensor(output: Any) -> Any:
    """Return the first tensor in the output of a module, or None."""
    return next((part for part in _parts(output)[0] if isinstance(part, Tensor)), None)


def put_back(output: Any, tensor: Tensor) -> Any:
    """Return `output` with its first tensor replaced."""
    parts, structure = _parts(output)
    parts[next(i for i, part in enumerate(parts) if isinstance(part, Tensor))] = tensor
    return tree_unflatten(parts, structure)


@contextmanager
def on_calls(model: nn.Module, see: Callable[[str, int, Any], Any], only: set[str] | None = None) -> Iterator[None]:
    """Call `see(path, k, output)` after every call; if it returns a value, that replaces the output."""
    counts: dict[str, int] = {}

    def hook(path: str) -> Any:
        def after(module: nn.Module, inputs: Any, output: Any) -> Any:
            counts[path] = counts.get(path, -1) + 1
            return see(path, counts[path], output)

        return after

    paths = [(path, module) for path, module in model.named_modules() if path and (only is None or path in only)]
    handles = [module.register_forward_hook(hook(path)) for path, module in paths]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def split(name: str) -> tuple[str, int]:
    """Return the path and the number of the call."""
    path, _, k = name.partition("#")
    return path, int(k or 0)


def edited(model: nn.Module, name: str, change: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
    """Change the output of a call within the block."""
    path, number = split(name)

    def see(_: str, k: int, output: Any) -> Any:
        return put_back(output, change(first_tensor(output))) if k == number else None

    return on_calls(model, see, {path})


def outputs(model: nn.Module, score: Score, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the outputs of these calls."""
    wanted, found = {split(name): name for name in names}, {}

    def see(path: str, k: int, output: Any) -> None:
        tensor = first_tensor(output)
        if (path, k) in wanted and tensor is not None:
            found[wanted[path, k]] = tensor.detach().clone()

    with torch.no_grad(), on_calls(model, see, {path for path, _ in wanted}):
        score(images)
    return found


class Step(NamedTuple):
    """One call: its name, the shape of its output, and the operations counted when it ended."""

    name: str
    shape: tuple[int, ...]
    flops: int


def steps(model: nn.Module, score: Score, images: Tensor) -> tuple[list[Step], int]:
    """Return all calls in the order in which they end, and the operations of the whole forward pass."""
    found: list[tuple[str, int, tuple[int, ...], int]] = []
    # A module may return a tensor of an inner module; while all tensors are alive, their addresses identify them.
    known: dict[tuple[int, tuple[int, ...]], tuple[Tensor, int]] = {}
    counter = FlopCounterMode(display=False)

    def see(path: str, k: int, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            shape = tuple(tensor.shape)
            _, flops = known.setdefault((tensor.data_ptr(), shape), (tensor, counter.get_total_flops()))
            found.append((path, k, shape, flops))

    with counter, torch.no_grad(), on_calls(model, see):
        score(images)
    repeated = {path for path, k, _, _ in found if k}
    calls = [Step(f"{path}#{k}" if path in repeated else path, shape, flops) for path, k, shape, flops in found]
    return calls, counter.get_total_flops()


def patches(images: Tensor) -> list[Lit]:
    """Return copies of the image, each with a different patch at one of sixteen positions."""
    found, side = [], min(images.shape[2:]) // 12
    for position in itertools.product(POSITIONS, POSITIONS):
        changed = images.clone()
        top, left = (int(share * length) - side // 2 for share, length in zip(position, images.shape[2:], strict=True))
        part = changed[:, :, top : top + side, left : left + side]
        part.copy_(part.flip(1) * -1.0 + 0.7)
        found.append((changed, position))
    return found


def candidates(shape: tuple[int, ...], size: tuple[int, int]) -> list[Layout]:
    """Return all layouts of a tensor of one image that fit the image's proportions."""
    if len(shape) not in (3, 4) or shape[0] != 1:
        return []
    if len(shape) == 4:
        found = [Layout(axes, (shape[axes[0]], shape[axes[1]])) for axes in ((1, 2), (2, 3))]
        return [each for each in found if min(each.grid) > 1 and _proportional(each.grid, size)]
    found = []
    for axis, extra in itertools.product((1, 2), range(17)):
        count = shape[axis] - extra
        grids = [(h, count // h) for h in range(2, count // 2 + 1) if count % h == 0]
        found += [Layout((axis,), grid, extra) for grid in grids if _proportional(grid, size)]
    return found


def _proportional(grid: tuple[int, int], size: tuple[int, int]) -> bool:
    """Return whether one stride, with or without padding, divides an image of this size into this grid."""
    lows = [max(1, length / (cells + 1.5)) for cells, length in zip(grid, size, strict=True)]
    highs = [length / max(0.5, cells - 1) for cells, length in zip(grid, size, strict=True)]
    if grid[0] > size[0] or grid[1] > size[1] or max(lows) >= min(highs):
        return False
    if size[0] == size[1] and grid[0] != grid[1]:
        return False
    ratio = math.log(grid[0] / grid[1] * size[1] / size[0])
    return abs(ratio) < 0.05 + 1.2 / min(grid)


def centers(changes: Tensor, least: float = 0.0) -> list[Tensor]:
    """Return where maps [N, h, w] of changes are largest, as shares of the height and of the width.

    Changes everywhere, by attention or by a norm over the image, are divided out.
    """
    relative = changes / changes.mean((1, 2), keepdim=True).clamp(min=1e-300)
    relative = relative / relative.mean(0).clamp(min=max(1e-300, least * float(relative.mean())))
    weights = (relative / relative.amax((1, 2), keepdim=True).clamp(min=1e-300)) ** 16
    weights = weights / weights.sum((1, 2), keepdim=True).clamp(min=1e-300)
    places = [(torch.arange(cells, dtype=torch.float64) + 0.5) / cells for cells in changes.shape[1:]]
    return [(weights.sum(2 - axis) * place).sum(1) for axis, place in enumerate(places)]


def correlation(one: Tensor, other: Tensor) -> float:
    """Return the correlation of two rows of numbers, 0 if one is constant."""
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1].nan_to_num())


def lit(layout: Layout, before: Tensor, after: Sequence[Lit]) -> float:
    """Return how well the layout explains the patches, at most 1: the most changed cells are at the patch."""
    changes = torch.stack([layout.maps((tensor - before).double()).norm(dim=1)[0] for tensor, _ in after])
    positions = torch.tensor([position for _, position in after], dtype=torch.float64)
    return min(correlation(positions[:, axis], found) for axis, found in enumerate(centers(changes)))


def residual_gradient(model: nn.Module, score: Score, name: str, kept: Tensor, images: Tensor) -> Tensor | None:
    """Return the gradient at the input of the call if its output is `kept`; None if the input is not an output.

    Values other than zero belong to a path that bypasses the layer.
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


def gradient(model: nn.Module, score: Score, name: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the call's output and the gradient of the summed scores there: a hook, a clone, one backward pass."""
    found: list[Tensor] = []

    def cut(tensor: Tensor) -> Tensor:
        found.append(tensor if tensor.requires_grad else tensor.detach().requires_grad_())
        return found[0].clone()

    with torch.enable_grad(), edited(model, name, cut):
        total = score(images.clone().requires_grad_()).sum()
    (slope,) = torch.autograd.grad(total, found[0], allow_unused=True)
    return found[0].detach(), torch.zeros_like(found[0]) if slope is None else slope
