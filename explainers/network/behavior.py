"""Checks, once per model, whether a network draws random numbers, and whether the rows of a batch affect each other.

Two passes of one image show whether it draws random numbers: the state of a generator or the output changes. Two passes
of a few rows, of which only the others differ, show whether an image's output depends on its neighbors in the batch.
Both have the same number of rows, so that they use the same kernels and the outputs of independent rows do not differ
by rounding. The second check only runs if a call runs several rows together. A network that fails either check runs
row by row for the rest of the call (row_by_row.py), and a finding reports it.
"""

from __future__ import annotations

import math
import threading
import weakref
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import UnsupportedModel, is_out_of_memory
from explainers.findings import note_finding
from explainers.hooks.records import map_tensors
from explainers.network.eval_view import EvalView
from explainers.network.generators import SEED, Generators
from explainers.network.row_by_row import RowByRow, row_by_row

SAME = 1e-4
"""Relative difference between outputs of the same image, above which they are different."""
_ANOTHER_KERNEL = {torch.float16: 0.5, torch.bfloat16: 0.5}
"""The same for another number of rows, by dtype: 0.05 for the others, since TF32 and other kernels round differently."""


@dataclass(frozen=True)
class Behavior:
    """What the passes of one image and of its neighbors showed.

    `drawn` are the generators that the network draws from, by name; `is_repeatable` is True if fixing them makes its
    output the same in each pass. `noise` and `mixing` are the relative changes of the output from pass to pass and with
    other neighbors. `mixing` is None if unknown. `takes_one_row` is False if the network only accepts other batch sizes.
    """

    drawn: frozenset[str] = frozenset()
    is_repeatable: bool = True
    noise: float = 0.0
    mixing: float | None = None
    takes_one_row: bool = True

    @property
    def is_stochastic(self) -> bool:
        return bool(self.drawn) or not self.is_repeatable

    @property
    def mixes_rows(self) -> bool:
        return bool(self.mixing)


_known: weakref.WeakKeyDictionary[nn.Module, dict[Any, Behavior]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def run_rows_correctly(view: EvalView, images: Tensor, several: bool) -> None:
    """Replace the view's network by a `RowByRow` if its results would otherwise depend on the batch or on chance.

    Set `several` if the call runs more than one row together.

    Errors   UnsupportedModel if the network needs this but does not accept a single image
    """
    if isinstance(view.network, RowByRow):
        return
    found = _behavior(view, images, several)
    if found is None or not (found.is_stochastic or found.mixes_rows):
        return
    name = type(view.network).__name__
    if not found.takes_one_row:
        what = "draws random numbers" if found.is_stochastic else "combines the images of a batch"
        raise UnsupportedModel(
            f"This {name} {what}, so the result for an image depends on its batch, and it fails for a single image of "
            f"the {len(images)}. Make its forward pass accept one image, or remove the cause."
        )
    generators = Generators(view.network, images.device, found.drawn) if found.drawn else None
    view.network = row_by_row(view.network, generators)
    if found.is_stochastic:
        _note_stochastic(name, found)
    else:
        note_finding(
            "rows_depend",
            f"The output of this {name} for an image depends on the other images of the batch: other neighbors change "
            f"it by {found.mixing:.2g} of its size. Every image and every variant of it was therefore run alone, which "
            "is slower. Check the forward pass for operations over the batch dimension (max, mean, batch statistics).",
            mixing=found.mixing,
        )


def _note_stochastic(name: str, found: Behavior) -> None:
    if found.is_repeatable:
        sentence = (
            f"This {name} draws random numbers in evaluation mode, which changes its output by {found.noise:.2g} of "
            f"its size from pass to pass. Every pass of this call used the same random numbers (seed {SEED}), one image "
            "at a time, so the map explains one sample of the noise. Switch the randomness off in the network, for "
            "example dropout with training=True, to explain the network without noise."
        )
    else:
        sentence = (
            f"The output of this {name} for the same image changes by {found.noise:.2g} of its size from pass to pass, "
            "also with fixed seeds, so the result contains noise and cannot be reproduced. Remove what changes (a "
            "counter, the time, a private random generator) from the forward pass, or let it use torch's generator."
        )
    note_finding("stochastic", sentence, noise=found.noise, repeatable=found.is_repeatable)


def _behavior(view: EvalView, images: Tensor, several: bool) -> Behavior | None:
    """Return the cached behavior of the model, after a check if needed; None if the network fails in the check."""
    whose = view.modules, _flags(view.network)
    where = *whose, images.shape[1:], images.dtype, images.device
    with _lock:
        known = _known.get(view.owner, {})
        found, mixing = known.get(whose), known.get(where)
    if mixing is not None or (found is not None and not several):
        return mixing or found
    try:
        found = found or _check_noise(view.network, images)
        if several and not found.is_stochastic:
            mixing = replace(found, mixing=_measure_mixing(view.network, images, found.takes_one_row))
    except Exception:  # the passes of the call itself raise the error that the user should see
        return found
    with _lock:
        known = _known.setdefault(view.owner, {})
        if len(known) >= 32:
            known.clear()
        known[whose] = found
        if several:
            known[where] = mixing or found
    return mixing or found


def _flags(network: nn.Module) -> tuple[Any, ...]:
    """Return the plain attributes of the modules, which change how they run, for the cache."""
    flags: list[Any] = []
    for module in network.modules():
        if type(module).__module__.startswith("torch.nn."):
            flags.append("running_mean" in module._buffers and module._buffers["running_mean"] is None)
        else:
            flags += [value for value in vars(module).values() if type(value) in (bool, int, float, str)]
    return tuple(flags)


def _check_noise(network: nn.Module, images: Tensor) -> Behavior:
    """Run the first image twice, and twice more with fixed seeds if a generator or the output changed."""
    generators = Generators(network, images.device)
    with torch.inference_mode(False), torch.no_grad(), generators.restored() as restored:
        restored.clear()
        states = [generators.states()]
        batch, output = _first_pass(network, images)
        outputs, takes_one_row = [output], len(batch) == 1
        states.append(generators.states())
        outputs.append(network(batch.clone()))
        states.append(generators.states())
        moved = {name for name, state in states[0].items() if state != states[1][name] != states[2][name]}
        if not moved and not _differ(*outputs):
            return Behavior(takes_one_row=takes_one_row)
        fixed = []
        for _ in range(2):
            with generators.fixed():
                fixed.append(generators.states())
                outputs.append(network(batch.clone()))
                fixed.append(generators.states())
        # Another thread may have drawn from a generator, but not the same amount in both passes.
        drawn = {name for name in moved if fixed[0][name] != fixed[1][name] == fixed[3][name]}
        is_repeatable = not _differ(*outputs[2:])
        if not drawn and is_repeatable:
            return Behavior(takes_one_row=takes_one_row)  # only the first pass differs: it fills a cache, for example
        restored.update(drawn)
        noise = max(_difference(_tensors(outputs[0]), _tensors(each)) for each in outputs[1:])
        return Behavior(frozenset(drawn), is_repeatable, noise, takes_one_row=takes_one_row)


def _first_pass(network: nn.Module, images: Tensor) -> tuple[Tensor, Any]:
    """Return the first image and its output, or all images and theirs if the network does not accept a single one."""
    batch = images[:1].detach().clone()
    try:
        return batch, network(batch.clone())
    except Exception as error:
        if len(images) == 1 or is_out_of_memory(error):
            raise
    batch = images.detach().clone()
    return batch, network(batch.clone())


def _measure_mixing(network: nn.Module, images: Tensor, takes_one_row: bool) -> float:
    """Return the relative change of an image's output if its neighbors change, 0 if it is not more than rounding."""
    with torch.inference_mode(False), torch.no_grad():
        first = images[:1].detach().clone()
        if takes_one_row:
            batch, kept = torch.cat([first] * 4), [0, 3]
            neighbors = _neighbors(batch[1:3])
        else:
            batch, kept = images.detach().clone(), [0, -1] if len(images) > 2 else [0]
            neighbors = _neighbors(batch[1:-1] if len(images) > 2 else batch[1:])
        changed = batch.clone()
        changed[1 : 1 + len(neighbors)] = neighbors
        plain, other = network(batch.clone()), network(changed)
        found = [_difference(_row(plain, k, len(batch)), _row(other, k, len(batch))) for k in kept]
        mixing = max(found) if max(found) > _tolerance(plain) else 0.0
        if takes_one_row:
            alone = network(first)
            if _shapes(alone) and _shapes(alone) == _shapes(plain):  # one output for the whole batch
                return 1.0
            by_count = _difference(_row(alone, 0, 1), _row(plain, 0, len(batch)))
            mixing = max(mixing, by_count if by_count > _ANOTHER_KERNEL.get(images.dtype, 0.05) else 0.0)
        return mixing


def _neighbors(rows: Tensor) -> Tensor:
    """Return very different rows: the first is larger, of the other sign and noisy, the others are nearly 0."""
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(rows.shape[1:], generator=generator, dtype=torch.float32).to(rows)
    size = rows[0].abs().max()
    large = -10 * rows[0].flip(-1) + (size if size > 0 else 1) * noise
    return torch.cat([large[None], 0.01 * rows[1:].flip(-2)])


def _row(output: Any, index: int, count: int) -> list[Tensor]:
    """Return the part of an output that belongs to one image of a batch of `count`."""
    if isinstance(output, list) and len(output) == count and all(isinstance(each, dict) for each in output):
        return [tensor[:1] for tensor in _tensors(output[index])]  # the number of detections may depend on rounding
    rows = (tensor for tensor in _tensors(output) if tensor.ndim and len(tensor) and len(tensor) % count == 0)
    return [tensor.unflatten(0, (count, -1))[index] for tensor in rows]


def _tensors(output: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(vars(output) if is_dataclass(output) and not isinstance(output, dict) else output, found.append)
    found = [tensor.dequantize() if tensor.is_quantized else tensor for tensor in found]
    return [tensor for tensor in found if tensor.is_floating_point() or tensor.is_complex()]


def _shapes(output: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in _tensors(output)]


def _differ(output: Any, other: Any) -> bool:
    return _difference(_tensors(output), _tensors(other)) > _tolerance(output)


def _tolerance(output: Any) -> float:
    return max([SAME, *(2 * torch.finfo(tensor.dtype).eps for tensor in _tensors(output))])


def _difference(some: list[Tensor], others: list[Tensor]) -> float:
    """Return the largest relative difference between two lists of tensors; infinite if their shapes differ."""
    largest = 0.0
    for a, b in zip(some, others, strict=False):
        if a.shape != b.shape or not bool((a.isfinite() == b.isfinite()).all()):
            return math.inf
        a, b = (torch.where(each.isfinite(), each, 0).flatten() for each in (a, b))
        wide = torch.complex128 if a.is_complex() else torch.float64
        a, b = (each.to("cpu", wide) for each in (a, b))
        change, size = float((a - b).norm()), float(a.norm())
        largest = max(largest, change / size if size else math.inf if change else 0.0)
    return largest
