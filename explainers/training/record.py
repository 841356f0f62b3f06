"""`record_gradients`: statistics of the gradients during training, in a `GradientLog`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from explainers.errors import BadOption, nearest
from explainers.hooks.edit import watch_gradients
from explainers.hooks.locate import find_hook_point, unwrap
from explainers.options import LayerName
from explainers.training.log import STATISTICS, GradientLog
from explainers.training.parameters import gather, matching_names


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
) -> Iterator[GradientLog]:
    """Record statistics of the gradients of parameters or other tensors in each step of a training run.

    Of a model, all parameters that require grad are recorded (with `patterns`, those whose dotted names match), and the
    outputs of the layers in `activations`. Tensors are given by name or as a sequence, leaves or intermediate ones.
    `histograms` is a number of bins, 0 for none; `every` 10 records steps 0, 10, 20 ...

    A step ends at the log's `step()`, or when a gradient recorded in it is recorded again: one backward pass is one
    step, also where gradients are accumulated over several. What is recorded is the gradient of this pass, as edited by
    blocks entered earlier; where they changed it, the row's `unedited` holds the statistics from before.

    Returns  a `GradientLog` of at most `limit` rows, complete at the end of the block, and readable after it
    Errors   BadOption for an unknown statistic, a number out of range, a pattern that matches nothing (with the three
             nearest names) or tensors that take no gradient; LayerNotFound, UnsupportedModel for `activations`
    Source   torch.Tensor.register_hook

    Example
        >>> with record_gradients(model, patterns="fc.*") as log:
        ...     model(images)[0, 281].backward()
        >>> log.names
        ('fc.weight', 'fc.bias')
    """
    _check(statistics, histograms, every, limit)
    model = unwrap(model_or_tensors) if isinstance(model_or_tensors, nn.Module) else None
    if model is None and activations:
        raise BadOption("activations are layers of a model, but tensors were given. Give the model.")
    tensors = _chosen(gather(model_or_tensors), patterns) if model is None or _learns(model, activations) else {}
    kinds = {name: "parameter" if isinstance(tensor, nn.Parameter) else "tensor" for name, tensor in tensors.items()}
    layers = [find_hook_point(model, layer).name for layer in activations] if model is not None else []
    log = GradientLog(tuple(statistics), limit, (*tensors, *layers))

    def see(name: str, call: int | None, gradient: Tensor, unedited: Tensor) -> None:
        kind = "activation" if call is not None else kinds[name]
        log.see(name, call, kind, gradient, histograms=histograms, every=every, unedited=unedited)

    with watch_gradients(tensors, see, model=None if model is None else model_or_tensors, layers=layers):  # type: ignore[arg-type]
        try:
            yield log
        finally:
            _ = log.rows  # transfers what waits on the device


def _learns(model: nn.Module, activations: Sequence[LayerName]) -> bool:
    """Whether parameters are recorded: of a frozen model, activations alone."""
    return not activations or any(parameter.requires_grad for parameter in model.parameters())


def _chosen(tensors: dict[str, Tensor], patterns: str | Sequence[str] | None) -> dict[str, Tensor]:
    if patterns is None:
        return tensors
    chosen = {
        name
        for pattern in ([patterns] if isinstance(patterns, str) else patterns)
        for name in matching_names(pattern, tensors)
    }
    return {name: tensor for name, tensor in tensors.items() if name in chosen}


def _check(statistics: Sequence[str], histograms: int, every: int, limit: int) -> None:
    for name in statistics:
        if isinstance(statistics, str) or name not in STATISTICS:
            value = statistics if isinstance(statistics, str) else name
            raise BadOption(
                f"statistics={value!r} is not possible. {nearest(str(value), STATISTICS)}Give some of {STATISTICS}."
            )
    for option, number, least in (("histograms", histograms, 0), ("every", every, 1), ("limit", limit, 1)):
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise BadOption(f"{option}={number!r} is not possible. Give an integer of at least {least}.")
