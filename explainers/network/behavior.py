"""Checks, once per model, whether a network draws random numbers, decides by the image, or combines rows of a batch.

Two passes decide about an ordinary network. The first one runs one image, and shows whether the network reads values of
it, by which it may decide (decisions.py). The second one runs the image again, among other images if the call runs
several rows together. If a state of a generator or the output for the image changes, or a layer's row is not in its
place, more passes show what the cause is (rows/check_rows.py). The network then runs row by row for the rest of the
call (rows/row_by_row.py), and a finding reports it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from explainers.errors import UnsupportedModel, is_out_of_memory
from explainers.findings import note_finding
from explainers.network.decisions import Decisions
from explainers.network.rows.check_rows import check_rows, has_own_rows, kernel_tolerance
from explainers.network.rows.differences import differ, difference, is_listed, shapes_of, tensors_of
from explainers.network.rows.generators import SEED, Generators
from explainers.network.rows.layer_rows import LayerRows
from explainers.network.rows.row_by_row import Behavior, RowByRow, row_by_row
from explainers.network.view import EvalView

_PLAIN = {bool, int, float, str}

_known: weakref.WeakKeyDictionary[nn.Module, dict[Any, Any]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_MOST_KINDS = 256


Look = Callable[[nn.Module, Tensor], tuple[Any, str]]
"""Runs a network on one image, and returns the output and the operation by which it reads values of the image."""


def watch(network: nn.Module, batch: Tensor) -> tuple[Any, str]:
    """Return the output for a batch, and the first operation by which the network reads its values, if any."""
    given, decisions = batch.clone(), Decisions()
    with decisions.watch(given):
        output = network(given)
    return output, next(iter(decisions.reads), "")


def run_rows_correctly(view: EvalView, images: Tensor, several: bool, look: Look = watch) -> None:
    """Replace the view's network by a `RowByRow` if its results would otherwise depend on the batch or on chance.

    Set `several` if the call runs more than one row together. `look` runs the first pass.

    Errors   UnsupportedModel if the network needs this but does not accept a single image
    """
    if not isinstance(view.network, RowByRow):
        found = _behavior(view, images, several, look)
        if found is None or not found.needs_single_rows:
            if found is not None and view.snapshot is not None and len(view.snapshot.ordinary) < _MOST_KINDS:
                view.snapshot.ordinary.add((several, images.shape[1:], images.dtype, images.device))
            return
        _refuse_without_single_rows(view.network, found, len(images))
        view.network, view.decides = _alone(view.network, images, found), bool(found.reads)
        view.is_row_by_row = True
    _note(type(view.network).__name__, view.network.behavior)


def note_reads(view: EvalView, reads: str) -> None:
    """Note that the network reads values of an image, if the first check has not shown it, as for images of one size.

    `reads` is the operation.
    """
    with _lock:
        known = _known.setdefault(view.owner, {})
        for key, found in known.items():
            if isinstance(found, Behavior):
                known[key] = replace(found, reads=found.reads or reads)
    if view.snapshot is not None:
        view.snapshot.ordinary.clear()


def _alone(network: nn.Module, images: Tensor, found: Behavior) -> RowByRow:
    if not found.reads:
        generators = Generators(network, images.device, found.drawn) if found.drawn else None
        return row_by_row(network, generators, found)
    # Whether it draws random numbers may depend on the image, so all generators are fixed, and the draws reported.
    drawing = replace(found, drawn=frozenset({"any"}), noise=0.0)
    note_draw = partial(_note_stochastic, type(network).__name__, drawing)
    return row_by_row(network, Generators(network, images.device), found, note_draw)


def _refuse_without_single_rows(network: nn.Module, found: Behavior, count: int) -> None:
    if not found.takes_one_row:
        does = (
            "decides by the values of its images"
            if found.reads
            else "draws random numbers"
            if found.is_stochastic
            else "combines the images of a batch"
        )
        raise UnsupportedModel(
            f"This {type(network).__name__} {does}, so the result for an image depends on its batch of {count}, but it "
            "does not accept a single image. Change its forward pass so that it accepts one image, or remove the cause."
        )


def _note(name: str, found: Behavior) -> None:
    if found.reads:
        _note_reads(name, found)
    elif found.is_stochastic:
        _note_stochastic(name, found)
    elif found.misplaced:
        _note_misplaced(name, found)
    else:
        _note_mixing(name, found)


def _note_reads(name: str, found: Behavior) -> None:
    note_finding(
        "decides_by_image",
        f"The forward pass of this {name} reads values of the image ({found.reads}), so it may run other operations "
        "for another image or for a variant of the image. Therefore layers and positions were determined for each "
        "image, and each image and each of its variants ran in a batch of its own, which is slower. Gradients do not "
        "include the decision itself.",
        reads=found.reads,
    )
    if not found.is_repeatable:
        _note_stochastic(name, found)


def _note_misplaced(name: str, found: Behavior) -> None:
    note_finding(
        "rows_depend",
        f"Layer {found.misplaced!r} of this {name} does not run on the images of a batch in order: the network "
        "reorders them, runs the layer on some of them, or runs it for each one. Therefore each image and each of its "
        "variants ran in a batch of its own, which is slower.",
        layer=found.misplaced,
    )


def _note_mixing(name: str, found: Behavior) -> None:
    note_finding(
        "rows_depend",
        f"The output of this {name} for an image depends on the other images in the batch, which changed it by "
        f"{_percent(found.mixing)} in a test. Therefore each image and each of its variants ran in a batch of its own, "
        "which is slower. Check the forward pass for operations over the batch dimension (maximum, mean, batch "
        "statistics).",
        mixing=found.mixing,
    )


def _note_stochastic(name: str, found: Behavior) -> None:
    by = f"by {_percent(found.noise)} from pass to pass"
    if found.is_repeatable:
        sentence = (
            f"This {name} draws random numbers in evaluation mode, which "
            f"{f'changes its output {by}' if found.noise else 'may change its output'}. All passes of this call used "
            f"the same random numbers (seed {SEED}), one image at a time, so the result is reproducible but describes "
            "only one sample of the noise. To explain the network without noise, turn it off in the forward pass "
            "(dropout with training=True, randn_like, random masks)."
        )
    else:
        sentence = (
            f"The output of this {name} for the same image changes {by}, even with fixed seeds, so the result contains "
            "noise and is not reproducible. Remove the cause from the forward pass (a counter, the time, a random "
            "generator of its own), or draw from torch's global generator."
        )
    note_finding("stochastic", sentence, noise=found.noise, is_repeatable=found.is_repeatable)


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0):.2g}%"


def _behavior(view: EvalView, images: Tensor, several: bool, look: Look) -> Behavior | None:
    """Return the cached behavior of the model, after a check if needed; None if the network fails in the check."""
    where = images.shape[1:], images.dtype, images.device
    with _lock:
        known = _known.get(view.owner, {})
        watched = known[view.modules] if view.modules in known else _watched(view.owner)
        flags = _flags(watched)
        key = view.modules, None if (view.modules, None) in known else flags
        found, complete = known.get(key), known.get((*key, *where))
    if complete is not None or (found is not None and not several):
        return complete or found
    try:
        if several and (found is None or not found.needs_single_rows):
            first = _check(view.network, images, look, several=True)
            complete = first if first.mixing is not None or first.needs_single_rows else None
            found = found or replace(first, mixing=None)
            complete = complete or check_rows(view.network, images, found)
        else:
            found = found or _check(view.network, images, look, several=False)
            complete = found if several else None
    except Exception:  # the passes of the call itself raise the error that the user should see
        return found
    if _flags(watched) != flags:
        key = view.modules, None  # a network that counts its passes, for example, is checked only once
    with _lock:
        known = _known.setdefault(view.owner, {})
        if len(known) >= 32:
            known.clear()
        known[view.modules], known[key] = watched, found
        if complete is not None:
            known[(*key, *where)] = complete
    return complete or found


def _watched(model: nn.Module) -> list[weakref.ref[nn.Module]]:
    """Return the modules whose attributes may change how they run: the network's own classes, and batch norms."""
    found = (m for m in model.modules() if isinstance(m, _BatchNorm) or not type(m).__module__.startswith("torch.nn."))
    return [weakref.ref(module) for module in found if not getattr(type(module), "wraps_inner", False)]


def _flags(watched: list[weakref.ref[nn.Module]]) -> tuple[Any, ...]:
    """Return the plain attributes of the modules, for the cache."""
    flags: list[Any] = []
    for table in (vars(module) for reference in watched if (module := reference()) is not None):
        if "track_running_stats" in table:
            flags.append(table["_buffers"].get("running_mean") is None)
        else:
            flags += [value for value in table.values() if type(value) in _PLAIN]
    return tuple(flags)


def _check(network: nn.Module, images: Tensor, look: Look, *, several: bool) -> Behavior:
    """Run the first image twice, and more often if a generator or the output changed.

    With `several`, the second pass runs the image among others; its `mixing` is 0 if that changes nothing, else None.
    """
    generators = Generators(network, images.device)
    layers = LayerRows(network, kernel_tolerance(images.dtype)) if several else None
    with torch.inference_mode(False), torch.no_grad(), generators.restored() as restored:
        restored.clear()
        states = [generators.states()]
        with nullcontext() if layers is None else layers.record():
            batch, output, reads = _first_pass(network, images, look)
        takes_one_row = len(batch) == 1
        states.append(generators.states())
        if layers is not None and takes_one_row and not reads and states[0] == states[1]:
            if has_own_rows(network, batch[0], output, layers) and generators.states() == states[1]:
                return Behavior(mixing=0.0)
            states = [states[0], generators.states()]  # by another batch too, which does not matter below
        outputs = [output, network(batch.clone())]
        states.append(generators.states())
        moved = {name for name, state in states[0].items() if state != states[1][name] != states[2][name]}
        if not moved and not differ(*outputs):
            return Behavior(takes_one_row=takes_one_row, reads=reads)
        fixed = []
        for _ in range(2):
            with generators.fixed():
                fixed.append(generators.states())
                outputs.append(network(batch.clone()))
                fixed.append(generators.states())
        # Another thread may have drawn from a generator, but not the same amount in both passes.
        drawn = {name for name in moved if fixed[0][name] != fixed[1][name] == fixed[3][name]}
        is_repeatable = not differ(*outputs[2:])
        if not drawn and is_repeatable:
            # Only the first pass differs: it fills a cache, for example.
            return Behavior(takes_one_row=takes_one_row, reads=reads)
        restored.update(drawn)
        noise = max(difference(tensors_of(outputs[0]), tensors_of(each)) for each in outputs[1:])
        return Behavior(frozenset(drawn), is_repeatable, noise, takes_one_row=takes_one_row, reads=reads)


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
