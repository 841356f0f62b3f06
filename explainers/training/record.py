"""Recording gradients while something trains: `record_gradients`, which fills a `GradientLog`."""

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
    """Record figures of every gradient that reaches parameters, or tensors of any kind, in each step of a training run.

    Of a model all parameters that require grad are recorded (`patterns`: only those whose dotted name one of them
    matches), and the outputs of the layers named in `activations`. Tensors are given by name or in a row, leaves or
    intermediate ones. `histograms` is a number of bins, 0 for none; `every` 10 records steps 0, 10, 20 ...

    A step ends when the log's `step()` is called, or by itself as soon as a gradient that was already recorded in
    it arrives a second time: one backward pass is one step. Where several passes make one step of the optimiser,
    each is a step of the log. What is recorded is the gradient of this pass, as blocks entered earlier have changed it.

    Returns  a `GradientLog` of at most `limit` rows, complete when the block is left, and still readable after it
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
        raise BadOption("activations are layers of a model, and tensors were given. Give the model itself.")
    tensors = _chosen(gather(model_or_tensors), patterns) if model is None or _learns(model, activations) else {}
    kinds = {name: "parameter" if isinstance(each, nn.Parameter) else "tensor" for name, each in tensors.items()}
    layers = [find_hook_point(model, layer).name for layer in activations] if model is not None else []
    log = GradientLog(tuple(statistics), limit, (*tensors, *layers))

    def see(name: str, call: int | None, gradient: Tensor) -> None:
        kind = "activation" if call is not None else kinds[name]
        log.see(name, call, kind, gradient, histograms=histograms, every=every)

    with watch_gradients(tensors, see, model=None if model is None else model_or_tensors, layers=layers):  # type: ignore[arg-type]
        try:
            yield log
        finally:
            _ = log.rows  # brings what waits on the device


def _learns(model: nn.Module, activations: Sequence[LayerName]) -> bool:
    """A frozen model may still be asked for its activations."""
    return not activations or any(each.requires_grad for each in model.parameters())


def _chosen(tensors: dict[str, Tensor], patterns: str | Sequence[str] | None) -> dict[str, Tensor]:
    if patterns is None:
        return tensors
    wanted = {
        name
        for pattern in ([patterns] if isinstance(patterns, str) else patterns)
        for name in matching_names(pattern, tensors)
    }
    return {name: each for name, each in tensors.items() if name in wanted}


def _check(statistics: Sequence[str], histograms: int, every: int, limit: int) -> None:
    for name in statistics:
        if isinstance(statistics, str) or name not in STATISTICS:
            given = statistics if isinstance(statistics, str) else name
            raise BadOption(
                f"statistics={given!r} is not possible. {nearest(str(given), STATISTICS)}Give some of {STATISTICS}."
            )
    for word, number, least in (("histograms", histograms, 0), ("every", every, 1), ("limit", limit, 1)):
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise BadOption(f"{word}={number!r} is not possible. Give a whole number of at least {least}.")
