"""The probe: two passes in the first call of a network decide whether it is ordinary.

The first one runs one image, and shows whether the network reads values of it, by which it may decide. The second one
runs the image again, among other images if the call runs several rows together. The network is ordinary if neither a
generator nor the output for the image changes, and every layer has the image's row at its position. If not, the guard
(`unusual`) finds out the cause.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from explainers.errors import is_out_of_memory
from explainers.layers.flow.decisions import Decisions
from explainers.probe.differences import differ, difference, is_listed, row_of, shapes_of, tolerance
from explainers.probe.generators import SEED, Generators, States
from explainers.probe.layer_rows import LayerRows

_OTHER_KERNELS = {torch.float16: 0.5, torch.bfloat16: 0.5}
"""Relative difference between batches of different sizes, above which outputs are different; 0.05 for other dtypes.
Their kernels differ, and so does rounding.
"""


@dataclass(frozen=True)
class Behavior:
    """How a network behaves from pass to pass, and with other neighbors in the batch.

    `drawn` are the generators that the network draws from, by name; `is_repeatable` is True if fixing them makes its
    output the same in each pass. `noise` and `mixing` are the relative changes of the output from pass to pass and with
    other neighbors. `mixing` is None if unknown. `takes_one_row` is False if the network does not accept one image.
    `reads` is the operation by which the network reads values of the image, and may decide by them; `misplaced` is a
    layer whose rows are not those of the batch in order. Both are empty if there is none.
    """

    drawn: frozenset[str] = frozenset()
    is_repeatable: bool = True
    noise: float = 0.0
    mixing: float | None = None
    takes_one_row: bool = True
    reads: str = ""
    misplaced: str = ""

    @property
    def is_stochastic(self) -> bool:
        """Whether the output for an image changes from pass to pass."""
        return bool(self.drawn) or not self.is_repeatable

    @property
    def needs_single_rows(self) -> bool:
        """Whether a batch gives other results than its images one by one."""
        return bool(self.drawn or not self.is_repeatable or self.mixing or self.reads or self.misplaced)


Look = Callable[[nn.Module, Tensor], tuple[Any, str]]
"""Runs a network on one image, and returns the output and the operation by which it reads values of the image."""


def watch(network: nn.Module, batch: Tensor) -> tuple[Any, str]:
    """Return the output for a batch, and the first operation by which the network reads its values, if any."""
    given, decisions = batch.clone(), Decisions()
    with decisions.watch(given):
        output = network(given)
    return output, next(iter(decisions.reads), "")


class FirstPass(NamedTuple):
    """The first pass of a network: its batch, the output, the operation by which it reads values of the image, and the
    states of the generators before it.
    """

    batch: Tensor
    output: Any
    reads: str
    generators: Generators
    before: States


def probe(network: nn.Module, images: Tensor, look: Look, *, several: bool) -> Behavior | FirstPass:
    """Return the behavior of an ordinary network, or what the first pass has shown of another one.

    Set `several` if the call runs several rows together.
    """
    generators = Generators(network, images.device)
    layers = LayerRows(network, kernel_tolerance(images.dtype)) if several else None
    with torch.inference_mode(False), torch.no_grad():
        before, start = generators.save(), generators.states()
        try:
            with nullcontext() if layers is None else layers.record():
                batch, output, reads = _first_pass(network, images, look)
        except BaseException:
            with generators.restored(before):
                raise
        if len(batch) == 1 and not reads and generators.states() == start:
            if layers is None:
                is_same = not differ(output, network(batch.clone()))
            else:
                is_same = has_own_rows(network, batch[0], output, layers)
            if is_same and generators.states() == start:
                return Behavior(mixing=0.0 if several else None)
    return FirstPass(batch, output, reads, generators, before)


def has_own_rows(network: nn.Module, image: Tensor, alone: Any, layers: LayerRows) -> bool:
    """Return whether an image among others has the same output and layers as alone, up to rounding.

    It is the second of four, between two equal images that are much larger, and before one that is much smaller. So no
    order leaves all of them where they are: not a sorted or reversed one, or one that exchanges pairs or halves. False
    also if the network does not accept such a batch.
    """
    noise = noise_like(image)
    larger, smaller = 10 * image.flip(-1) + 0.1 * noise, 0.1 * image.flip(-2) + 0.01 * noise
    try:
        with layers.compare(1, 4, equal=(0, 2)):
            output = network(torch.stack([larger, image, larger, smaller]))
    except Exception:  # the complete check finds out why
        return False
    one, own, equal, known = *(row_of(output, k, 4) for k in range(3)), row_of(alone, 0, 1)
    if not known or len(known) != len(own) or layers.misplaced:
        return False
    return max(difference(known, own), difference(one, equal)) <= tolerance(alone)


def noise_like(image: Tensor) -> Tensor:
    """Return noise as large as the image, always the same, and of size 1 for a black image."""
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(image.shape, generator=generator, dtype=torch.float32).to(image)
    size = image.abs().max()
    return (size if size > 0 else 1) * noise


def kernel_tolerance(dtype: torch.dtype) -> float:
    """Return the relative difference between batches of different sizes above which outputs are different."""
    return _OTHER_KERNELS.get(dtype, 0.05)


def _first_pass(network: nn.Module, images: Tensor, look: Look) -> tuple[Tensor, Any, str]:
    """Return the first image, its output, and how the network reads it; with all images if it does not accept one.

    A network that always returns the rows of the whole batch does not accept one either.
    """
    batch, count = images[:1].detach().clone(), len(images)
    try:
        output, reads = look(network, batch)
        if count == 1 or is_listed(output, 1) or not all(shape[:1] == (count,) for shape in shapes_of(output)):
            return batch, output, reads
    except Exception as error:
        if len(images) == 1 or is_out_of_memory(error):
            raise
    batch = images.detach().clone()
    return batch, *watch(network, batch)
