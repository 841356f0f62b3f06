"""What an `Explanation` says about its maps, for the verdict on each of them."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from explainers.findings import Finding
from explainers.probabilities import score_unit
from explainers.registry import METHODS, Method
from explainers.verdict.facts import Facts


class Explained(Protocol):
    """The parts of an `Explanation` that its verdicts follow from."""

    @property
    def method(self) -> str: ...
    @property
    def options(self) -> dict[str, Any]: ...
    @property
    def map(self) -> Tensor: ...
    @property
    def scores(self) -> Tensor | None: ...
    @property
    def score(self) -> str | None: ...
    @property
    def probabilities(self) -> Tensor | None: ...
    @property
    def statistics(self) -> list[dict[str, Any]]: ...
    @property
    def findings(self) -> list[list[Finding]]: ...
    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...


def facts_of(explanation: Explained, index: int) -> Facts:
    """Return the facts about the map of one image that need no further passes of the network."""
    method, plane = METHODS.get(explanation.method), explanation.map[index].detach()
    is_finite = bool(plane.isfinite().all())
    statistics = explanation.statistics[index] if index < len(explanation.statistics) else {}
    findings = explanation.findings[index] if index < len(explanation.findings) else []
    probabilities = explanation.probabilities
    correlation = next((f.facts.get("correlation") for f in findings if f.code == "class_insensitive"), None)
    known = probabilities is not None and probabilities.ndim == 2
    shares = tuple(probabilities[index].tolist()) if known and probabilities is not None else ()
    return Facts(
        is_control=method is not None and method.family == "control",
        has_planes=method is not None and (method.planes or not method.gives_map),
        is_finite=is_finite,
        range=(float(plane.min()), float(plane.max())) if is_finite and plane.numel() else (math.nan, math.nan),
        total=size_of(method, plane),
        adds_up=method is None or _adds_up(method),
        score=_scale(statistics.get("target_score"), explanation.scores, index),
        unit=score_unit(explanation.score),
        done=explanation.done,
        planned=explanation.total,
        samples=samples_of(method, explanation.options, explanation.total),
        stability=statistics.get("stability"),
        reads_class=method is None or method.reads_class,
        correlation=correlation,
        caution="" if method is None else method.caution,
    ).with_probabilities(shares, explanation.score)


def _adds_up(method: Method) -> bool:
    """Return whether the values of a map add up: not those of RISE, each of which is a difference of mean scores."""
    return not (method.family == "perturbation" and method.unit == "logit")


def size_of(method: Method | None, plane: Tensor) -> float | None:
    """Return the size of a map in the unit of the score: the sum of its magnitudes, or its largest one.

    Gradients are the change of the score if every value of the input changes by one unit. None for maps in other units,
    such as shares.
    """
    if method is None or "logit" not in method.unit or not plane.numel():
        return None
    sizes = plane.abs().to("cpu", torch.float64)
    if not _adds_up(method):
        return float(sizes.max())
    total = float(sizes.sum())
    return math.sqrt(total) if method.unit.startswith("squared") else total


def _scale(target_score: float | None, scores: Tensor | None, index: int) -> float | None:
    """Return the size of the score: its magnitude, or the standard deviation of all scores if it is larger."""
    if target_score is None or not math.isfinite(target_score):
        return None
    spread = 0.0
    if scores is not None and scores.ndim == 2 and scores.shape[1] > 1:
        spread = float(scores[index].detach().double().std())
    return max(abs(target_score), spread if math.isfinite(spread) else 0.0)


def samples_of(method: Method | None, options: dict[str, Any], total: int) -> str:
    """Return what the samples of a method are, such as "random masks", if its options say it."""
    for name in ("samples", "steps"):
        if method is not None and name in method.options and options.get(name) == total:
            return method.options[name].help.partition(";")[0].partition(":")[0]
    return "samples"
