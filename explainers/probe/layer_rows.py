"""Whether the rows of a batch reach the layers of a network in order: all of them, each at its position.

A network may sort its images, flip the batch, run a layer on some of its rows, or call a layer once for each row, and
still return the right output for each image. The output of such a layer does not have one row for each image in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from explainers.dtypes import to_cpu_float64
from explainers.hooks.calls import Calls, inner_points
from explainers.hooks.locate import frozen_graph
from explainers.hooks.records import only_tensor

_MOST_ENTRIES = 256
"""Entries of each output that are compared."""


class LayerRows:
    """The outputs of all layers for an image alone, with which its row in a batch is compared.

    `misplaced` is the name of the first layer whose output for a batch does not have the image's row at its position.
    """

    def __init__(self, network: nn.Module, tolerance: float) -> None:
        self.network, self.tolerance = network, tolerance
        self.misplaced = ""
        self._alone: list[_Output] = []

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record the outputs in the block, which runs the image alone."""
        with self._each_output(lambda name, output: self._alone.append(_described(name, output))):
            yield

    @contextmanager
    def compare(self, place: int, count: int, equal: tuple[int, int] | None = None) -> Iterator[None]:
        """Compare the outputs in the block, which runs a batch of `count` images with the image at this position.
        `equal` are the positions of two images that are equal to each other.
        """
        calls = 0

        def start() -> None:
            nonlocal calls
            calls = 0

        def look(name: str, output: Tensor | None) -> None:
            nonlocal calls
            known = self._alone[calls] if calls < len(self._alone) else None
            calls += 1
            if self.misplaced:
                return
            is_right = self._is_in_place(known, name, output, place, count)
            if is_right and equal is not None and known is not None and output is not None:
                one, other = (list(_rows(output, known[1], index, count)) for index in equal)
                is_right = any(self._is_same(_sample(a), b) for a, b in zip(one, other, strict=True))
            if not is_right:
                self.misplaced = name

        with self._each_output(look, start):
            yield
        if calls < len(self._alone) and not self.misplaced:
            self.misplaced = next((each[0] for each in self._alone[calls:] if each is not None), "")

    @contextmanager
    def _each_output(
        self, act: Callable[[str, Tensor | None], None], start: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Call `act` with the layer and the single tensor of each output in the block, and `start` before each pass."""

        def see(k: int, output: Any, name: str) -> None:
            # What watches the pass would take the comparison for a part of the network, and slow it down.
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                act(name, only_tensor(output))

        with ExitStack() as stack:
            if frozen_graph(self.network) is None:
                calls = Calls(self.network, stack, start)
                for point in inner_points(self.network):
                    calls.after(stack, point, partial(see, name=point.name))
            yield

    def _is_in_place(self, known: _Output, name: str, output: Tensor | None, index: int, count: int) -> bool:
        if known is None or output is None:
            return (known is None) == (_described(name, output) is None)
        path, shape, values = known
        if path != name or output.ndim != len(shape):
            return False
        return any(self._is_same(values, row) for row in _rows(output, shape, index, count))

    def _is_same(self, values: Tensor, row: Tensor) -> bool:
        found = _sample(row)
        if torch.equal(values, found):
            return True
        floor = 1e-6 * len(values) ** 0.5
        both_finite = values.isfinite() & found.isfinite()
        distance = (values - found).where(both_finite, 0).norm()
        return bool(distance <= self.tolerance * values.where(both_finite, 0).norm() + floor)


_Output = tuple[str, torch.Size, Tensor] | None
"""Name, shape and some values of a layer's output, or None if it has no values to compare."""


def _described(name: str, output: Tensor | None) -> _Output:
    """Return what is compared of a layer's output."""
    if output is None or not output.ndim or not output.numel() or not output.is_floating_point():
        return None
    return name, output.shape, _sample(output)


def _rows(output: Tensor, shape: torch.Size, index: int, count: int) -> Iterator[Tensor]:
    """Yield the parts of a batch's output that may be the image's row: the axis that is `count` times as long is the
    batch, alone, or before or after another axis. Without such an axis, it is the whole output.
    """
    longer = [d for d, (one, all_) in enumerate(zip(shape, output.shape, strict=True)) if one != all_]
    if not longer:
        yield output
    elif len(longer) == 1 and output.shape[longer[0]] == count * shape[longer[0]]:
        d = longer[0]
        yield output.unflatten(d, (count, -1)).select(d, index)
        if shape[d] > 1:
            yield output.unflatten(d, (-1, count)).select(d + 1, index)


def _sample(tensor: Tensor) -> Tensor:
    """Copy some values of a tensor, which later layers may overwrite, in float64 on the CPU."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    flat = tensor.detach().reshape(-1)
    return to_cpu_float64(flat[:: max(1, len(flat) // _MOST_ENTRIES) | 1].clone())
