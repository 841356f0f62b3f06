"""A network under rules must compute what it computes without them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from explainers.call.profile import first_output
from explainers.call.run import Run
from explainers.dtypes import to_float64
from explainers.errors import ExplainerError, UnsupportedOperation, is_out_of_memory, shorten
from explainers.nested import list_tensors
from explainers.probe.differences import row_of

_OTHERS = "Use saliency, smooth_grad or integrated_gradients, which do not need rules."


def refuse_other_output(run: Run, batch: Tensor, output: Any, method: str) -> None:
    """Raise an error if the output under the rules is not the plain output; compared once per size of the images.

    A network that computes gradients inside its forward pass would use the values that the rules propagate.

    Errors   UnsupportedOperation
    """
    checked = {} if run.view.snapshot is None else run.view.snapshot.known.setdefault(refuse_other_output, {})
    key = method, batch.shape[1:], batch.dtype, batch.device
    if key in checked:
        return
    first = first_output(run.view, batch[:1])
    if first is not None and (rows := row_of(first, 0, 1)) and _equal_outputs(run, rows, row_of(output, 0, len(batch))):
        checked[key] = True
        return
    with run.scoring.autocast():
        plain = _plain_output(run, batch)
        is_equal = _equal_outputs(run, plain, output)
        is_repeatable = is_equal or _equal_outputs(run, plain, _plain_output(run, batch))
    if not is_repeatable:
        raise UnsupportedOperation(
            f"The output of this network for the same image changes from pass to pass, even with fixed seeds, so it "
            f"cannot be checked that {method} follows what it computes. Remove the cause from the forward pass (a "
            f"counter, the time, its own random generator). {_OTHERS}"
        )
    if not is_equal:
        raise UnsupportedOperation(
            f"Under the rules of {method}, the network computes another output than without them: its forward pass "
            f"uses gradients, which the rules replace. {_OTHERS}"
        )
    if len(checked) >= 32:
        checked.clear()
    checked[key] = True


def _plain_output(run: Run, batch: Tensor) -> Any:
    """Return the output without rules; a target's `through` keeps what the pass under rules recorded."""
    with torch.no_grad():
        return replace(run.forward, through=None)(batch.clone())


def _equal_outputs(run: Run, one: Any, other: Any) -> bool:
    exact, pairs = run.scoring.precision != "bf16", zip(list_tensors(one), list_tensors(other), strict=False)
    return all(_equal(a, b, exact) for a, b in pairs)


def _equal(one: Tensor, other: Tensor, exact: bool) -> bool:
    """Compare two outputs. Rules may compute an operation by its parts, which rounds differently.

    The shapes of detections depend on rounding; tensors of different shapes are not compared.
    """
    if one.shape != other.shape or not one.is_floating_point():
        return True
    tolerance = 1e-3 if exact and one.dtype in (torch.float32, torch.float64) else 0.05
    one, other = to_float64(one.detach()), to_float64(other.detach())
    finite = one.isfinite() & other.isfinite()
    difference, size = (torch.where(finite, each, 0).norm() for each in (one - other, one))
    return bool(difference <= tolerance * size + 1e-9)


@contextmanager
def refuse_failure(run: Run, method: str) -> Iterator[None]:
    """Raise a clear error if the network fails in the block, but not without the rules.

    Errors   UnsupportedOperation, or the network's own error
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ExplainerError) or is_out_of_memory(error):
            raise
        _plain_output(run, run.images)
        raise UnsupportedOperation(
            f"The network fails under the rules of {method}, which intercept its operations: "
            f"{shorten(str(error).strip().partition(chr(10))[0])}. Its forward pass may compute gradients, or use "
            f"torch.func or compiled code. {_OTHERS}"
        ) from error
