"""Several maps of the same images in one call of `evaluate`: their names, their common target, and their ranking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, Protocol, overload

from torch import Tensor, nn

from explainers.default_targets import CHOSEN
from explainers.errors import BadOption, ExplainerError, shorten
from explainers.explanation.result import Explanation
from explainers.maps.arrays import Arrays
from explainers.metrics.candidates import Maps
from explainers.metrics.evaluation import Evaluation
from explainers.metrics.metric import Metric
from explainers.metrics.recommendation import RankedMap, Recommendation, rank_maps
from explainers.targets import TargetLike

P = ParamSpec("P")


class _Evaluate(Protocol[P]):
    """The type of `evaluate`, whose result depends on the form of `maps`."""

    @overload
    def __call__(
        self, model: nn.Module, images: Tensor, maps: Maps | Arrays, *args: P.args, **keywords: P.kwargs
    ) -> Evaluation: ...

    @overload
    def __call__(
        self, model: nn.Module, images: Tensor, maps: Mapping[str, Maps | Arrays], *args: P.args, **keywords: P.kwargs
    ) -> Recommendation: ...


def overloaded(function: Callable[Concatenate[nn.Module, Tensor, Any, P], Any]) -> _Evaluate[P]:
    """Return the same function, with a result by the form of `maps` for type checkers."""
    return function  # type: ignore[return-value]


def by_name(maps: Any, metrics: Sequence[Metric]) -> Mapping[str, Any]:
    """Return several maps by name; a single one has the name "".

    Errors   BadOption
    """
    if not isinstance(maps, Mapping):
        return {"": maps}
    if not maps or not all(isinstance(name, str) and name for name in maps):
        raise BadOption(f"maps={shorten(maps)} is not valid. Give maps by name: {{'Grad-CAM': cam, 'mine': heat}}.")
    if all(each.higher is None for each in metrics):
        names = " and ".join(each.name for each in metrics)
        raise BadOption(f"{names} cannot rank maps: no direction is better. Add another metric, such as 'deletion'.")
    return maps


@contextmanager
def in_map(name: str) -> Iterator[None]:
    """Put the name of one of several maps in front of the message of an error."""
    try:
        yield
    except ExplainerError as error:
        if not name:
            raise
        raise type(error)(f"maps[{name!r}]: {error}") from error


def rank_evaluations(found: Mapping[str, Evaluation]) -> Recommendation:
    """Rank the evaluations of several maps, with one correction for the number of all comparisons."""
    rows = [RankedMap(name, None, each.seconds, int(each.options["steps"]), each) for name, each in found.items()]
    first = next(iter(found.values()))
    metrics = tuple(first.values)
    return Recommendation(rank_maps(rows, metrics), metrics, target=first.target, seconds=sum(r.seconds for r in rows))


def target_of(maps: Mapping[str, Any], target: TargetLike) -> TargetLike:
    """Return the target of the explanations among the maps, if none is given.

    Errors   BadOption if they have different targets
    """
    known = {name: each for name, each in maps.items() if isinstance(each, Explanation) and each.target is not None}
    if target is not None or not known:
        return target
    first, *others = known
    for name in others:
        if known[name].target != known[first].target:
            raise BadOption(
                f"maps[{first!r}] explains {shorten(known[first].target)} and maps[{name!r}] "
                f"{shorten(known[name].target)}. Give target=, the target of all maps."
            )
    own = known[first]
    if any(finding.code in CHOSEN for findings in own.findings for finding in findings):
        return None  # chosen by the network's output, which gives the same target again
    if isinstance(own.target, str):
        raise BadOption(f"The target of the explanation, {own.target}, is stored only as text. Give target= again.")
    return own.target


def score_of(maps: Mapping[str, Any], score: str) -> str:
    """Return the kind of probability that the explanations among the maps declare, if none is given.

    Errors   BadOption if they declare different ones
    """
    declared = {each.score: name for name, each in maps.items() if isinstance(each, Explanation) and each.score}
    if score != "probability" or not declared:
        return score
    if len(declared) > 1:
        raise BadOption(f"The explanations have different kinds of scores: {', '.join(declared)}. Give score=.")
    return next(iter(declared))
