"""How a network treats the rows of a batch: found out once per model, and kept for its lifetime.

A network that draws random numbers, decides by the image, or combines rows runs row by row for the rest of the call.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from explainers.call.view import EvalView
from explainers.hooks.locate import Wrapper
from explainers.probe.behavior import Behavior, Look, probe, watch

_PLAIN = {bool, int, float, str}

_known: weakref.WeakKeyDictionary[nn.Module, dict[Any, Any]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_MOST_KINDS = 256


def run_rows_correctly(view: EvalView, images: Tensor, several: bool, look: Look = watch) -> None:
    """Replace the view's network by a `RowByRow` if its results would otherwise depend on the batch or on chance.

    Set `several` if the call runs more than one row together. `look` runs the first pass.

    Errors   UnsupportedModel if the network needs this but does not accept a single image
    """
    if not view.is_row_by_row:
        found = _behavior(view, images, several, look)
        if found is None or not found.needs_single_rows:
            if found is not None and view.snapshot is not None and len(view.snapshot.ordinary) < _MOST_KINDS:
                view.snapshot.ordinary.add((several, images.shape[1:], images.dtype, images.device))
            return
        from explainers.unusual.rows import run_alone  # only for networks that are not ordinary

        view.network = run_alone(view.network, images, found)
        view.decides, view.is_row_by_row = bool(found.reads), True
    from explainers.unusual.rows import note_behavior  # only for networks that are not ordinary

    note_behavior(view.network)


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
        if not several or found is None or not found.needs_single_rows:
            found, complete = _find(view.network, images, several, look, found)
    except Exception:  # the passes of the call itself raise the error that the user should see
        view.known.pop("traced", None)
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


def _find(
    network: nn.Module, images: Tensor, several: bool, look: Look, known: Behavior | None
) -> tuple[Behavior, Behavior | None]:
    """Return what one image shows about a network, and with `several` what batches of such images show too."""
    first = probe(network, images, look, several=several)
    if isinstance(first, Behavior):
        return known or replace(first, mixing=None), first if several else None
    from explainers.unusual.causes import check_rows, find_behavior  # only for networks that are not ordinary

    found = known or find_behavior(network, images, first)
    if not several:
        return found, None
    return found, found if found.needs_single_rows else check_rows(network, images, found)


def _watched(model: nn.Module) -> list[weakref.ref[nn.Module]]:
    """Return the modules whose attributes may change how they run: the network's own classes, and batch norms."""
    found = (m for m in model.modules() if isinstance(m, _BatchNorm) or not type(m).__module__.startswith("torch.nn."))
    return [weakref.ref(module) for module in found if not isinstance(module, Wrapper)]


def _flags(watched: list[weakref.ref[nn.Module]]) -> tuple[Any, ...]:
    """Return the plain attributes of the modules, for the cache."""
    flags: list[Any] = []
    for table in (vars(module) for reference in watched if (module := reference()) is not None):
        if "track_running_stats" in table:
            flags.append(table["_buffers"].get("running_mean") is None)
        else:
            flags += [value for value in table.values() if type(value) in _PLAIN]
    return tuple(flags)
