"""`record_gradients` records statistics of gradients during training in a `GradientLog`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import BadOption, nearest, shorten
from explainers.hooks.edit import watch_gradients
from explainers.hooks.locate import find_hook_point, unwrap
from explainers.options import LayerName
from explainers.training.log import STATISTICS, GradientLog
from explainers.training.parameters import Scaler, gather, match_names, not_sharded_inside, scale_of

INSTEAD = (
    "After backward, read parameter.grad.full_tensor(), or for FullyShardedDataParallel read parameter.grad in `with "
    "FullyShardedDataParallel.summon_full_params(model, with_grads=True):`."
)


@contextmanager
def record_gradients(
    model_or_tensors: nn.Module | Mapping[str, Tensor] | Iterable[Any],
    *,
    statistics: Sequence[str] = STATISTICS,
    histograms: int = 0,
    every: int = 1,
    patterns: str | Sequence[str] | None = None,
    activations: Sequence[LayerName] = (),
    limit: int = 100_000,
    scaler: Scaler = None,
) -> Iterator[GradientLog]:
    """Record statistics of the gradients of parameters or other tensors in each step of a training run.

    For a model, all parameters that require grad are recorded (with `patterns`, those whose dotted names match), and
    the outputs of the layers in `activations`. Tensors, leaf or intermediate, are passed by name or as a sequence.
    `histograms` is the number of bins, 0 for no histograms; `every=10` records steps 0, 10, 20 ...

    A step ends when the log's `step()` is called, or when a gradient of the step is recorded again. One backward pass
    is one step, even if gradients are accumulated over several. The gradient of this pass is recorded, including the
    edits of blocks entered earlier; if they changed it, the row's `unedited` contains the statistics before the edits.
    If the loss is scaled, pass the GradScaler as `scaler`: the unscaled gradients are recorded.

    Under DistributedDataParallel, the averaged gradients of parameters are recorded, so every process has the same
    rows. Gradients of `activations` are those of the process's own images.

    Returns  a `GradientLog` of at most `limit` rows; it is complete at the end of the block and can be read later
    Errors   BadOption for an unknown statistic, a number out of range, a pattern without a match (with the three
             nearest names), tensors that do not require grad, sharded parameters, or a missing `scaler` (also raised by
             the backward pass); LayerNotFound, UnsupportedModel for `activations`
    Source   torch.Tensor.register_hook

    Example
        >>> with record_gradients(model, patterns="fc.*") as log:
        ...     model(images)[0, 281].backward()
        >>> log.names
        ('fc.weight', 'fc.bias')
    """
    _check(statistics, histograms, every, limit)
    scale = scale_of(scaler, "record_gradients")
    model = unwrap(model_or_tensors) if isinstance(model_or_tensors, nn.Module) else None
    if model is None and activations:
        raise BadOption("activations needs a model, but tensors were passed. Pass the model.")
    tensors = {}
    # The parameters of a frozen model are not recorded if there are `activations`.
    if model is None or not activations or any(parameter.requires_grad for parameter in model.parameters()):
        tensors = gather(model_or_tensors, INSTEAD)
    if tensors and patterns is not None:
        listed = [patterns] if isinstance(patterns, str) else patterns
        chosen = {name for pattern in listed for name in match_names(pattern, tensors)}
        tensors = {name: tensor for name, tensor in tensors.items() if name in chosen}
    kinds = {name: "parameter" if isinstance(tensor, nn.Parameter) else "tensor" for name, tensor in tensors.items()}
    layers = [find_hook_point(model, layer).name for layer in activations] if model is not None else []
    log = GradientLog(tuple(statistics), limit, (*tensors, *layers))

    def record(name: str, call: int | None, gradient: Tensor, unedited: Tensor) -> None:
        kind = "activation" if call is not None else kinds[name]
        divisor = scale(gradient)
        if isinstance(divisor, Tensor):
            same = unedited is gradient
            gradient = _unscaled(gradient, divisor)
            unedited = gradient if same else _unscaled(unedited, divisor)
        log.record(name, call, kind, gradient, histograms=histograms, every=every, unedited=unedited)

    with (
        not_sharded_inside(model_or_tensors, INSTEAD),
        watch_gradients(tensors, record, model=None if model is None else model_or_tensors, layers=layers),  # type: ignore[arg-type]
    ):
        try:
            yield log
        finally:
            _ = log.rows  # transfers the waiting rows


def _unscaled(gradient: Tensor, scale: Tensor) -> Tensor:
    half = gradient.dtype in (torch.float16, torch.bfloat16)  # small gradients would become zero
    return (gradient.float() if half else gradient) / scale


def _check(statistics: Sequence[str], histograms: int, every: int, limit: int) -> None:
    for name in statistics:
        if isinstance(statistics, str) or name not in STATISTICS:
            value = statistics if isinstance(statistics, str) else name
            raise BadOption(
                f"Unknown statistics={shorten(value)}. {nearest(str(value), STATISTICS)}Choose from {STATISTICS}."
            )
    for option, number, least in (("histograms", histograms, 0), ("every", every, 1), ("limit", limit, 1)):
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise BadOption(f"Invalid {option}={shorten(number)}. Pass an integer of at least {least}.")
