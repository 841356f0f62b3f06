"""The fields of an `Explanation`, and what they say about its maps, for the verdict on each of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explainers.call.method import Method
from explainers.findings import Finding
from explainers.placement import Placements, place
from explainers.probabilities import probabilities_of, score_unit
from explainers.registry import METHODS
from explainers.verdict.facts import Facts
from explainers.verdict.rules import Verdict, judge_facts


@dataclass(frozen=True, eq=False)
class Explained:
    """The fields of an `Explanation`, which describes them, and what follows from them alone."""

    method: str
    layer: str | None
    target: list[int] | str | None
    options: dict[str, Any]
    map: Tensor
    raw: Tensor
    scores: Tensor | None
    statistics: list[dict[str, Any]]
    findings: list[list[Finding]]
    seconds: float
    keywords: dict[str, Any] | None = None
    score: str | None = None
    device: str = "cpu"
    images: Tensor | None = None
    done: int = 1
    total: int = 1
    placement: Placements = None

    @property
    def is_complete(self) -> bool:
        """Whether the method computed all samples; if not, the finding `stopped_early` says why."""
        return self.done >= self.total

    @property
    def probabilities(self) -> Tensor | None:
        """The probabilities [N, K] of the classes, or None if the scores are unknown or have no probabilities."""
        return None if self.scores is None else probabilities_of(self.scores, self.score)

    @property
    def placed(self) -> Tensor:
        """The map on a grid that covers the image evenly, as it is drawn: `place(map, placement)`."""
        return place(self.map, self.placement)

    @property
    def verdicts(self) -> list[Verdict]:
        """What the numbers of each map support without tests; `judge` adds those of `evaluate`."""
        return [judge_facts(self.facts(index)) for index in range(len(self.map))]

    def facts(self, index: int) -> Facts:
        """Return what is known about the map of one image without further passes of the network."""
        method, plane = METHODS.get(self.method), self.map[index].detach()
        is_finite = bool(plane.isfinite().all())
        statistics = self.statistics[index] if index < len(self.statistics) else {}
        findings = self.findings[index] if index < len(self.findings) else []
        probabilities = self.probabilities
        correlation = next((f.facts.get("correlation") for f in findings if f.code == "class_insensitive"), None)
        shares = () if probabilities is None or probabilities.ndim != 2 else tuple(probabilities[index].tolist())
        return Facts(
            is_control=method is not None and method.family == "control",
            has_planes=method is not None and (method.planes or not method.gives_map),
            is_finite=is_finite,
            range=(float(plane.min()), float(plane.max())) if is_finite and plane.numel() else (math.nan, math.nan),
            total=size_of(method, plane),
            adds_up=method is None or _adds_up(method),
            score=_scale(statistics.get("target_score"), self.scores, index),
            unit=score_unit(self.score),
            done=self.done,
            planned=self.total,
            samples=samples_of(method, self.options, self.total),
            stability=statistics.get("stability"),
            reads_class=method is None or method.reads_class,
            correlation=correlation,
            caution="" if method is None else method.caution,
        ).with_probabilities(shares, self.score)

    @property
    def by_size(self) -> bool:
        """Whether drawings show magnitudes: a gradient for each pixel, from a method in METHODS."""
        known = METHODS.get(self.method)
        return known is not None and known.by_size


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
    several = scores is not None and scores.ndim == 2 and scores.shape[1] > 1
    spread = float(scores[index].detach().double().std()) if several and scores is not None else 0.0
    return max(abs(target_score), spread if math.isfinite(spread) else 0.0)


def samples_of(method: Method | None, options: dict[str, Any], total: int) -> str:
    """Return what the samples of a method are, such as "random masks", if its options say it."""
    for name in ("samples", "steps"):
        if method is not None and name in method.options and options.get(name) == total:
            return method.options[name].help.partition(";")[0].partition(":")[0]
    return "samples"
